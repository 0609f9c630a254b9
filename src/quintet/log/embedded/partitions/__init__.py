"""Partitions as the loop holds them: appends, group commit, the tail cache, links of the audit chain."""
