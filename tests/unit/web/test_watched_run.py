"""A Run that is shown while it is written: what grew is read and judged again, and what is gone is said."""

from __future__ import annotations

import shutil
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from tests.synthetic_runs import write_part, write_run
from tests.web.served import JudgeHere

from trueline.schema.errors import RunError
from trueline.web import watched_run
from trueline.web.views.overview import overview_of
from trueline.web.watched_run import WatchedRun


@pytest.fixture(autouse=True)
def without_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched_run, "EVERY_S", 0.0)
    monkeypatch.setattr(watched_run, "_REST", 0.0)


def watch(path: Path, judge: Any = None) -> WatchedRun:
    return WatchedRun(str(path), path.name, None, judge or JudgeHere())


def test_nothing_is_concluded_before_the_first_judgement(tmp_path: Path) -> None:
    run = watch(write_run(tmp_path / "run", num_steps=3), JudgeHere(holding=True))
    run.look()
    seen = overview_of(run)

    assert (seen.status, seen.headline, seen.judging) == (None, "Not judged yet.", True)
    assert seen.incidents == ()
    assert seen.questions == ()


def test_rows_that_come_later_are_read_and_judged_and_told(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", num_ranks=1, num_steps=3)
    run = watch(path)
    run.look()
    run.look()
    before = dict(run.versions)
    assert (run.last_step, run.judgement.last_step) == (2, 2)

    for part in (path / "workers").iterdir():
        part.unlink()
    write_part(path, 0, [{"step": step, "loss": 1.0} for step in range(7)])
    run.look()
    assert run.last_step == 6
    assert run.versions["workers"] > before["workers"]
    assert run.versions["records"] == before["records"]
    run.look()
    assert run.judgement.last_step == 6
    after = run.stamp
    run.look()
    assert run.stamp == after, "what has not changed is told again"


def test_a_run_that_vanishes_is_said_and_what_was_read_stays(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", num_steps=3)
    run = watch(path)
    run.look()
    run.look()
    before = run.stamp
    shutil.rmtree(path)
    run.look()
    seen = overview_of(run)

    assert "can no longer be read" in seen.gone
    assert seen.last_step == 2
    assert seen.status is not None
    assert not seen.live
    assert run.stamp != before


def test_a_run_that_vanishes_between_two_looks_is_said_by_whatever_is_asked(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", num_steps=3)
    run = watch(path)
    shutil.rmtree(path)
    seen = overview_of(run)
    assert seen.gone.startswith("The Run can no longer be read: workers/")
    assert seen.gone.endswith("). What is shown was read before.")
    assert (seen.facts, seen.live) == ((), False)
    with pytest.raises(RunError, match="can no longer be read"), run.reading():
        run.pivot("loss")


def test_a_judgement_that_fails_is_said_and_the_last_one_stays(tmp_path: Path) -> None:
    class Broken(JudgeHere):
        def check(self, path: str, ref: str | None) -> Future[Any]:
            failed: Future[Any] = Future()
            failed.set_exception(ValueError("too large"))
            return failed

    run = watch(write_run(tmp_path / "run", num_steps=3), Broken())
    run.look()
    run.look()
    seen = overview_of(run)

    assert seen.headline == "Cannot tell: judging failed."
    assert "ValueError: too large" in seen.failed


def test_what_is_no_run_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(RunError):
        watch(tmp_path)
