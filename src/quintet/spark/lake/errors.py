"""What can be wrong with a lake table, in one class, so that Spark shows the sentence and nothing else."""

from quintet.model.errors import QuintetError


class LakeError(QuintetError, ValueError):
    """A table that cannot take these rows, or that is not there."""

    code = "E2110"

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(f"{message}; {hint}" if hint else message, hint=hint)
