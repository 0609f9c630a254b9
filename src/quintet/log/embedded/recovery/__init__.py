"""Reads what a start needs: directories, checkpoints, the journal."""
