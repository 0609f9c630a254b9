"""Verifies the audit chain for a page: runs `quintet audit verify` beside the broker, and passes on how far it is.

Another process, at a lower priority: it reads all files of the log and hashes them, which would take the loop's time whatever thread it
ran on. One at a time; it ends with the page that asked for it, or after VERIFY_SECONDS_MAX.
"""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator
from typing import Any, Final

from quintet.console.call import Call
from quintet.console.wire import Empty
from quintet.model.errors import Busy

VERIFY_SECONDS_MAX: Final = 3_600.0
PROGRESS_S: Final = 0.5
NICENESS: Final = 10
LINE_BYTES_MAX: Final = 64 << 10
RUNNING: Final = "verifying"  # in what the console keeps


async def verify(call: Call, _ask: Empty) -> AsyncIterator[tuple[str, object]]:
    """`progress` with sums so far, and `verdict`."""
    kept = call.console.kept
    if kept.get(RUNNING):
        raise Busy("the audit is being verified already", hint="wait for the page that asked for it")
    kept[RUNNING] = True
    try:
        async for event in _run(call.console.surroundings.verify_command()):
            yield event
    finally:
        kept[RUNNING] = False


async def _run(command: list[str]) -> AsyncIterator[tuple[str, object]]:
    # Not its secrets, and (-P) no module of the folder that the broker was started in.
    environ = {name: value for name, value in os.environ.items() if not name.startswith("QUINTET_")}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-m", "quintet", *command, "--json", "--progress", env=environ, stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, limit=LINE_BYTES_MAX,
    )  # fmt: skip
    assert process.stdout is not None and process.stderr is not None, "both are pipes"
    answer = asyncio.ensure_future(process.stdout.read())
    try:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.setpriority(os.PRIO_PROCESS, process.pid, NICENESS)
        said: list[str] = []
        async with asyncio.timeout(VERIFY_SECONDS_MAX):
            async for event in _progress(process.stderr, said):
                yield event
            verdict = await answer
            await process.wait()
        yield "verdict", _verdict(verdict, said)
    except TimeoutError:
        yield "verdict", {"status": "cannot be checked", "cannot": f"it took longer than {VERIFY_SECONDS_MAX:.0f} s"}
    finally:
        answer.cancel()
        with contextlib.suppress(ProcessLookupError):
            process.kill()


async def _progress(lines: asyncio.StreamReader, said: list[str]) -> AsyncIterator[tuple[str, object]]:
    """Sums of what it says, every PROGRESS_S seconds at most. What is no progress is an error: it goes to `said`."""
    clock = asyncio.get_running_loop().time
    seen: dict[str, Any] = {"partitions": 0, "of": 0, "records": 0, "bytes": 0, "broken": 0}
    told = -PROGRESS_S
    async for line in lines:
        try:
            one = json.loads(line)
            seen["partitions"] += 1
            seen["of"] = one["of"]
            for name in ("records", "bytes", "broken"):
                seen[name] += one[name]
        except (ValueError, KeyError, TypeError):
            said[:] = [*said, line.decode(errors="replace").strip()][-10:]
            continue
        if clock() - told >= PROGRESS_S:
            told = clock()
            yield "progress", dict(seen)
    yield "progress", dict(seen)


def _verdict(answer: bytes, said: list[str]) -> dict[str, object]:
    """What a page shows of it."""
    try:
        found: dict[str, Any] = json.loads(answer)
        partitions = found.pop("partitions")
    except (ValueError, KeyError):
        return {"status": "cannot be checked", "cannot": " ".join(said) or "the check ended without an answer"}
    chained = sum(1 for one in partitions if one["chained"])
    broken = [{"topic": one["topic"], "partition": one["partition"]} for one in partitions if one["broken"]]
    return found | {"partitions": len(partitions), "chained": chained, "broken_partitions": broken[:100]}
