"""Backs up a data directory, also beside the broker that writes it, and restores it (ADR 38)."""
