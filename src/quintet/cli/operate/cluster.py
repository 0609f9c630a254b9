"""`quintet cluster`: certificates and configurations for the nodes of a cell; all nodes on one screen; what is wrong with them."""

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from quintet.cli.operate.scrape import admin_option, scrape
from quintet.cli.terminal.common import json_option, lasting, say_json, say_table
from quintet.cli.terminal.output import echo
from quintet.model.errors import ConfigError

if TYPE_CHECKING:
    from quintet.cli.operate.checks import Finding
    from quintet.cli.operate.cluster_files import KnownNode
    from quintet.cli.operate.cluster_view import NodeRow

PORT_DEFAULT: Final = 7790
DAYS_DEFAULT: Final = 730
PLACE_DEFAULT: Final = "/etc/quintet"
NOT_WHOLE: Final = 1  # exit code


@click.group()
def cluster() -> None:
    """Nodes of a cell: certificates, and all of them on one screen.

    \b
    quintet cluster init certs --node n1=10.0.0.1 --node n2=10.0.0.2 --node n3=10.0.0.3 --servers kafka1:9092,kafka2:9092
    quintet cluster init certs --node n4=10.0.0.4            one more node, by the same authority
    quintet cluster init certs --node n1=10.0.0.1 --renew    a new certificate
    quintet cluster status --admin http://10.0.0.1:8080      any one node knows all
    quintet cluster doctor --config /etc/quintet/quintet.toml
    """


@cluster.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@click.option("--node", "nodes", multiple=True, required=True, metavar="NAME=HOST", help="A node; repeatable.")
@click.option("--servers", default="", metavar="HOST:PORT,...", help="Brokers of Kafka [those of the nodes in DIR].")
@click.option("--topic", default="", help="Topic of Kafka that is the WAL [that of the nodes in DIR, or quintet-wal].")
@click.option("--cells", type=click.IntRange(1), help="Cells, for ever [as the nodes in DIR have it, or 1].")
@click.option(
    "--port", type=click.IntRange(1, 65_535), default=PORT_DEFAULT, help=f"Port between nodes [{PORT_DEFAULT}]."
)
@click.option("--place", default=PLACE_DEFAULT, help=f"Folder in which a node will have its files [{PLACE_DEFAULT}].")
@click.option(
    "--days",
    type=click.IntRange(1, 3650),
    default=DAYS_DEFAULT,
    help=f"How long certificates are valid [{DAYS_DEFAULT}].",
)
@click.option("--renew", is_flag=True, help="Make the files of nodes that are in DIR already anew.")
def init(
    folder: Path,
    nodes: tuple[str, ...],
    servers: str,
    topic: str,
    cells: int | None,
    port: int,
    place: str,
    days: int,
    renew: bool,
) -> None:
    """Make an authority, and for each node a certificate and a configuration, in DIR.

    If DIR has an authority already, nodes are added to it, with the [cell] of those that are there. Copy DIR/NAME to --place on the
    node's machine, add your users, listeners and [audit], and start it. Keep DIR/ca-key.pem away from the nodes: who has it can make nodes.
    """
    from quintet.cli.operate import cluster_files as files

    named = [files.parse_node(text) for text in nodes]
    known = files.known_nodes(folder) if folder.is_dir() else {}
    again = [node.name for node in named if node.name in known]
    if again and not renew:
        raise ConfigError(
            f"{folder} has files of {', '.join(again)} already",
            hint="give --renew to make them anew, or another --node",
        )
    if len({node.name for node in named}) < len(named):
        raise ConfigError("two nodes have the same name", hint="each --node needs a name of its own")
    for node in named:
        host = known[node.name].cell.get("advertised_host") if node.name in known else None
        if host and host != node.host:
            raise ConfigError(
                f"--node {node.name}={node.host}: {folder / node.name / files.SETTINGS} has advertised_host = {host}",
                hint="if the node moved, change advertised_host, listen and peers in these files first",
            )
    common = _common(servers, topic, cells, known)
    signer, new = files.authority(folder)
    listens = {name: one.listen for name, one in known.items()}
    listens |= {node.name: files.address(node.host, port) for node in named if node.name not in known}
    for node in named:
        settings = common | {"node": node.name, "advertised_host": node.host, "listen": listens[node.name]}
        settings["peers"] = [listens[name] for name in sorted(listens)]
        text = files.write_node(folder / node.name, place.rstrip("/"), settings, files.issue(signer, node, days))
        echo(f"# {folder / node.name / files.SETTINGS}\n{text}")
    authority = f"{folder / files.CA_KEY} is the key of the {'new ' if new else ''}authority"
    sys.stderr.write(
        f"{authority}: keep it away from the nodes. Copy {folder}/NAME to {place} on each node, readable by the broker only."
        f" Certificates are valid for {days:,} days.\n"
    )


def _common(servers: str, topic: str, cells: int | None, known: "dict[str, KnownNode]") -> dict[str, Any]:
    """[cell] of all nodes: as it was given, or as the nodes have it that are there."""
    common: dict[str, Any] = dict(next(iter(known.values())).cell) if known else {"topic": "quintet-wal"}
    given = {"servers": [server.strip() for server in servers.split(",") if server.strip()], "topic": topic}
    common |= {name: value for name, value in given.items() if value}
    if not common.get("servers"):
        raise ConfigError("no brokers of Kafka are given", hint="--servers kafka1:9092,kafka2:9092,kafka3:9092")
    if cells is not None:
        if known and cells != common.get("cells", 1):
            raise ConfigError(
                f"--cells {cells}, and the nodes that are there have {common.get('cells', 1)}",
                hint="the number of cells is the same on all nodes, and for ever",
            )
        common["cells"] = cells
    return common


