"""The admin door: health and metrics over HTTP. It asks the broker through the two small interfaces in health.py and
metrics.py, never the other way round, and nothing of it runs on the message path."""
