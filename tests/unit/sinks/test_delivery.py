"""A sink that hangs, refuses or is full loses what it does not take, one sentence says so, and nobody waits for it."""

from __future__ import annotations

import json
import threading

import pytest

from trueline.schema.errors import InputError
from trueline.schema.finding import Finding
from trueline.schema.live import Numbers
from trueline.sinks import delivery
from trueline.sinks.delivery import Delivery
from trueline.sinks.registry import opener, require_sinks

FINDING = Finding(
    code="replica-drift", severity="error", claim="Rank 2 drifts.", ranks=(2,), step_first=50, next=("x",)
)
NUMBERS = (Numbers(0, {"loss": 1.5}), Numbers(1, {"loss": float("inf"), "worst_rank": 2.0}))


class Kept:
    """Takes everything, or raises, or waits for ``free`` first."""

    def __init__(self, *, error=None, free=None):
        self.taken, self.error, self.free, self.closed = [], error, free, False

    def _take(self, item):
        if self.free is not None:
            self.free.wait()
        if self.error is not None:
            raise self.error
        self.taken.append(item)

    numbers = finding = _take

    def close(self):
        self.closed = True


def test_a_sink_gets_everything_in_order_and_is_closed():
    said, sink = [], Kept()
    thread = Delivery("kept", lambda: sink, say=said.append)
    for item in (NUMBERS, FINDING, NUMBERS):
        thread.put(item)
    thread.close(within_s=60)
    assert sink.taken == [NUMBERS, FINDING, NUMBERS]
    assert sink.closed
    assert said == []


def test_a_sink_that_refuses_goes_on_being_asked_and_says_twice_in_all():
    said, sink = [], Kept(error=ConnectionRefusedError(111, "Connection refused"))
    thread = Delivery("webhook", lambda: sink, say=said.append)
    for item in (FINDING, NUMBERS, FINDING):
        thread.put(item)
    thread.close(within_s=60)
    assert said == [
        "sink webhook does not take everything: ConnectionRefusedError: Connection refused. Training goes on.",
        "sink webhook did not get 2 findings and 2 steps of numbers.",
    ]


def test_a_sink_that_cannot_be_opened_takes_nothing():
    said = []
    thread = Delivery("jsonl", _closed, say=said.append)
    thread.put(FINDING)
    thread.close(within_s=60)
    assert "it cannot be opened (PermissionError: not allowed)" in said[0]
    assert said[1] == "sink jsonl did not get 1 findings."


def _closed():
    raise PermissionError(13, "not allowed")


def test_a_sink_that_hangs_is_left_and_what_waits_for_it_is_bounded(monkeypatch):
    monkeypatch.setattr(delivery, "ROOM", 3)
    said, free = [], threading.Event()
    sink = Kept(free=free)
    thread = Delivery("slow", lambda: sink, say=said.append)
    for _ in range(10):
        thread.put(FINDING)
    thread.close(within_s=0.2)
    free.set()
    assert sink.taken in ([], [FINDING] * len(sink.taken))
    assert "it is slow or hangs, and 3 items wait for it" in said[0]
    assert said[1] == "sink slow did not get 10 findings."
    assert len(said) == 2


def test_json_lines_are_json_whatever_the_numbers(tmp_path):
    path = tmp_path / "deep" / "live.jsonl"
    thread = Delivery("jsonl", lambda: opener(f"jsonl:{path}")(""), say=pytest.fail)
    thread.put(NUMBERS)
    thread.put(FINDING)
    thread.close(within_s=60)
    lines = [json.loads(line, parse_constant=pytest.fail) for line in path.read_text().splitlines()]
    assert lines[:2] == [
        {"schema": 1, "kind": "numbers", "step": 0, "values": {"loss": 1.5}},
        {"schema": 1, "kind": "numbers", "step": 1, "values": {"loss": "Infinity", "worst_rank": 2.0}},
    ]
    assert lines[2] == {"schema": 1, "kind": "finding", **FINDING.to_json()}


def test_tensorboard_reads_what_is_written(tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    thread = Delivery("tensorboard", lambda: opener(f"tensorboard:{tmp_path}")(""), say=pytest.fail)
    thread.put((NUMBERS[0], Numbers(1, {"loss": 1.25, "worst_rank": 2.0})))
    thread.put(FINDING)
    thread.close(within_s=100)
    read = EventAccumulator(str(tmp_path)).Reload()
    assert sorted(read.Tags()["scalars"]) == ["trueline/findings", "trueline/loss", "trueline/worst_rank"]
    assert [(each.step, each.value) for each in read.Scalars("trueline/loss")] == [(0, 1.5), (1, 1.25)]
    assert [(each.step, each.value) for each in read.Scalars("trueline/findings")] == [(50, 1.0)]
    (text,) = read.Tensors("trueline/replica-drift/text_summary")
    assert text.tensor_proto.string_val[0].decode() == "error replica-drift, rank 2, since step 50: Rank 2 drifts.\n\nx"


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("tensorbord:x", "Sink 'tensorbord' is not installed: did you mean 'tensorboard'?"),
        ("jsonl:", "Sink 'jsonl:' has no target. Write jsonl:TARGET"),
        ("jsonl", "Sink 'jsonl' has no target."),
        ("", "Sink '' is not installed: A sink is NAME:TARGET, and the names are"),
    ],
)
def test_a_sink_that_cannot_be_had_is_refused_in_a_sentence(asked, said):
    with pytest.raises(InputError, match=said.replace("?", r"\?")):
        require_sinks([asked])


def test_a_package_that_is_missing_is_named(monkeypatch):
    from trueline.sinks import tensorboard

    monkeypatch.setattr(tensorboard, "LIBRARY", "no_such_library")
    with pytest.raises(InputError, match="needs the package no-such-library, which is not installed: pip install"):
        require_sinks(["tensorboard:x"])
