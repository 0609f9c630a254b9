"""Handles files and objects below a lake table: paths, options of stores, commits of one writer, swaps."""
