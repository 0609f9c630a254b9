"""Writes sync.py, the blocking twin, from the source of the asynchronous classes. The build does it (setup.py), and `make setup`.

Every public method keeps its name, signature and docstring; only how it waits differs. The file is not kept in Git: a wheel
has it, and in a checkout a test says when it is older than its sources. This needs nothing but Python and is run as a
file: where a wheel is built, the package cannot be imported.

    async def m() -> T            def m() -> T               run on the portal
    async generator               Iterator                   step by step
    def m() -> another twin       def m() -> its twin        called on the loop's thread, wrapped
    other def                     def                        called on the loop's thread, or here for plain values
    property, public attribute    property
"""

import ast
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
CLIENT: Final = HERE.parent
TARGET: Final = HERE / "sync.py"

# class -> its module below quintet.client; in the order they are written, which is that of their use
TWINS: Final = {
    "Processing": "core.message",
    "Message": "core.message",
    "MessageBatch": "core.message",
    "Producer": "producer",
    "Subscription": "core.subscription",
    "Transaction": "transaction",
    "Consumer": "consuming",
    "Watch": "kv",
    "Cache": "kv",
    "Bus": "bus",
    "PeerMessage": "agents.peer",
    "Peer": "agents.peer",
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
    "respond",  # its decorator would get the asynchronous message: `responder` is the one for threads
    "responding",
}  # between the client's own parts
HANDLERS: Final = {"Handler", "Answer"}  # functions of the user: called in a thread, with the blocking message
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

Written by generate.py from the asynchronous classes; do not edit.
"""
'''

Function = ast.FunctionDef | ast.AsyncFunctionDef


def generate() -> str:
    """The text of the file."""
    modules = {
        name: ast.parse((CLIENT / f"{name.replace('.', '/')}.py").read_text()) for name in dict.fromkeys(TWINS.values())
    }
    body: list[str] = []
    used: set[str] = set()
    for twin, module in TWINS.items():
        tree = next(n for n in modules[module].body if isinstance(n, ast.ClassDef) and n.name == twin)
        body += ["", *_class(tree, used)]
    for root, name in ROOTS.items():
        inside = modules[TWINS[root]].body
        body += _maker(root, next(n for n in inside if isinstance(n, ast.FunctionDef) and n.name == name), used)
    exported = f"__all__ = {sorted([*TWINS, *ROOTS.values()])}"
    return "\n".join([HEADER, *_imports(modules, used), "", exported, "", *body]).rstrip() + "\n"


def _imports(modules: dict[str, ast.Module], used: set[str]) -> list[str]:
    """Imports for the names in signatures: from where the asynchronous module has them, or that module itself."""
    found = {"Iterator": "collections.abc", "Portal": "quintet.client.blocking.portal"}
    found["inner_of"] = found["Portal"]
    found |= {base: f"quintet.client.{module}" for module, _, base in (path.rpartition(".") for path in BASES.values())}
    whole = []
    for name, tree in modules.items():
        for node in tree.body:
            if isinstance(node, ast.Import):
                whole += [f"import {alias.name}" for alias in node.names if alias.name in used]
                continue
            names, module = _defines(node), f"quintet.client.{name}"
            if isinstance(node, ast.ImportFrom) and node.module:
                names, module = [alias.name for alias in node.names if not alias.asname], node.module
            for own in names:
                if own in used and own not in TWINS and found.setdefault(own, module) != module:
                    raise SystemExit(f"{own} is of {found[own]} and of {module}: one name, one meaning")
    found.pop("AsyncIterator", None)
    whole += [f"import quintet.client.{name} as {_alias(name)}" for name in modules]
    names_of = {module: sorted(name for name in found if found[name] == module) for module in sorted({*found.values()})}
    return sorted({*whole}) + [f"from {module} import {', '.join(names)}" for module, names in names_of.items()]


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
    used -= HANDLERS
    if node.decorator_list:
        head = [f"@{ast.unparse(decorator)}" for decorator in node.decorator_list]
        return [*head, f"def {node.name}(self) -> {returns}:", *_doc(node), f"    return self._inner.{node.name}"]
    name = DUNDERS.get(node.name, node.name)
    result = f'"{owner}"' if returns == owner else returns.replace("AsyncIterator", "Iterator")
    given = ast.unparse(node.args)
    for kind in HANDLERS:
        given = given.replace(f": {kind},", ": Callable[[Message], object],")
        result = result.replace(kind, "Callable[[Message], object]")
    head = [f"def {name}({given}) -> {result}:", *_doc(node)]
    call = f"self._inner.{node.name}({_forward(node.args)})"
    if returns == owner and node.name in ("__aenter__", "__aiter__"):
        if node.name == "__aiter__":
            return [*head, "    return self"]
        return [*head, *_opening(owner, call), "    return self"]
    if node.name == "__anext__":
        return [*head, f"    return {_wrapped(returns, 'self._portal.next(self._inner.__anext__)')}"]
    if "Iterator[" in returns:
        item = returns.partition("[")[2].rstrip("]")
        wrap = f"lambda item: {item}(self._portal, item)" if item in TWINS else "lambda item: item"
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
    if HANDLERS & named:
        return f"self._portal.handler({arg.arg}, Message)"
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
    TARGET.write_text(generate())
