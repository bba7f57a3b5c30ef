"""Classes of a classifier that are no targets, as a fact."""

import numpy as np
import pytest
from tests.unit.healthy_run import write_run

from trueline.laws.terms.classes import classes, is_never_target, never_targets

CLASSES, B = 10, 64


def run_of(path, labels, *, samples=B, num_classes=CLASSES):
    rows = {}
    for step in range(len(labels) // B):
        counts = np.bincount(labels[step * B : (step + 1) * B], minlength=num_classes)
        digests = np.arange(samples, dtype=np.uint64) + np.uint64(step * B + 1)
        rows[step, 0] = {"class_counts": [num_classes, B, *counts.tolist()], "sample_digests": digests}
    return write_run(path, rows)


def drawn(low=0, high=CLASSES, steps=9):
    return np.random.default_rng(0).integers(low, high, steps * B)


def test_a_class_that_is_never_a_target(tmp_path):
    labels = drawn(high=CLASSES - 1)
    text, value = classes(run_of(tmp_path, labels + (labels >= 3)))
    assert text == "576 targets at 9 steps are of 9 of 10 classes"
    assert is_never_target(value)
    assert never_targets(value) == ("class 3 of 10 is never a target, in 576 samples at 9 steps that were looked at")


def test_all_classes_and_heads_with_many_outputs_more_are_not_marked(tmp_path):
    text, value = classes(run_of(tmp_path / "all", drawn()))
    assert text == "576 targets at 9 steps are of all 10 classes"
    assert not is_never_target(value)
    assert classes(run_of(tmp_path / "two", drawn(high=2), num_classes=2))[0].endswith("are of both classes")
    assert not is_never_target(classes(run_of(tmp_path / "many", drawn(high=4)))[1])


@pytest.mark.parametrize(("steps", "samples"), [(5, B), (9, 2)])
def test_few_targets_and_tokens_say_nothing(tmp_path, steps, samples):
    assert classes(run_of(tmp_path, drawn(steps=steps), samples=samples)) is None
