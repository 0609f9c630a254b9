"""The shared words of Quintet: record batches, errors, limits, time. Imports nothing else of ours but the kernel."""
