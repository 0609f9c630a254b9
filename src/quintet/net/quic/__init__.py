"""Serves doors over QUIC: the listener and its streams, over the kernel's endpoint or its twin in Python."""
