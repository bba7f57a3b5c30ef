"""Instruction / input / response triples to fine-tune on: from the standard library's own sources, or a user's file.

The library is parsed with `ast` and quoted by line number; nothing of it is imported or evaluated, so a default such as
``os.environ`` stays the eleven characters that stand in the file and never becomes this machine's environment.
"""

from __future__ import annotations

import ast
import collections
import inspect
import json
import sysconfig
import textwrap
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trueline.schema.errors import InputError

NUM_TRIPLES = 8000
MAX_CHARS = 480
"""Longest triple taken from the library: about 150 tokens, so that a step stays below a second on a laptop core."""

NOT_LIBRARY = frozenset(
    {"test", "tests", "idle_test", "idlelib", "lib2to3", "turtledemo", "ensurepip", "site-packages", "dist-packages"}
)
FIELDS_EXPECTED = "an object with the texts 'instruction', 'output' and, if there is any, 'input'"


@dataclass(frozen=True, slots=True)
class Triple:
    """One example: what is asked, what it is asked about (may be empty), and the answer that is learned."""

    instruction: str
    input: str
    output: str

    @property
    def num_chars(self) -> int:
        """Characters over all three fields."""
        return len(self.instruction) + len(self.input) + len(self.output)


def library_triples(num_triples: int = NUM_TRIPLES, *, root: Path | None = None) -> list[Triple]:
    """At most ``num_triples`` distinct triples, evenly spread over the library in ``root`` (None: the installed one).

    One Python version gives the same triples in the same order. Raises ``InputError`` where no source is installed.
    """
    folder = Path(sysconfig.get_paths()["stdlib"]) if root is None else root
    distinct = dict.fromkeys(triple for path in _sources(folder) for triple in _triples_of(path, folder))
    triples = [triple for triple in distinct if triple.num_chars <= MAX_CHARS]
    if not triples:
        raise InputError(
            f"No Python sources with documented functions under '{folder}', so there is no text to train on. "
            "Pass --data with an Alpaca-format JSON or JSONL file."
        )
    num_kept = min(num_triples, len(triples))
    return [triples[index * len(triples) // num_kept] for index in range(num_kept)]


def load_triples(path: Path) -> list[Triple]:
    """The triples of an Alpaca-format file: a JSON array of objects, or JSONL with one object a line.

    Raises ``InputError``, one sentence with the file and the line or index, for anything else.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(f"Data file '{path}' cannot be read ({reason}); expected a JSON or JSONL file.") from None
    except UnicodeDecodeError as error:
        raise InputError(
            f"Data file '{path}' is not UTF-8 text (byte {error.start}); "
            f"expected JSON or JSONL, {FIELDS_EXPECTED} each."
        ) from None
    if not text.strip():
        raise InputError(f"Data file '{path}' is empty; expected {FIELDS_EXPECTED}, as a JSON array or one a line.")
    rows = _array_rows(text, path) if text.lstrip().startswith("[") else _line_rows(text, path)
    triples = [_triple(row, where) for where, row in rows]
    if not triples:
        raise InputError(f"Data file '{path}' holds an empty array; expected at least one {FIELDS_EXPECTED[3:]}.")
    return triples


def _sources(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.py") if NOT_LIBRARY.isdisjoint(path.relative_to(folder).parts[:-1]))


def _triples_of(path: Path, folder: Path) -> Iterator[Triple]:
    """Triples of one source file; a file that this Python cannot parse or decode gives none."""
    try:
        text = path.read_text(encoding="utf-8")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (OSError, SyntaxError, ValueError):
        return
    module = ".".join(path.relative_to(folder).with_suffix("").parts).removesuffix(".__init__")
    lines = text.split("\n")  # not splitlines: ast does not count a form feed as a line end
    for node in _statements(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _triples_of_function(node, module, lines)


def _statements(tree: ast.Module) -> Iterator[ast.AST]:
    """What ``ast.walk`` yields, in its order, without expressions: they are most of a file, and hold no function."""
    pending = collections.deque[ast.AST]([tree])
    while pending:
        node = pending.popleft()
        yield node
        for name in ("body", "handlers", "orelse", "finalbody", "cases"):
            pending.extend(getattr(node, name, ()))


def _triples_of_function(
    node: ast.FunctionDef | ast.AsyncFunctionDef, module: str, lines: list[str]
) -> Iterator[Triple]:
    first = node.body[0]
    source = _quoted(lines, node.lineno, node.end_lineno)
    docstring = ast.get_docstring(node, clean=False)
    if docstring is None:
        yield from _completion(source, module)
        return
    header = _quoted(lines, node.lineno, first.lineno - 1)
    text = inspect.cleandoc(docstring)
    body = _quoted(lines, (first.end_lineno or first.lineno) + 1, node.end_lineno)
    if header and text:
        yield Triple(f"Describe what this function of the module {module} does.", header, text)
    if header and text and body:
        yield Triple(
            f"Write the body of the function {node.name}, which is described below.", f"{header}\n{text}", body
        )


def _completion(source: str, module: str) -> Iterator[Triple]:
    """An undocumented function cut after its first half; nothing for one too short to be cut."""
    lines = source.splitlines()
    if len(lines) < 4:
        return
    half = len(lines) // 2
    yield Triple(
        f"Finish this function of the module {module}.",
        "\n".join(lines[:half]),
        textwrap.dedent("\n".join(lines[half:])),
    )


def _quoted(lines: list[str], first: int, last: int | None) -> str:
    """Lines ``first`` to ``last`` of a source, both counted from 1, without their common indent."""
    return textwrap.dedent("\n".join(lines[first - 1 : last])).strip("\n")


def _array_rows(text: str, path: Path) -> Iterator[tuple[str, Any]]:
    try:
        rows = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(
            f"Data file '{path}' stops being JSON at line {error.lineno}, column {error.colno} ({error.msg}); "
            f"expected an array whose every item is {FIELDS_EXPECTED}."
        ) from None
    except RecursionError:
        raise InputError(f"Data file '{path}' is nested too deeply; expected a plain array of objects.") from None
    for index, row in enumerate(rows):
        yield f"Item {index} of data file '{path}'", row


def _line_rows(text: str, path: Path) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            yield f"Line {number} of data file '{path}'", json.loads(line)
        except (json.JSONDecodeError, RecursionError) as error:
            reason = getattr(error, "msg", "nested too deeply")
            raise InputError(
                f"Line {number} of data file '{path}' is not JSON ({reason}); "
                "expected a JSON array, or one whole JSON object a line."
            ) from None


def _triple(row: Any, where: str) -> Triple:
    if not isinstance(row, dict):
        raise InputError(f"{where} is a JSON {_json_name(row)}; expected {FIELDS_EXPECTED}.")
    for field in ("instruction", "output"):
        if field not in row:
            fields_found = ", ".join(f"'{key}'" for key in list(row)[:6]) or "no field"
            raise InputError(f"{where} has no '{field}' (it has {fields_found}); expected {FIELDS_EXPECTED}.")
    values = {field: row.get(field) for field in ("instruction", "input", "output")}
    values["input"] = "" if values["input"] is None else values["input"]
    for field, value in values.items():
        if not isinstance(value, str):
            raise InputError(f"{where} has a JSON {_json_name(value)} as '{field}'; expected {FIELDS_EXPECTED}.")
        if any("\ud800" <= char <= "\udfff" for char in value):
            raise InputError(f"{where} has half of a surrogate pair in '{field}'; expected valid Unicode.")
    return Triple(**values)


def _json_name(value: Any) -> str:
    names = {dict: "object", list: "array", str: "text", bool: "boolean", int: "number", float: "number"}
    return names.get(type(value), "null")
