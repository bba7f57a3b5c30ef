"""`trueline calibrate`: a file and what is in it, one JSON document for programs, one sentence for mistakes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.cli import in_process
from torch import nn

import trueline as library
from trueline.schema.files.tolerance import Tolerance
from trueline.schema.text.documents import decode

Trueline = Callable[..., tuple[int, str, str]]


def record(out: Path, *, nudge: float) -> Path:
    torch.manual_seed(0)
    model = nn.Linear(6, 4)
    with torch.no_grad():
        model.weight.mul_(1 + nudge)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = library.watch(model, optimizer, out=out, plan={"preset": "mix", "depth": "tensor"})
    x = torch.arange(12.0).reshape(2, 6)
    with watch.step(x):
        model(x).square().mean().backward()
        optimizer.step()
    watch.close()
    return out


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("calibrate")
    return [record(folder / name, nudge=nudge) for name, nudge in (("a", 0.0), ("b", 1e-6), ("c", 2e-6))]


@pytest.fixture
def trueline(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Trueline:
    """Runs the command; exit code, standard output and standard error of it."""

    def run(*words: str | Path) -> tuple[int, str, str]:
        return in_process.trueline(monkeypatch, capsys, "calibrate", *words)

    return run


def test_calibrate_writes_the_file_and_says_what_is_in_it(trueline: Trueline, runs: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "t.json"
    code, printed, _ = trueline(*runs, "-o", out)

    written = Tolerance.load(out)
    assert code == 0
    assert written.runs == tuple(map(str, runs))
    lines = printed.splitlines()
    assert lines[0] == (
        f"{len(written.sites)} sites at 1 step of 3 Runs (3 pairs), measured on bits and stored values."
    )
    largest = max(floors[0] or 0 for floors in written.sites.values())
    assert f"by {largest:.2g} at most at 0/" in lines[1]
    assert "probability of at most 50%, and one further Run compared with one of these 33%" in printed
    assert f"within {written.spread:.2g} times the others' floor" in printed
    assert lines[-1] == f"Tolerance: {out}"


def test_json_is_the_file(trueline: Trueline, runs: list[Path], tmp_path: Path) -> None:
    code, printed, _ = trueline(*runs[:2], "-o", tmp_path / "t.json", "--json")
    assert code == 0
    assert json.loads(printed, parse_constant=pytest.fail) == decode((tmp_path / "t.json").read_bytes())[0]


def test_a_file_is_replaced_only_when_told(trueline: Trueline, runs: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "t.json"
    out.write_text("mine")
    code, _, said = trueline(*runs[:2], "-o", out)
    assert (code, out.read_text()) == (2, "mine")
    assert said == f"trueline: '{out}' exists already. Pass another file, or overwrite it with --overwrite.\n"
    assert trueline(*runs[:2], "-o", out, "--overwrite")[0] == 0
    assert Tolerance.load(out).pairs == 1


def test_one_run_is_refused_and_nothing_is_written(trueline: Trueline, runs: list[Path], tmp_path: Path) -> None:
    code, printed, said = trueline(runs[0], "-o", tmp_path / "t.json")
    assert (code, printed, list(tmp_path.iterdir())) == (2, "", [])
    assert said.startswith(
        f"trueline: Calibrating takes two or more Runs that should agree, and 1 was given ('{runs[0]}')"
    )
    assert len(said.splitlines()) == 1


def test_a_step_that_was_not_recorded_cannot_be_told(trueline: Trueline, runs: list[Path], tmp_path: Path) -> None:
    code, _, said = trueline(*runs, "-o", tmp_path / "t.json", "--step", "7")
    assert code == 3
    assert said.startswith("trueline: None of the steps 7 that were asked for was recorded in both")


def test_a_map_that_matches_no_name_is_refused(trueline: Trueline, runs: list[Path], tmp_path: Path) -> None:
    code, _, said = trueline(*runs, "-o", tmp_path / "t.json", "--map", "module.nowhere.=")
    assert code == 2
    assert "'module.nowhere.' in 'module.nowhere.=' matches no name" in said
