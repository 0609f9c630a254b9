"""`quintet cluster`: certificates and configurations for the nodes of a cell; all nodes on one screen; what is wrong with them."""

import sys
from pathlib import Path
from typing import Any, Final

import click

from quintet.cli.terminal.output import echo
from quintet.model.errors import ConfigError

PORT_DEFAULT: Final = 7790
DAYS_DEFAULT: Final = 730
PLACE_DEFAULT: Final = "/etc/quintet"


@click.group()
def cluster() -> None:
    """Nodes of a cell: certificates, and all of them on one screen.

    \b
    quintet cluster init certs --node n1=10.0.0.1 --node n2=10.0.0.2 --node n3=10.0.0.3 --servers kafka1:9092,kafka2:9092
    quintet cluster init certs --node n4=10.0.0.4        one more node, by the same authority
    quintet cluster init certs --node n1=10.0.0.1 --renew
    """


@cluster.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@click.option("--node", "nodes", multiple=True, required=True, metavar="NAME=HOST", help="A node; repeatable.")
@click.option("--servers", default="", metavar="HOST:PORT,...", help="Brokers of Kafka [those of the nodes in DIR].")
@click.option("--topic", default="", help="Topic of Kafka that is the WAL [that of the nodes in DIR, or quintet-wal].")
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
    folder: Path, nodes: tuple[str, ...], servers: str, topic: str, port: int, place: str, days: int, renew: bool
) -> None:
    """Make an authority, and for each node a certificate and a configuration, in DIR.

    If DIR has an authority already, nodes are added to it. Copy DIR/NAME to --place on the node's machine, add your users, listeners and
    [audit], and start it. Keep DIR/ca-key.pem away from the nodes: who has it can make nodes.
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
    common = _common(servers, topic, known)
    signer, new = files.authority(folder)
    listens = {name: str(said["listen"]) for name, said in known.items()}
    listens |= {node.name: files.address(node.host, port) for node in named}
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


def _common(servers: str, topic: str, known: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """What all nodes have in common: as it was given, or as the nodes have it that are there."""
    one = next(iter(known.values()), {})
    brokers = [server.strip() for server in servers.split(",") if server.strip()] or list(one.get("servers", ()))
    if not brokers:
        raise ConfigError("no brokers of Kafka are given", hint="--servers kafka1:9092,kafka2:9092,kafka3:9092")
    return {"servers": brokers, "topic": topic or one.get("topic", "quintet-wal")}
