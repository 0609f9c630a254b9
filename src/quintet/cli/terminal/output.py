"""Prints output of commands. Text from elsewhere (names, keys, errors) is escaped, so that it cannot control the terminal.

Every command prints through `echo`; tests/cli/test_hostile_names.py finds one that does not. Values that a command writes as
they are, for a pipe, go to stdout's buffer.
"""

import json

import click


def printable(text: str) -> str:
    """The text with control characters, and those that are invisible or turn its direction, as \\uXXXX. Newlines and tabs
    stay. The escapes are JSON's, so that JSON stays JSON."""
    if text.replace("\n", "").replace("\t", "").isprintable():
        return text
    return "".join(each if each.isprintable() or each in "\n\t" else json.dumps(each)[1:-1] for each in text)


def echo(text: str = "", *, err: bool = False, nl: bool = True) -> None:
    """A line on stdout, or stderr."""
    click.echo(printable(text), err=err, nl=nl)
