"""Which classes of a classifier are targets, as a fact of a training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from trueline.judge.compared_ranks import data_parallel_ranks
from trueline.schema.text.words import counted, named_some
from trueline.store.reader import Run

EULER = 0.5772156649
"""Harmonic numbers are about ln n plus this."""
CHANCE = 1e-6
"""Probability that the rarest of as many classes is no target, where they are as frequent as Zipf's law has them."""


def classes(run: Run) -> tuple[str, Any] | None:
    """Classes that the cross-entropy has, and those that were no target at the steps that were looked at; None where
    there is more than one target a sample, as of tokens, or too few for all classes to be among them.
    """
    ranks = data_parallel_ranks(run)
    rows = {key: row for key, row in run.lists("class_counts", ranks=ranks).items() if len(row) > 2}
    sizes = {len(row) for row in rows.values()}
    if len(sizes) != 1:
        return None
    steps = sorted({step for step, _ in rows})
    steps_L, ranks_L, lengths_L, _ = run.flat("sample_digests", ranks=ranks, steps=steps)
    samples = dict(zip(zip(steps_L.tolist(), ranks_L.tolist(), strict=True), lengths_L.tolist(), strict=True))
    if any(int(row[1]) > samples.get(key, 0) for key, row in rows.items()):
        return None
    of_class_C = np.sum([np.asarray(row[2:], dtype=np.int64) for row in rows.values()], axis=0)
    num_classes, num_targets = len(of_class_C), int(of_class_C.sum())
    if num_classes < 2 or num_targets < -math.log(CHANCE) * num_classes * (math.log(num_classes) + EULER):
        return None
    never = np.flatnonzero(of_class_C == 0).tolist()
    value = {"classes": num_classes, "targets": num_targets, "steps": len(steps), "never": never}
    of_all = f"{num_classes - len(never)} of {num_classes} classes" if never else f"all {num_classes} classes"
    of_all = "both classes" if num_classes == 2 and not never else of_all
    return f"{counted(num_targets, 'target')} at {counted(len(steps), 'step')} are of {of_all}", value


def is_never_target(value: Mapping[str, Any]) -> bool:
    """Whether few classes are no targets while most are; of heads with many outputs more `outputs-unused` tells."""
    return 0 < len(value["never"]) <= value["classes"] // 4


def never_targets(value: Mapping[str, Any]) -> str:
    """What is to be confirmed of classes that are no targets."""
    names = [str(name) for name in value["never"]]
    one = len(names) == 1
    which = f"class {names[0]}" if one else f"classes {named_some(names)}"
    looks = f"{value['targets']:,} samples at {value['steps']} steps that were looked at"
    return f"{which} of {value['classes']} {'is' if one else 'are'} never a target, in {looks}"
