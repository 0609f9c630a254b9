"""The log: what everything else is a view of. `base.py` is the interface; `embedded/` and (later) `kafka/` are engines."""
