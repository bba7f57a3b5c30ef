"""`trueline export`: the page as one file, event files, and a graph; one sentence for mistakes."""

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
from tests.web.recorded_step import OPS, write_step
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
    assert answers["api/runs/0/triage"]["json"]["headline"].startswith("Fault found")
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
