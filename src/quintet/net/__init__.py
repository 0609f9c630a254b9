"""Moves bytes: sockets, TLS, limits, timers. The only code that does transport I/O and reads the clock."""
