"""Facts of what a model reads, and of what a regression compares with: between which numbers it lies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trueline.judge.facts.fact import Mark, Subject
from trueline.laws.inputs.tensors import looked_at
from trueline.schema.text.words import listed
from trueline.store.reader import Run

LARGE, TINY = 100.0, 0.01
"""Sizes that numbers of order 1, which layers and losses are made for, are far from: pictures of 0 to 255 are beyond
the first, and those that were divided by 255 twice below the second. How many healthy trainings are, is measured."""
MOST_NAMES = 4
"""Tensors that the line names."""

Range = list[float]
"""The least and the greatest element."""


def ranges(run: Run) -> tuple[str, Any] | None:
    """Of each floating-point input, and of the targets of each regression, the least and the greatest element over all
    steps that were looked at, on all ranks.
    """
    by_name: dict[tuple[bool, str], Range] = {}
    for steps in looked_at(run, fewest=1).values():
        for value in (value for values in steps.values() for value in values):
            fact = value.fact
            if "float" not in fact.dtype or not value.least <= value.greatest:  # NaN: not told, or it has one
                continue
            least, greatest = by_name.setdefault((fact.is_target, fact.name), [value.least, value.greatest])
            by_name[fact.is_target, fact.name] = [min(least, value.least), max(greatest, value.greatest)]
    if not by_name:
        return None
    read = {name: ends for (is_target, name), ends in by_name.items() if not is_target}
    targets = {name: ends for (is_target, name), ends in by_name.items() if is_target}
    parts = [f"`{name}` is {_between(ends)}" for name, ends in read.items()][:MOST_NAMES]
    parts += [f"the target of {name} is {_between(ends)}" for name, ends in targets.items()][:MOST_NAMES]
    return listed(parts), {"inputs": read, "targets": targets}


def _between(ends: Range) -> str:
    least, greatest = ends
    return f"always {least:.4g}" if least == greatest else f"between {least:.4g} and {greatest:.4g}"


def _sizes(named: Mapping[str, Range]) -> list[float]:
    """The size of the largest element of each, but of those that are 0 throughout."""
    return [size for least, greatest in named.values() if (size := max(abs(least), abs(greatest)))]


_NORMALISE_TARGETS = (
    "Normalise the targets, as by their mean and deviation on the training data, and undo that on predictions."
)

SUBJECTS = (
    Subject(
        "input-ranges",
        "data",
        "between which numbers inputs lie",
        ranges,
        (
            Mark(
                "inputs-large",
                lambda value: max(_sizes(value["inputs"]), default=0.0) > LARGE,
                advice="Normalise the inputs, as by their mean and deviation on the training data.",
            ),
            Mark(
                "inputs-tiny",
                lambda value: min(_sizes(value["inputs"]), default=1.0) < TINY,
                advice="Look for a division too many (by 255, and again by 255), and normalise the inputs.",
            ),
            Mark(
                "targets-large",
                lambda value: max(_sizes(value["targets"]), default=0.0) > LARGE,
                advice=_NORMALISE_TARGETS,
            ),
            Mark(
                "targets-tiny",
                lambda value: min(_sizes(value["targets"]), default=1.0) < TINY,
                advice=_NORMALISE_TARGETS,
            ),
        ),
    ),
)
