"""Facts of the running statistics of batch normalisation."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from trueline.judge.facts.fact import Mark, Subject
from trueline.laws.batch_norm.running_statistics import NormPass, sampled_passes
from trueline.schema.text.words import counted, listed
from trueline.store.reader import Run

MOSTLY = 0.5
"""Momentum of torch is the share of the new batch: above a half it is larger than that of all batches before."""
ALONE = 0.9
"""From here on the share of all batches before is a tenth: that of the new batch in the convention of others."""


def running_statistics(run: Run) -> tuple[str, Any] | None:
    """Momenta of the batch norms that change running statistics, and those of which these never move."""
    passes: defaultdict[str, list[NormPass]] = defaultdict(list)
    for norm_pass in sampled_passes(run)[0]:
        if norm_pass.training and norm_pass.tracks:
            passes[norm_pass.name].append(norm_pass)
    if not passes:
        return None
    # What is in force at the end: a schedule of momenta begins with large ones.
    last_passes = [norm_passes[-1] for norm_passes in passes.values()]
    numbers = Counter(map(_momentum_text, last_passes))
    words = [text if len(numbers) == 1 else f"{num} with {text}" for text, num in sorted(numbers.items())]
    text = f"running statistics of {counted(len(passes), 'batch norm')}: {listed(words)}"
    momenta = [norm_pass.momentum or 0.0 for norm_pass in last_passes]
    return text, {
        "norms": len(passes),
        "momenta": dict(sorted(numbers.items())),
        "largest": max(momenta),
        "of_last_batch": sum(momentum > MOSTLY for momentum in momenta),
        "still": sum(map(_never_moves, passes.values())),
    }


def follow_last_batch(value: Mapping[str, Any]) -> str:
    """``5 batch norms have the momentum 0.99: their running statistics are those of the last batch``."""
    num = int(value["of_last_batch"])
    have, their = ("has", "its") if num == 1 else ("have", "their")
    share = "those of the last batch" if value["largest"] >= ALONE else "mostly those of the last batch"
    return (
        f"{counted(num, 'batch norm')} {have} the momentum {value['largest']:.3g}: {their} running statistics, which "
        f"evaluation uses, are {share} (torch's momentum is the share of the new batch)"
    )


def never_move(value: Mapping[str, Any]) -> str:
    """``5 batch norms have the momentum 0: …``."""
    num = int(value["still"])
    have, their = ("has", "its") if num == 1 else ("have", "their")
    return (
        f"{counted(num, 'batch norm')} {have} the momentum 0: {their} running statistics, which evaluation uses, stay "
        "as they were made, mean 0 and variance 1"
    )


def _never_moves(norm_passes: Sequence[NormPass]) -> bool:
    """Not of a layer that was loaded: it may be meant to keep what it has."""
    return all(
        norm_pass.momentum == 0 and not norm_pass.after[1].any() and bool((norm_pass.after[2] == 1).all())
        for norm_pass in norm_passes
    )


def _momentum_text(norm_pass: NormPass) -> str:
    return "a mean of all batches" if norm_pass.momentum is None else f"momentum {norm_pass.momentum:.3g}"


SUBJECTS = (
    Subject(
        "running-statistics",
        "model",
        "running statistics of batch normalisation",
        running_statistics,
        (
            Mark(
                "statistics-of-last-batch",
                lambda value: value["of_last_batch"] > 0,
                follow_last_batch,
                # in TensorFlow it is the share of the old value, and 0.99 is usual
                advice=(
                    "Lower the batch norm's `momentum` (0.1 is usual): in PyTorch it is the share of the new batch."
                ),
            ),
            Mark(
                "statistics-never-move",
                lambda value: value["still"] > 0,
                never_move,
                advice=(
                    "Raise the batch norm's `momentum` (0.1 is usual): in PyTorch it is the share of the new "
                    "batch, not of the old value."
                ),
            ),
        ),
    ),
)
