"""Lists the built-in pipelines by name. Importing this imports neither Spark nor any pipeline.

base.py says what the module of a pipeline contains. A name with a dot is the path of a module outside this package that contains the
same: such a pipeline is run, restarted, watched and stopped like the others.
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
    """The module of a pipeline; ConfigError proposes the most similar name if there is none."""
    path = _path(kind)
    try:
        module = importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{path}.".startswith(f"{error.name}."):
            raise  # the pipeline exists, and a package that it imports does not
        raise _unknown(kind) from error
    if not hasattr(module, "Options") or hasattr(module, "start") == hasattr(module, "run"):
        raise ConfigError(f"{path} is not a pipeline", hint="it needs SUMMARY, Options, and one of start and run")
    return module


def summary(kind: str) -> str:
    """The line of `quintet pipeline list`, read without importing the module, which may need packages that are not installed."""
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
