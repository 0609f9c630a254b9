"""Topics and what is read from them: the catalog, reads, seeks, filters, long polls. No rights, no consumers."""
