"""``trueline.on_finding``: who is told what, where the callback fails, and what a job waits for it."""

from __future__ import annotations

import logging
import threading
import time
import weakref

import pytest
import torch
from tests.synthetic_runs import write_run
from torch import nn

import trueline
from trueline.capture.child_env import CHANGES
from trueline.judge.clean_steps import last_clean_step
from trueline.schema.errors import InputError, RunError
from trueline.schema.finding import JOB_DIED, Finding, Where
from trueline.schema.live import FindingVerdict
from trueline.sinks import listening, side_process
from trueline.sinks.listening import Listening
from trueline.sinks.side_process import Settings

FOUND = FindingVerdict("/runs/a", Finding("c", "error", "claim", ranks=(1,), step_first=4))
SETTINGS = Settings("/runs/a", 0, (), None, 3, sends_numbers=False)
KNOWN = FindingVerdict("/runs/a", Finding("d", "info", "claim"))


@pytest.fixture(autouse=True)
def _nobody_else_listens(monkeypatch):
    monkeypatch.setattr(listening, "_registered", {})
    monkeypatch.setattr(listening, "_open", weakref.WeakKeyDictionary())


@pytest.fixture
def warned(caplog):
    caplog.set_level(logging.WARNING, logger="trueline")
    return lambda: [record.getMessage() for record in caplog.records]


def diverge(step, rank, row):
    """The loss and the gradient of rank 1 are no numbers from step 30 on."""
    if rank == 1 and step >= 30:
        row |= {"loss": float("nan"), "grad_norm": float("nan"), "grad_nonfinite": 7.0}


def test_a_controller_is_told_of_a_run_that_had_not_begun_with_rank_node_device_and_clean_step(tmp_path, monkeypatch):
    monkeypatch.setattr(side_process, "FINISH_S", 120.0)  # a process that has just begun is slow beside others
    told, by = [], []
    hear = lambda verdict: (told.append(verdict), by.append(threading.current_thread().name))  # noqa: E731
    with trueline.on_finding(hear, run=tmp_path / "run"):
        machine = lambda rank: {"hostname": f"node-{rank}", "device": f"cuda:{rank + 4}"}  # noqa: E731
        write_run(tmp_path / "run", num_ranks=2, change=diverge, env=machine)
    report = trueline.check(tmp_path / "run")
    faults = [finding for finding in report.findings if finding.is_grave]
    assert {verdict.code for verdict in told} == {finding.code for finding in faults}
    assert faults
    for verdict in told:
        assert (verdict.rank, verdict.ranks, verdict.node, verdict.device) == (1, (1,), "node-1", "cuda:5")
        assert (verdict.step, verdict.last_clean_step, verdict.severity) == (30, 29, "error")
        assert verdict.run == str(tmp_path / "run")
        assert verdict.false_alarm_bound == verdict.finding.false_alarm_rate == 0.0
        assert str(verdict).startswith(f"error {verdict.code}, rank 1, since step 30: ")
    assert set(by) == {"trueline-on-finding"}


def test_in_training_callbacks_are_for_what_is_watched_before_and_after_and_end_with_close(tmp_path):
    before, after, no_more, in_trial, late = [], [], [], [], []
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first = trueline.on_finding(before.append)
    trueline.on_finding(no_more.append).close()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CHANGES, "{}")
        trueline.on_finding(in_trial.append)
    watch = trueline.watch(model, optimizer, out=tmp_path / "run")
    with trueline.on_finding(after.append):
        for step in range(20):
            x = torch.randn(8, 4, generator=torch.Generator().manual_seed(step))
            loss = model(x).square().mean() * (float("nan") if step == 9 else 1.0)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        watch.close()
    first.close()
    with trueline.on_finding(late.append):
        pass
    assert late == [], "of what has ended"
    assert [verdict.code for verdict in before] == [verdict.code for verdict in after]
    assert {verdict.step for verdict in before if "nonfinite" in verdict.code} == {9}
    assert {verdict.last_clean_step for verdict in before} == {8}
    assert no_more == in_trial == []


class Process:
    """Stands for the process beside training: what it finds last comes when it is asked to finish."""

    def __init__(self):
        self.listeners = []
        self.listen = self.listeners.append

    def finish(self):
        for listener in self.listeners:
            listener(FOUND)


