"""Files of the log and how they are read: segments, the disk, damage, read buffers. Nothing here knows a partition's state."""
