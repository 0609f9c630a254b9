"""Connections that reach every cell of a broker of several processes (ADR 44)."""
