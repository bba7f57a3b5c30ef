"""SQL over the tables of a Run only: no files, extensions or settings, and limits on time, memory and rows."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from trueline.schema.errors import RunError

if TYPE_CHECKING:
    import duckdb

MEMORY_LIMIT = "4GiB"
"""Memory that DuckDB may use in addition to the tables; it writes nothing to disk."""
TIME_LIMIT_S = 300.0
MAX_ROWS = 1_000_000
"""Of an answer, each of whose values becomes an object of Python."""

_SETTINGS = (
    "SET python_enable_replacements = false",
    "SET autoinstall_known_extensions = false",
    "SET autoload_known_extensions = false",
    "SET temp_directory = ''",
    f"SET memory_limit = '{MEMORY_LIMIT}'",
    "SET enable_external_access = false",
    "SET lock_configuration = true",
)
_ANSWERING = frozenset({"SELECT", "EXPLAIN", "MULTI"})
"""Kinds of statement; several in one is what PIVOT is made of."""
_SYSTEM = re.compile(r"\b(duckdb_\w+|pragma_\w+|information_schema|pg_\w+|sqlite_\w+|current_setting)\b", re.IGNORECASE)
_COMMENTS = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)
_FIRST_WORD = re.compile(r"[^\W\d_]+")
_HINT = re.compile(r"\s*Did you mean .*", re.DOTALL)
"""DuckDB's suggestion, which would name one of its own tables."""
_TEXTS = re.compile(r"'[^']*'")
_TABLES = (
    "The tables are 'workers' and 'records', and of rollouts 'rollouts' and 'syncs', with the columns that "
    "trueline.schema.columns lists."
)

Answer = tuple[list[str], list[tuple[Any, ...]]]
"""Names of columns, and rows."""


def answer(sql: str, tables: Mapping[str, Callable[[], pa.Table]], *, run_path: str) -> Answer:
    """What one SELECT of DuckDB's says of ``tables``, which are read where it names them; ``run_path`` is for messages.

    Raises ``RunError`` for anything else, for what takes more than the limits above, and for what DuckDB refuses.
    """
    import duckdb

    with duckdb.connect() as connection:
        for name, rows in tables.items():
            if re.search(rf"\b{name}\b", sql, re.IGNORECASE):
                connection.register(name, rows())
        for setting in _SETTINGS:
            connection.execute(setting)
        timer = threading.Timer(TIME_LIMIT_S, connection.interrupt)
        timer.start()
        try:
            _require_answering(connection, sql, run_path)
            result = connection.execute(sql)
            rows = result.fetchmany(MAX_ROWS + 1)
            names = [entry[0] for entry in result.description or ()]
        except duckdb.InterruptException:
            raise RunError(
                f"The query on Run '{run_path}' took longer than {TIME_LIMIT_S:g} s. Ask for less."
            ) from None
        except duckdb.Error as error:
            reason = " ".join(_HINT.sub("", str(error).split("\n\n")[0]).split()).rstrip(".!")
            raise RunError(f"The query on Run '{run_path}' failed: {reason}. {_TABLES}") from None
        finally:
            timer.cancel()
    if len(rows) > MAX_ROWS:
        raise RunError(f"The query on Run '{run_path}' has more than {MAX_ROWS:,} rows. Add a limit, or sum up in SQL.")
    return names, rows


def _require_answering(connection: duckdb.DuckDBPyConnection, sql: str, run_path: str) -> None:
    """Raise ``RunError`` for what is not one question about the Run."""
    statements = connection.extract_statements(sql)
    if not statements:
        raise RunError(f"The query on Run '{run_path}' is empty. Try: select * from workers limit 5.")
    words = [_first_word(statement.query) for statement in statements]
    if len(statements) > 1 or _kind(statements[0]) not in _ANSWERING:
        problem = f"holds {len(words)} statements" if len(words) > 1 else f"is {words[0]}"
        raise RunError(f"The query on Run '{run_path}' {problem}, and one SELECT is answered. {_TABLES}")
    outside = _SYSTEM.search(_TEXTS.sub("", sql))
    if outside:
        raise RunError(
            f"The query on Run '{run_path}' asks for '{outside[0]}', which is not part of the Run. {_TABLES}"
        )


def _first_word(statement: str) -> str:
    """What the statement begins with, in capitals: the user's own word, which DuckDB's name for its kind may not be."""
    match = _FIRST_WORD.search(_COMMENTS.sub(" ", statement))
    return match[0].upper() if match else "no SELECT"


def _kind(statement: duckdb.Statement) -> str:
    """DuckDB's name for the kind of statement; "" for one that its Python API has none for."""
    try:
        return str(statement.type.name)
    except ValueError:
        return ""
