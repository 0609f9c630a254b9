"""Implements the log in plain files of one data directory, laid out as in docs/LOG_FORMAT.md.

`engine.EmbeddedLog` is what server.py starts; everything else here is a part of it. Only disk.py touches files.
"""