class Watch:
    def __init__(self):
        self.ends = []
        self.after_close = self.ends.append


@pytest.mark.parametrize("early", [True, False])
def test_one_process_is_started_when_a_callback_comes_and_the_end_waits_for_callbacks(early, monkeypatch):
    started, told, watch = [], [], Watch()
    monkeypatch.setattr(listening, "start", lambda *asked: started.append(Process()) or started[-1])

    def slow(verdict):
        time.sleep(0.2)
        told.append(verdict)

    def register():
        return [listening.listen(slow, ("error",)) for _ in range(2)]

    listeners = register() if early else []
    listening.report(watch, SETTINGS, ())
    listeners += [] if early else register()
    assert len(started) == 1
    for end in watch.ends:
        end()
    assert told == [FOUND, FOUND], "before the job ends"
    for listener in listeners:
        listener.close()
    assert not listening._registered


def test_nothing_is_started_where_nobody_asks(monkeypatch):
    monkeypatch.setattr(listening, "start", lambda *asked: pytest.fail("it was"))
    listening.report(Watch(), SETTINGS, ())


def test_what_a_callback_raises_is_said_and_it_is_called_again(warned):
    told = []

    def act(verdict):
        told.append(verdict)
        raise SystemExit(3) if len(told) == 1 else RuntimeError("no")

    listener = Listening(act, ("error",))
    for verdict in (FOUND, KNOWN, FOUND):
        listener.take(verdict)
    listener.close()
    assert told == [FOUND, FOUND], "what is of another severity is not for it"
    assert [line.partition(" raised ")[2] for line in warned()] == [
        "SystemExit: 3; training goes on.",
        "RuntimeError: no; training goes on.",
    ]


def test_a_callback_that_hangs_keeps_nobody_and_what_it_misses_is_said_once(warned, monkeypatch):
    monkeypatch.setattr(listening, "PATIENCE_S", 0.05)
    monkeypatch.setattr(listening, "ROOM", 2)
    free, other = threading.Event(), []
    hanging, quick = Listening(lambda verdict: free.wait(60), ("error",)), Listening(other.append, ("error",))
    began = time.monotonic()
    for _ in range(9):
        hanging.take(FOUND)
    quick.take(FOUND)
    for listener in (quick, hanging):
        listener.flush()
        listener.close()
    assert time.monotonic() - began < 5.0
    assert other == [FOUND]
    assert [line.partition("' ")[2] for line in warned()][:1] == ["hangs: further findings do not reach it."]
    free.set()


@pytest.mark.parametrize(
    ("findings", "clean"),
    [
        ([], None),
        ([Finding("a", "info", "", step_first=3)], None),
        ([Finding("a", "error", "", step_first=20), Finding("b", "warning", "", step_first=12)], 11),
        ([Finding("a", "error", "", step_first=20, evidence={"onset_interval": [15, 20]})], 14),
        ([Finding("a", "error", "", step_first=20), Finding("b", "warning", "")], None),
        ([Finding("a", "error", "", step_first=20), Finding(JOB_DIED, "error", "")], 19),
        ([Finding("a", "error", "", step_first=5)], None),
    ],
)
def test_the_last_clean_step_is_before_all_evidence_of_a_fault(findings, clean):
    assert last_clean_step(findings, first=5) == clean


def test_a_finding_keeps_its_place_as_a_document():
    finding = Finding("c", "error", "claim", where=Where("/job/train.py", 7, "node-1", 3, "cuda:1"))
    assert Finding.from_json(finding.to_json()) == finding
    assert Finding.from_json(finding.to_json() | {"where": {"later": 1}}).where == Where()


def test_what_cannot_be_is_refused_in_a_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="Take some of error, warning, confirm, info"):
        trueline.on_finding(print, severities=("grave",))
    with pytest.raises(InputError, match="in a tuple"):
        trueline.on_finding(print, severities="error")
    with pytest.raises(InputError, match="cannot be called"):
        trueline.on_finding("print")
    with pytest.raises(RunError, match="is a file"):
        trueline.on_finding(print, run=tmp_path / "file")
