"""Summaries of what is recorded in a Run, and the rows of chosen sites, as plain values: `trueline info`."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from trueline.schema.errors import RunError, SiteError
from trueline.schema.site import Site
from trueline.store import file_names
from trueline.store.reader import Run
from trueline.store.records.record_reader import site_of

OUTLINE_LEVELS = 3
"""Parts of a module's name down to which it is in the outline."""

COPY_AGAIN = "Copy the Run again, or record again."
"""Advice where damage hides what was recorded."""

_MAX_DAMAGED = 2
"""Files that a message names."""

_SITE_COLUMNS = ["step", "rank", "micro", "phase", "name", "call", "slot", "kind", "api", "module"]


def summarize_records(run: Run) -> dict[str, Any] | None:
    """Recorded steps, sites and modules as in the last recorded step; None where nothing is.

    ``modules`` is the outline of the module tree by order of first call: ``calls`` of the module in that step's forward
    pass (None where modules were not recorded), ``ops`` called in it and below.
    """
    if not run.has_records:
        return None
    steps = run.record_steps
    rows = run.records(steps=[int(steps[-1])], columns=_SITE_COLUMNS).to_pylist()
    plan = run.manifest.plan_at(int(steps[-1]))
    phases: dict[str, int] = {}
    for row in rows:
        phases[row["phase"] or ""] = phases.get(row["phase"] or "", 0) + 1
    return {
        "steps": {"count": len(steps), "first": int(steps[0]), "last": int(steps[-1])},
        "ranks": run.record_ranks,
        "preset": plan.get("preset"),
        "depth": plan.get("depth"),
        "rows_last_step": len(rows),
        "phases_last_step": phases,
        "sites_last_step": len({_site_text(row) for row in rows}),
        "bytes": {
            folder: run.size_bytes(folder)
            for folder in (file_names.RECORDS_DIR, file_names.TENSORS_DIR, file_names.STACKS_DIR)
        },
        "modules": _outline([row for row in rows if row["rank"] == rows[0]["rank"]]),
    }


def damaged_records(run: Run) -> str:
    """Which files of recorded steps are damaged, and how; "" where none is."""
    damaged = [problem for problem in run.problems if _is_of_records(problem.file)]
    more = f" (and {len(damaged) - _MAX_DAMAGED} more)" if len(damaged) > _MAX_DAMAGED else ""
    return "; ".join(damaged[:_MAX_DAMAGED]) + more


def _is_of_records(name: str) -> bool:
    folder, _, rest = name.partition("/")
    return folder == file_names.RECORDS_DIR or file_names.records_journal_rank(rest) is not None


def list_sites(
    run: Run, pattern: str, *, step: int | None = None, rank: int | None = None, stacks: bool = False
) -> list[dict[str, Any]]:
    """One dict for each row of the sites that ``pattern`` matches, sorted by step, rank and order of execution.

    ``pattern`` is a Site, or a glob over names or over ``phase/name#call:slot``. ``mean`` and ``rms`` are over finite
    elements. Raises ``RunError`` where nothing matches.
    """
    if not run.has_records:
        damage = damaged_records(run)
        todo = f"{damage}. {COPY_AGAIN}" if damage else "Record with --plan modules, ops or mix."
        raise RunError(f"Run '{run.path}' has no recorded steps, so no site to list. {todo}")
    rows = _rows(run, pattern, step, rank)
    if not rows:
        raise RunError(_no_match_text(run, pattern, step, rank))
    return [_describe_row(run, row, stacks=stacks) for row in rows]


def _rows(run: Run, pattern: str, step: int | None, rank: int | None) -> list[dict[str, Any]]:
    try:
        site = Site.parse(pattern)
    except SiteError:
        steps, ranks = None if step is None else [step], None if rank is None else [rank]
        matches = _matcher(pattern)
        # a pattern of names alone is matched while rows are read, which leaves most parts unread
        names = None if any(mark in pattern for mark in "/#:") else [pattern]
        rows = run.records(steps=steps, ranks=ranks, names=names).to_pylist()
        return [row for row in rows if names or matches(row)]
    return run.records_at(site).to_pylist()


def _matcher(pattern: str) -> Callable[[Mapping[str, Any]], bool]:
    def matches(row: Mapping[str, Any]) -> bool:
        site_text = _site_text(row).partition("/")[2]
        # with the phase in front, or without it
        return fnmatchcase(site_text, pattern) or fnmatchcase(site_text.partition("/")[2], pattern)

    return matches


