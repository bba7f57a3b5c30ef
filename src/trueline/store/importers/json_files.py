"""A JSON file of another tool, read or refused in a sentence."""

from __future__ import annotations

from typing import Any

from trueline.schema.errors import InputError
from trueline.schema.text.documents import parsed
from trueline.schema.text.reading import why


def read_object(path: str) -> dict[str, Any]:
    """The object in a JSON file. Raises ``FileNotFoundError``, and ``InputError`` where it is damaged."""
    try:
        with open(path, encoding="utf-8") as file:
            document = parsed(file.read())
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise InputError(f"'{path}' cannot be read: {why(error)}. Copy it again; nothing was imported.") from None
    if not isinstance(document, dict):
        raise InputError(f"'{path}' holds a {type(document).__name__}, expected an object. Nothing was imported.")
    return document
