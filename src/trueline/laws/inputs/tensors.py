"""The tensors that a rank's model reads, and what they were at the steps that were looked at."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from trueline.judge.compared_ranks import MOST_RANKS, data_parallel_ranks
from trueline.judge.stats.memoize import memoized
from trueline.schema.columns.input_values import InputValue, input_values
from trueline.schema.errors import CannotTell
from trueline.store.reader import Run

ByStep = Mapping[int, tuple[InputValue, ...]]
"""The tensors of each step."""


@memoized
def tensors_of(run: Run, rank: int) -> ByStep:
    """Of a rank, by step; empty where none was seen."""
    facts = run.texts("input_facts")
    rows = run.lists("input_values", ranks=[rank])
    values = {step: input_values(facts.get((step, rank), "[]"), row.tolist()) for (step, _), row in rows.items()}
    return {step: of_step for step, of_step in sorted(values.items()) if of_step}


def looked_at(run: Run, *, fewest: int) -> dict[int, ByStep]:
    """Of the first ``MOST_RANKS`` ranks; raises ``CannotTell`` where none was seen, or none at ``fewest`` steps."""
    tensors = {rank: tensors_of(run, rank) for rank in data_parallel_ranks(run)[:MOST_RANKS]}
    if not any(tensors.values()):
        raise CannotTell("no forward pass was seen whose inputs are tensors", reason="not-recorded")
    if max(map(len, tensors.values())) < fewest:
        raise CannotTell(f"inputs were looked at in fewer than {fewest} steps", reason="too-few-steps")
    return tensors


def by_shapes(tensors: ByStep) -> list[dict[int, dict[tuple[str, bool], InputValue]]]:
    """Steps at which all tensors have one name and shape each, together: what follows from shapes is one there. The
    values of each step are by name, and by whether they are targets.
    """
    groups: defaultdict[frozenset[object], dict[int, dict[tuple[str, bool], InputValue]]] = defaultdict(dict)
    for step, values in tensors.items():
        named = {(value.fact.name, value.fact.is_target): value for value in values}
        groups[frozenset((name, value.fact.shape) for name, value in named.items())][step] = named
    return list(groups.values())
