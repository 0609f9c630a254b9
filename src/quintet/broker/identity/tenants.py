"""Counts what each tenant uses and holds it to its quotas. Nothing here is kept over a restart.

A tenant is the first part of a name TENANT/NAMESPACE/STREAM. One that the configuration does not name has no quotas: only
what it has open is counted, in case it gets some. A quota of 0 is no quota. Counts go on when the configuration is read
again, so a tenant that gets a lower limit keeps what it has and gets nothing new until it is below. What an administrator sets while the
broker runs (quotas.py) counts instead of what the configuration says, bound by bound.
"""

from collections import Counter
from collections.abc import Callable, Mapping

from quintet.broker.sections import Tenant
from quintet.model.errors import LimitExceeded
from quintet.model.rate import Bucket

_NONE = Tenant(name="none")  # 0 everywhere: no quotas


class Tenants:
    """Quotas by tenant. `streams` counts the topics of one."""

    def __init__(self, quotas: Mapping[str, Tenant], streams: Callable[[str], int] = lambda _tenant: 0) -> None:
        self._configured = dict(quotas)
        self._adjusted: dict[str, Mapping[str, int]] = {}
        self._quotas = dict(quotas)
        self._streams = streams
        self._buckets: dict[str, Bucket] = {}
        self.connections: Counter[str] = Counter()
        self.subscriptions: Counter[str] = Counter()
        self.published_bytes: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()

    @property
    def names(self) -> list[str]:
        """The tenants that have quotas, configured or set."""
        return list(self._quotas)

    def quota(self, tenant: str) -> Tenant:
        return self._quotas.get(tenant, _NONE)

    def streams(self, tenant: str) -> int:
        """How many topics it has."""
        return self._streams(tenant)

    def replace(self, quotas: Mapping[str, Tenant]) -> None:
        """Judge by these from now on. What is open stays open and stays counted."""
        self._configured = dict(quotas)
        self._follow()

    def adjust(self, tenant: str, bounds: Mapping[str, int]) -> None:
        """Judge this tenant by these bounds, and by the configuration where none is given."""
        self._adjusted[tenant] = bounds
        if not bounds:
            del self._adjusted[tenant]
        self._follow()

    def _follow(self) -> None:
        fresh = dict(self._configured)
        for tenant, bounds in self._adjusted.items():
            fresh[tenant] = fresh.get(tenant, Tenant.model_construct(name=tenant)).model_copy(update=bounds)
        for tenant, bucket in list(self._buckets.items()):
            if fresh.get(tenant, _NONE).publish_bytes_per_second_max != bucket.per_second:
                del self._buckets[tenant]
        self._quotas = fresh

    # -- what is open ----------------------------------------------------------------------------------------------

    def connection_opened(self, tenant: str, *, must: bool = False) -> None:
        """Count one, or LimitExceeded unless it `must` be. Each that was counted is closed once."""
        if not must:
            self._check(tenant, self.connections[tenant], self.quota(tenant).connections_max, "connections")
        self.connections[tenant] += 1

    def connection_closed(self, tenant: str) -> None:
        _less(self.connections, tenant)

    def subscription_opened(self, tenant: str) -> None:
        """Count one, or LimitExceeded. Each that was counted is closed once."""
        self._check(tenant, self.subscriptions[tenant], self.quota(tenant).subscriptions_max, "subscriptions")
        self.subscriptions[tenant] += 1

    def subscription_closed(self, tenant: str) -> None:
        _less(self.subscriptions, tenant)

    # -- what is made ----------------------------------------------------------------------------------------------

    def check_topic(self, tenant: str) -> None:
        """LimitExceeded unless it may have one more topic: asked before one is made."""
        limit = self.quota(tenant).streams_max
        if limit:
            self._check(tenant, self._streams(tenant), limit, "streams")

    def check_cache(self, tenant: str, has: int) -> None:
        """LimitExceeded unless it may have one more cache than it has."""
        self._check(tenant, has, self.quota(tenant).caches_max, "caches")

    def _check(self, tenant: str, has: int, limit: int, what: str) -> None:
        if limit and has >= limit:
            self.refused[tenant] += 1
            raise LimitExceeded(
                f"tenant {tenant!r} has {has} {what}, its limit is {limit}",
                hint=f"give one up, or raise {what}_max of the tenant",
            )

    # -- what is published -----------------------------------------------------------------------------------------

    def published(self, tenant: str, size: int, monotonic: int) -> int:
        """So many bytes were published (0: who only asks): for how many microseconds nothing more should be taken from this
        tenant."""
        quota = self._quotas.get(tenant)
        if quota is None:
            return 0
        self.published_bytes[tenant] += size
        bucket = self.bucket(tenant, monotonic)
        if bucket is None:
            return 0
        bucket.take(size, monotonic)
        return bucket.wait(monotonic)

    def bucket(self, tenant: str, monotonic: int) -> Bucket | None:
        """What it may publish, whichever door it comes by; None: it has no rate."""
        quota = self.quota(tenant)
        if not quota.publish_bytes_per_second_max:
            return None
        found = self._buckets.get(tenant)
        if found is None:
            found = self._buckets[tenant] = Bucket(quota.publish_bytes_per_second_max, monotonic)
        return found


def _less(counter: Counter[str], tenant: str) -> None:
    """One that was counted is closed."""
    counter[tenant] -= 1
    assert counter[tenant] >= 0, f"more was closed than opened for tenant {tenant!r}"
    if not counter[tenant]:
        del counter[tenant]
