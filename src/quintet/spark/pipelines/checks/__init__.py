"""What the audit pipeline checks, where its tasks run: chains, digests, envelopes, archives."""
