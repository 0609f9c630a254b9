"""`quintet cell`: several cells over Kafka, which node leads each of them, and moving them."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from quintet.cli.terminal.common import json_option, say_json, say_table
from quintet.cli.terminal.output import echo

if TYPE_CHECKING:
    from quintet.cells.asking import CellNodes, Heard

NOT_WHOLE: Final = 1  # exit code

config_option: Final = click.option(
    "--config", "config_file", type=click.Path(path_type=Path, dir_okay=False), envvar="QUINTET_CONFIG",
    help="Configuration of a node (or QUINTET_CONFIG): its certificate is used, and the nodes that it names are asked.",
)  # fmt: skip


@click.group()
def cell() -> None:
    """Several cells over Kafka: which node leads each of them, and moving them.

    \b
    quintet cell list --config /etc/quintet/quintet.toml
    quintet cell move 3 n2          cell 3 to node n2, where it stays
    quintet cell move 3 --free      undo that: the nodes share it out by themselves again
    quintet cell drain n1           node n1 leads no cell: before it is stopped or upgraded
    quintet cell fill n1            undo that

    All of them need --config, or QUINTET_CONFIG. One cell alone: quintet cluster status.
    """


def _nodes(config_file: Path | None) -> "CellNodes":
    from quintet.cells.asking import CellNodes  # late: pydantic
    from quintet.config import Settings

    return CellNodes(Settings.load(config_file, os.environ, {}))


@cell.command("list")
@config_option
@json_option
def list_cells(config_file: Path | None, as_json: bool) -> None:
    """Show who leads each cell, who follows and how far, and where it should be.

    Exit code 1: a node does not answer, or a cell has not exactly one leader.
    """
    nodes = _nodes(config_file)
    heard = [nodes.ask(number) for number in range(nodes.cells)]
    facts = [_facts(number, said) for number, said in enumerate(heard)]
    whole = all(fact["leader"] and not fact["away"] for fact in facts)
    if as_json:
        say_json({"whole": whole, "cells": facts})
    else:
        columns = (">cell", "leader", "should lead", "moved to", "drained", "followers")
        say_table(columns, [_shown(fact) for fact in facts], "")
        for fact in facts:
            for address, error in fact["away"].items():  # type: ignore[attr-defined]
                echo(f"away      cell {fact['cell']} at {address}: {error}")
    sys.exit(0 if whole else NOT_WHOLE)


def _facts(number: int, heard: "list[Heard]") -> dict[str, object]:
    said = [each.said for each in heard if each.said is not None]
    leaders = [each for each in said if each.role == "leader"]
    one = leaders[0] if len(leaders) == 1 else None
    return {
        "cell": number,
        "leader": one.node if one is not None else "",
        "epoch": one.epoch if one is not None else 0,
        "wanted": one.wanted if one is not None else "",
        "moved": one.moved if one is not None else "",
        "drained": list(one.avoided) if one is not None else [],
        "followers": {each.node: each.lag_records for each in said if each.role != "leader"},
        "away": {each.address: each.error for each in heard if each.error},
    }


def _shown(fact: dict[str, object]) -> tuple[object, ...]:
    followers = fact["followers"]
    assert isinstance(followers, dict)
    lags = ", ".join(f"{node} (lag {lag:,})" for node, lag in sorted(followers.items()))
    drained = fact["drained"]
    assert isinstance(drained, list)
    return (
        fact["cell"],
        fact["leader"] or "-",
        fact["wanted"] or "-",
        fact["moved"] or "-",
        " ".join(drained) or "-",
        lags or "-",
    )


@cell.command()
@click.argument("number", metavar="CELL", type=click.IntRange(0))
@click.argument("node", metavar="[NODE]", required=False)
@click.option("--free", is_flag=True, help="End an earlier move: the nodes share the cell out by themselves again.")
@config_option
def move(number: int, node: str | None, free: bool, config_file: Path | None) -> None:
    """Move a cell to a node, where it stays while that node is up. The move begins when the node has read all of its WAL."""
    if free == (node is not None):
        raise click.UsageError("name a NODE, or give --free.")
    said = _nodes(config_file).move(number, node or "")
    echo(f"cell {number} is to be led by {node or 'any node'}; {said.node} leads it until then")


@cell.command()
@click.argument("node", metavar="NODE")
@config_option
def drain(node: str, config_file: Path | None) -> None:
    """Let a node lead nothing: its cells move to the others. It follows on. `quintet cell fill` ends it."""
    for number, said in enumerate(_nodes(config_file).drain(node)):
        echo(
            f"cell {number} is not to be led by {node}; {said.node} leads it {'until it moves' if said.node == node else 'now'}"
        )
    echo("`quintet cell list` shows when they have moved", err=True)


@cell.command()
@click.argument("node", metavar="NODE")
@config_option
def fill(node: str, config_file: Path | None) -> None:
    """Let a node lead again that was drained."""
    for number, said in _nodes(config_file).fill(node).items():
        echo(f"cell {number} may be led by {node}; {said.node} leads it now")
