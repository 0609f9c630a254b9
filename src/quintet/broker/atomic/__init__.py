"""Makes changes that happen together or not at all: intents, transactions, stages, delays, dead letters, producers."""
