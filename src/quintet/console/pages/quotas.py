"""Answers an administrator about quotas of users and tenants and what each uses of them, and changes them by the verbs of the wire.

The verbs check the rights once more and write each change and each refusal to the audit themselves, so nothing here does.
"""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Final, Literal

import msgspec

from quintet.broker.identity.quotas import QuotaInfo
from quintet.console.call import Call, Operation
from quintet.console.paging import List, Row, listed


class SetQuota(msgspec.Struct, forbid_unknown_fields=True):
    """Bounds that are not named stay as they are: -1 is as configured, 0 is none. `tenant`: whom a user counts for, too."""

    kind: Literal["user", "tenant"]
    name: str
    tenant: str | None = None
    publish_bytes_per_second_max: int | None = None
    read_bytes_per_second_max: int | None = None
    connections_max: int | None = None
    topics_max: int | None = None
    storage_bytes_max: int | None = None


class ClearQuota(msgspec.Struct, forbid_unknown_fields=True):
    """Forget what was set: the configuration counts again."""

    kind: Literal["user", "tenant"]
    name: str


def _row(info: QuotaInfo) -> Row:
    return asdict(info) | {"bounds": info.bounds._asdict()}


async def _quotas(call: Call, ask: List) -> object:
    def rows() -> Iterator[Row | None]:
        for info in call.broker.quotas.walk():
            yield None if info is None else _row(info)

    return await listed(call, ask, rows(), ("name", "tenant", "kind"))


async def _set(call: Call, ask: SetQuota) -> object:
    fields = msgspec.structs.asdict(ask)
    kind, name, tenant = fields.pop("kind"), fields.pop("name"), fields.pop("tenant")
    changes = {quota: bound for quota, bound in fields.items() if bound is not None}
    return _row(await call.run(call.broker.quotas.set(call.principal, kind, name, tenant, changes, peer=call.peer)))


async def _clear(call: Call, ask: ClearQuota) -> object:
    return _row(await call.run(call.broker.quotas.clear(call.principal, ask.kind, ask.name, peer=call.peer)))


OPERATIONS: Final = (
    Operation(method="GET", path="/api/quotas", right="admin", asks=List, answer=_quotas, live=True),
    Operation(method="POST", path="/api/quota/set", right="admin", asks=SetQuota, answer=_set),
    Operation(method="POST", path="/api/quota/clear", right="admin", asks=ClearQuota, answer=_clear),
)
