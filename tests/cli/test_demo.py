"""`trueline demo` as a user calls it."""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from unittest import mock

import numpy as np
import psutil
import pytest

pytest.importorskip("transformers")

import trueline
from trueline.cli.main import main
from trueline.demo.model import ModelSpec
from trueline.demo.settings import SETTINGS as SETTINGS_OF_DEMO
from trueline.demo.tokens import Sample
from trueline.demo.worker_training import Job, PackedSamples, train

CALL = ["-c", "from trueline.cli.main import main; main()", "demo"]
SMALL = ["--workers", "2", "--steps", "8", "--batch-size", "4", "--max-length", "48"]
SETTINGS = ["s1-1", "s1-2", "s1-3", "no-sampler", "loss-scale", "labels"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "mine.jsonl"
    rows = [{"instruction": f"Add {n} and {n + 1}.", "output": f"That makes {2 * n + 1}."} for n in range(200)]
    path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)


def demo(*arguments, cwd):
    """The command in this process, which has imported torch and has the server that workers are forked from."""
    output, errors = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(cwd),
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(errors),
        mock.patch.object(sys, "argv", ["trueline", "demo", *arguments]),
        mock.patch.dict(os.environ, NO_COLOR="1", COLUMNS="160"),
        pytest.raises(SystemExit) as left,
    ):
        main()
    return subprocess.CompletedProcess(arguments, int(left.value.code or 0), output.getvalue(), errors.getvalue())


@pytest.fixture(scope="module")
def finished(tmp_path_factory, data):
    """A small demo in its default directory, and what it printed as JSON."""
    folder = tmp_path_factory.mktemp("finished")
    return folder / "trueline-demo", demo(*SMALL, "--data", data, "--json", cwd=folder)


@pytest.mark.in_turn
def test_a_demo_leaves_six_runs_and_a_report_and_prints_one_document(finished):
    out, done = finished
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert [each["setting"] for each in document["settings"]] == SETTINGS
    assert sorted(path.name for path in out.iterdir()) == sorted([*SETTINGS, "report.html", "demo.json"])
    assert all((out / name / "manifest.json").is_file() for name in SETTINGS)
    assert "<html" in (out / "report.html").read_text()


def test_what_is_planted_is_found_where_so_few_steps_can_tell(finished):
    settings = {each["setting"]: each for each in json.loads(finished[1].stdout)["settings"]}
    found = {
        name: {finding["code"] for finding in each["findings"] if finding["severity"] != "info"}
        for name, each in settings.items()
    }
    assert found["s1-1"] == set()
    assert found["no-sampler"] == {"duplicate-data"}
    assert found["s1-3"] == {"shard-overlap"}
    assert found["loss-scale"] == {"loss-scale-wrong"}
    assert [settings[name]["status"] for name in ("s1-1", "loss-scale", "labels")] == ["clear", "out", "unknown"]
    assert "to find: it takes more --steps" in settings["labels"]["verdict"]


@pytest.mark.in_turn
@pytest.mark.parametrize(("name", "ranks"), [("s1-1", None), ("loss-scale", [0, 1])])
def test_a_doubled_loss_is_found_by_its_check_when_there_are_enough_steps(two, tmp_path, name, ranks):
    """28 steps of two workers, of which 21 are needed; who of two is scaled cannot be told."""
    draw = np.random.default_rng(0)
    samples = [Sample(ids, ids) for ids in draw.integers(1, 64, size=(512, 12))]
    setting = next(each for each in SETTINGS_OF_DEMO if each.name == name)
    job = Job(
        setting=setting, samples=PackedSamples(samples), pad_id=0, model=ModelSpec(None, 64, 32), run=tmp_path / "run",
        progress=tmp_path / "progress", steps=28, batch_size=8, seed=0, bf16=False,
    )  # fmt: skip
    two.run(train, job)
    grave = [finding for finding in trueline.check(job.run).findings if finding.is_grave]
    assert setting.found_by in {"", *(finding.code for finding in grave)}
    assert [list(finding.ranks) for finding in grave if finding.code == "worker-scale"] == ([ranks] if ranks else [])


def test_the_three_dispersions_are_measured(finished):
    spread = {each["setting"]: each["dispersion"] for each in json.loads(finished[1].stdout)["settings"]}
    assert spread["no-sampler"]["loss_std"] == 0.0
    assert spread["no-sampler"]["cosine_mean"] == pytest.approx(1.0, abs=1e-3)
    assert spread["loss-scale"]["loss_range"] > 2.0
    assert all(value is not None for each in spread.values() for value in each.values())


