"""Holds the checks that tasks of the audit pipeline run: chains, digests, envelopes, archives."""
