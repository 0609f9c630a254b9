"""Reads and checks the files of the log: segments, the disk, damage, read buffers. Knows no partition's state."""
