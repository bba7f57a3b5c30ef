"""Wherever checks work, they find the same."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace

import pytest
from tests.run_kinds import CHANGES, write_kind

from trueline.judge import engines
from trueline.judge.check_run import check
from trueline.judge.engines import Views, judged_on
from trueline.judge.registry import installed_checks
from trueline.schema.errors import InputError
from trueline.schema.finding import Finding
from trueline.store.reader import Run


def document(path, engine):
    return json.dumps(check(path, engine=engine).to_json())


@pytest.mark.parametrize("kind", CHANGES)
def test_processes_find_what_is_found_here(tmp_path, kind):
    path = write_kind(tmp_path / "run", kind)
    assert document(path, "local") == document(path, "here")


def test_checks_are_worked_out_in_other_processes(tmp_path, monkeypatch):
    checks = installed_checks()[:4]
    told = [replace(each, find=lambda run: [Finding("pid", "info", f"{os.getpid()}")]) for each in checks]
    monkeypatch.setattr(engines, "installed_checks", lambda: told)
    outcomes, _ = judged_on("local", Views.of(Run(write_kind(tmp_path / "run", "healthy", num_steps=3)), None), told)
    claims = {outcome.answer[0].claim for outcome in outcomes.values()}
    assert claims
    assert str(os.getpid()) not in claims


def test_a_lost_process_costs_no_finding(tmp_path, monkeypatch):
    here = os.getpid()

    def find(run):
        if os.getpid() != here:
            os.kill(os.getpid(), signal.SIGKILL)
        return [Finding("here", "info", "found")]

    told = [replace(each, find=find) for each in installed_checks()[:4]]
    monkeypatch.setattr(engines, "installed_checks", lambda: told)
    outcomes, _ = judged_on("local", Views.of(Run(write_kind(tmp_path / "run", "healthy", num_steps=3)), None), told)
    assert [outcome.answer[0].code for outcome in outcomes.values()] == ["here"] * 4


def test_problems_that_reading_meets_are_told_as_here(tmp_path, monkeypatch):
    def find(run):
        run.problems.append("it is torn")
        return []

    told = [replace(each, find=find) for each in installed_checks()[:3]]
    monkeypatch.setattr(engines, "installed_checks", lambda: told)
    run = Run(write_kind(tmp_path / "run", "healthy", num_steps=3))
    known = list(run.problems)
    judged_on("local", Views.of(run, None), told)
    assert run.problems == [*known, "it is torn"]


def test_an_engine_that_is_not_there_is_named(tmp_path):
    path = write_kind(tmp_path / "run", "healthy", num_steps=3)
    with pytest.raises(InputError, match="There is no engine 'dask'"):
        check(path, engine="dask")
