"""Defines the errors of lake tables, so that Spark shows the sentence and nothing else."""

from quintet.model.errors import QuintetError


class LakeError(QuintetError, ValueError):
    """A table that cannot take these rows, or that is not there."""

    code = "E2110"

    def __init__(self, message: str, *, hint: str = "") -> None:
        # Spark carries the text alone, so the hint is in it, and only there: printing an error with its hint would repeat it.
        super().__init__(f"{message}; {hint}" if hint else message)


class StoreUnreachable(LakeError):
    """An object store that does not answer now. Trying again later can help."""

    code = "E2111"


class Outrun(LakeError):
    """Another process committed what this one was about to: the batch of the same writer, or a merge of the same files."""

    code = "E2112"
