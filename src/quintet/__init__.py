"""Quintet: one broker, five wire protocols, one durable log."""

__version__ = "0.1.0"
