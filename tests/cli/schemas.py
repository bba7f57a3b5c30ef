"""JSON Schemas of documents, closed: they refuse keys that they do not name, which a user's would not."""

from __future__ import annotations

import functools
from typing import Any

import jsonschema

from trueline.judge.json_schemas import json_schema


@functools.cache
def validator(kind: str, *, is_closed: bool = True) -> jsonschema.Draft202012Validator:
    """Of the document ``kind``."""
    schema = json_schema(kind)
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(_closed(schema) if is_closed else schema)


def _closed(part: Any) -> Any:
    if isinstance(part, list):
        return [_closed(item) for item in part]
    if not isinstance(part, dict):
        return part
    made = {key: _closed(value) for key, value in part.items()}
    is_object = isinstance(part.get("properties"), dict) and "type" in part
    return made | {"additionalProperties": False} if is_object else made
