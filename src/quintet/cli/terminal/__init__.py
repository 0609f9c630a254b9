"""What commands share: arguments, output, standard input, frames in hexadecimal."""
