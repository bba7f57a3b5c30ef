"""`trueline export`: the page as one file, event files, a graph, and a trace; one sentence for mistakes."""

from __future__ import annotations

import base64
import gzip
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from tests.cli.in_process import trueline
from tests.synthetic_runs import write_run
from tests.web.recorded_step import OPS, row, write_rows, write_step
from tests.web.served import JudgeHere

from trueline.web import judging, page_file

Said = tuple[pytest.MonkeyPatch, pytest.CaptureFixture[str]]


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Said:
    class Here(JudgeHere):
        def close(self) -> None: ...

    monkeypatch.setattr(judging, "Judge", Here)
    return monkeypatch, capsys


def _change(step: int, rank: int, row: dict[str, Any]) -> None:
    if rank == 1 and step == 3:
        row["loss"] = math.nan


@pytest.fixture
def run_path(tmp_path: Path) -> Path:
    return write_run(tmp_path / "exp", num_ranks=2, num_steps=8, change=_change)


def answers_in(document: str) -> dict[str, Any]:
    """What the file holds, read as its script does."""
    found = re.search(r'id="answers">([^<]*)<', document)
    return json.loads(gzip.decompress(base64.b64decode(found[1])))


def test_the_page_is_one_file_with_all_answers_in_it(run_path: Path, tmp_path: Path, said: Said) -> None:
    out = tmp_path / "page.html"
    code, printed, _ = trueline(*said, "export", "page", run_path, "-o", out)
    document = out.read_text()
    answers = answers_in(document)

    assert (code, printed.startswith(f"Page: {out} (")) == (0, True)
    assert answers["api/runs/0/overview"]["json"]["headline"].startswith("Fault found")
    assert {"api/runs/0/heat?signal=loss", "api/runs/0/series?signal=loss&shown=apart"} <= set(answers)
    assert "default-src 'none'" in document
    assert not re.search(r'(src|href)="(?!data:)', document.partition("<script")[0])
    code, _, why = trueline(*said, "export", "page", run_path, "-o", out)
    assert (code, why.count("\n")) == (2, 1)


