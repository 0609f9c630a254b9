"""Decodes a value by the newest version of its topic's schema, for a person to read."""

import json
from typing import Final

from quintet.console.call import Call
from quintet.model.errors import QuintetError

DECODED_BYTES_MAX: Final = 256 << 10  # a longer value is shown as it is


async def decoded(call: Call, topic: str, value: bytes | memoryview | None) -> dict[str, object] | None:
    """Its text by schema; None if the topic has no schema or the value is too long. A value that does not fit says why."""
    if value is None or len(value) > DECODED_BYTES_MAX:
        return None
    try:
        schema = call.broker.schemas.get(topic)
    except QuintetError:
        return None
    data = bytes(value)
    found: dict[str, object] = {"schema": schema.id, "type": schema.type}
    try:
        reasons = await call.run(call.broker.schemas.judge(schema.name, schema.version, data, call.wanted))
    except QuintetError as error:
        return found | {"reasons": [str(error)]}
    if reasons:
        return found | {"reasons": reasons[:10]}
    if schema.type == "json":
        return found | {"fits": True}
    text = _avro(schema.definition, data) if schema.type == "avro" else None
    return found | {"fits": True} | ({"text": text} if text is not None else {})


def _avro(definition: bytes, data: bytes) -> str | None:
    import io

    import fastavro

    try:
        value = fastavro.schemaless_reader(io.BytesIO(data), fastavro.parse_schema(json.loads(definition)), None)
    except Exception:  # the validator said that it fits; whatever the library says, bytes are shown then
        return None
    return json.dumps(value, default=str, ensure_ascii=False, indent=2)
