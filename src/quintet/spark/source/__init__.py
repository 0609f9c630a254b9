"""The data source format("quintet"): options, offsets, readers, writers, columns."""
