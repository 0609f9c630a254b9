"""Speaks the wire protocols on the client's side, one module for each."""
