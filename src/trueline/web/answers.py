"""Facts as answers: JSON, or numbers as they lie in memory.

An answer with arrays begins with the length of its head as a little-endian uint32 and the head, which is JSON padded
with spaces so that numbers begin at a multiple of 8 bytes; then come the arrays that the head names, little-endian, one
after the other, each padded to 8 bytes. With ``Accept: application/json`` the same is one JSON document.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np

from trueline.render.wording import visible
from trueline.schema.text.documents import finite, plain

ARRAYS = "application/vnd.trueline.arrays"
_ALIGNED = 8


@dataclass(frozen=True)
class Arrays:
    """Facts and, by name, arrays of float32, uint8 or int32."""

    head: Any
    arrays: dict[str, np.ndarray]

    def packed(self) -> bytes:
        """The answer as bytes."""
        listed = [
            {"name": name, "dtype": array.dtype.name, "shape": list(array.shape)} for name, array in self.arrays.items()
        ]
        head = _json({**_plain(self.head), "arrays": listed})
        head += b" " * (-(4 + len(head)) % _ALIGNED)
        parts = [len(head).to_bytes(4, "little"), head]
        for array in self.arrays.values():
            data = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).tobytes()
            parts += [data, b"\0" * (-len(data) % _ALIGNED)]
        return b"".join(parts)

    def document(self) -> dict[str, Any]:
        """The answer as one JSON object, arrays as lists."""
        return {**_plain(self.head), "arrays": {name: array.tolist() for name, array in self.arrays.items()}}


def as_json(facts: Any) -> bytes:
    """The JSON document of facts; numbers that JSON has no form for are texts."""
    return _json(facts.document() if isinstance(facts, Arrays) else _plain(facts))


def _json(value: Any) -> bytes:
    return json.dumps(finite(value), ensure_ascii=False, separators=(",", ":"), default=plain, allow_nan=False).encode(
        "utf-8", "replace"
    )


def _plain(value: Any) -> Any:
    """Dataclasses as dicts, and foreign texts without characters that turn a line round."""
    if is_dataclass(value) and not isinstance(value, type):
        return {value_in.name: _plain(getattr(value, value_in.name)) for value_in in fields(value)}
    if isinstance(value, dict):
        return {key: _plain(value_in) for key, value_in in value.items()}
    return [_plain(value_in) for value_in in value] if isinstance(value, list | tuple) else visible(value)
