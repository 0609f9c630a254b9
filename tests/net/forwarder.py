"""A process that forwards doors to a broker, as a follower does: `python -m tests.net.forwarder '{"leader": ..., "doors": {...}}'`.

`doors` is name -> [port here, port of the leader]. It prints its addresses as JSON and goes on until its input ends; each line of the
input is the leader's host from then on, an empty one means that there is none.
"""

import asyncio
import json
import sys

from quintet.net.forwarding.doors import ForwardedDoor, Forwarding, LastWords, forwarded_doors
from quintet.process import raise_open_files, runner
from quintet.protocols.doors import DOORS


def say(what: object) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def report(event: str, fields: dict[str, object]) -> None:
    sys.stderr.write(f"{event} {fields}\n")


def _last_words(name: str) -> LastWords | None:
    [door] = [each for each in forwarded_doors(DOORS, lambda row: row.options(enabled=True)) if each.name == name]
    return door.last_words


async def main() -> None:
    asked = json.loads(sys.argv[1])
    leader: list[str | None] = [asked["leader"]]
    doors = [
        ForwardedDoor(
            name,
            "127.0.0.1",
            here,
            "udp" if name == "felix" else "tcp",
            there,
            per_address_max=2_000,
            last_words=_last_words(name),
        )
        for name, (here, there) in asked["doors"].items()
    ]
    forwarding = Forwarding(doors, lambda: leader[0], report)
    await forwarding.start()
    say(forwarding.addresses())
    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while line := await lines.readline():
        leader[0] = line.decode().strip() or None
        forwarding.leader_changed()
        say(forwarding.figures())
    await forwarding.stop()


if __name__ == "__main__":
    raise_open_files()
    with runner() as running:
        running.run(main())
