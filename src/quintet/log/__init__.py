"""Stores every record. `base.py` is the interface of the log; `embedded/` is the engine that implements it."""