def _site_text(row: Mapping[str, Any]) -> str:
    """``micro/phase/name#call:slot``: a site of any step and rank."""
    return f"{row['micro'] or 0}/{row['phase']}/{row['name']}#{row['call'] or 0}:{row['slot']}"


def _no_match_text(run: Run, pattern: str, step: int | None, rank: int | None) -> str:
    steps, ranks = run.record_steps.tolist(), run.record_ranks
    if step is not None and step not in steps:
        return (
            f"Step {step} of Run '{run.path}' is not recorded. Recorded: {len(steps)} steps, {steps[0]} to {steps[-1]}."
        )
    if rank is not None and rank not in ranks:
        return f"Rank {rank} of Run '{run.path}' recorded nothing. Recorded: ranks {', '.join(map(str, ranks))}."
    site_texts = [
        _site_text(row).partition("/")[2] for row in run.records(steps=steps[-1:], columns=_SITE_COLUMNS).to_pylist()
    ]
    near = difflib.get_close_matches(pattern, sorted(set(site_texts)), n=1, cutoff=0.4) or site_texts[:1]
    return (
        f"No recorded site of Run '{run.path}' matches '{pattern}'. Step {steps[-1]} has {len(set(site_texts))}, such "
        f"as '{near[0]}'. Pass a name or phase/name#call:slot, with * for anything."
    )


def _describe_row(run: Run, row: Mapping[str, Any], *, stacks: bool) -> dict[str, Any]:
    identity = (
        "step",
        "rank",
        "row",
        "micro",
        "phase",
        "name",
        "call",
        "slot",
        "kind",
        "api",
        "module",
        "args",
        "flags",
    )
    measured = ("dtype", "shape", "mesh", "same_as", "numel", "min", "max")
    counts = ("nan", "pos_inf", "neg_inf", "zero", "subnormal")
    # sums are over finite elements only
    finite = (row["numel"] or 0) - sum(row[name] or 0 for name in counts[:3])
    described: dict[str, Any] = {"site": str(site_of(row))} | {name: row[name] for name in (*identity, *measured)}
    described["mean"] = row["sum"] / finite if finite > 0 and row["sum"] is not None else None
    described["rms"] = math.sqrt(row["sum_sq"] / finite) if finite > 0 and row["sum_sq"] is not None else None
    described |= {name: row[name] for name in counts}
    described["fingerprint"] = None if row["fingerprint"] is None else f"{row['fingerprint']:016x}"
    described |= {name: row[name] for name in ("tensor", "note", "stack")}
    if stacks:
        described["frames"] = _frames(run, row)
    return described


def _frames(run: Run, row: Mapping[str, Any]) -> list[str] | None:
    """The call stack of a row; None where none was taken, or what was taken is damaged (see ``Run.problems``)."""
    try:
        return None if row["stack"] is None else list(run.stack_frames(row["rank"], row["stack"]))
    except RunError:
        return None


def _outline(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    calls: dict[str, set[tuple[int, int]]] = {}
    apis: dict[str, str] = {}
    ops: dict[str, set[tuple[Any, ...]]] = {}
    for row in rows:
        if row["kind"] == "module" and row["phase"] == "fwd":
            calls.setdefault(row["name"], set()).add((row["micro"] or 0, row["call"] or 0))
            apis.setdefault(row["name"], row["api"])
        elif row["kind"] == "op" and row["phase"] == "fwd":
            for name in _with_parents(row["module"] or ""):
                ops.setdefault(name, set()).add((row["micro"], row["name"], row["call"]))
    names = [name for name in {**calls, **ops} if name.count(".") < OUTLINE_LEVELS]
    return [
        {
            "name": name,
            "api": apis.get(name),
            "calls": len(calls[name]) if name in calls else None,
            "ops": len(ops.get(name, ())),
        }
        for name in _as_tree(names)
    ]


def _with_parents(name: str) -> list[str]:
    parts = name.split(".") if name else []
    return ["", *(".".join(parts[: end + 1]) for end in range(len(parts)))]


def _as_tree(names: list[str]) -> list[str]:
    """Names with each parent before its children, children in the order in which they were first seen."""
    parts = dict.fromkeys(part for name in names for part in _with_parents(name))
    index_of = {part: index for index, part in enumerate(parts)}
    return sorted(names, key=lambda name: [index_of[part] for part in _with_parents(name)][1:])
