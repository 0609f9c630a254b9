"""How a pipeline runs: its options, its files, its session, progress, failures, reports to the broker."""
