"""The doors: one folder per wire protocol, all of one shape (README, frames, codec, session, mapping, errors).

Sans-IO: bytes in, bytes out, broker verbs in between. No sockets, no clock, no randomness, and no door knows another.
"""
