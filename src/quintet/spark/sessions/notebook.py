"""Writes the notebook of `quintet spark notebook`: a running query over one topic, as a marimo file or a Jupyter notebook.

Both have the same cells. The broker's address comes from the environment and is never in the notebook, which may be shared. The query
counts messages per ten seconds into a table in memory, so the notebook shows how the topic grows.
"""

import json
import re
import textwrap
from collections.abc import Mapping
from typing import Final

from quintet.model.errors import ConfigError
from quintet.spark.sessions.start import SECRETS

_WORDS: Final = """\
# {title}

The topic `{title}` as a running Spark query. The address of the broker, with user and password, is in `QUINTET_FLIGHT_URL`.
"""

_OPEN: Final = """\
import os

import quintet.spark

topic = {topic!r}
access = {{"url": os.environ.get("QUINTET_FLIGHT_URL", "flight://127.0.0.1:8815")}}
spark = quintet.spark.session({session})
"""

_LATEST: Final = """\
messages = spark.read.format("quintet").options(**access, subscribe=topic).load()
latest = (
    messages.orderBy("timestamp", ascending=False)
    .selectExpr("timestamp", "partition", "offset", "cast(key as string) as key", "cast(value as string) as value")
    .limit(20)
    .toPandas()
)
latest
"""

_QUERY: Final = """\
from pyspark.sql import functions as F

stream = (
    spark.readStream.format("quintet")
    .options(**access, subscribe=topic, startingOffsets="earliest", columns="offset,timestamp,partition")
    .load()
)
counts = stream.groupBy(F.window("timestamp", "10 seconds")["start"].alias("time")).agg(F.count("*").alias("messages"))
for old in spark.streams.active:  # this cell may run again
    if old.name == "live":
        old.stop()
query = (
    counts.writeStream.format("memory")
    .queryName("live")
    .outputMode("complete")
    .trigger(processingTime="2 seconds")
    .start()
)
"""

_LOOK: Final = """\
live = spark.sql("select time, messages from live order by time desc limit 60").toPandas()
"""

_MARIMO_SHOW: Final = """\
import importlib.util

refresh  # this cell runs again with each tick
status = mo.md(f"{query.status['message']}; {int(live['messages'].sum()):,} messages in the windows below")
shown = [status, mo.ui.table(live)]
if importlib.util.find_spec("matplotlib") and len(live):
    shown.append(live.sort_values("time").plot(x="time", y="messages", kind="area", figsize=(9, 3)))
mo.vstack(shown)
"""

_JUPYTER_SHOW: Final = """\
import importlib.util
import time

from IPython.display import clear_output, display

drawn = importlib.util.find_spec("matplotlib") is not None
while query.isActive:  # interrupt the kernel to go on
    live = spark.sql("select time, messages from live order by time desc limit 60").toPandas()
    clear_output(wait=True)
    print(query.status["message"], int(live["messages"].sum()), "messages in the windows below")
    display(live)
    if drawn and len(live):
        live.sort_values("time").plot(x="time", y="messages", kind="area", figsize=(9, 3))
        import matplotlib.pyplot as plt

        plt.show()
    time.sleep(2)
"""


def marimo(topic: str, master: str | None = None, conf: Mapping[str, str] | None = None) -> str:
    """A marimo file: each cell is a function of the names it uses, and returns the names that other cells use."""
    cells = [
        ("", "import marimo as mo\n", "mo"),
        ("mo", f"mo.md({_WORDS.format(title=_title(topic))!r})\n", ""),
        ("", _open(topic, master, conf or {}), "access, spark, topic"),
        ("access, spark, topic", _LATEST, ""),
        ("access, spark, topic", _QUERY, "query"),
        ("mo", 'refresh = mo.ui.refresh(default_interval="2s")\nrefresh\n', "refresh"),
        ("mo, query, refresh, spark", _LOOK + _MARIMO_SHOW, ""),
    ]
    parts = ["import marimo\n\napp = marimo.App(width='medium')\n"]
    for uses, code, gives in cells:
        names = f"({gives},)" if gives and "," not in gives else gives
        end = f"return {names}\n" if gives else "return\n"
        parts.append(f"\n\n@app.cell\ndef _({uses}):\n{textwrap.indent(code + end, '    ')}")
    parts.append('\n\nif __name__ == "__main__":\n    app.run()\n')
    return "".join(parts)


def jupyter(topic: str, master: str | None = None, conf: Mapping[str, str] | None = None) -> str:
    """A Jupyter notebook, format 4.5."""
    codes = [_open(topic, master, conf or {}), _LATEST, _QUERY, _JUPYTER_SHOW]
    cells = [_cell("markdown", 0, _WORDS.format(title=_title(topic)))]
    cells += [_cell("code", number, code) for number, code in enumerate(codes, 1)]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    page = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(page, indent=1) + "\n"


def _open(topic: str, master: str | None, conf: Mapping[str, str]) -> str:
    """The cell with the session. ConfigError if a setting may be a secret, because the notebook shows it."""
    secret = [name for name in conf if re.search(SECRETS, name)]
    if secret:
        raise ConfigError(
            f"--conf {secret[0]} would be visible in the notebook, which may be shared",
            hint="set it in spark-defaults.conf",
        )
    said = [repr(master)] if master else []
    said += [f"conf={dict(conf)!r}"] if conf else []
    return _OPEN.format(topic=topic, session=", ".join(said))


def _cell(kind: str, number: int, text: str) -> dict[str, object]:
    made: dict[str, object] = {
        "cell_type": kind,
        "id": f"cell-{number}",
        "metadata": {},
        "source": text.rstrip().splitlines(keepends=True),
    }
    return made | ({"execution_count": None, "outputs": []} if kind == "code" else {})


def _title(topic: str) -> str:
    """A name, quoted so that it cannot end the string around it."""
    return (topic if topic.isprintable() else ascii(topic)[1:-1]).replace("`", "'")
