"""Writes sync.py, sync_peer.py and sync_kv.py, the blocking twins, from the source of the asynchronous classes:
`python -m quintet.client.blocking.generate`.

Every public method keeps its name, signature and docstring; only how it waits differs. A test compares them with what
this file would write, so the twins cannot drift apart. Needs ruff, for its formatter, which only developers have.

    async def m() -> T            def m() -> T               run on the portal
    async generator               Iterator                   step by step
    def m() -> another twin       def m() -> its twin        called on the loop's thread, wrapped
    other def                     def                        called on the loop's thread, or here for plain values
    property, public attribute    property
"""

import ast
import subprocess
import sys
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
CLIENT: Final = HERE.parent
# module -> the file its twins are in; sync.py if it is not here, which has the names of the others, too
FILES: Final = {"agents.peer": "sync_peer", "kv": "sync_kv"}
TARGETS: Final = ("sync", *FILES.values())

# class -> its module below quintet.client; in the order they are written
TWINS: Final = {
    "Processing": "core.message",
    "Message": "core.message",
    "MessageBatch": "core.message",
    "Producer": "producer",
    "Subscription": "core.subscription",
    "Transaction": "transaction",
    "Bus": "bus",
    "PeerMessage": "agents.peer",
    "Peer": "agents.peer",
    "Watch": "kv",
    "Cache": "kv",
}
BASES: Final = {"Cache": "blocking.mapped.Mapped"}  # what a twin has more, written by hand: class -> module and class
ROOTS: Final = {"Bus": "connect", "Peer": "peer"}  # they own the portal; and the function that makes them
PLAIN: Final = {"Message", "MessageBatch", "PeerMessage"}  # values: their plain methods touch no shared state
HIDDEN: Final = {
    "on_records",
    "on_refused",
    "settle",
    "hold",
    "give_back",
    "position_of",
    "commit_in",
    "committed",
    "put",
    "drop",
    "wake",
    "room",
    "source",
}  # between the client's own parts
SHOWN: Final = {"Cache": {"put"}}  # the same words, where they are for users
DUNDERS: Final = {
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
    "__iter__": "__iter__",
    "__len__": "__len__",
    "__repr__": "__repr__",
}

HEADER: Final = '''"""The blocking twin of the client: `quintet.sync.connect`. Same names, same arguments, same errors.

Written by generate.py from the asynchronous classes; do not edit. `python -m quintet.client.blocking.generate` writes it again.
"""
'''

Function = ast.FunctionDef | ast.AsyncFunctionDef


def generate(target: str = "sync") -> str:
    """The text of one of the files, formatted."""
    twins = {name: module for name, module in TWINS.items() if FILES.get(module, "sync") == target}
    modules = {
        name: ast.parse((CLIENT / f"{name.replace('.', '/')}.py").read_text()) for name in dict.fromkeys(twins.values())
    }
    body: list[str] = []
    used: set[str] = set()
    for twin, module in twins.items():
        tree = next(n for n in modules[module].body if isinstance(n, ast.ClassDef) and n.name == twin)
        body += _class(tree, used)
    for root, name in ROOTS.items():
        if root in twins:
            inside = modules[twins[root]].body
            body += _maker(root, next(n for n in inside if isinstance(n, ast.FunctionDef) and n.name == name), used)
    text = HEADER + "\n".join(_imports(modules, used, target)) + "\n\n" + "\n".join(body)
    command = [sys.executable, "-m", "ruff"]
    for arguments in (["check", "--select=I,F401", "--fix", "-q"], ["format", "-q"]):
        text = subprocess.run(
            [*command, *arguments, "--stdin-filename", str(HERE / f"{target}.py"), "-"],
            input=text,
            text=True,
            stdout=subprocess.PIPE,
            check=True,
        ).stdout
    return text


