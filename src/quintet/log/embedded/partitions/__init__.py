"""Holds partitions on the loop thread: appends, group commit, the tail cache, links of the audit chain."""
