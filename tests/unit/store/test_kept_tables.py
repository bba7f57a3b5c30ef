"""Tables whose rows are kept as they came: what survives a kill, damage, a second start and a move to another place."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import trueline
from trueline.schema.columns.rollouts import Lists, TableRows
from trueline.store.reader import Run
from trueline.store.verify import verify
from trueline.store.writer import RunWriter


def _rows(step: int, number: int = 2) -> TableRows:
    lists = [np.arange(step + 1, dtype=np.float32)] * number
    return TableRows("rollouts", step, number, {"logp_rollout": Lists.of(lists, np.float32), "reward": [0.5] * number})


def _steps(path: Path) -> list[int]:
    return Run(path).kept("rollouts").table(["step"])["step"].to_pylist()


def test_parts_and_journal_together_hold_each_row_once(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path / "run", rank=0, seal_steps=3)
    for step in range(8):
        writer.write(_rows(step))
    assert sorted(_steps(tmp_path / "run")) == sorted([*range(8)] * 2)
    writer.close()
    assert sorted(_steps(tmp_path / "run")) == sorted([*range(8)] * 2)
    assert len(list((tmp_path / "run" / "rollouts").iterdir())) == 3
    assert not [name for name in (tmp_path / "run" / "journal").iterdir() if "rollouts" in name.name]


def test_a_torn_journal_loses_the_last_rows_alone(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path / "run", rank=0)
    for step in range(3):
        writer.write(_rows(step))
    journal = tmp_path / "run" / "journal" / "rank-00000-rollouts.tlj"
    whole = journal.read_bytes()
    journal.write_bytes(whole[:-7])
    run = Run(tmp_path / "run")
    assert run.kept("rollouts").table(["step"])["step"].to_pylist() == [0, 0, 1, 1]
    assert any("rollouts" in problem for problem in run.problems)
    journal.write_bytes(whole)
    writer.close()


def test_a_damaged_part_is_named_and_the_rest_is_read(tmp_path: Path) -> None:
    with_parts = RunWriter(tmp_path / "run", rank=0, seal_steps=1)
    for step in range(3):
        with_parts.write(_rows(step))
    with_parts.close()
    part = sorted((tmp_path / "run" / "rollouts").iterdir())[1]
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 1
    part.write_bytes(data)
    run = Run(tmp_path / "run")
    assert run.kept("rollouts").table(["step"])["step"].to_pylist() == [0, 0, 2, 2]
    assert any(part.name in problem for problem in run.problems)
    assert {each.state for each in verify(str(tmp_path / "run")).files} >= {"damaged"}


def test_columns_that_some_rows_lack_are_null(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path / "run", rank=0)
    writer.write(_rows(0, 1))
    writer.write(TableRows("rollouts", 1, 1, {"version_train": [7]}))
    writer.close()
    first, second = (
        Run(tmp_path / "run").kept("rollouts").table(["reward", "version_train", "logp_rollout"]).to_pylist()
    )
    assert (first["version_train"], second["version_train"]) == (None, 7)
    assert (first["logp_rollout"], second["logp_rollout"]) == ([0.0], None)


def test_collected_runs_have_the_rows_of_all_places(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path / "a", rank=0)
    writer.write({"step": 0, "loss": 1.0})
    writer.write(_rows(0))
    trueline.collect([tmp_path / "a"], tmp_path / "b")
    assert _steps(tmp_path / "b") == [0, 0]
    writer.write(_rows(1))
    writer.close()
    trueline.collect([tmp_path / "a"], tmp_path / "b")
    assert _steps(tmp_path / "b") == [0, 0, 1, 1]


def test_a_query_reaches_the_table(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path / "run", rank=0)
    writer.write(_rows(2))
    writer.close()
    assert Run(tmp_path / "run").query("select sum(reward), max(len(logp_rollout)) from rollouts") == [(1.0, 3)]
