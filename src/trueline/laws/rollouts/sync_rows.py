"""The table ``syncs`` of a Run: one row per parameter each time weights were handed to a rollout engine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from trueline.schema.text.words import counted, named_some
from trueline.store.reader import Run

_COLUMNS = (
    *("step", "rank", "row", "name", "digest_train", "digest_rollout", "numel_train", "numel_rollout", "gap"),
    *("dtype", "digest_adapter", "adapter_scale", "note"),
)

STILL = 3
"""Syncs with as many adapters over which values of the engine stay as they are before they are called stale."""

Row = Mapping[str, Any]


def rows_of(run: Run) -> list[Row]:
    """The rows in the order of step, rank and row; none where no sync was recorded."""
    table = run.kept("syncs")
    if not table:
        return []
    rows = cast(list[Row], cast(Any, table).table(_COLUMNS).to_pylist())
    return sorted(rows, key=lambda row: (row["step"], row["rank"], row["row"]))


def is_compared(row: Row) -> bool:
    """True if values of both sides met, or one side has nothing of this name."""
    return row["digest_rollout"] is not None if row["digest_train"] is not None else row["digest_adapter"] is None


def left_out(run: Run) -> list[str]:
    """Sentences on what of the weights could not be compared, or only with a reservation."""
    rows = rows_of(run)
    says: list[str] = []
    unseen = [row for row in rows if not is_compared(row)]
    for why in dict.fromkeys(row["note"] for row in unseen):
        names = _names(row for row in unseen if row["note"] == why)
        says.append(f"Weights of the engine: {named_some(names)} {_was(names)} not compared: {why}.")
    merged, alone = (_names(row for row in rows if predicate(row)) for predicate in (_has_scale, _is_alone))
    if merged:
        scale = max(row["adapter_scale"] for row in rows if _has_scale(row))
        says.append(
            f"Weights of the engine: {counted(len(merged), 'parameter')} {_was(merged)} compared with base + scale * "
            f"B A of the trainer's adapters, to within rounding; the scale that fits is {scale:.4g}, and is in no "
            "parameter."
        )
    elif alone and len({row["step"] for row in rows}) < STILL:
        says.append(
            f"Weights of the engine: {counted(len(alone), 'parameter')} {_was(alone)} the trainer's without its "
            "adapter added. That is right if it was merged into base_layer before (merge_adapter); "
            f"{STILL} syncs tell."
        )
    return says


def _has_scale(row: Row) -> bool:
    return bool(row["adapter_scale"])


def _is_alone(row: Row) -> bool:
    return row["adapter_scale"] == 0


def _names(rows: Iterable[Row]) -> list[str]:
    return list(dict.fromkeys(row["name"] for row in rows))


def _was(names: Sequence[str]) -> str:
    return "was" if len(names) == 1 else "were"
