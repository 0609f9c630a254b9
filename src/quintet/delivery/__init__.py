"""Delivers records from the log to subscribers: positions, credit, acknowledgement, redelivery. Knows no protocol."""
