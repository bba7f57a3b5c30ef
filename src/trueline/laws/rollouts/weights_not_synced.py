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

Where the trainer has LoRA's adapters (`lora_A`, `lora_B` beside a `base_layer`) and the engine has the weight alone,
the engine's is compared with base + scale B A, at the scale that fits best and to within rounding of its dtype. An
engine's weight that stays as it is over three syncs while the adapter changes is stale; one that equals `base_layer`,
while other weights have their adapters in them, is without its adapter. What cannot be computed (an adapter of another
kind, digests of another process) is not judged, which a note says.

What it may miss
----------------
Parameters that no side names; syncs that were not recorded; what happens to the weights between two syncs. Shards of
tensor or expert parallelism have to be gathered first. Of an adapter, the scale, which is in no parameter, and a change
that is smaller than the rounding of the engine's dtype.

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

from trueline.laws.rollouts.evidence import finding
from trueline.laws.rollouts.sync_rows import STILL, Row, is_compared, rows_of
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.schema.text.words import named_some
from trueline.store.reader import Run

CODE = "weights-not-synced"
QUESTION = "rollouts"
NEEDS: tuple[str, ...] = ()
ACROSS_RANKS = False

_WORDS = {
    "stale": "the trainer's of an earlier version",
    "base": "the trainer's without its adapter",
    "swapped": "those of another parameter",
    "size": "of another size",
    "other": "neither the trainer's of an earlier version nor of another parameter",
    "missing": "on one side only",
}
LORA = "lora_"
"""Part of the names of an adapter's weights, in PEFT as in vLLM."""
_OLD = ("stale", "missing")
_ORDER = ("stale", "base", "swapped", "size", "other", "missing")


def check(run: Run) -> list[Finding]:
    """The finding of parameters that differ; raises ``CannotTell`` where no sync was recorded."""
    recorded = rows_of(run)
    if not recorded:
        raise CannotTell(
            "no sync was recorded: call trueline.rl.record_sync after weights were handed over", reason="not-recorded"
        )
    rows = [row for row in recorded if is_compared(row)]
    if not rows:
        raise CannotTell(f"no parameter could be compared: {recorded[0]['note']}", reason="undecidable")
    earlier: dict[str, list[Row]] = {}
    wrong: dict[int, list[tuple[Row, str]]] = {}
    for step in sorted({row["step"] for row in rows}):
        of_step = [row for row in rows if row["step"] == step]
        names = _names(of_step)
        adds = any(row["adapter_scale"] for row in of_step)
        for row in of_step:
            kind = _kind(row, earlier.get(row["name"], []), names, adds=adds)
            if kind:
                wrong.setdefault(step, []).append((row, kind))
        for row in of_step:
            if row["digest_train"] is not None:
                earlier.setdefault(row["name"], []).append(row)
    return [_finding(rows, wrong)] if wrong else []


def _names(rows: Sequence[Row]) -> dict[int, str]:
    """Which parameter of the trainer has a digest."""
    return {row["digest_train"]: row["name"] for row in rows if row["digest_train"] is not None}


def _kind(row: Row, earlier: Sequence[Row], names: Mapping[int, str], *, adds: bool) -> str:
    """How a parameter differs, '' where it does not. ``adds``: other weights of this sync have their adapters in them,
    so that none is merged into the trainer's own.
    """
    train, rollout = row["digest_train"], row["digest_rollout"]
    if train is None or rollout is None:
        return "missing"
    if train == rollout:
        alone = row["adapter_scale"] == 0
        if alone and adds:
            return "base"
        return ("base" if alone else "stale") if _stands_still(row, earlier) else ""
    if row["numel_train"] != row["numel_rollout"]:
        return "size"
    if any(rollout == before["digest_train"] for before in earlier):
        return "stale"
    return "swapped" if names.get(rollout, row["name"]) != row["name"] else "other"


def _stands_still(row: Row, earlier: Sequence[Row]) -> bool:
    """True if the engine's values are those of the two syncs before, and each had another adapter: rounding may hide a
    small change once.
    """
    last = [row, *earlier[-2:]]
    adapters = {row["digest_adapter"] for row in last}
    return len(adapters - {None}) == STILL and len({row["digest_rollout"] for row in last}) == 1


def _of_adapter(stale: Sequence[tuple[Row, str]]) -> list[str]:
    """``adapter`` if all that is old or missing is an adapter, or a weight that has one."""
    is_adapter = (kind in _OLD and (row["digest_adapter"] is not None or LORA in row["name"]) for row, kind in stale)
    return ["adapter"] if all(is_adapter) else []


def _finding(rows: Sequence[Row], wrong: Mapping[int, Sequence[tuple[Row, str]]]) -> Finding:
    first, last = min(wrong), max(wrong)
    worst = max(wrong, key=lambda step: len(wrong[step]))
    stale = wrong[worst]
    total = sum(row["step"] == worst for row in rows)
    kinds = [kind for kind in _ORDER if any(label == kind for _, label in stale)]
    parts = [f"{named_some([row['name'] for row, label in stale if label == kind])} ({_WORDS[kind]})" for kind in kinds]
    share = len(stale) / max(total, 1)
    only_missing = kinds == ["missing"]
    gaps = [row["gap"] for row, _ in stale if row["gap"] is not None]
    return finding(
        CODE,
        f"{len(stale)} of {total} parameters of the engine {'is' if len(stale) == 1 else 'are'} not the trainer's "
        "after "
        f"the sync of step {worst}: {'; '.join(parts)}.",
        None,
        steps=(first, last),
        severity="warning" if only_missing else "error",
        measured=float(len(stale)),
        expected=0.0,
        unit="parameters that differ",
        evidence={
            "kind": [*kinds, "most" if share > 0.6 and "base" not in kinds else "some", *_of_adapter(stale)],
            "names": [row["name"] for row, _ in stale][:100],
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
