"""Keeps state that only one protocol has: queues of Fast, peers of peerbus, caches of Felix, pipelines of Flight."""