def test_a_second_demo_in_the_same_place_is_refused_and_changes_nothing(finished, data):
    out, _ = finished
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    again = demo(*SMALL, "--data", data, cwd=out.parent)
    assert again.returncode == 2
    assert again.stdout == ""
    assert "holds an earlier demo" in again.stderr
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before


@pytest.mark.in_turn
def test_overwriting_replaces_a_demo_and_prints_tables(finished, data):
    out, _ = finished
    manifest = out / "labels" / "manifest.json"
    before = manifest.stat().st_mtime_ns
    again = demo(*SMALL, "--steps", "3", "--data", data, "--overwrite", "--bf16", cwd=out.parent)
    assert again.returncode == 0, again.stderr
    assert manifest.stat().st_mtime_ns != before
    for words in (*SETTINGS, "duplicate-data", "mean pairwise cosine", "report.html"):
        assert words in again.stdout
    assert "\x1b" not in again.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--workers", "1"], "--workers is 1"),
        (["--steps", "0"], "--steps is 0"),
        (["--data", "gone.json"], "gone.json' cannot be read"),
        (["--data", "few.json"], "has 1 triples, but one step of 4 workers takes 32"),
        (["--max-length", "3"], "--max-length is 3"),
        (["--model", "./no-such-model"], "there is no such folder"),
        (["--out", "few.json"], "is not a directory"),
        (["--out", ".", "--overwrite"], "never overwritten"),
    ],
)
def test_bad_input_is_one_sentence_and_writes_nothing(tmp_path, monkeypatch, capsys, arguments, words):
    (tmp_path / "few.json").write_text('[{"instruction": "a", "output": "b"}]')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["trueline", "demo", *arguments])
    with pytest.raises(SystemExit) as exited:
        main()
    printed = capsys.readouterr()
    assert exited.value.code == 2
    assert words in printed.err
    assert "Traceback" not in printed.err
    assert printed.out == ""
    assert [path.name for path in tmp_path.iterdir()] == ["few.json"]


def start_and_wait_for_training(folder, data, python):
    """A long demo that has trained its first steps, its processes, and those of them that are its workers."""
    call = [python, *CALL, "--workers", "2", "--steps", "5000", "--batch-size", "2", "--data", data, "--out", "out"]
    running = subprocess.Popen(
        call, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heed_interrupts
    )
    while running.poll() is None:
        journals = list((folder / "out").glob("s1-1/journal/*.tlj"))
        sealed = len(list((folder / "out").glob("s1-1/workers/*")))
        if len(journals) == 2 and (sealed > 1 or all(journal.stat().st_size > 10_000 for journal in journals)):
            break
        time.sleep(0.1)
    processes = [process for process in psutil.process_iter() if is_in(folder, process)]
    opened = {process: [file.path for file in process.open_files()] for process in processes}
    workers = [process for process, paths in opened.items() if any("journal" in path for path in paths)]
    return running, processes, workers


def is_in(folder, process):
    with contextlib.suppress(psutil.Error):
        return process.cwd() == str(folder)
    return False


def heed_interrupts():
    """Shells start what runs in the background with SIGINT ignored, and so the tests themselves, maybe."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def all_gone(processes):
    return not psutil.wait_procs(processes, timeout=30)[1]


def test_a_killed_worker_ends_the_demo_with_one_sentence_and_no_orphans(tmp_path, data, python):
    running, processes, workers = start_and_wait_for_training(tmp_path, data, python)
    workers[-1].kill()
    _, errors = running.communicate()
    assert running.returncode == 2
    assert errors.count("trueline: ") == 1
    assert "failed in setting s1-1" in errors
    assert "signal 9" in errors
    assert "Traceback" not in errors
    assert all_gone(processes)


@pytest.mark.in_turn
def test_an_interrupt_stops_all_workers(tmp_path, data, python):
    running, processes, _ = start_and_wait_for_training(tmp_path, data, python)
    running.send_signal(signal.SIGINT)
    output, errors = running.communicate()
    assert running.returncode == 130
    assert "Interrupted" in errors
    assert "Traceback" not in errors
    assert output == ""
    assert all_gone(processes)
