"""Consumer groups: membership, assignment, committed offsets, polled and pushed members."""
