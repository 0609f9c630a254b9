"""Adds the operators of a dictionary to the blocking twin of a cache."""

from abc import ABC, abstractmethod


class Mapped(ABC):
    """`cache["k"] = b"v"`, `cache["k"]`, `del cache["k"]`, `"k" in cache`. There is no iteration: a cache may be larger
    than anybody wants to read."""

    @abstractmethod
    def get(self, key: str, *, timeout: float | None = None) -> bytes | None: ...

    @abstractmethod
    def put(
        self,
        key: str,
        value: object,
        *,
        ttl: float | None = None,
        if_version: int | None = None,
        timeout: float | None = None,
    ) -> int: ...

    @abstractmethod
    def delete(self, key: str, *, if_version: int | None = None, timeout: float | None = None) -> bool: ...

    def __getitem__(self, key: str) -> bytes:
        value = self.get(key)
        if value is None:
            raise KeyError(key)
        return value

    def __setitem__(self, key: str, value: object) -> None:
        self.put(key, value)

    def __delitem__(self, key: str) -> None:
        if not self.delete(key):
            raise KeyError(key)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self.get(key) is not None

    __iter__ = None  # else Python would count from 0 up and ask for these keys
