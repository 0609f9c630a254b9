"""The `quintet` command, one module per group of commands. Commands talk to a broker through the client, or through
the one function that their module names; none of them reaches into the line."""
