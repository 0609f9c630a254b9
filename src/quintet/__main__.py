"""`python -m quintet` is the `quintet` command."""

from quintet.cli.main import main

main()
