"""`trueline gallery`: what it prints, and how it ends."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import trueline
from trueline.cli.main import main
from trueline.schema.errors import RunError

COMMAND = ("-c", "from trueline.cli.main import main; main()", "gallery")
Gallery = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def gallery(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Gallery:
    """The command in this process, which has torch and the server of ranks already."""

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        monkeypatch.setattr("sys.argv", ["trueline", "gallery", *arguments])
        with pytest.raises(SystemExit) as left:
            main()
        printed = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, int(left.value.code or 0), printed.out, printed.err)

    return call


@pytest.mark.in_turn
def test_json_has_the_summary_of_the_contract_and_keeps_the_runs(gallery: Gallery, tmp_path: Path):
    done = gallery("--only", "D1.sequential,healthy.single", "--json", "--keep", str(tmp_path / "runs"))
    document = json.loads(done.stdout)
    assert done.returncode == 0
    assert document["schema"] == 1
    assert document["summary"] == {
        "faults": 1,
        "controls": 2,
        "detected": 1.0,
        "localised": 1.0,
        "families": 1,
        "cause_named": 1.0,
        "wrong_cause": 0.0,
        "abstained": 0.0,
        "wrong_cause_bound_95": pytest.approx(0.95),
        "false_alarms": 0,
        "failed": 0,
    }
    assert [entry["id"] for entry in document["entries"]] == ["D1.sequential", "healthy.single"]
    for run in ("D1.sequential/faulty", "D1.sequential/healthy", "healthy.single/healthy"):
        assert (tmp_path / "runs" / run / "manifest.json").is_file()


@pytest.mark.in_turn
def test_table_tells_people_and_nothing_is_left_behind(tmp_path: Path, python: str):
    command = [python, *COMMAND, "--only", "N4.inf"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0
    assert "N4.inf" in done.stdout
    said = "cause named for 100%, wrong for 0%; 0 false alarms in 1 healthy runs."
    assert said in " ".join(done.stdout.split())
    assert "\x1b[" not in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("flags", "source"), [((), "given"), (("--from-outside",), "backward")])
def test_loops_tell_their_loss_unless_watched_from_outside(
    gallery: Gallery, tmp_path: Path, flags: tuple[str, ...], source: str
):
    done = gallery("--only", "R4.checkpoint", "--json", "--keep", str(tmp_path / "runs"), *flags)
    assert json.loads(done.stdout)["summary"]["detected"] == 1.0
    env = json.loads((tmp_path / "runs/R4.checkpoint/faulty/env/rank-00000.json").read_text())
    assert env["loss_source"] == source


def test_a_run_that_dies_is_told_in_one_line(gallery: Gallery, monkeypatch: pytest.MonkeyPatch):
    def check(run: str) -> None:
        raise RunError("nothing there")

    monkeypatch.setattr(trueline, "check", check)
    done = gallery("--only", "healthy.single")
    assert done.returncode == 1
    assert "healthy.single: healthy run did not finish: nothing there" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_unknown_entry_is_one_sentence_and_exit_2(gallery: Gallery):
    done = gallery("--only", "D99")
    assert done.returncode == 2
    assert done.stderr.startswith("trueline: No entry of the gallery is called 'D99'.")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_what_exists_is_not_written_into(gallery: Gallery, tmp_path: Path, kind: str):
    keep = tmp_path / "mine"
    if kind == "file":
        keep.write_text("precious")
    else:
        keep.mkdir()
        (keep / "notes.txt").write_text("precious")
    done = gallery("--only", "healthy.single", "--keep", str(keep))
    assert done.returncode == 2
    assert "already holds something" in done.stderr
    assert (keep if kind == "file" else keep / "notes.txt").read_text() == "precious"
