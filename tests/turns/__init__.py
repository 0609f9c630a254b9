"""The walk over every operation of every door: how long each keeps the loop (docs/TURNS.md)."""
