"""Compiles a schema's definition into a `Validator`, by the module of its type."""

from collections.abc import Callable

from quintet.broker.schemas.validators import DEFINITION_BYTES_MAX, Validator
from quintet.broker.slices import Steps, finish
from quintet.model.errors import SchemaInvalid


def compile_schema(type: str, definition: bytes) -> Validator:
    """The validator of a definition; SchemaInvalid with the reason if it is not a schema of that type."""
    return finish(compile_steps(type, definition))


def compile_steps(type: str, definition: bytes) -> Steps[Validator]:
    """As compile_schema, a few milliseconds at a time."""
    from quintet.broker.schemas import avro, json_schema, protobuf  # each brings a library

    makers: dict[str, Callable[[bytes], Steps[Validator]]] = {
        "json": json_schema.compile_steps,
        "avro": avro.compile_steps,
        "protobuf": protobuf.compile_steps,
    }
    if len(definition) > DEFINITION_BYTES_MAX:
        raise SchemaInvalid(
            f"the definition has {len(definition)} bytes, the limit is {DEFINITION_BYTES_MAX}",
            hint="split the schema, or remove what is only documentation",
        )
    return (yield from makers[type](definition))
