"""Differences between the data of two jobs: what loaders declare, the first batches, tokenizers, random streams."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

import numpy as np

from trueline.same_job.batch_content import compare_content
from trueline.same_job.difference import AS_IN_REF, Difference, cast_otherwise, divided_alike
from trueline.schema.errors import RunError
from trueline.schema.text.words import counted
from trueline.store.job_files.job import Job
from trueline.store.reader import Run

_DECLARED: Mapping[str, tuple[str, int]] = {
    "dataset_type": ("class of the data set", 66),
    "dataset_len": ("rows of the data set", 84),
    "rows_digest": ("content of the data set", 86),
    "stream": ("data set read as a stream", 60),
    "sampler": ("sampler", 66),
    "shuffle": ("shuffling", 80),
    "seed": ("seed of the sampler", 78),
    "drop_last": ("last short batch dropped", 40),
}
"""Facts of a DataLoader in words, and how likely they explain other numbers; without what only says who reads which."""
_TOKENIZER = {
    "tokens": 90,
    "vocabulary": 90,
    "merges": 90,
    "special_tokens": 84,
    "padding_side": 72,
    "chat_template": 88,
}
_STREAMS = {"rng_python": "Python's random", "rng_numpy": "NumPy's generator", "rng_torch": "torch's generator"}
BEFORE = "drawn from before the first update alone"
"""Of a stream that does not move while the job is watched: it matters by what was drawn before, weights and samples."""


def compare_data(one: Job, other: Job) -> tuple[list[Difference], int]:
    """What differs in data and random numbers, and how many facts both jobs have."""
    found: list[Difference] = []
    compared = 0
    if one.tokenizer and other.tokenizer:
        compared += len(set(one.tokenizer) & set(other.tokenizer))
        found += _tokenizers(one.tokenizer, other.tokenizer)
    if one.env is not None and other.env is not None:
        compared += len(set(one.env.data) & set(other.env.data))
        found += _declared(one.env.data, other.env.data)
    if one.run is not None and other.run is not None and divided_alike(one.run, other.run):
        inputs = _first_digests(one.run, other.run, "sample_digests")
        alike = None if inputs is None else bool(np.array_equal(*inputs[1:]))
        batches = list(_batches(one.run, other.run, inputs))
        compared += len(batches)
        found += [each for each in batches if each is not None]
        content = compare_content(one.run, other.run, same_inputs=alike)
        compared += content is not None
        found += content or []
    if one.run is not None and other.run is not None:
        streams = list(_streams(one.run, other.run))
        compared += len(streams)
        found += [each for each in streams if each is not None]
    return found, compared


def not_compared(one: Run, other: Run) -> Iterator[str]:
    """Notes on what of the first updates of two Runs is not compared: samples of unequal number (another batch size,
    which settings tell, or an update of more passes than were seen), or inputs and weights that may have been cast to
    another dtype.
    """
    cast_apart = cast_otherwise(one, other)
    if cast_apart:
        yield "Parameters have other dtypes: their values before the first update were not compared."
    inputs = _first_digests(one, other, "sample_digests")
    if inputs is None:
        return
    step, mine, theirs = inputs
    if mine.size != theirs.size:
        sizes = f"{counted(mine.size, 'sample')} here and {theirs.size:,} in REF"
        yield f"The update of step {step} descends {sizes}: which samples they are, and their labels, was not compared."
    elif cast_apart and not np.intersect1d(mine, theirs).size:
        yield f"The samples of step {step} may have been cast to another dtype: which they are was not compared."


def _tokenizers(one: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[Difference]:
    for name in one:
        if name in other and one[name] != other[name]:
            run, ref = _shown(one[name], other[name])
            says = f"tokenizer: {name.replace('_', ' ')}"
            yield Difference(
                "dataset-differs", "data", f"tokenizer.{name}", says, run, ref, _TOKENIZER.get(name, 60), "start"
            )


def _shown(one: Any, other: Any) -> tuple[str, str]:
    """Two values as text; of two tables only what differs."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        mine, theirs = cast(Mapping[str, Any], one), cast(Mapping[str, Any], other)
        keys = [key for key in {**mine, **theirs} if mine.get(key) != theirs.get(key)][:4]
        texts = [
            ", ".join(f"{key} {side[key]}" if key in side else f"no {key}" for key in keys) for side in (mine, theirs)
        ]
        return texts[0], texts[1]
    return f"{one}", f"{other}"


