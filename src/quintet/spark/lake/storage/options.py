"""Translates storage options for pyarrow, deltalake and pyiceberg, and errors of these into one sentence.

    storage.region=eu-central-1   ->   pyarrow region=, deltalake aws_region, pyiceberg s3.region

Options that are not set come from the environment and the files that the SDKs read themselves (AWS_*, ~/.aws,
GOOGLE_APPLICATION_CREDENTIALS, AZURE_*), in every process separately: only options that are set reach the executors. Values are never
printed, never part of an error, and never written to a table, a journal or a checkpoint.
"""

import contextlib
import functools
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from quintet.spark.lake.errors import LakeError, StoreUnreachable

if TYPE_CHECKING:
    from pyarrow import fs  # type: ignore[import-untyped]  # pyarrow ships no types

PREFIX: Final = "storage."
# scheme -> the store it is of; s3a and abfs are Hadoop's names for the same
STORES: Final = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs", "abfss": "az", "abfs": "az"}
CONNECT_SECONDS: Final = 5
RETRIES_MAX: Final = 3  # of one request, by the SDKs themselves
RETRY_SECONDS_MAX: Final = 30  # of one request and its retries
SECRET: Final = "***"


class Row(NamedTuple):
    """One option: its name (pyarrow's), the names of the other libraries, and the environment variables for its default."""

    name: str
    delta: str
    iceberg: str
    aliases: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    flag: bool = False


