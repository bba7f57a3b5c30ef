"""JSON objects that Trueline writes, as documents or as lines: the last key of each is the CRC32 of all that stands
before it, so that a flipped bit is damage, and never another answer.
"""

from __future__ import annotations

import codecs
import json
import re
import zlib
from collections.abc import Mapping
from typing import Any, cast

CHECKSUM = "crc32"
_SEAL = re.compile(rb'(?:(?<=\{)|,)\s*"crc32": "([0-9a-f]{8})"\s*\}\s*\Z')
_SEAL_BYTES = 64
"""No seal is longer, so that only the end of a document is searched."""


class NotAsWritten(ValueError):
    """The checksum of a document is not that of what stands before it."""


def if_edited(error: ValueError) -> str:
    """What to do where ``decode`` raised ``error`` for a file that was edited on purpose; "" where that is not why."""
    remove = f" If it was edited on purpose, remove its key '{CHECKSUM}'."
    return remove if isinstance(error, NotAsWritten) else ""


def _as_escapes(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    characters = error.object[error.start : error.end]
    return "".join(f"\\\\x{ord(character) & 0xFF:02x}" for character in characters), error.end


codecs.register_error("trueline-named", _as_escapes)


def encode(document: Mapping[str, Any], *, indent: int | None = 1) -> bytes:
    r"""The document, which ends with its checksum and the end of a line. A byte that was no UTF-8 (which Python has as
    a lone surrogate, PEP 383) is named, as in ``\xe9``: what reads it back can print it, or put it into a page.
    """
    return sealed(json.dumps(document, indent=indent, default=plain, ensure_ascii=False))


def sealed(text: str) -> bytes:
    """The text of a JSON object, laid out on lines or on one, with the checksum as its last key."""
    body = text.rstrip().removesuffix("}").rstrip().encode("utf-8", "trueline-named")
    space, end = (b"\n ", b"\n}\n") if b"\n" in body else (b" ", b"}\n")
    comma = b"" if body.endswith(b"{") else b","
    return body + comma + space + f'"{CHECKSUM}": "{zlib.crc32(body):08x}"'.encode() + end


def decode(data: bytes) -> tuple[dict[str, Any], bool]:
    """The object without its checksum, and whether it had one: those of older versions, and files that people wrote,
    have none. Raises ``ValueError`` for what is no JSON object, or not what was written.
    """
    document = parsed(data)
    if not isinstance(document, dict):
        raise ValueError(f"it holds a {type(document).__name__}, expected an object")
    seal = _SEAL.search(data, max(0, len(data) - _SEAL_BYTES))
    if seal is None and CHECKSUM in document:
        raise NotAsWritten(f"'{CHECKSUM}' is not its last key, or no checksum")
    if seal is not None and (crc := zlib.crc32(data[: seal.start()])) != int(seal[1], 16):
        raise NotAsWritten(f"it has CRC32 {crc:08x} where {seal[1].decode()} was written")
    content = cast(dict[str, Any], document)
    content.pop(CHECKSUM, None)
    return content, seal is not None


def parsed(data: str | bytes) -> Any:
    """What JSON says, whoever wrote it. Raises ``ValueError``, also where it is nested deeper than can be read."""
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def plain(value: Any) -> Any:
    """Numbers and arrays of NumPy as plain ones; anything else a framework puts into a dict as its text."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


def finite(value: Any) -> Any:
    """The value with "NaN", "Infinity" and "-Infinity" for what JSON has no number for; null stays not measured."""
    if isinstance(value, float) and (value != value or abs(value) == float("inf")):
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {str(key): finite(entry) for key, entry in cast(Mapping[Any, Any], value).items()}
    return [finite(entry) for entry in cast(list[Any], value)] if isinstance(value, list | tuple) else value
