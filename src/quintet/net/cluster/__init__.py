"""Lets the nodes of a cell talk to each other: who they are, how far each one is, copies for a new one (ADR 42)."""
