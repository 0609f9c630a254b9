"""Files and objects below a lake table: names, options of stores, commits of one writer, swaps."""
