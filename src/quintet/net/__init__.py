"""Sockets, TLS, limits, timers: the only code that does transport I/O and reads the clock."""