def _imports(modules: dict[str, ast.Module], used: set[str], target: str) -> list[str]:
    """Imports for the names in signatures: from where the asynchronous module has them, or that module itself."""
    lines = ["from collections.abc import Iterator", "from quintet.client.blocking.portal import Portal, inner_of"]
    lines += [f"import quintet.client.{name} as {_alias(name)}" for name in modules]
    for name, tree in modules.items():
        for node in tree.body:
            if isinstance(node, ast.ImportFrom) and node.module:
                lines += [f"from {node.module} import {a.name}" for a in node.names if a.name in used and not a.asname]
            elif isinstance(node, ast.Import):
                lines += [f"import {alias.name}" for alias in node.names if alias.name in used]
            else:
                lines += [f"from quintet.client.{name} import {own}" for own in _defines(node) if own in used]
    lines = [line for line in dict.fromkeys(lines) if line.rpartition(" ")[2] not in TWINS]
    lines += [
        f"from quintet.client.{module} import {base}"
        for twin, (module, _, base) in ((twin, path.rpartition(".")) for twin, path in BASES.items())
        if FILES.get(TWINS[twin], "sync") == target
    ]
    if target == "sync":
        others = [(module, name) for name, module in TWINS.items() if module in FILES]
        others += [(TWINS[root], maker) for root, maker in ROOTS.items() if TWINS[root] in FILES]
        lines += [f"from quintet.client.blocking.{FILES[module]} import {name}" for module, name in others]
        lines += [f"__all__ = {sorted([*TWINS, *ROOTS.values()])}"]
    return lines


def _alias(module: str) -> str:
    return "_" + module.rpartition(".")[2]


def _defines(node: ast.stmt) -> list[str]:
    match node:
        case ast.ClassDef(name=name):
            return [name]
        case ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
        case ast.Assign(targets=[ast.Name(id=name)]):
            return [name]
    return []


def _class(tree: ast.ClassDef, used: set[str]) -> list[str]:
    name = tree.name
    base = BASES.get(name, "").rpartition(".")[2]
    out = [f"class {name}({base}):" if base else f"class {name}:", f"    {_docstring(tree)}", ""]
    out += [f"    def __init__(self, portal: Portal, inner: {_alias(TWINS[name])}.{name}) -> None:"]
    out += ["        self._portal = portal", "        self._inner = inner", ""]
    for node in tree.body:
        if not isinstance(node, Function):
            continue
        if node.name == "__init__":
            out += _attributes(node, used)
        elif node.name in DUNDERS or not (node.name.startswith("_") or node.name in HIDDEN - SHOWN.get(name, set())):
            out += ["    " + line for line in _method(name, node, used)] + [""]
    return out


def _attributes(init: Function, used: set[str]) -> list[str]:
    """A property for each annotated public attribute."""
    out: list[str] = []
    for node in init.body:
        match node:
            case ast.AnnAssign(target=ast.Attribute(attr=attr), annotation=kind) if not attr.startswith("_"):
                _note(kind, used)
                out += ["    @property", f"    def {attr}(self) -> {ast.unparse(kind)}:"]
                out += [f"        return self._inner.{attr}", ""]
    return out


