"""Felix: frames over the streams of a QUIC connection, JSON and binary batches, a cache. See README.md in this folder."""
