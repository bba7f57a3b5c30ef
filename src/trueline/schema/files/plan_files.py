"""The Plan of a job that runs, as files in its Run: the one that people edit, and the copies that ranks agree on.

``plan.json`` is written by the first rank as training starts, and after that by whoever wants another Plan: an editor,
or ``trueline plan RUN --set``. What the first rank takes from it becomes a numbered copy under ``plans/``, which never
changes: an edit in between cannot give two ranks two contents.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from typing import Any

from trueline.schema.errors import PlanError
from trueline.schema.plan import Plan
from trueline.schema.text.documents import decode, sealed

PLAN_FILE = "plan.json"
REVISIONS_DIR = "plans"


def plan_path(run: str) -> str:
    """Where the Plan of a Run is edited."""
    return os.path.join(run, PLAN_FILE)


def revision_path(run: str, revision: int) -> str:
    """The copy of the ``revision``-th change, counted from 1."""
    return os.path.join(run, REVISIONS_DIR, f"plan-{revision:06d}.json")


def read_changes(path: str) -> dict[str, Any]:
    """The keys and values in a plan file, not yet validated; keys that are not there stay as they are.

    Raises ``PlanError`` for what is no JSON object, or a copy that is damaged, ``OSError`` where the file cannot be
    read.
    """
    with open(path, "rb") as file:
        data = file.read()
    try:
        return decode(data)[0]
    except ValueError as error:
        raise PlanError(
            f"Plan file '{path}' cannot be parsed: {error}. Expected a JSON object of keys; correct or remove it."
        ) from None


def write_plan(path: str, plan: Plan) -> None:
    """Put ``plan`` at ``path``, whole or not at all; copies, which nobody edits, have a checksum.

    Raises ``OSError``; whatever was there before stays then.
    """
    text = _text(plan.kept())
    data = text.encode("utf-8", "backslashreplace") if os.path.basename(path) == PLAN_FILE else sealed(text)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    temporary = os.path.join(os.path.dirname(path), f".{os.path.basename(path)}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.remove(temporary)
        raise


def ask(run: str, **changes: Any) -> None:
    """Put ``changes`` into the plan file of the Run at ``run``, which its job follows. Raises ``PlanError``,
    ``OSError``.
    """
    path = plan_path(run)
    write_plan(path, Plan.load(read_changes(path) | changes))


def _text(document: Mapping[str, Any]) -> str:
    """JSON with one key a line."""
    lines = [f" {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in document.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"
