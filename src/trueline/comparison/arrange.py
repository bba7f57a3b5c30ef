"""What of two Runs is compared: the same step of the same rank, or of all ranks of each Run merged into one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, cast

from trueline.comparison.expect.rounding import UNIT_ROUNDOFF
from trueline.comparison.match.align import Alignment, align
from trueline.comparison.match.fused_modules import Fusion
from trueline.comparison.match.gather import gather, num_micro, read_ranks
from trueline.comparison.match.names import NameMap
from trueline.comparison.merge.join import Parts, joined, with_parameters
from trueline.judge.actions import Commands, record_step
from trueline.judge.recorded.step_values import RankStep, StepValues
from trueline.schema.errors import CannotTell, InputError
from trueline.store.reader import Run
from trueline.store.records.record_summary import COPY_AGAIN, damaged_records
from trueline.store.records.whole import place_of


@dataclass(frozen=True)
class Arrangement:
    """One step to be compared: of one rank, or (None) of all ranks merged. ``note`` says what was done to make the two
    sides comparable. ``read`` reads both and matches their values; only what it returns takes memory.
    """

    step: int
    rank: int | None
    note: str
    read: Callable[[], Alignment]


def arrange(
    run: Run,
    ref: Run,
    *,
    steps: Collection[int] | None = None,
    ranks: Collection[int] | None = None,
    names: NameMap | None = None,
) -> list[Arrangement]:
    """What to compare, by step, then by rank, both ascending; ``steps`` and ``ranks`` choose (None: all common ones).

    Ranks are compared one by one where both runs have the same ranks and these hold the same parts of the model; else
    all ranks of a run are merged into one. ``names`` helps to find the twin of a value, whose shape shows how the parts
    that ranks have of it belong together. Raises ``CannotTell`` where there is nothing in common, ``InputError`` for
    ranks that cannot be chosen.
    """
    names = names or NameMap()
    common = _common_steps(run, ref, steps)
    first = common[0]
    why = _unlike(run, ref, first)
    if why:
        if ranks is not None:
            raise InputError(
                f"Ranks {_listed(sorted(ranks))} cannot be compared one by one: {why}. Choose no ranks: then all ranks "
                "of each run are merged and compared."
            )
        return [
            Arrangement(step, None, f"{why}: all ranks of each run are merged", _reader(run, ref, step, names))
            for step in common
        ]
    chosen = _chosen_ranks(run, ranks)
    return [Arrangement(step, rank, "", _reader(run, ref, step, names, rank)) for step in common for rank in chosen]


def _unlike(run: Run, ref: Run, step: int) -> str:
    """Why ranks cannot be compared one by one; '' where they can."""
    if run.record_ranks != ref.record_ranks or run.world_size != ref.world_size:
        return (
            f"the run has ranks {_listed(run.record_ranks)} of {run.world_size}, "
            f"the reference {_listed(ref.record_ranks)} of {ref.world_size}"
        )
    if len(run.record_ranks) > 1 and _meshes(run, step) != _meshes(ref, step):
        return "their tensors are sharded differently"
    return ""


def _meshes(run: Run, step: int) -> set[tuple[tuple[str, ...], tuple[int, ...]]]:
    """Names and sizes of the meshes over which tensors of a step lie."""
    table = cast(Any, run).records(steps=[step], columns=["mesh"], resolve=False)
    texts: list[str | None] = table["mesh"].unique().to_pylist()
    places = [place_of(text) for text in texts if text is not None]
    return {(place.names, place.sizes) for place in places}


def _chosen_ranks(run: Run, ranks: Collection[int] | None) -> list[int]:
    chosen = [rank for rank in run.record_ranks if ranks is None or rank in ranks]
    if not chosen:
        raise InputError(
            f"None of the ranks {_listed(sorted(ranks or ()))} was recorded: both runs have ranks "
            f"{_listed(run.record_ranks)}. Choose among these."
        )
    return chosen


def _reader(run: Run, ref: Run, step: int, names: NameMap, rank: int | None = None) -> Callable[[], Alignment]:
    """What reads one step of both runs, matches their values, and merges what ranks or micro-batches have of them."""

    def read() -> Alignment:
        mine, theirs = (read_ranks(side, step, side.record_ranks if rank is None else [rank]) for side in (run, ref))
        same = num_micro(mine) == num_micro(theirs)
        if rank is not None and same:
            sides = _of_rank(run, step, rank, mine), _of_rank(ref, step, rank, theirs)
            fusion = Fusion(*sides, names)
            alignment = align(*fusion.sides, names)
        else:
            gathered = {"micros_apart": same, "alone": rank is not None}
            one, other = Parts(gather(run, step, mine, **gathered)), Parts(gather(ref, step, theirs, **gathered))
            fusion = Fusion(one.values, other.values, names)
            alignment = align(*fusion.sides, names, shapes=(one.shapes, other.shapes))
            sides = joined(one, other, fusion.original_indices(alignment.twins))
        return alignment.apply_to(*fusion.apply_to(*map(with_parameters, sides)))

    return read


def _of_rank(run: Run, step: int, rank: int, read: Mapping[int, RankStep]) -> StepValues:
    values = read[rank].values if rank in read else []
    return StepValues(run.path, step, (rank,), values, run.manifest.compiled, _autocast(run))


def _autocast(run: Run) -> str:
    dtypes = [str(dtype).removeprefix("torch.") for env in run.env.values() for dtype in env.autocast.values()]
    return max((each for each in dtypes if each in UNIT_ROUNDOFF), key=UNIT_ROUNDOFF.__getitem__, default="")


def _common_steps(run: Run, ref: Run, steps: Collection[int] | None) -> list[int]:
    for one, name in ((run, "the run"), (ref, "the reference")):
        if not one.has_records:
            damage = damaged_records(one)
            if damage:
                raise CannotTell(f"No recorded step of {name} '{one.path}' can be read: {damage}. {COPY_AGAIN}")
            again = Commands(one.path, tuple(one.manifest.argv)).filled(record_step(0))
            raise CannotTell(f"No step was recorded in {name} '{one.path}'. Record one: {again}")
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
        + "".join(f" '{each.path}' is damaged: {damage}." for each in (run, ref) if (damage := damaged_records(each)))
    )


def _listed(numbers: list[int]) -> str:
    """``0, 1, 2`` or, where there are many, the first and the last."""
    if len(numbers) <= 6:
        return ", ".join(map(str, numbers))
    return f"{', '.join(map(str, numbers[:3]))}, … {numbers[-1]} ({len(numbers)} in all)"
