"""Defines the errors of lake tables."""

from quintet.model.errors import QuintetError


class LakeError(QuintetError, ValueError):
    """A table cannot take these rows, or does not exist."""

    code = "E2110"

    def __init__(self, message: str, *, hint: str = "") -> None:
        # Spark shows the text only, so the hint is part of it, and not kept separately: it would be printed twice.
        super().__init__(f"{message}; {hint}" if hint else message)


class StoreUnreachable(LakeError):
    """An object store does not answer now. Trying again later can help."""

    code = "E2111"


class Outrun(LakeError):
    """Another process committed what this one was about to: the batch of the same writer, or a merge of the same files."""

    code = "E2112"
