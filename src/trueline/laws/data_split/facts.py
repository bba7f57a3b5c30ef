"""Facts of what evaluations read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trueline.judge.facts.fact import Mark, Subject
from trueline.laws.data_split.evaluated_samples import evaluated_of
from trueline.schema.errors import CannotTell
from trueline.schema.text.words import counted
from trueline.store.reader import Run


def evaluations(run: Run) -> tuple[str, Any] | None:
    """Different samples that evaluations read, and how many of them are trained on at any time; None where the job
    evaluates nothing.
    """
    try:
        sources = [source for source in evaluated_of(run) if not source.is_mixed]
    except CannotTell as error:
        # A job that evaluates nothing has no such line, and no line that it is unknown.
        if error.reason == "by-design":
            return None
        raise
    if not sources:
        return None
    size, ever = sum(source.size for source in sources), sum(source.ever for source in sources)
    held_out = [source for source in sources if not source.is_trained]
    text = f"evaluations read {counted(size, 'different sample')}, of which {ever or 'none'} "
    text += f"{'is' if ever == 1 else 'are'} trained on"
    return text, {
        "evaluated": size,
        "trained": ever,
        "sources": len(sources),
        "held_out": len(held_out),
        "of_loaders": sum(source.source > 0 for source in sources),
    }


def holds_nothing_out(value: Mapping[str, Any]) -> bool:
    """Whether evaluations read nothing but what is trained on."""
    return not value["held_out"]


SUBJECTS = (
    Subject(
        "evaluated-samples",
        "data",
        "samples of evaluations",
        evaluations,
        (
            Mark(
                "nothing-held-out",
                holds_nothing_out,
                lambda value: f"all {value['evaluated']:,} samples that evaluations read are trained on",
                advice=(
                    "Split the data before the DataLoaders are made, and give the evaluation the part that is not "
                    "trained on."
                ),
            ),
        ),
    ),
)