def _declared(one: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[Difference]:
    for name, (says, likely) in _DECLARED.items():
        a, b = one.get(name), other.get(name)
        if a == b or a in (None, "") or b in (None, ""):
            continue
        code = "rng-differs" if name == "seed" else "dataset-differs"
        yield Difference(
            code, "data", f"loader.{name}", says, str(a), str(b), likely, "start", "DataLoader", "DataLoader"
        )


def _batches(one: Run, other: Run, inputs: tuple[int, Any, Any] | None) -> Iterator[Difference | None]:
    """Whether the first update that both Runs have descended the same samples, in the same order, with the same labels;
    None where they agree.
    """
    if inputs is None:
        return
    step, mine, theirs = inputs
    if mine.size != theirs.size:  # see ``not_compared``
        return
    shared = np.intersect1d(mine, theirs).size
    if not shared and cast_otherwise(one, other):  # see ``not_compared``
        return
    if not np.array_equal(np.sort(mine), np.sort(theirs)):
        sampled = bool(one.kept("rollouts")) and bool(other.kept("rollouts"))
        says = f"what {'was sampled for ' * sampled}the update of step {step}{' descends' * (not sampled)}"
        run = f"{shared or 'none'} of {counted(mine.size, 'sample')} in common"
        likely = 30 if sampled else 94  # the policy wrote it: what made it write something else comes first
        yield Difference("dataset-differs", "data", "first-batch", says, run, AS_IN_REF, likely, "start")
        return
    yield None
    if not np.array_equal(mine, theirs):
        first = int(np.flatnonzero(mine != theirs)[0])
        says = f"order of the same samples in step {step}"
        run, ref = f"another one at place {first}", AS_IN_REF
        yield Difference("dataset-differs", "data", "order", says, run, ref, 38, "rounding")
    labels = _first_digests(one, other, "target_digests")
    if labels is not None:
        _, a, b = labels
        differing = int(np.sum(a != b)) if a.size == b.size else max(a.size, b.size)
        if differing and np.array_equal(mine, theirs):
            run, ref = f"other ones in {differing} of {counted(a.size, 'sample')}", AS_IN_REF
            says = f"labels of the same inputs in step {step} (mask, shift or template)"
            yield Difference("dataset-differs", "data", "labels", says, run, ref, 94, "start")
        else:
            yield None


def _first_digests(one: Run, other: Run, column: str) -> tuple[int, Any, Any] | None:
    """The first step of which both Runs have digests, and these, by rank and place; None where there is none."""
    try:
        sides = [run.lists(column, steps=[int(step) for step in run.steps[:3]]) for run in (one, other)]
    except RunError:
        return None
    common = sorted({step for step, _ in sides[0]} & {step for step, _ in sides[1]})
    if not common:
        return None
    first = common[0]
    mine, theirs = (np.concatenate([side[key] for key in sorted(side) if key[0] == first]) for side in sides)
    return (first, mine, theirs) if mine.size and theirs.size else None


def _streams(one: Run, other: Run) -> Iterator[Difference | None]:
    """Whether random streams are at the same place before the first update of which both Runs have their states; of
    those that a job draws from.
    """
    for place, (column, says) in enumerate(_STREAMS.items()):
        looks = [run.digests(column) for run in (one, other)]
        sides = [_first_rank(run, *look) for run, look in zip((one, other), looks, strict=True)]
        common = sorted(set(sides[0]) & set(sides[1]))
        if not common:
            continue
        first = common[0]
        if sides[0][first] == sides[1][first]:
            yield None
            continue
        moves = any(_moves(*look) for look in looks)
        if not moves and not any(_used(run, place, first) for run in (one, other)):
            yield None
            continue
        state, note = f"state of {says} before the update of step {first}", "" if moves else BEFORE
        yield Difference("rng-differs", "random", column, state, "another one", AS_IN_REF, 46, "start", note=note)


def _first_rank(run: Run, values_TN: Any, measured_TN: Any) -> dict[int, int]:
    """The values of the first rank by step."""
    rows = np.flatnonzero(measured_TN[:, 0]) if measured_TN.size else ()
    return {int(run.steps[t]): int(values_TN[t, 0]) for t in rows}


def _moves(digests_TN: Any, measured_TN: Any) -> bool:
    """Whether a stream is in another state at a later look, on any rank."""
    return any(len(np.unique(digests_TN[measured_TN[:, n], n])) > 1 for n in range(digests_TN.shape[1]))


def _used(run: Run, place: int, step: int) -> bool:
    """Whether somebody drew from the stream since it was seeded, as of the update of ``step``; True where that is not
    known, as of Runs of an older version.
    """
    streams = _first_rank(run, *run.pivot("rng_used")).get(step)
    return streams is None or bool(streams >> place & 1)