def test_a_page_that_would_be_too_large_is_made_coarser(
    run_path: Path, tmp_path: Path, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = tmp_path / "whole.html"
    trueline(*said, "export", "page", run_path, "-o", whole)
    monkeypatch.setattr(page_file, "MAX_BYTES", whole.stat().st_size - 1)
    code, _, _ = trueline(*said, "export", "page", run_path, "-o", tmp_path / "coarse.html")
    assert code == 0
    kept = answers_in((tmp_path / "coarse.html").read_text())["api/runs/0/signals"]["json"]
    assert kept["truncated"] > 0
    assert kept["signals"][0]["key"] == "loss"

    monkeypatch.setattr(page_file, "MAX_BYTES", 1000)
    code, _, why = trueline(*said, "export", "page", run_path, "-o", tmp_path / "none.html")
    assert (code, "larger than" in why) == (2, True)
    assert not (tmp_path / "none.html").exists()


def test_event_files_hold_every_measured_number(run_path: Path, tmp_path: Path, said: Said) -> None:
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    folder = tmp_path / "tb"
    code, printed, _ = trueline(*said, "export", "tensorboard", run_path, folder)
    read = event_accumulator.EventAccumulator(str(folder / "rank-00001"), {"scalars": 0}).Reload()
    losses = {event.step: event.value for event in read.Scalars("trueline/loss")}

    assert (code, "2 ranks" in printed) == (0, True)
    assert sorted(losses) == list(range(8))
    assert math.isnan(losses[3])
    code, _, why = trueline(*said, "export", "tensorboard", run_path, folder)
    assert (code, "is not empty" in why) == (2, True)


def test_a_graph_has_every_call_in_its_module(run_path: Path, tmp_path: Path, said: Said) -> None:
    out = tmp_path / "graph.json"
    code, _, why = trueline(*said, "export", "model-explorer", run_path, out)
    assert (code, "no recorded step" in why) == (2, True)

    write_step(run_path, num_blocks=2)
    code, printed, _ = trueline(*said, "export", "model-explorer", run_path, out)
    graph = json.loads(out.read_text())["graphs"][0]
    assert (code, f"{2 * len(OPS)} calls" in printed) == (0, True)
    assert [node["label"] for node in graph["nodes"]][: len(OPS)] == [op.rpartition(".")[2] for op in OPS]
    assert graph["nodes"][-1]["namespace"] == "fwd/layers/1"
    ids = {node["id"] for node in graph["nodes"]}
    assert all(edge["sourceNodeId"] in ids for node in graph["nodes"] for edge in node["incomingEdges"])


STEP_NS, START_NS = 250_000_000, 1_796_000_000_000_000_000
UNIX_NS = 256
"""What is known of a time in a column of 64-bit floats."""


def _timed(step: int, rank: int, row: dict[str, Any]) -> None:
    row["time_ns"], row["step_s"] = START_NS + (step + 1) * STEP_NS + rank * 1000, STEP_NS / 1e9
    if step % 2:
        row["grad_norm"] = None
    if rank == 1 and step >= 5:
        row |= {"loss": math.nan, "loss_nonfinite": 1.0}


def _with_collectives(rank: int, group: str = "[0,1]") -> list[dict[str, Any]]:
    """A module in a module, whose gradients are seen while those of the inner one are; then two collectives."""
    rows = [
        row("Model", "module", "", "in0", api="my.Model"),
        row("a", "module", "Model", "in0", api="my.A"),
        row("a.linear", "op", "a", "in0", api="torch.linear"),
        row("a.linear", "op", "a", "out0", api="torch.linear"),
        row("a", "module", "Model", "out0", api="my.A"),
        row("Model", "module", "", "out0", api="my.Model"),
        *(
            {**row(*what, api="torch.x"), "phase": "bwd"}
            for what in (
                ("Model", "module", "", "out0"),
                ("b", "op", "Model", "out0"),
                ("a.linear", "op", "a", "out0"),
                ("b", "op", "Model", "in0"),
                ("a.linear", "op", "a", "in0"),
            )
        ),
        row("w", "param", "", "value", api=""),
    ]
    for call in range(2):
        for slot in ("in0", "out0"):
            sent = row("allreduce", "collective", "", slot, api="torch.distributed.allreduce")
            args = json.dumps({"group": json.loads(group)}) if slot == "in0" else None
            rows.append(sent | {"phase": "comm", "call": call, "args": args})
    return rows


def slices_of(path: Path) -> tuple[dict[str, list[Any]], list[Any], list[Any]]:
    """By the name of its track (behind that of the process) each slice as (depth, name, begin, end, event); instants;
    and clocks. What the schema does not say is asserted here: tracks are described before they are used, slices of a
    track nest, and its times do not go back.
    """
    Trace = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2").Trace
    names: dict[int, str] = {}
    opened: dict[int, list[Any]] = {}
    latest: dict[int, int] = {}
    slices: dict[str, list[Any]] = {}
    instants, clocks = [], []
    for packet in Trace.FromString(path.read_bytes()).packet:
        assert packet.trusted_packet_sequence_id == 1
        if packet.HasField("clock_snapshot"):
            clocks.append({clock.clock_id: clock.timestamp for clock in packet.clock_snapshot.clocks})
        elif packet.HasField("track_descriptor"):
            described = packet.track_descriptor
            before = f"{names[described.parent_uuid]}/" if described.parent_uuid else ""
            names[described.uuid] = before + described.name
            assert not described.HasField("process") or described.process.pid > 0
        else:
            event, track = packet.track_event, packet.track_event.track_uuid
            assert packet.timestamp >= latest.get(track, 0)
            latest[track] = packet.timestamp
            stack = opened.setdefault(track, [])
            if event.type == event.TYPE_SLICE_BEGIN:
                entry = [len(stack), event.name, packet.timestamp, None, event]
                slices.setdefault(names[track], []).append(entry)
                stack.append(entry)
            elif event.type == event.TYPE_SLICE_END:
                stack.pop()[3] = packet.timestamp
            else:
                instants.append((names[track], packet.timestamp, event))
    assert not any(opened.values()), "every slice ends"
    return slices, instants, clocks


def annotated(event: Any) -> dict[str, Any]:
    return {one.name: getattr(one, one.WhichOneof("value")) for one in event.debug_annotations}


def test_a_trace_has_steps_at_their_times_and_calls_in_their_order(tmp_path: Path, said: Said) -> None:
    run, out = write_run(tmp_path / "exp", num_ranks=2, num_steps=8, change=_timed), tmp_path / "run.pftrace"
    for rank in range(2):
        write_rows(run, _with_collectives(rank), rank=rank)
    code, printed, why = trueline(*said, "export", "perfetto", run, "-o", out)
    assert (code, why) == (0, "")
    assert (
        "8 steps of 2 ranks at their own times, 16 calls of step 3 in order (no call was timed), 1 incident." in printed
    )
    slices, instants, clocks = slices_of(out)
    assert {name.partition("/")[0].partition(" (")[0] for name in slices} == {"rank 0", "rank 1"}
    (host,) = {name.partition("/")[0] for name in slices if name.startswith("rank 1")}

    steps = slices[f"{host}/steps"]
    assert [name for _, name, *_ in steps] == [f"step {step}" for step in range(8)]
    for step, (_, _, begin_ns, end_ns, event) in enumerate(steps):
        assert abs(end_ns - (START_NS + (step + 1) * STEP_NS + 1000)) <= UNIX_NS
        assert abs(end_ns - begin_ns - STEP_NS) <= 2 * UNIX_NS
        assert ("sampled" in event.categories) == (step % 2 == 0)
        assert "loss" in annotated(event) or step >= 5
    assert all(abs(clock[1] - START_NS) <= 2 * UNIX_NS and clock[1] == clock[6] for clock in clocks)

    calls = slices[f"{host}/step 3: calls in order, 1 µs a value: no call was timed"]
    began_ns = steps[3][2]
    assert [(depth, name, begin_ns - began_ns, end_ns - began_ns) for depth, name, begin_ns, end_ns, _ in calls] == [
        (0, "Model", 0, 6000),
        (1, "a", 1000, 5000),
        (2, "a.linear", 2000, 4000),
        (0, "Model", 6000, 10000),
        (1, "b", 7000, 10000),
        (0, "a.linear", 8000, 11000),
    ]
    assert annotated(calls[2][4])["site"] == "3.0/r1/fwd/a.linear#0"
    assert {annotated(event)["clock"] for *_, event in calls} == {"order, no time"}

    flows = {
        name[:6]: [list(event.flow_ids) for *_, event in members]
        for name, members in slices.items()
        if "collectives" in name
    }
    assert flows == {"rank 0": [[1], [2]], "rank 1": [[1], [2]]}
    ((track, at_ns, event),) = instants
    assert track == f"{host}/incidents"
    assert at_ns == steps[5][3]
    assert annotated(event)["step"] == 5
    assert event.name.startswith("error ")


def test_flows_join_ranks_of_one_group_only(tmp_path: Path, said: Said) -> None:
    run, out = write_run(tmp_path / "exp", num_ranks=4, num_steps=4, change=_timed), tmp_path / "run.pftrace"
    for rank in range(4):
        write_rows(run, _with_collectives(rank, "[0,1]" if rank < 2 else "[2,3]"), rank=rank)
    assert trueline(*said, "export", "perfetto", run, "-o", out)[0] == 0
    flows = {
        name[:6]: [tuple(event.flow_ids) for *_, event in members]
        for name, members in slices_of(out)[0].items()
        if "collectives" in name
    }
    assert flows["rank 0"] == flows["rank 1"] != flows["rank 2"] == flows["rank 3"]


def test_a_run_without_times_has_an_order_alone_and_one_with_nothing_is_refused(
    run_path: Path, tmp_path: Path, said: Said
) -> None:
    out = tmp_path / "run.pftrace"
    for words, reason in (((), "neither times of steps nor a recorded step"), (("--step", 7), "was not recorded")):
        code, _, why = trueline(*said, "export", "perfetto", run_path, "-o", out, *words)
        assert (code, reason in why, why.count("\n"), out.exists()) == (2, True, 1, False)
    write_rows(run_path, _with_collectives(0))
    code, printed, _ = trueline(*said, "export", "perfetto", run_path, "-o", out)
    assert (code, "at their own times" in printed, "1 incident (1 without a time, at the start)" in printed) == (
        0,
        False,
        True,
    )
    slices, instants, _ = slices_of(out)
    assert not any(name.endswith("/steps") for name in slices)
    assert next(members for name, members in slices.items() if "/step 3: calls in order" in name)[0][2] == 0
    assert annotated(instants[0][2])["time"] == "unknown: drawn at the start of the trace"
    code, _, why = trueline(*said, "export", "perfetto", run_path, "-o", out)
    assert (code, "exists already" in why) == (2, True)


def test_of_a_long_run_every_nth_step_is_drawn(tmp_path: Path, said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    from trueline.render.export import perfetto

    run, out = write_run(tmp_path / "exp", num_ranks=2, num_steps=8, change=_timed), tmp_path / "run.pftrace"
    monkeypatch.setattr(perfetto, "MOST_STEPS", 6)
    _, printed, _ = trueline(*said, "export", "perfetto", run, "-o", out)
    assert "3 steps of 2 ranks at their own times (1 of 3)" in printed
    assert {len(members) for members in slices_of(out)[0].values()} == {3}
