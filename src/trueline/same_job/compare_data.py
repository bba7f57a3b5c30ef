"""Differences between the data of two jobs: facts of loaders, first batches, tokenizers, random streams."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

import numpy as np

from trueline.same_job.batch_content import compare_content
from trueline.same_job.difference import AS_IN_REF, Difference, has_other_dtypes, is_divided_alike
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
"""Facts of a DataLoader in words, with likelihoods; rank and number of replicas only divide the rows."""
_TOKENIZER = {
    "tokens": 90,
    "vocabulary": 90,
    "merges": 90,
    "special_tokens": 84,
    "padding_side": 72,
    "chat_template": 88,
}
_STREAMS = {"rng_python": "Python's random", "rng_numpy": "NumPy's generator", "rng_torch": "torch's generator"}
DRAWN_BEFORE = "drawn from before the first update alone"
"""Note on a stream that does not move while the job is watched: only weights and samples drawn before depend on it."""


def compare_data(job: Job, ref_job: Job) -> tuple[list[Difference], int]:
    """Differences in data and random numbers, and the number of facts that both jobs have."""
    differences: list[Difference] = []
    compared = 0
    if job.tokenizer and ref_job.tokenizer:
        compared += len(set(job.tokenizer) & set(ref_job.tokenizer))
        differences += _tokenizer_differences(job.tokenizer, ref_job.tokenizer)
    if job.env is not None and ref_job.env is not None:
        compared += len(set(job.env.data) & set(ref_job.env.data))
        differences += _loader_differences(job.env.data, ref_job.env.data)
    if job.run is not None and ref_job.run is not None and is_divided_alike(job.run, ref_job.run):
        inputs = _first_digests(job.run, ref_job.run, "sample_digests")
        same_inputs = None if inputs is None else bool(np.array_equal(*inputs[1:]))
        batches = list(_batch_differences(job.run, ref_job.run, inputs))
        compared += len(batches)
        differences += filter(None, batches)
        content = compare_content(job.run, ref_job.run, same_inputs=same_inputs)
        compared += content is not None
        differences += content or []
    if job.run is not None and ref_job.run is not None:
        streams = list(_stream_differences(job.run, ref_job.run))
        compared += len(streams)
        differences += filter(None, streams)
    return differences, compared


def uncompared_notes(run: Run, ref: Run) -> Iterator[str]:
    """Notes on facts of the first updates of two Runs that are not compared.

    These are samples of unequal number (another batch size, which settings tell, or an update of more passes than were
    seen), and inputs and weights that may have been cast to another dtype.
    """
    other_dtypes = has_other_dtypes(run, ref)
    if other_dtypes:
        yield "Parameters have other dtypes: their values before the first update were not compared."
    inputs = _first_digests(run, ref, "sample_digests")
    if inputs is None:
        return
    step, run_digests, ref_digests = inputs
    if run_digests.size != ref_digests.size:
        sizes = f"{counted(run_digests.size, 'sample')} here and {ref_digests.size:,} in REF"
        yield f"The update of step {step} descends {sizes}: which samples they are, and their labels, was not compared."
    elif other_dtypes and not np.intersect1d(run_digests, ref_digests).size:
        yield f"The samples of step {step} may have been cast to another dtype: which they are was not compared."


def _tokenizer_differences(run: Mapping[str, Any], ref: Mapping[str, Any]) -> Iterator[Difference]:
    for name in run:
        if name in ref and run[name] != ref[name]:
            run_text, ref_text = _value_texts(run[name], ref[name])
            says = f"tokenizer: {name.replace('_', ' ')}"
            yield Difference(
                "dataset-differs",
                "data",
                f"tokenizer.{name}",
                says,
                run_text,
                ref_text,
                _TOKENIZER.get(name, 60),
                "start",
            )


def _value_texts(run: Any, ref: Any) -> tuple[str, str]:
    """Texts of two values; of two tables only the entries that differ."""
    if isinstance(run, Mapping) and isinstance(ref, Mapping):
        tables = cast(Mapping[str, Any], run), cast(Mapping[str, Any], ref)
        keys = [key for key in {**tables[0], **tables[1]} if tables[0].get(key) != tables[1].get(key)][:4]
        texts = [", ".join(f"{key} {table[key]}" if key in table else f"no {key}" for key in keys) for table in tables]
        return texts[0], texts[1]
    return f"{run}", f"{ref}"


def _loader_differences(run: Mapping[str, Any], ref: Mapping[str, Any]) -> Iterator[Difference]:
    for name, (says, likely) in _DECLARED.items():
        run_value, ref_value = run.get(name), ref.get(name)
        if run_value == ref_value or run_value in (None, "") or ref_value in (None, ""):
            continue
        code = "rng-differs" if name == "seed" else "dataset-differs"
        yield Difference(
            code,
            "data",
            f"loader.{name}",
            says,
            str(run_value),
            str(ref_value),
            likely,
            "start",
            "DataLoader",
            "DataLoader",
        )


def _batch_differences(run: Run, ref: Run, inputs: tuple[int, Any, Any] | None) -> Iterator[Difference | None]:
    """Compare samples, their order and their labels in the first update that both Runs have.

    Yields a difference, or None for a fact that agrees.
    """
    if inputs is None:
        return
    step, run_digests, ref_digests = inputs
    if run_digests.size != ref_digests.size:  # see ``not_compared``
        return
    shared = np.intersect1d(run_digests, ref_digests).size
    if not shared and has_other_dtypes(run, ref):  # see ``not_compared``
        return
    if not np.array_equal(np.sort(run_digests), np.sort(ref_digests)):
        sampled = bool(run.kept("rollouts")) and bool(ref.kept("rollouts"))
        says = f"what {'was sampled for ' * sampled}the update of step {step}{' descends' * (not sampled)}"
        run_text = f"{shared or 'none'} of {counted(run_digests.size, 'sample')} in common"
        likely = 30 if sampled else 94  # the policy wrote it: what made it write something else comes first
        yield Difference("dataset-differs", "data", "first-batch", says, run_text, AS_IN_REF, likely, "start")
        return
    yield None
    if not np.array_equal(run_digests, ref_digests):
        first = int(np.flatnonzero(run_digests != ref_digests)[0])
        says = f"order of the same samples in step {step}"
        run_text, ref_text = f"another one at place {first}", AS_IN_REF
        yield Difference("dataset-differs", "data", "order", says, run_text, ref_text, 38, "rounding")
    labels = _first_digests(run, ref, "target_digests")
    if labels is not None:
        _, run_labels, ref_labels = labels
        differing = (
            int(np.sum(run_labels != ref_labels))
            if run_labels.size == ref_labels.size
            else max(run_labels.size, ref_labels.size)
        )
        if differing and np.array_equal(run_digests, ref_digests):
            run_text, ref_text = f"other ones in {differing} of {counted(run_labels.size, 'sample')}", AS_IN_REF
            says = f"labels of the same inputs in step {step} (mask, shift or template)"
            yield Difference("dataset-differs", "data", "labels", says, run_text, ref_text, 94, "start")
        else:
            yield None


def _first_digests(run: Run, ref: Run, column: str) -> tuple[int, Any, Any] | None:
    """First step with digests in both Runs, and the digests of each, by rank and position; else None."""
    try:
        sides = [side_run.lists(column, steps=[int(step) for step in side_run.steps[:3]]) for side_run in (run, ref)]
    except RunError:
        return None
    common = sorted({step for step, _ in sides[0]} & {step for step, _ in sides[1]})
    if not common:
        return None
    first = common[0]
    # Keys are (step, rank), so sorted ones give digests in one order on both sides.
    run_digests, ref_digests = (
        np.concatenate([side[key] for key in sorted(side) if key[0] == first]) for side in sides
    )
    return (first, run_digests, ref_digests) if run_digests.size and ref_digests.size else None


def _stream_differences(run: Run, ref: Run) -> Iterator[Difference | None]:
    """Compare random streams before the first update of which both Runs have their states.

    Yields a difference, or None for a stream that agrees or that no job draws from.
    """
    # The order of ``_STREAMS`` is that of the bits of the column ``rng_used``.
    for bit, (column, says) in enumerate(_STREAMS.items()):
        digests = [side_run.digests(column) for side_run in (run, ref)]
        sides = [
            _first_rank_values(side_run, *side_digests)
            for side_run, side_digests in zip((run, ref), digests, strict=True)
        ]
        common = sorted(set(sides[0]) & set(sides[1]))
        if not common:
            continue
        first = common[0]
        if sides[0][first] == sides[1][first]:
            yield None
            continue
        moves = any(_is_moving(*side_digests) for side_digests in digests)
        if not moves and not any(_is_drawn_from(side_run, bit, first) for side_run in (run, ref)):
            yield None
            continue
        state, note = f"state of {says} before the update of step {first}", "" if moves else DRAWN_BEFORE
        yield Difference("rng-differs", "random", column, state, "another one", AS_IN_REF, 46, "start", note=note)


def _first_rank_values(run: Run, values_TN: Any, measured_TN: Any) -> dict[int, int]:
    rows = np.flatnonzero(measured_TN[:, 0]) if measured_TN.size else ()
    return {int(run.steps[t]): int(values_TN[t, 0]) for t in rows}


def _is_moving(digests_TN: Any, measured_TN: Any) -> bool:
    """Tell whether a stream changes its state between steps, on any rank."""
    return any(len(np.unique(digests_TN[measured_TN[:, n], n])) > 1 for n in range(digests_TN.shape[1]))


def _is_drawn_from(run: Run, bit: int, step: int) -> bool:
    """Tell whether the stream of this ``bit`` was drawn from between its seeding and the update of ``step``.

    True for Runs of an older version, which do not know.
    """
    streams = _first_rank_values(run, *run.pivot("rng_used")).get(step)
    return streams is None or bool(streams >> bit & 1)
