"""Shares code between commands: arguments, output, standard input, frames in hexadecimal."""
