"""A broker of several cells on one machine: its processes and its folder (ADR 44)."""
