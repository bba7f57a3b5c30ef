"""A Run that is judged while it is written: each thing is reported once, when every rank has written it."""

from __future__ import annotations

import numpy as np
import pytest
from tests.synthetic_runs import write_run

import trueline
from trueline.schema.files.run_manifest import Manifest, RankEnv
from trueline.schema.finding import Finding
from trueline.sinks.look import Looks
from trueline.sinks.series import SERIES, Series
from trueline.store.writer import RunWriter

FAULT_AT = 2


def row(step, rank, *, shared):
    """One worker's row; from ``FAULT_AT`` on both read the same samples."""
    sample = step if shared and step >= FAULT_AT else 1000 * rank + step
    return {
        "step": step,
        "epoch": 0,
        "loss": 1.0 + 0.01 * rank,
        "grad_norm": 2.0 + rank,
        "sample_digests": [sample + 1],
    }


@pytest.fixture
def writers(tmp_path):
    """Two ranks that write a Run, whose journals are read while they do."""
    manifest = Manifest(
        trueline_version="0",
        started_at="",
        world_size=2,
        data_parallel_ranks=[0, 1],
        adapter="ddp",
        command=[],
        plan={},
    )
    made = [RunWriter(tmp_path, rank=rank) for rank in range(2)]
    for rank, writer in enumerate(made):
        writer.describe(manifest if rank == 0 else None, RankEnv(rank=rank, world_size=2, hostname="h", pid=1))
    return made


def test_findings_and_numbers_come_once_and_only_of_steps_that_every_rank_wrote(writers, tmp_path):
    said = []
    looks = Looks(str(tmp_path), say=said.append)
    for step in range(20):
        writers[0].write(row(step, 0, shared=True))
        if step < 12:
            writers[1].write(row(step, 1, shared=True))
    first = looks.look()
    assert [each.step for each in first.numbers] == list(range(12)), "rank 1 has not come further"
    assert [finding.code for finding in first.findings if finding.severity == "error"] == ["duplicate-data"]
    assert looks.look().numbers == looks.look().findings == ()
    for step in range(12, 20):
        writers[1].write(row(step, 1, shared=True))
    second = looks.look()
    assert [each.step for each in second.numbers] == list(range(12, 20))
    assert "duplicate-data" not in {finding.code for finding in second.findings}, "it was reported already"
    assert not second.ended
    for writer in writers:
        writer.close()
    assert looks.look().ended
    assert said == []


def test_checks_see_no_step_that_one_rank_has_not_written(writers, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr("trueline.sinks.look.check", lambda run: seen.append(int(run.steps[-1])) or trueline.check(run))
    for step in range(9):
        writers[step % 2].write(row(step // 2, step % 2, shared=False))
    Looks(str(tmp_path), say=pytest.fail).look()
    assert seen == [3], "rank 0 has come to step 4"


def test_a_start_that_goes_on_reports_nothing_of_the_one_before_again(writers, tmp_path):
    for step in range(20):
        for rank, writer in enumerate(writers):
            writer.write(row(step, rank, shared=True))
    news = Looks(str(tmp_path), first=25, say=print).look()
    assert news.numbers == ()
    assert [finding for finding in news.findings if finding.step_last is not None and finding.step_last < 25] == []


def test_a_run_that_is_not_there_yet_is_waited_for_and_a_look_that_fails_is_said_once(tmp_path, monkeypatch):
    said = []
    looks = Looks(str(tmp_path / "none"), say=said.append)
    assert looks.look().findings == ()
    assert said == []

    def broken(run):
        raise ZeroDivisionError("by 0")

    monkeypatch.setattr("trueline.sinks.look.check", broken)
    looks = Looks(str(write_run(tmp_path / "run", num_ranks=2, num_steps=4)), say=said.append)
    for _ in range(3):
        looks.look()
    assert len(said) == 3, "of a Run that has ended each look is the last"
    assert "ZeroDivisionError: by 0" in said[0]


def test_series_are_those_of_a_slow_count(tmp_path):
    run = trueline.open_run(write_run(tmp_path / "run", num_ranks=4, num_steps=12, every=3))
    table = run.table().to_pylist()
    found = {each.step: each.values for each in Series(0).take_new(run, whole_to=11)}
    for step in range(12):
        rows = [each for each in table if each["step"] == step]
        losses = [each["loss"] for each in rows]
        assert found[step]["loss"] == pytest.approx(np.mean(losses), rel=1e-12)
        assert found[step]["loss_std"] == pytest.approx(np.std(losses, ddof=1), rel=1e-12)
        norms = {each["rank"]: each["grad_norm"] for each in rows}
        if step % 3:
            assert set(found[step]) == {"loss", "loss_std"}, "what was not measured is left out"
            continue
        middle = np.median(list(norms.values()))
        worst = max(norms, key=lambda rank: abs(np.log(norms[rank] / middle)))
        assert found[step]["worst_rank"] == worst
        assert found[step]["worst_rank_ratio"] == pytest.approx(norms[worst] / middle, rel=1e-12)
        assert found[step]["grad_norm_cv"] == pytest.approx(
            np.std(list(norms.values()), ddof=1) / np.mean(list(norms.values())), rel=1e-12
        )
        assert found[step]["direction_consistency"] == pytest.approx(rows[0]["cosine_mean"], rel=1e-12)
        assert set(found[step]) == set(SERIES)


def test_a_finding_that_grows_graver_or_is_of_further_ranks_is_reported_again(tmp_path):
    looks = Looks(str(tmp_path), say=print)
    warned = Finding(code="c", severity="warning", claim="", ranks=(1,))
    news = [
        warned,
        warned,
        Finding(code="c", severity="error", claim="", ranks=(1,)),
        Finding("c", "error", "", (1, 2)),
    ]
    assert [looks._is_new(one) for one in news] == [True, False, True, True]


def test_what_a_later_start_shows_of_its_own_steps_is_reported_again(tmp_path):
    looks = Looks(str(tmp_path), say=print)
    early, late = (Finding("c", "error", "", (1,), step_first=step) for step in (3, 10))
    looks._starts = [0]
    assert looks._is_new(late)
    looks._starts = [0, 8]  # started again from a checkpoint of step 8
    assert looks._is_new(late)
    assert not looks._is_new(early), "it is of the first start"


def test_each_look_says_up_to_which_step_the_run_is_clean(writers, tmp_path):
    looks = Looks(str(tmp_path), say=pytest.fail)
    for step in range(FAULT_AT):
        for rank, writer in enumerate(writers):
            writer.write(row(step, rank, shared=True))
    before = looks.look()
    assert (before.clean.step, before.clean.faults, before.last_clean_step) == (FAULT_AT - 1, (), None)
    for step in range(FAULT_AT, 20):
        for rank, writer in enumerate(writers):
            writer.write(row(step, rank, shared=True))
    after = looks.look()
    assert (after.clean.step, after.clean.judged_to, after.last_clean_step) == (FAULT_AT - 1, 19, FAULT_AT - 1)
    assert looks.look().clean is None, "nothing is new"
