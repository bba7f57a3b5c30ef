"""Weights of the rollout engine are not the trainer's after they were handed over.

What it finds
-------------
Parameters whose values on the two sides differ bit for bit after the trainer's were put into the engine's layout and
dtype, and how: those of an earlier version (stale), of another parameter (swapped), of another size (truncated), or
neither.

Why it matters
--------------
The engine samples from a model that nobody trains. One stale tensor moves log-probabilities by less than bfloat16
rounds, so that no curve shows it; the policy learns to make up for it all the same.

How it decides
--------------
By digests of 64 bits, recorded with `rl.record_sync` after a sync: exact. Equal to the
trainer's digest of that parameter at an earlier sync is stale; equal to that of another parameter is swapped. Where
values were at hand, the finding says how far apart they are.

What it may miss
----------------
Parameters that no side names; syncs that were not recorded; what happens to the weights between two syncs. Shards of
tensor or expert parallelism have to be gathered first.

Example
-------
1 of 21 parameters of the engine is not the trainer's after the sync of step 3: layers.1.mlp.down_proj.weight (the
trainer's of an earlier version).

Wrong and right
---------------
Wrong:

```python
for name, p in model.named_parameters():
    if name in engine_names:  # 'module.' in front: some names are not found, and stay as they were
        load(name, p)
```

Right:

```python
missing = engine_names - {strip(name) for name, _ in model.named_parameters()}
assert not missing, missing
```
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from trueline.analyze.rollouts.evidence import finding
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.schema.text.words import named_some
from trueline.store.reader import Run

CODE = "weights-not-synced"
QUESTION = "rollouts"
NEEDS: tuple[str, ...] = ()
ACROSS_RANKS = False

_COLUMNS = ("step", "rank", "row", "name", "digest_train", "digest_rollout", "numel_train", "numel_rollout", "gap")
_WORDS = {
    "stale": "the trainer's of an earlier version",
    "swapped": "those of another parameter",
    "size": "of another size",
    "other": "neither the trainer's of an earlier version nor of another parameter",
    "missing": "on one side only",
}
_ORDER = ("stale", "swapped", "size", "other", "missing")


def check(run: Run) -> list[Finding]:
    """The finding of parameters that differ; raises ``CannotTell`` where no sync was recorded."""
    kept = run.kept("syncs")
    if not kept:
        raise CannotTell(
            "no sync was recorded: call trueline.rl.record_sync after weights were handed over", reason="not-recorded"
        )
    rows = cast(list[dict[str, Any]], cast(Any, kept).table(_COLUMNS).to_pylist())
    rows.sort(key=lambda row: (row["step"], row["rank"], row["row"]))
    earlier: dict[str, set[int]] = {}
    wrong: dict[int, list[tuple[dict[str, Any], str]]] = {}
    for step in sorted({row["step"] for row in rows}):
        of_step = [row for row in rows if row["step"] == step]
        names = _names(of_step)
        for row in of_step:
            kind = _kind(row, earlier, names)
            if kind:
                wrong.setdefault(step, []).append((row, kind))
        for row in of_step:
            if row["digest_train"] is not None:
                earlier.setdefault(row["name"], set()).add(row["digest_train"])
    return [_finding(rows, wrong)] if wrong else []


def _names(rows: Sequence[Mapping[str, Any]]) -> dict[int, str]:
    """Which parameter of the trainer has a digest."""
    return {row["digest_train"]: row["name"] for row in rows if row["digest_train"] is not None}


def _kind(row: Mapping[str, Any], earlier: Mapping[str, set[int]], names: Mapping[int, str]) -> str:
    train, rollout = row["digest_train"], row["digest_rollout"]
    if train is None or rollout is None:
        return "missing"
    if train == rollout:
        return ""
    if row["numel_train"] != row["numel_rollout"]:
        return "size"
    if rollout in earlier.get(row["name"], ()):
        return "stale"
    return "swapped" if names.get(rollout, row["name"]) != row["name"] else "other"


def _finding(rows: Sequence[Mapping[str, Any]], wrong: Mapping[int, Sequence[tuple[dict[str, Any], str]]]) -> Finding:
    first, last = min(wrong), max(wrong)
    worst = max(wrong, key=lambda step: len(wrong[step]))
    found = wrong[worst]
    total = sum(row["step"] == worst for row in rows)
    kinds = [kind for kind in _ORDER if any(each == kind for _, each in found)]
    parts = [f"{named_some([row['name'] for row, each in found if each == kind])} ({_WORDS[kind]})" for kind in kinds]
    share = len(found) / max(total, 1)
    only_missing = kinds == ["missing"]
    gaps = [row["gap"] for row, _ in found if row["gap"] is not None]
    return finding(
        CODE,
        f"{len(found)} of {total} parameters of the engine {'is' if len(found) == 1 else 'are'} not the trainer's "
        "after "
        f"the sync of step {worst}: {'; '.join(parts)}.",
        None,
        steps=(first, last),
        severity="warning" if only_missing else "error",
        measured=float(len(found)),
        expected=0.0,
        unit="parameters that differ",
        evidence={
            "kind": [*kinds, "most" if share > 0.6 else "some"],
            "names": [row["name"] for row, _ in found][:100],
            "largest_gap": max(gaps, default=None),
        },
        next=(
            "Look at how these names are matched on the way to the engine: prefixes of wrappers, merged parameters "
            "(q, k, "
            "v; gate, up) and their order, shards that are not gathered, tied weights.",
            "Look whether the engine waits for the transfer before it samples, and loads real weights "
            "(not load_format='dummy').",
        ),
    )
