"""What of two Runs is compared with what: the same step of the same rank, or of all ranks of each merged into one."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from trueline.analyze.step_values import read_step
from trueline.analyze.values import StepValues
from trueline.schema.errors import CannotTell
from trueline.store.reader import Run


@dataclass(frozen=True)
class Arrangement:
    """One step to be compared: of one rank, or (None) of all ranks merged. ``note`` says what was done to make the two
    sides comparable. ``read`` reads both, the run first; only what it returns takes memory.
    """

    step: int
    rank: int | None
    note: str
    read: Callable[[], tuple[StepValues, StepValues]]


def arrange(
    run: Run, ref: Run, *, steps: Collection[int] | None = None, ranks: Collection[int] | None = None
) -> list[Arrangement]:
    """What to compare, by step, then by rank, both ascending; ``steps`` and ``ranks`` choose (None: all common ones).

    Raises ``CannotTell`` where there is nothing in common.
    """
    common = _common_steps(run, ref, steps)
    shared = [rank for rank in run.record_ranks if rank in ref.record_ranks and (ranks is None or rank in ranks)]
    return [Arrangement(step, rank, "", _reader(run, ref, step, rank)) for step in common for rank in shared]


def _reader(run: Run, ref: Run, step: int, rank: int) -> Callable[[], tuple[StepValues, StepValues]]:
    return lambda: (read_step(run, step, rank), read_step(ref, step, rank))


def _common_steps(run: Run, ref: Run, steps: Collection[int] | None) -> list[int]:
    for one, name in ((run, "the run"), (ref, "the reference")):
        if not one.has_records:
            raise CannotTell(
                f"No step was recorded in {name} '{one.path}'. Record some with `trueline run --plan mix -- COMMAND`."
            )
    recorded = [int(step) for step in run.record_steps if step in set(ref.record_steps.tolist())]
    wanted = recorded if steps is None else [step for step in recorded if step in steps]
    if not wanted:
        raise CannotTell(_no_common_step(run, ref, steps))
    return wanted


def _no_common_step(run: Run, ref: Run, steps: Collection[int] | None) -> str:
    asked = "" if steps is None else f" of the steps {_listed(sorted(steps))} that were asked for"
    return (
        f"None{asked} was recorded in both: '{run.path}' has steps {_listed(run.record_steps.tolist())}, "
        f"'{ref.path}' has {_listed(ref.record_steps.tolist())}. Record the same steps."
    )


def _listed(numbers: list[int]) -> str:
    """``0, 1, 2`` or, where there are many, the first and the last."""
    if len(numbers) <= 6:
        return ", ".join(map(str, numbers))
    return f"{', '.join(map(str, numbers[:3]))}, … {numbers[-1]} ({len(numbers)} in all)"
