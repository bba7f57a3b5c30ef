"""What is said of a demo: verdicts, advice, spreads, and which worker failed."""

import json
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

pytest.importorskip("transformers")

from trueline.demo.fine_tune import Trained, failure_sentence
from trueline.demo.ranks import RankError, run_ranks
from trueline.demo.screen import progress_bars, summary
from trueline.demo.settings import SETTINGS
from trueline.demo.settings_summary import SPREADS, Judged, advice, document, rank_text
from trueline.schema.finding import Finding

BY_NAME = {setting.name: setting for setting in SETTINGS}
OVERLAP = Finding("shard-overlap", "error", "Seen twice.", ranks=(0,), step_first=10, next=("Share the seed.",))
DRIFT = Finding("replica-drift", "warning", "Buffers differ.", ranks=(0, 1, 2, 3), next=("Broadcast.", "Look."))
STREAMS = Finding("rng-streams", "info", "Streams.", ranks=(0, 1), step_first=0, next=("Declare.",))


@dataclass
class Report:
    status: str
    findings: tuple = ()

    @property
    def verdict(self):
        return SimpleNamespace(status=self.status, line=f"Verdict {self.status}.")

    def to_json(self):
        return {"findings": [each.to_json() for each in self.findings], "checks_run": ["a"], "checks_not_run": []}


@dataclass
class Reading:
    report: Report
    dispersion: SimpleNamespace


def judged(name, status="clear", findings=(), *, losses=(7.5, 6.0), **dispersions):
    values = {name: np.array(dispersions.get(name, [])) for name in SPREADS.values()}
    trained = Trained(BY_NAME[name], Path("out") / name, *losses)
    return Judged(trained, Reading(Report(status, tuple(findings)), SimpleNamespace(**values)), num_workers=4)


def text_of(*settings, width=200):
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(summary(settings, out=Path("out"), page=Path("out/report.html")))
    return console.export_text()


def test_a_clear_run_is_called_so_only_where_nothing_was_planted():
    assert (judged("s1-1").status, judged("s1-1").verdict) == ("clear", "Verdict clear.")
    assert judged("labels").status == "unknown"
    assert judged("labels").verdict.endswith("is for worker-loss-outlier to find: it takes more --steps.")
    assert judged("labels", "out", [OVERLAP]).status == "out"
    assert judged("labels", "out", [OVERLAP]).verdict == "Verdict out."


def test_a_spread_is_the_mean_over_the_steps_that_measured_it():
    each = judged("s1-1", loss_std=[0.1, np.nan, 0.3], cosine_mean=[np.nan, np.nan, np.nan])
    assert each.spread("loss_std") == pytest.approx(0.2)
    assert each.spread("cosine_mean") is None
    assert each.spread("loss_range") is None


def test_advice_is_given_once_a_code_and_none_for_an_info():
    settings = [
        judged("s1-1", "clear", [STREAMS]),
        judged("s1-2", "out", [OVERLAP, DRIFT]),
        judged("s1-3", "out", [OVERLAP]),
    ]
    assert advice(settings) == [
        ("shard-overlap", ["s1-2", "s1-3"], ["Share the seed."]),
        ("replica-drift", ["s1-2"], ["Broadcast.", "Look."]),
    ]


@pytest.mark.parametrize(("ranks", "words"), [((2,), "rank 2"), ((0, 2), "ranks 0, 2"), ((0, 1, 2, 3), "all ranks")])
def test_ranks_are_named_in_few_letters(ranks, words):
    assert rank_text(ranks, 4) == words


def test_the_document_has_every_finding_and_is_plain_data():
    each = judged("s1-2", "out", [OVERLAP, STREAMS], losses=(7.5, float("nan")), loss_std=[1.0])
    made = document([each], {"steps": 3})
    assert json.loads(json.dumps(made, allow_nan=False)) == made
    assert (made["schema"], made["steps"]) == (1, 3)
    (setting,) = made["settings"]
    assert setting["found_by"] == "shard-overlap"
    assert [finding["code"] for finding in setting["findings"]] == ["shard-overlap", "rng-streams"]
    assert setting["loss"] == {"first": 7.5, "last": "NaN"}
    assert setting["dispersion"] == {"loss_std": 1.0, "loss_range": None, "grad_norm_std": None, "cosine_mean": None}


