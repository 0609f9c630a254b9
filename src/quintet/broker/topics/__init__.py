"""Holds topics and reads them: the catalog, reads, seeks, filters, long polls. No rights, no consumers."""