OPTIONS: Final[dict[str, tuple[Row, ...]]] = {
    "s3": (
        Row("endpoint_override", "aws_endpoint", "s3.endpoint", ("endpoint", "aws_endpoint_url", "aws_endpoint"),
            ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")),
        Row("region", "aws_region", "s3.region", ("aws_region",), ("AWS_REGION", "AWS_DEFAULT_REGION")),
        Row("access_key", "aws_access_key_id", "s3.access-key-id", ("aws_access_key_id",)),
        Row("secret_key", "aws_secret_access_key", "s3.secret-access-key", ("aws_secret_access_key",)),
        Row("session_token", "aws_session_token", "s3.session-token", ("aws_session_token",)),
        Row("anonymous", "aws_skip_signature", "s3.anonymous", ("aws_skip_signature",), flag=True),
        Row("force_virtual_addressing", "aws_virtual_hosted_style_request", "s3.force-virtual-addressing",
            ("aws_virtual_hosted_style_request",), flag=True),
    ),
    "gs": (),  # only GOOGLE_APPLICATION_CREDENTIALS, which all three read
    "az": (
        Row("account_name", "azure_storage_account_name", "adls.account-name", ("azure_storage_account_name",),
            ("AZURE_STORAGE_ACCOUNT_NAME",)),
        Row("account_key", "azure_storage_account_key", "adls.account-key", ("azure_storage_account_key",),
            ("AZURE_STORAGE_ACCOUNT_KEY",)),
        Row("sas_token", "azure_storage_sas_token", "adls.sas-token", ("azure_storage_sas_token",),
            ("AZURE_STORAGE_SAS_TOKEN",)),
        Row("tenant_id", "azure_storage_tenant_id", "adls.tenant-id", ("azure_tenant_id",), ("AZURE_TENANT_ID",)),
        Row("client_id", "azure_storage_client_id", "adls.client-id", ("azure_client_id",), ("AZURE_CLIENT_ID",)),
        Row("client_secret", "azure_storage_client_secret", "adls.client-secret", ("azure_client_secret",),
            ("AZURE_CLIENT_SECRET",)),
    ),
}  # fmt: skip
KNOWN: Final = {word: row for rows in OPTIONS.values() for row in rows for word in (row.name, *row.aliases)}
# Patterns in the errors of the libraries. They have many texts for one cause, and two of them show XML or a tree of causes.
MISSING: Final = re.compile(
    r"NO_?SUCH_?BUCKET|bucket does not exist|ContainerNotFound|FilesystemNotFound", re.IGNORECASE
)
REFUSED: Final = re.compile(
    r"ACCESS_?DENIED|InvalidAccessKeyId|INVALID_ACCESS_KEY|SIGNATURE_?DOES_?NOT_?MATCH|INVALID_?(?:SIGNATURE|CLIENT_?TOKEN)|"
    r"EXPIRED_?TOKEN|AuthFailure|AuthenticationFailed|Unauthenticated|Unauthorized|Forbidden|HTTP (?:code|response code)[: ]+40[13]|"
    r"credentials",
    re.IGNORECASE,
)
UNREACHABLE: Final = re.compile(
    r"NETWORK_CONNECTION|curlCode|error sending request|tcp connect|dns error|timed? ?out|could not connect|"
    r"Connection refused|SLOW_?DOWN|SERVICE_?UNAVAILABLE|INTERNAL_FAILURE|after \d+ retries",
    re.IGNORECASE,
)
SAID_CHARS_MAX: Final = 200
_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")
_SECRETS: Final = re.compile(r"(\?|://)(?:\S*@|(?<=\?)\S*)")  # in a URL: a signature, or a user name and password


@dataclass(frozen=True)
class Storage:
    """The options for an object store that the user has set."""

    given: tuple[tuple[str, str], ...] = ()

    def __repr__(self) -> str:
        return f"Storage({', '.join(f'{name}={SECRET}' for name, _ in self.given)})"

    def known(self, store: str) -> dict[str, str]:
        """Option -> value, also from the environment. LakeError for an option that this store does not have."""
        rows = OPTIONS[store]
        names = [row.name for row in rows]
        for name, _ in self.given:
            if name not in names:
                has = (
                    f"it has {', '.join(names)}" if names else "it has none, its credentials come from the environment"
                )
                raise LakeError(f"option {PREFIX}{name} is not one of {store}://", hint=has)
        found = dict(self.given)
        for row in rows:
            value = next((os.environ[name] for name in row.variables if os.environ.get(name)), None)
            if row.name not in found and value is not None:
                found[row.name] = value
        return found

    def filesystem(self, store: str, authority: str) -> "fs.FileSystem":
        """pyarrow's file system, the same object for the same options, because it keeps connections."""
        return _filesystem(store, authority if store == "az" else "", tuple(sorted(self.known(store).items())))

    def delta(self, store: str, authority: str) -> dict[str, str]:
        """deltalake's storage_options."""
        found = self._named(store, authority, 1)
        if found.get("aws_endpoint", "").startswith("http://"):
            found["aws_allow_http"] = "true"
        bounds = {"max_retries": str(RETRIES_MAX), "retry_timeout": f"{RETRY_SECONDS_MAX}s"}
        return bounds | {"connect_timeout": f"{CONNECT_SECONDS}s"} | found

    def iceberg(self, store: str, authority: str) -> dict[str, str]:
        """Properties of pyiceberg's FileIO."""
        bounds = {"s3.connect-timeout": str(CONNECT_SECONDS)} if store == "s3" else {}
        return bounds | self._named(store, authority, 2)

    def _named(self, store: str, authority: str, at: int) -> dict[str, str]:
        known = self.known(store)
        if store == "az":
            known.setdefault("account_name", account(authority))
        return {str(row[at]): known[row.name] for row in OPTIONS[store] if row.name in known}


NOTHING: Final = Storage()


def parse(options: Mapping[str, str]) -> Storage:
    """Options without their prefix, named as in pyarrow or in the SDKs' variables. LakeError for one that is not known."""
    found: dict[str, str] = {}
    for word, value in options.items():
        row = KNOWN.get(word.lower())
        if row is None:
            names = sorted({known.name for known in KNOWN.values()})
            raise LakeError(f"option {PREFIX}{word} is not known", hint=f"there are {', '.join(names)}")
        if row.name in found:
            raise LakeError(f"option {PREFIX}{row.name} is given twice", hint="it has two spellings; write one of them")
        if row.flag and value.lower() not in ("true", "false"):
            raise LakeError(f"option {PREFIX}{word} is not one of true, false", hint="write true or false")
        found[row.name] = value.lower() if row.flag else value
    return Storage(tuple(sorted(found.items())))


def account(authority: str) -> str:
    """container@account.dfs.core.windows.net -> account."""
    return authority.rpartition("@")[2].partition(".")[0]


@functools.lru_cache(maxsize=16)
def _filesystem(store: str, authority: str, known: tuple[tuple[str, str], ...]) -> "fs.FileSystem":
    from pyarrow import fs

    given: dict[str, str | bool] = dict(known)
    for row in OPTIONS[store]:
        if row.flag and row.name in given:
            given[row.name] = given[row.name] == "true"
    if store == "s3":
        retries = fs.AwsStandardS3RetryStrategy(max_attempts=RETRIES_MAX)
        # allow_delayed_open: a small object takes one request, not the three of a multipart upload.
        return fs.S3FileSystem(
            **given, connect_timeout=CONNECT_SECONDS, retry_strategy=retries, allow_delayed_open=True
        )
    if store == "gs":
        import datetime

        return fs.GcsFileSystem(retry_time_limit=datetime.timedelta(seconds=RETRY_SECONDS_MAX))
    given.setdefault("account_name", account(authority))
    return fs.AzureFileSystem(**given)


@contextlib.contextmanager
def plain(place: object, *passing: type[Exception]) -> Iterator[None]:
    """Turn errors that a library of an object store raises into a LakeError of one sentence. FileNotFoundError and `passing` are raised as
    they are: the caller handles them. Errors of a directory are clear already."""
    try:
        yield
    except Exception as error:
        if isinstance(place, Path) or isinstance(error, (LakeError, FileNotFoundError, *passing)):
            raise
        if not isinstance(error, OSError) and type(error).__module__.partition(".")[0] not in LIBRARIES:
            raise
        raise explained(place, error) from None  # its own text may have a signed URL


CATALOGS: Final = frozenset({"pyiceberg", "requests", "sqlalchemy"})  # whose errors are about a catalog
LIBRARIES: Final = CATALOGS | {"deltalake", "_internal", "pyarrow"}


def explained(place: object, error: BaseException) -> LakeError:
    """The LakeError for an error of a library, raised while reading or writing at `place`."""
    said = _COLOURS.sub("", str(error))
    if type(error).__module__.partition(".")[0] in CATALOGS:
        return _of_catalog(place, error, said)
    if MISSING.search(said):
        return LakeError(f"the bucket of {place} does not exist", hint="create it, or correct the path")
    if REFUSED.search(said):
        return LakeError(
            f"the store refuses these credentials for {place}",
            hint="check AWS_*, GOOGLE_APPLICATION_CREDENTIALS or AZURE_* in the environment, or the storage.* options",
        )
    if UNREACHABLE.search(said):
        return StoreUnreachable(
            f"the store of {place} does not answer, after {RETRIES_MAX} tries",
            hint="check storage.endpoint_override, storage.region and the network",
        )
    return StoreUnreachable(f"the store of {place} failed: {_short(said)}", hint="it is tried again")


def _of_catalog(place: object, error: BaseException, said: str) -> LakeError:
    kind = type(error).__name__
    if kind == "NotInstalledError":
        return LakeError(f"the catalog of {place} needs another package", hint=_short(said))
    if kind in ("UnauthorizedError", "ForbiddenError", "OAuthError"):
        return LakeError(
            f"the catalog refuses these credentials for {place}", hint="check catalog.token or catalog.credential"
        )
    if UNREACHABLE.search(said):
        return StoreUnreachable(f"the catalog of {place} does not answer", hint="check catalog.uri and the network")
    return StoreUnreachable(f"the catalog of {place} failed: {_short(said)}", hint="it is tried again")


def _short(said: str) -> str:
    return _SECRETS.sub(r"\1...", " ".join(said.split()))[:SAID_CHARS_MAX]
