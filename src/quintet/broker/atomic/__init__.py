"""Changes that happen together or not at all: intents, transactions, stages, delays, dead letters, idempotent producers."""
