"""The Arrow Flight door: topics as record batches, for Spark and for any Arrow client. See README.md here."""
