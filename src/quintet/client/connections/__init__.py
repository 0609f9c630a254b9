"""One connection a protocol: bytes of the wire on the client's side."""
