"""Directories of Runs: what lies in one, and what has come since."""

from __future__ import annotations

import os
from pathlib import Path

from tests.synthetic_runs import write_run

from trueline.web import run_folders
from trueline.web.run_folders import RunFolder, folders_among


def test_a_directory_that_holds_runs_is_one_and_a_run_is_none(tmp_path: Path) -> None:
    run = write_run(tmp_path / "runs" / "a", num_steps=1)
    (tmp_path / "empty").mkdir()
    folders = folders_among([run, tmp_path / "runs", tmp_path / "empty", tmp_path / "nothing"])
    assert [folder.path for folder in folders] == [str(tmp_path / "runs")]


def test_each_run_is_told_once_the_oldest_first_and_of_too_many_the_newest(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(run_folders, "MAX_RUNS", 2)
    folder = RunFolder(str(tmp_path))
    for name in ("c", "a", "b"):
        write_run(tmp_path / name, num_steps=1)
    assert [os.path.basename(path) for path in folder.new_runs()] == ["a", "b"]
    assert folder.new_runs() == []
    write_run(tmp_path / "d", num_steps=1)
    assert [os.path.basename(path) for path in folder.new_runs()] == ["d"]


def test_a_run_that_could_not_be_read_yet_is_told_again(tmp_path: Path) -> None:
    folder = RunFolder(str(tmp_path))
    path = str(write_run(tmp_path / "a", num_steps=1))
    assert folder.new_runs() == [path]
    folder.forget(path)
    assert folder.new_runs() == [path]
