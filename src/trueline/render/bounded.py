"""JSON documents as texts, whole or as pages of so many bytes, what matters most first."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, cast

from trueline.render.wording import UNPRINTABLE
from trueline.schema.errors import InputError
from trueline.schema.text.documents import finite

FEWEST_BYTES = 2000
"""Bytes of the smallest page: half of it is for the verdict, and a finding fits into the rest."""
_LONGEST_TEXTS = (1000, 300, 120, 40)
"""Characters that a text of the head, or of what is larger than a page, has at most: the first that fits."""
_MOST_ITEMS = 8
"""Items that a list within what is larger than a page keeps."""


def document_text(document: Mapping[str, Any], *, compact: bool = False) -> str:
    """A document as JSON: NaN and infinities, for which it has no form, become texts, and what steers a terminal, or
    what reads a log, is escaped. ``compact`` is one line.
    """
    layout = {"separators": (",", ":")} if compact else {"indent": 1}
    text = json.dumps(finite(document), allow_nan=False, default=str, ensure_ascii=False, **cast(Any, layout))
    # it stands in texts only, so that an escape is one of JSON's
    text = UNPRINTABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
    return re.sub(r"##(?=[a-z]*\[)", r"#\\u0023", text)


@dataclass(frozen=True)
class Listed:
    """A list or object of a document that may be cut: its field, as ``judged.questions``, and where its order is not
    that of what matters, the key that sorts it.
    """

    path: str
    key: Callable[[Any], Any] | None = None


_JUDGEMENTS = ("beyond", "not-comparable", "propagated", "within", "equal")
"""Of compared values, those first that are to blame, then those that nobody could judge."""


def _blame(row: Mapping[str, Any]) -> int:
    """Sort key of compared values: within a judgement they stay in the order of execution, where the first matters."""
    return _JUDGEMENTS.index(row["judgement"])


_FINDINGS = (Listed("incidents"), Listed("findings"), Listed("confirm"))
_LOOKED_AT = (Listed("judged.questions"), Listed("checks_not_run"), Listed("checks_run"))
ORDERS: Mapping[str, Sequence[Listed]] = {
    "wait": (Listed("findings"), Listed("actions")),
    "check": (
        *(Listed("actions"), *_FINDINGS, Listed("notes"), Listed("next")),
        Listed("facts", key=lambda fact: not fact["unusual"]),
        *_LOOKED_AT,
    ),
    "diagnose": (
        Listed("actions"),
        Listed("verdicts"),
        *_FINDINGS[:2],
        Listed("notes"),
        Listed("next"),
        *_LOOKED_AT[:1],
    ),
    "facts": (Listed("actions"), Listed("facts", key=lambda fact: not fact["unusual"]), Listed("unknown")),
    "compare": (
        *(Listed("actions"), Listed("findings"), Listed("rows", key=_blame), Listed("steps"), Listed("missing")),
        *(Listed("one_sided_calls"), Listed("judged.passes"), Listed("judged.first_step.passes")),
    ),
    "diff": (
        *(Listed("actions"), Listed("differences"), Listed("facts"), Listed("findings")),
        *(Listed("settings.run"), Listed("settings.ref")),
    ),
    "trial": (Listed("actions"), Listed("says"), Listed("next"), Listed("findings"), Listed("table"), Listed("arms")),
    "explain": (Listed("verbs"), Listed("exit_codes"), Listed("checks"), Listed("causes")),
}
"""Lists of each kind of document, what matters most first; those that are not named come behind."""


def page_of(document: Mapping[str, Any], order: Sequence[Listed], *, max_bytes: int, page: int = 1) -> dict[str, Any]:
    """Page ``page``, from 1, of ``document``: its single values on each page, and of its lists and objects, those of
    ``order`` first, as many items as fit into ``max_bytes`` as a compact text. ``left_out`` counts what comes on later
    pages, ``next_page`` is the number of the next, or None. Raises ``InputError`` for pages too small, or none.
    """
    if max_bytes < FEWEST_BYTES:
        raise InputError(f"A page of {max_bytes} bytes is too small. Take {FEWEST_BYTES} or more.")
    if page < 1:
        raise InputError(f"Page {page} is none: pages count from 1.")
    max_bytes -= len("\n")  # which ends the line that it is printed as
    fields = [*order, *_unordered(document, order)]
    fields = [field for field in fields if _at(document, field.path)]
    counts = {field.path: len(_at(document, field.path)) for field in fields}
    # lists may make their items as they are looked at, and most are on later pages
    entries = chain.from_iterable(_entries(document, field) for field in fields)
    head = _head(document, counts, max_bytes)
    pages = list(islice(_pages(entries, max_bytes - _size(head)), page + 1))
    if page > len(pages):
        raise InputError(f"There is no page {page}: the answer has {len(pages)}.")
    for path, item, value in pages[page - 1]:
        _add(head, path, item, value)
    for path, _, _ in (entry for earlier in pages[:page] for entry in earlier):
        counts[path] -= 1
    left_out = {path: count for path, count in counts.items() if count}
    return head | {"page": page, "next_page": page + 1 if page < len(pages) else None, "left_out": left_out}


Entry = tuple[str, Any, Any]
"""A field, the key of an item of an object (None in a list), and the item."""


def _unordered(document: Mapping[str, Any], order: Sequence[Listed]) -> Iterator[Listed]:
    """Lists that ``order`` does not name, as they stand."""
    top_level = {field.path.partition(".")[0] for field in order}
    yield from (Listed(key) for key, value in document.items() if isinstance(value, list) and key not in top_level)


def _entries(document: Mapping[str, Any], field: Listed) -> Iterator[Entry]:
    value = _at(document, field.path)
    if isinstance(value, Mapping):
        yield from ((field.path, key, item) for key, item in cast(Mapping[str, Any], value).items())
        return
    items = cast(list[Any], value)
    yield from ((field.path, None, item) for item in (sorted(items, key=field.key) if field.key else items))


def _at(document: Mapping[str, Any], path: str) -> Any:
    value: Any = document
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _head(document: Mapping[str, Any], counts: Mapping[str, int], max_bytes: int) -> dict[str, Any]:
    """The document with empty lists, and with what says how much is left out at its longest. Its texts are as long as
    half of the bytes allow.
    """
    numbers = {"page": 99999, "next_page": 99999, "left_out": dict(counts)}
    emptied = json.loads(document_text(_without(document, counts)))
    head: dict[str, Any] = {}
    for longest in _LONGEST_TEXTS:
        head = {key: _shortened(value, longest, None) for key, value in emptied.items()} | numbers
        if _size(head) <= max_bytes / 2:
            break
    if _size(head) > max_bytes * 0.6:
        raise InputError(f"A page of {max_bytes} bytes is too small for this answer. Take {2 * _size(head)} or more.")
    return head


def _without(part: Mapping[str, Any], paths: Collection[str], above: str = "") -> dict[str, Any]:
    """``part`` with what stands at ``paths`` empty."""
    rest: dict[str, Any] = {}
    for key, value in part.items():
        if f"{above}{key}" in paths:
            rest[key] = {} if isinstance(value, Mapping) else []
        else:
            rest[key] = _without(value, paths, f"{above}{key}.") if isinstance(value, Mapping) else value
    return rest


def _pages(entries: Iterable[Entry], room: int) -> Iterator[list[Entry]]:
    page: list[Entry] = []
    free = room
    for path, key, value in entries:
        size = _entry_size(key, value)
        if size > room:
            value = _fitting(key, value, room)
            size = _entry_size(key, value)
        if size > free:
            yield page
            page, free = [], room
        page.append((path, key, value))
        free -= size
    yield page


def _entry_size(key: Any, value: Any) -> int:
    return _size(value) + 1 + (0 if key is None else _size(str(key)) + 1)


def _fitting(key: Any, value: Any, room: int) -> Any:
    """An item that is larger than a page, with its texts and lists shortened as far as it takes. It says that it is
    ``shortened`` where it has keys.
    """
    mark = {"shortened": True} if isinstance(value, Mapping) else None
    short = value
    for longest in _LONGEST_TEXTS:
        short = _shortened(value, longest, _MOST_ITEMS)
        short = short if mark is None else short | mark
        if _entry_size(key, short) <= room:
            return short
    if mark is None:
        return f"{document_text({'': value}, compact=True)[4:24]}… (too large for this page)"
    single = {name: item for name, item in short.items() if not isinstance(item, Mapping | list)}
    empty = {name: type(item)() for name, item in short.items() if isinstance(item, Mapping | list)}
    return empty | single


def _shortened(value: Any, longest: int, num_items: int | None) -> Any:
    """``value`` with texts of at most ``longest`` characters, and lists of at most ``num_items`` items. The words of a
    command are left out as a whole: one that is cut would be another.
    """
    if isinstance(value, str):
        return value if len(value) <= longest else f"{value[:longest]}… ({len(value) - longest} characters more)"
    if isinstance(value, Mapping):
        items = cast(Mapping[str, Any], value)
        return {
            key: None if key == "argv" and _is_long(item, longest) else _shortened(item, longest, num_items)
            for key, item in items.items()
        }
    if isinstance(value, list):
        return [_shortened(item, longest, num_items) for item in cast(list[Any], value)[:num_items]]
    return value


def _is_long(argv: Any, longest: int) -> bool:
    return isinstance(argv, list) and any(len(str(word)) > longest for word in cast(list[Any], argv))


def _add(document: dict[str, Any], path: str, key: Any, value: Any) -> None:
    target = _at(document, path)
    if key is None:
        target.append(value)
    else:
        target[key] = value


def _size(value: Any) -> int:
    """Bytes of ``value`` in a compact text."""
    return len(document_text(cast(Any, value), compact=True).encode())
