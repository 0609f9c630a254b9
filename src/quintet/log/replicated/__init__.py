"""Keeps one cell's log on several nodes: a shared write-ahead log orders what a turn writes, each node applies it to its files (ADR 39)."""