@cluster.command()
@admin_option
@json_option
def status(admin: str, as_json: bool) -> None:
    """Show all nodes of a cell on one screen, as the node at --admin knows them.

    Exit code 1: a node does not answer, or not exactly one leads.
    """
    from quintet.cli.operate import cluster_view

    now = scrape(admin)
    by_cell = {cell: cluster_view.rows(said) for cell, said in now.by_cell(cluster_view.INFO).items()}
    nodes = [row for rows in by_cell.values() for row in rows]
    if not nodes:
        raise ConfigError(
            f"the node at {admin} does not talk to other nodes", hint="it needs engine = kafka and cluster.listen"
        )
    leaders = [row for row in nodes if row.up and row.role == "leader"]
    one_each = all(sum(row in leaders for row in rows) == 1 for rows in by_cell.values())
    whole = one_each and all(row.up for row in nodes)
    weaker = [key[0] for key in now.by("quintet_cell_weaker", "what")]
    if as_json:
        said = [row._asdict() | ({"cell": cell} if cell else {}) for cell, rows in by_cell.items() for row in rows]
        say_json({"whole": whole, "nodes": said, "weaker": weaker, "wal_records": _wal_records(leaders)})
    else:
        columns = (
            "node",
            "role",
            ">epoch",
            ">WAL offset",
            ">synced",
            ">lag",
            "version",
            ">clock",
            ">certificate",
            "address",
        )
        several = "" not in by_cell
        shown = [(*(cell,) * several, *_shown(row)) for cell, rows in by_cell.items() for row in rows]
        say_table((*(">cell",) * several, *columns), shown, "")
        echo(f"WAL       {_wal_records(leaders):,} records; {_took_over(nodes)}")
        for what in weaker:
            echo(f"weaker    {what}")
        for row in nodes:
            if not row.up:
                echo(f"away      {row.name} at {row.address}: {row.error or 'silent'}")
    sys.exit(0 if whole else NOT_WHOLE)


def _shown(row: "NodeRow") -> tuple[object, ...]:
    if not row.node:
        return ("?", "-", "-", "-", "-", "-", "-", "-", "-", row.address)
    figures = row.figures
    expires = figures.get("certificate_expires_timestamp_seconds", 0.0)
    return (
        row.node,
        row.role if row.up else "away",
        f"{figures['epoch']:.0f}",
        f"{figures['wal_offset']:,.0f}",
        f"{figures['synced_offset']:,.0f}",
        f"{figures['lag_records']:,.0f}, {lasting(figures['lag_seconds'])}",
        row.version,
        f"{figures['clock_seconds']:+.3f} s",
        f"{(expires - time.time()) / 86_400:,.0f} days" if expires else "-",
        row.address,
    )


def _wal_records(leaders: "list[NodeRow]") -> int:
    """Of all cells."""
    return sum(int(row.figures["wal_end"] - row.figures["wal_begin"]) for row in leaders)


def _took_over(nodes: "list[NodeRow]") -> str:
    made = [row for row in nodes if row.node and row.figures["take_over_timestamp_seconds"]]
    if not made:
        return "no take-over is known"
    last = max(made, key=lambda row: row.figures["take_over_timestamp_seconds"])
    ago = lasting(max(time.time() - last.figures["take_over_timestamp_seconds"], 0.0))
    return f"{last.node} took over {ago} ago, in {last.figures['take_over_seconds']:.1f} s"


@cluster.command()
@click.option(
    "--config", "config_file", type=click.Path(path_type=Path, dir_okay=False), envvar="QUINTET_CONFIG",
    help="Configuration of a node (or QUINTET_CONFIG): Kafka and its topic are examined by it.",
)  # fmt: skip
@click.option("--admin", envvar="QUINTET_ADMIN", help="Admin listener of a running node [the configured one].")
@click.option("--strict", is_flag=True, help="Exit with 1 for warnings, too.")
@json_option
def doctor(config_file: Path | None, admin: str | None, strict: bool, as_json: bool) -> None:
    """Find what is wrong with a cell: Kafka and its topic, the leader, leases, keys, certificates, versions, clocks.

    Exit codes: 0 nothing fails, 1 something does, 2 the configuration cannot be read.
    """
    from quintet.cli.operate.doctor import say_findings

    say_findings(_examine(config_file, admin), as_json, strict=strict)


def _examine(config_file: Path | None, admin: str | None) -> "list[Finding]":
    from quintet.cli.operate import cluster_view
    from quintet.cli.operate.checks import Finding
    from quintet.client.core.errors import ConnectionLost

    found: list[Finding] = []
    if config_file is not None or admin is None:
        from quintet.config import Settings  # late: pydantic

        settings = Settings.load(config_file, os.environ, {})
        if settings.engine != "kafka":
            raise ConfigError("this is no node of a cell: engine is not kafka", hint="give its --config, or --admin")
        found += cluster_view.kafka(settings)
        listener = settings.listeners.admin
        admin = admin or f"http://{listener.host}:{listener.port}"
    assert admin is not None
    try:
        now = scrape(admin)
    except ConnectionLost as error:
        return [*found, Finding("nodes", "fail", error.message, error.hint)]
    nodes = cluster_view.rows(now)
    if not nodes:
        text = f"the node at {admin} does not talk to other nodes"
        return [*found, Finding("nodes", "warn", text, "set cluster.listen and cluster.peers: see docs/CLUSTER.md")]
    by_cell = now.by_cell(cluster_view.INFO)
    for cell, said in by_cell.items():
        name = f"cell {cell} " if cell else ""
        found += [
            finding._replace(subject=name + finding.subject)
            for finding in cluster_view.findings(said, cluster_view.rows(said))
        ]
    return found