def _method(owner: str, node: Function, used: set[str]) -> list[str]:
    returns = ast.unparse(node.returns).strip("'") if node.returns else "None"
    for part in (node.args, node.returns):
        if part is not None:
            _note(part, used)
    if node.decorator_list:
        head = [f"@{ast.unparse(decorator)}" for decorator in node.decorator_list]
        return [*head, f"def {node.name}(self) -> {returns}:", *_doc(node), f"    return self._inner.{node.name}"]
    name = DUNDERS.get(node.name, node.name)
    result = f'"{owner}"' if returns == owner else returns.replace("AsyncIterator", "Iterator")
    head = [f"def {name}({ast.unparse(node.args)}) -> {result}:", *_doc(node)]
    call = f"self._inner.{node.name}({_forward(node.args)})"
    if returns == owner and node.name in ("__aenter__", "__aiter__"):
        if node.name == "__aiter__":
            return [*head, "    return self"]
        return [*head, *_opening(owner, call), "    return self"]
    if node.name == "__anext__":
        return [*head, f"    return {_wrapped(returns, 'self._portal.next(self._inner.__anext__)')}"]
    if "Iterator[" in returns:
        item = returns.partition("[")[2].rstrip("]")
        wrap = f"lambda item: {item}(self._portal, item)"
        if returns.startswith("AsyncIterator"):
            return [*head, f"    return self._portal.iterate({call}, {wrap})"]
        return [*head, f"    return map({wrap}, iter(self._inner))"]
    if returns.startswith("list[") and returns[5:-1] in TWINS:
        return [*head, f"    return [{returns[5:-1]}(self._portal, item) for item in self._portal.run({call})]"]
    if isinstance(node, ast.AsyncFunctionDef):
        if owner in ROOTS and name in ("close", "__exit__"):
            return [
                *head,
                "    try:",
                f"        self._portal.run({call})",
                "    finally:",
                "        self._portal.stop()",
            ]
        if owner in ROOTS and name == "open":
            return [*head, *_opening(owner, call)]
        return [*head, f"    return {_wrapped(returns, f'self._portal.run({call})')}"]
    if owner in PLAIN or name.startswith("__"):
        return [*head, f"    return {_wrapped(returns, call)}"]
    arguments = f"self._inner.{node.name}, {_forward(node.args)}"
    return [*head, f"    return {_wrapped(returns, f'self._portal.call({arguments})')}"]


def _opening(owner: str, call: str) -> list[str]:
    """A bus that could not be opened leaves no thread behind."""
    if owner not in ROOTS:
        return [f"    self._portal.run({call})"]
    return [
        "    try:",
        f"        self._portal.run({call})",
        "    except BaseException:",
        "        self._portal.stop()",
        "        raise",
    ]


def _maker(root: str, node: ast.FunctionDef, used: set[str]) -> list[str]:
    """The function that makes a root, with a portal of its own."""
    _note(node.args, used)
    head = f"def {node.name}({ast.unparse(node.args)}) -> {root}:"
    made = f"{_alias(TWINS[root])}.{node.name}({_forward(node.args)})"
    return [head, *_doc(node), f"    return {root}(Portal(), {made})", "", ""]


def _wrapped(returns: str, call: str) -> str:
    return f"{returns}(self._portal, {call})" if returns in TWINS else call


def _forward(args: ast.arguments) -> str:
    names = [_given(arg) for arg in args.args if arg.arg != "self"]
    rest = [f"**{args.kwarg.arg}"] if args.kwarg else []
    return ", ".join([*names, *(f"{arg.arg}={arg.arg}" for arg in args.kwonlyargs), *rest])


def _given(arg: ast.arg) -> str:
    """The argument as the asynchronous twin takes it."""
    named = {part.id for part in ast.walk(arg.annotation) if isinstance(part, ast.Name)} if arg.annotation else set()
    return f"inner_of({arg.arg})" if named & TWINS.keys() else arg.arg


def _note(node: ast.AST, used: set[str]) -> None:
    """Remember the names a signature uses; a quoted annotation is a name too."""
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            used.add(part.id)


def _doc(node: Function) -> list[str]:
    return [f"    {_docstring(node)}"] if ast.get_docstring(node) else []


def _docstring(node: Function | ast.ClassDef) -> str:
    text = ast.get_docstring(node, clean=False) or ""
    for old, new in (
        ("async with", "with"),
        ("async for", "for"),
        ("await ", ""),
        ("quintet.connect", "quintet.sync.connect"),
        ("quintet.peer(", "quintet.sync.peer("),
    ):
        text = text.replace(old, new)
    return f'"""{text}"""'


if __name__ == "__main__":
    for each in TARGETS:
        (HERE / f"{each}.py").write_text(generate(each))
