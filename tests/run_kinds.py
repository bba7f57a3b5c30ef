"""Made-up Runs of many kinds, healthy and faulty, on which ways to judge are held against each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.synthetic_runs import write_run

Row = dict[str, Any]


def _samples(step: int, rank: int, row: Row) -> None:
    row["sample_digests"] = [100_000 * step + 1_000 * rank + place + 1 for place in range(4)]


def _same_on_two_ranks(step: int, rank: int, row: Row) -> None:
    _samples(step, 0 if rank == 2 and step >= 10 else rank, row)


def _epochs(step: int, rank: int, row: Row) -> None:
    """Fixed shards, each read again in every epoch of 25 steps."""
    row["epoch"] = step // 25
    row["sample_digests"] = [100_000 * (step % 25) + 1_000 * rank + place + 1 for place in range(4)]


def _dealt_badly(step: int, rank: int, row: Row) -> None:
    """Every rank shuffles the same data by itself."""
    row["epoch"] = step // 25
    row["sample_digests"] = [
        (step % 25 * 4 + place) * (2 * rank + 3 + 2 * row["epoch"]) % 101 + 1 for place in range(4)
    ]


def _held(step: int, rank: int, row: Row) -> None:
    _samples(30 if rank == 1 and step > 30 else step, rank, row)


def _repeats(step: int, rank: int, row: Row) -> None:
    _samples(step // 4 * 2 + step % 2, rank, row)


def _micro_batches(step: int, rank: int, row: Row) -> None:
    _samples(step, rank, row)
    row["num_micro"] = 2
    row["sample_digests"] = row["sample_digests"][: 4 if step % 7 else 3]


def _not_finite(step: int, rank: int, row: Row) -> None:
    if rank == 3 and step == 60:
        row |= {"loss": float("nan"), "grad_nonfinite": 1.0}


def _high_loss(step: int, rank: int, row: Row) -> None:
    if rank == 1 and step >= 20:
        row["loss"] += 0.6


def _long_gradient(step: int, rank: int, row: Row) -> None:
    if rank == 2 and step >= 20:
        row["grad_norm"] *= 1.7


def _silent(step: int, rank: int, row: Row) -> None:
    if rank == 0 and step >= 50:
        row["grad_norm"] = 0.0


def _spike(step: int, rank: int, row: Row) -> None:
    if step == 90:
        row["loss"] += 40.0


def _drift(step: int, rank: int, row: Row) -> None:
    if step % 10 == 0:
        row["param_digests"] = [7 * step + (1 if rank == 1 and step >= 40 else 2)]


def _late(step: int, rank: int, row: Row) -> None:
    """Some columns are there at some steps only."""
    if (step + rank) % 3:
        row.pop("grad_norm", None)
    if step % 5 == 0:
        row["tokens"] = 128.0 * (1 + rank)


CHANGES: Mapping[str, Callable[[int, int, Row], None] | None] = {
    "healthy": None,
    "samples": _samples,
    "same-on-two-ranks": _same_on_two_ranks,
    "epochs": _epochs,
    "dealt-badly": _dealt_badly,
    "held": _held,
    "repeats": _repeats,
    "micro-batches": _micro_batches,
    "not-finite": _not_finite,
    "high-loss": _high_loss,
    "long-gradient": _long_gradient,
    "silent": _silent,
    "spike": _spike,
    "drift": _drift,
    "late": _late,
}


def write_kind(path: Path, kind: str, *, num_ranks: int = 4, num_steps: int = 120) -> Path:
    """A Run of one of ``CHANGES`` at ``path``."""
    return write_run(path, num_ranks=num_ranks, num_steps=num_steps, change=CHANGES[kind])
