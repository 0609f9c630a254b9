"""What a start reads: directories, checkpoints, the journal."""
