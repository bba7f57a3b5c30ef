"""The Plan that a job follows now, and changes of it while the job runs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from typing import Any

from trueline.schema.errors import InputError, PlanError
from trueline.schema.files.plan_files import plan_path, read_changes, write_plan
from trueline.schema.plan import Plan
from trueline.store.reader import Run


def plan_in_force(run: Run) -> Plan:
    """The Plan that the ranks follow now; the default one where the job has not begun to train."""
    return Plan.load(_current_keys(_recorded_keys(run)))


def confirmed_ids(run: Run) -> frozenset[str]:
    """Ids of things to confirm that somebody confirmed, in the Plan in force or in the plan file beside it. A Plan that
    is damaged, or of another version, confirms what can be read of it: whether the Run is judged must not depend on it.
    """
    asked: dict[str, Any] = {}
    with contextlib.suppress(OSError, PlanError):  # no file, or one that its job does not follow either
        asked = _asked_keys(run)
    lists = [keys.get("confirmed") for keys in (_recorded_keys(run), asked)]
    return frozenset(name for names in lists if isinstance(names, list) for name in names if isinstance(name, str))


def confirm(run: Run, ids: Iterable[str]) -> None:
    """Write into the plan file of ``run`` that ``ids`` are meant, whether its job runs or has ended. Raises
    ``InputError`` where the Run is not local, ``PlanError``, ``OSError``.
    """
    _require_local(run)
    changed = _asked_keys(run) | {"confirmed": sorted({*confirmed_ids(run), *ids})}
    write_plan(plan_path(os.fspath(run.path)), plan_in_force(run).revised(changed, "plan.json"))


def change_plan(run: Run, changes: Mapping[str, Any], *, asker: str) -> None:
    """Ask the job of ``run`` for other values of some keys, next to those that its plan file asks for already;
    ``asker`` names who asks, for messages. Raises ``InputError`` where no job follows it, ``PlanError``, ``OSError``.
    """
    _require_running(run)
    changed = _asked_keys(run) | dict(changes)
    write_plan(plan_path(os.fspath(run.path)), plan_in_force(run).revised(changed, f"{asker} and plan.json"))


def _asked_keys(run: Run) -> dict[str, Any]:
    """Keys of the plan file; none where there is no file."""
    path = plan_path(os.fspath(run.path))
    return read_changes(path) if os.path.isfile(path) else {}


def _recorded_keys(run: Run) -> dict[str, Any]:
    """Keys of the Plan that the manifest has as the last."""
    plans = run.manifest.plans
    return plans[-1].plan if plans else run.manifest.plan


def _require_running(run: Run) -> None:
    _require_local(run)
    if not run.manifest.plan:
        raise InputError(f"The job of Run '{run.path}' has not begun to train, so there is no Plan to change yet.")
    if not run.unclosed:
        raise InputError(
            f"The job of Run '{run.path}' has ended, so its Plan cannot change. Start a new Run with --plan."
        )


def _require_local(run: Run) -> None:
    if "://" in run.path:
        raise InputError(f"The Plan of '{run.path}' cannot be changed from here: only a local Run can be written to.")


def _current_keys(plan: dict[str, Any]) -> dict[str, Any]:
    """Keys of a Plan of another version that have a meaning here."""
    return {key: value for key, value in plan.items() if key in Plan.model_fields}
