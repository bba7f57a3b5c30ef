"""Older Runs as today's code expects them. A tiny Run of every version that ever was is kept under ``tests/data``."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pydantic import ValidationError

from trueline.schema.errors import RunError
from trueline.schema.files.run_manifest import SCHEMA_VERSION, Manifest
from trueline.schema.text.documents import decode, if_edited

OLDEST_VERSION = 1

_RETIRED = ("resumed_from",)
"""Keys of older manifests that no longer mean anything."""


def read_manifest(data: bytes, where: str) -> Manifest:
    """The Manifest in the bytes of a ``manifest.json``, of this or any older schema version.

    Raises ``RunError`` where it is damaged, is not Trueline's, or comes from a newer Trueline.
    """
    try:
        document, _ = decode(data)
    except ValueError as error:
        raise RunError(
            f"The manifest.json of '{where}' is damaged ({error}), so the Run cannot be opened. Restore "
            f"the file.{if_edited(error)}"
        ) from None
    for key in _RETIRED:
        document.pop(key, None)
    if not isinstance(document.get("schema_version"), int):
        raise RunError(
            f"'{where}' is not a Trueline Run: its manifest.json has no 'schema_version'. Pass a directory that "
            "trueline.watch or `trueline run` wrote."
        )
    check_version(document["schema_version"], where)
    try:
        return Manifest.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise RunError(
            f"The manifest.json of '{where}' has {first['input']!r} as '{key}' ({first['msg'].lower()}), so the Run "
            "cannot be opened. Restore the file, or record again."
        ) from None


def check_version(version: int, where: str) -> None:
    """Raise ``RunError`` for a schema version that this Trueline cannot read."""
    if version > SCHEMA_VERSION:
        raise RunError(
            f"Run '{where}' has schema version {version}, and this Trueline reads up to {SCHEMA_VERSION}. "
            "Upgrade with: pip install -U trueline."
        )
    if version < OLDEST_VERSION:
        raise RunError(f"Run '{where}' has schema version {version}; versions start at {OLDEST_VERSION}. Record again.")


def to_current(rows: pa.Table, current: pa.Schema, names: Sequence[str]) -> pa.Table:
    """Rows of any schema version under columns ``names`` of today's; one that did not exist then is null."""
    schema = pa.schema([current.field(name) for name in names])
    present = set(rows.column_names)
    columns = [rows[name] if name in present else pa.nulls(rows.num_rows, schema.field(name).type) for name in names]
    table = pa.table(columns, names=list(names))
    return table if table.schema.equals(schema) else table.cast(schema)