def test_the_terminal_shows_findings_with_place_and_where_to_look_closer():
    text = text_of(judged("s1-1", "clear", [STREAMS]), judged("s1-2", "out", [OVERLAP]), judged("loss-scale"))
    assert "error shard-overlap (rank 0, step 10)" in text
    assert "rng-streams" not in text
    assert "the loss of rank 2 is doubled" in text
    assert "not measured" in text
    assert "trueline check out/s1-2" in text
    assert "expected to look alike" in text


def test_a_narrow_terminal_cuts_no_code_off():
    turned = Finding("worker-direction-outlier", "warning", "Turned.", ranks=(2,), step_first=32)
    text = text_of(judged("labels", "suspect", [turned]), width=80)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80


def test_the_terminal_without_findings_still_points_at_a_run():
    text = text_of(judged("s1-1"))
    assert "trueline check out/s1-1" in text
    assert "what to do" not in text


def test_progress_is_drawn_with_its_note_even_if_that_looks_like_markup(tmp_path):
    with open(tmp_path / "screen", "w") as screen, progress_bars(Console(file=screen, width=100)) as progress:
        progress("Reading", 0, 3, "[/data]")
        progress("Reading", 1, 3, "said by nobody: no stage begins")
        progress("Judging", 3, 3, "'[red]mine.json'")
    assert (tmp_path / "screen").read_text() == "Reading: 0 of 3, [/data]\nJudging: 3 of 3, '[red]mine.json'\n"


def fail_on_rank_1(rank, world_size):
    import torch.distributed as dist

    if rank == 1:
        raise ValueError("ran out of luck\nand of lines")
    dist.barrier()


def leave_on_rank_1(rank, world_size):
    import os

    import torch.distributed as dist

    if rank == 1:
        os._exit(7)
    dist.barrier()


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (fail_on_rank_1, "ValueError: ran out of luck"),
        (leave_on_rank_1, "the process ended with exit code 7"),
    ],
)
def test_the_worker_that_failed_first_is_named_in_one_sentence(tmp_path, fault, reason):
    job = SimpleNamespace(setting=BY_NAME["s1-3"], steps=50, progress=tmp_path / "progress")
    job.progress.write_text("17 6.1")
    with pytest.raises(RankError) as caught:
        run_ranks(fault, 2, timeout_s=60)
    sentence = failure_sentence(caught.value, job)
    assert sentence.startswith(f"The worker of rank 1 failed in setting s1-3 after 17 of 50 steps ({reason})")
    assert "\n" not in sentence


def test_a_failure_before_the_first_step_counts_none(tmp_path):
    job = SimpleNamespace(setting=BY_NAME["s1-1"], steps=50, progress=tmp_path / "progress")
    error = RankError("1 of 4 ranks failed; all were stopped.", {3: "no answer within 2 s"})
    assert "rank 3 failed in setting s1-1 after 0 of 50 steps (no answer within 2 s)" in failure_sentence(error, job)


BROKEN = """Traceback (most recent call last):
  File "x.py", line 1, in train
RuntimeError: [gloo] Connection closed by peer
[W] more about it"""
RAISED = """Traceback (most recent call last):
  File "x.py", line 1, in train
MemoryError: no room"""
DIED = "the process ended with exit code -9"


@pytest.mark.parametrize(
    ("failures", "words"),
    [
        ({0: BROKEN, 1: RAISED}, "rank 1 failed {} (MemoryError: no room)"),
        ({0: BROKEN, 1: RAISED, 2: DIED}, "rank 2 failed {} (the process ended with signal 9,"),
        ({0: BROKEN}, "rank 0 failed {} (RuntimeError: [gloo] Connection closed by peer)"),
    ],
)
def test_the_cause_is_told_from_the_connections_that_it_broke(tmp_path, failures, words):
    job = SimpleNamespace(setting=BY_NAME["s1-1"], steps=50, progress=tmp_path / "progress")
    error = RankError("ranks failed; all were stopped.", failures)
    sentence = failure_sentence(error, job)
    assert words.format("in setting s1-1 after 0 of 50 steps") in sentence
    assert ("try fewer --workers" in sentence) == ("signal 9" in words)
