"""Keeps schemas, validates messages against them, and checks whether a new version is compatible."""
