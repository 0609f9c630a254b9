"""Topics and what is read from them: the catalog, internal tables, reads, filters, subscriptions. No rights, no groups."""
