"""Units of a comparison of two Runs: a step of a rank, or of all ranks of each Run merged into one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, cast

from trueline.comparison.expect.rounding import UNIT_ROUNDOFF
from trueline.comparison.match.align import Alignment, align
from trueline.comparison.match.fused_modules import Fusion
from trueline.comparison.match.gather import gather, num_micro, read_ranks
from trueline.comparison.match.names import NameMap
from trueline.comparison.merge.join import Parts, merge_sides, with_parameters
from trueline.judge.actions import Commands, record_step
from trueline.judge.recorded.step_values import RankStep, StepValues
from trueline.schema.errors import CannotTell, InputError
from trueline.store.reader import Run
from trueline.store.records.record_summary import COPY_AGAIN, damaged_records
from trueline.store.records.whole import shard_place


@dataclass(frozen=True)
class Arrangement:
    """One step to be compared: of one rank, or (None) of all ranks merged.

    ``note`` tells how the two sides were made comparable. ``read`` reads both and matches their values; only its result
    takes memory.
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
    """Arrangements by step, then by rank, both ascending; ``steps`` and ``ranks`` choose (None: all common ones).

    Ranks are compared one by one where both runs have the same ranks and these hold the same parts of the model; else
    all ranks of a run are merged into one. ``names`` helps to find the twin of a value, whose shape shows how the parts
    of different ranks belong together. Raises ``CannotTell`` for Runs without a common step, ``InputError`` for ranks
    that cannot be chosen.
    """
    names = names or NameMap()
    common = _common_steps(run, ref, steps)
    first = common[0]
    why = _why_not_by_rank(run, ref, first)
    if why:
        if ranks is not None:
            raise InputError(
                f"Ranks {_number_list(sorted(ranks))} cannot be compared one by one: {why}. Choose no ranks: then all "
                "ranks of each run are merged and compared."
            )
        return [
            Arrangement(step, None, f"{why}: all ranks of each run are merged", _reader(run, ref, step, names))
            for step in common
        ]
    chosen_ranks = _chosen_ranks(run, ranks)
    return [
        Arrangement(step, rank, "", _reader(run, ref, step, names, rank)) for step in common for rank in chosen_ranks
    ]


def _why_not_by_rank(run: Run, ref: Run, step: int) -> str:
    """Reason why ranks cannot be compared one by one; '' where they can."""
    if run.record_ranks != ref.record_ranks or run.world_size != ref.world_size:
        return (
            f"the run has ranks {_number_list(run.record_ranks)} of {run.world_size}, "
            f"the reference {_number_list(ref.record_ranks)} of {ref.world_size}"
        )
    if len(run.record_ranks) > 1 and _meshes(run, step) != _meshes(ref, step):
        return "their tensors are sharded differently"
    return ""


def _meshes(run: Run, step: int) -> set[tuple[tuple[str, ...], tuple[int, ...]]]:
    """Names and sizes of the meshes of a step's DTensors."""
    table = cast(Any, run).records(steps=[step], columns=["mesh"], resolve=False)
    texts: list[str | None] = table["mesh"].unique().to_pylist()
    placements = [shard_place(text) for text in texts if text is not None]
    return {(placement.names, placement.sizes) for placement in placements}


def _chosen_ranks(run: Run, ranks: Collection[int] | None) -> list[int]:
    common_ranks = [rank for rank in run.record_ranks if ranks is None or rank in ranks]
    if not common_ranks:
        raise InputError(
            f"None of the ranks {_number_list(sorted(ranks or ()))} was recorded: both runs have ranks "
            f"{_number_list(run.record_ranks)}. Choose among these."
        )
    return common_ranks


def _reader(run: Run, ref: Run, step: int, names: NameMap, rank: int | None = None) -> Callable[[], Alignment]:
    """Function that reads one step of both runs, matches values, and merges the parts of ranks or micro-batches."""

    def read() -> Alignment:
        run_steps, ref_steps = (
            read_ranks(side, step, side.record_ranks if rank is None else [rank]) for side in (run, ref)
        )
        equal_micros = num_micro(run_steps) == num_micro(ref_steps)
        if rank is not None and equal_micros:
            sides = _rank_values(run, step, rank, run_steps), _rank_values(ref, step, rank, ref_steps)
            fusion = Fusion(*sides, names)
            alignment = align(*fusion.sides, names)
        else:
            options = {"micros_apart": equal_micros, "alone": rank is not None}
            run_parts = Parts(gather(run, step, run_steps, **options))
            ref_parts = Parts(gather(ref, step, ref_steps, **options))
            fusion = Fusion(run_parts.values, ref_parts.values, names)
            alignment = align(*fusion.sides, names, shapes=(run_parts.shapes, ref_parts.shapes))
            sides = merge_sides(run_parts, ref_parts, fusion.original_indices(alignment.twins))
        return alignment.apply_to(*fusion.apply_to(*map(with_parameters, sides)))

    return read


def _rank_values(run: Run, step: int, rank: int, rank_steps: Mapping[int, RankStep]) -> StepValues:
    values = rank_steps[rank].values if rank in rank_steps else []
    return StepValues(run.path, step, (rank,), values, run.manifest.compiled, _autocast_dtype(run))


def _autocast_dtype(run: Run) -> str:
    dtypes = [str(dtype).removeprefix("torch.") for env in run.env.values() for dtype in env.autocast.values()]
    return max((dtype for dtype in dtypes if dtype in UNIT_ROUNDOFF), key=UNIT_ROUNDOFF.__getitem__, default="")


def _common_steps(run: Run, ref: Run, steps: Collection[int] | None) -> list[int]:
    for side, name in ((run, "the run"), (ref, "the reference")):
        if not side.has_records:
            damage = damaged_records(side)
            if damage:
                raise CannotTell(f"No recorded step of {name} '{side.path}' can be read: {damage}. {COPY_AGAIN}")
            command = Commands(side.path, tuple(side.manifest.argv)).filled(record_step(0))
            raise CannotTell(f"No step was recorded in {name} '{side.path}'. Record one: {command}")
    recorded = [int(step) for step in run.record_steps if step in set(ref.record_steps.tolist())]
    common = recorded if steps is None else [step for step in recorded if step in steps]
    if not common:
        raise CannotTell(_no_common_step(run, ref, steps))
    return common


def _no_common_step(run: Run, ref: Run, steps: Collection[int] | None) -> str:
    choice = "" if steps is None else f" of the steps {_number_list(sorted(steps))} that were asked for"
    return (
        f"None{choice} was recorded in both: '{run.path}' has steps {_number_list(run.record_steps.tolist())}, "
        f"'{ref.path}' has {_number_list(ref.record_steps.tolist())}. Record the same steps."
        + "".join(f" '{side.path}' is damaged: {damage}." for side in (run, ref) if (damage := damaged_records(side)))
    )


def _number_list(numbers: list[int]) -> str:
    """Text such as ``0, 1, 2``; of more than six numbers the first three and the last."""
    if len(numbers) <= 6:
        return ", ".join(map(str, numbers))
    return f"{', '.join(map(str, numbers[:3]))}, … {numbers[-1]} ({len(numbers)} in all)"
