"""The example script does what its docstring and the documentation say, watched from outside."""

import json
from pathlib import Path

import pytest
from tests.forked_scripts import run_watched

from trueline.cli.main import main

EXAMPLE = Path(__file__).parents[2] / "examples/train_ddp.py"


def test_example_without_a_sampler_is_judged_as_documented(tmp_path: Path, judged) -> None:
    printed = run_watched(EXAMPLE, "--epochs", "2", "--no-sampler", out=tmp_path / "run")
    assert "epoch 1: loss" in printed[0]
    assert judged(tmp_path / "run") == (1, {"duplicate-data"})


def test_sound_example_is_judged_as_documented(tmp_path: Path, judged) -> None:
    printed = run_watched(EXAMPLE, "--epochs", "2", out=tmp_path / "run")
    assert "epoch 1: loss" in printed[0]
    assert judged(tmp_path / "run") == (0, set())


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """The exit code of `trueline check --json` on a Run, and the codes of the errors and warnings that it prints."""

    def check(run: Path) -> tuple[int, set[str]]:
        monkeypatch.setattr("sys.argv", ["trueline", "check", str(run), "--json"])
        with pytest.raises(SystemExit) as left:
            main()
        findings = json.loads(capsys.readouterr().out)["findings"]
        return int(left.value.code or 0), {each["code"] for each in findings if each["severity"] != "info"}

    return check
