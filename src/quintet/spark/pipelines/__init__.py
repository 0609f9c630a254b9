"""Lists the built-in pipelines by name. Importing this imports neither Spark nor any pipeline.

What a pipeline's module must hold is written in base.py. A name with a dot is the path of a module of one's own that holds
the same, so that a pipeline need not live here to be run, restarted, watched and stopped like the others.
"""

import ast
import difflib
import importlib
import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Final

from quintet.model.errors import ConfigError

# name -> module
PIPELINES: Final[dict[str, str]] = {
    name: f"quintet.spark.pipelines.{name}"
    for name in (
        "archive",
        "restore",
        "decode",
        "aggregate",
        "dedupe",
        "join",
        "lag",
        "audit",
        "deadletters",
    )
}


def load(kind: str) -> ModuleType:
    """The module of a pipeline; ConfigError names the nearest one if there is none."""
    path = _path(kind)
    try:
        module = importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{path}.".startswith(f"{error.name}."):
            raise  # the pipeline is there, and something that it needs is not
        raise _unknown(kind) from error
    if not hasattr(module, "Options") or hasattr(module, "start") == hasattr(module, "run"):
        raise ConfigError(f"{path} is no pipeline", hint="it needs SUMMARY, Options, and one of start and run")
    return module


def summary(kind: str) -> str:
    """The line of `quintet pipeline list`, read without running the module: a pipeline may import what is not installed."""
    spec = importlib.util.find_spec(_path(kind))
    if spec is None or spec.origin is None:
        return ""
    for node in ast.parse(Path(spec.origin).read_text()).body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        named = [target.id for target in targets if isinstance(target, ast.Name)]
        if "SUMMARY" in named and isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            return str(ast.literal_eval(node.value))
    return ""


def _path(kind: str) -> str:
    if "." in kind:
        return kind
    if kind not in PIPELINES:
        raise _unknown(kind)
    return PIPELINES[kind]


def _unknown(kind: str) -> ConfigError:
    near = difflib.get_close_matches(kind, PIPELINES, n=1)
    hint = f"did you mean {near[0]}?" if near else "`quintet pipeline list` shows them"
    return ConfigError(f"there is no pipeline {kind!r}", hint=hint)
