"""State that one protocol brings along: queues of Fast, peers of peerbus, caches of Felix, pipelines of Flight."""
