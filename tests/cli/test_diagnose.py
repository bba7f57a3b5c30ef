"""`trueline diagnose`: the cause first, what speaks for and against it, and what to do next."""

import re

import numpy as np
import pytest
from tests.cli import in_process
from tests.simulated_epochs import Size, same_batches
from tests.unit.healthy_run import healthy_rows, sample_rows, write_run


@pytest.fixture
def trueline(monkeypatch, capsys):
    def call(*words):
        return in_process.trueline(monkeypatch, capsys, *words)

    return call


def test_the_same_data_on_every_rank(trueline, tmp_path):
    rows = healthy_rows(2, 10)
    for key, row in sample_rows(same_batches(Size(512, 2, 4, 1), np.random.default_rng(0)), 4, num_steps=10).items():
        rows[key] |= row
    write_run(tmp_path / "run", rows)
    code, printed, _ = trueline("diagnose", tmp_path / "run")
    text = " ".join(printed.split())
    assert code == 1
    assert text.startswith("Fault found: ranks 0 and 1, since step 0; 1 finding.")
    assert "Every rank reads the same data: nothing splits it between ranks (data-not-split)" in text
    assert "for: duplicate-data: Ranks 0 and 1 consumed the same samples" in text
    assert "next: Print type(loader.sampler)" in text


def test_check_is_as_sure_of_a_cause_as_diagnose_is(trueline, tmp_path):
    rows = healthy_rows(2, 10)
    rows[3, 1]["loss"] = float("nan")
    write_run(tmp_path / "run", rows)
    checked, diagnosed = (" ".join(trueline(verb, tmp_path / "run")[1].split()) for verb in ("check", "diagnose"))
    (said,) = re.findall(r" undecided, (one of \d: A call computes NaN or infinity .*? the precision) next:", checked)
    assert f"Cause undecided, {said} (operation-undefined)" in diagnosed


def test_nothing_found_and_no_run(trueline, tmp_path):
    write_run(tmp_path / "run", healthy_rows(2, 10))
    code, printed, _ = trueline("diagnose", tmp_path / "run")
    assert (code, printed.startswith("No fault found in 10 steps of 2 ranks")) == (0, True)
    code, printed, said = trueline("diagnose", tmp_path / "nothing")
    assert (code, printed) == (2, "")
    assert "There is no Run at" in said


def test_explain_has_the_manual_of_a_cause(trueline):
    code, printed, _ = trueline("explain", "data-split-twice")
    assert code == 0
    assert "What settles it" in printed
    assert "accelerate#4199" in printed
