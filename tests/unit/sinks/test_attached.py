"""What the process beside a training does with what a look adds."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, cast

import pytest
import torch

import trueline
from trueline.schema.errors import PlanError
from trueline.schema.finding import Finding
from trueline.schema.plan import Plan
from trueline.sinks.attached import Side
from trueline.sinks.look import News
from trueline.sinks.side_process import Settings
from trueline.store.clean import Clean, read_clean


class _Wire:
    def __init__(self) -> None:
        self.lines: list[Any] = []

    def put(self, item: Any) -> None:
        self.lines.append(item)

    say = put


def _side(run: Path, action: str) -> tuple[Side, _Wire]:
    wire = _Wire()
    settings = Settings(str(run), 0, (), action, 3, sends_numbers=False)
    return Side(settings, cast(Any, wire)), wire


def _finding(step: int) -> Finding:
    return Finding(code="worker-nonfinite", severity="error", claim="The loss is not finite.", step_first=step)


def test_the_first_finding_starts_a_command_once_with_the_finding_as_its_input(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    side, wire = _side(tmp_path, f"command:cat >> {out}; echo $TRUELINE_FINDING_RUN >> {out}")
    side.take(News(findings=(_finding(3),)))
    side.take(News(findings=(_finding(4),)))
    while not out.exists() or out.read_text().count("\n") < 2:  # the time-out of the test is its limit
        time.sleep(0.02)
    document, run = out.read_text().splitlines()
    assert (json.loads(document)["code"], json.loads(document)["step_first"], run) == (
        "worker-nonfinite",
        3,
        str(tmp_path),
    )
    assert len(wire.lines) == 2


def test_a_command_that_reads_nothing_or_is_none_ends_no_look(tmp_path: Path) -> None:
    for command in ("true", "no-such-program-anywhere"):
        side, wire = _side(tmp_path, f"command:{command}")
        side.take(News(findings=(_finding(3),)))
        assert len(wire.lines) == 1


def test_each_look_leaves_in_the_run_up_to_which_step_it_is_clean(tmp_path: Path) -> None:
    side, _ = _side(tmp_path, "log")
    side.take(News())
    assert read_clean(str(tmp_path)) is None
    side.take(News(clean=Clean(str(tmp_path), 7, 7, 0.1)))
    side.take(News())  # a look at which nothing was new
    assert read_clean(str(tmp_path)) == Clean(str(tmp_path), 7, 7, 0.1)


@pytest.mark.parametrize("action", ["stop", "command:", "command: "])
def test_an_action_that_is_none_is_refused_in_a_sentence(action: str) -> None:
    with pytest.raises(PlanError, match="expected log, raise, record, skip or command:text"):
        Plan.load({"on_finding": action})


def test_a_command_may_be_secret_and_is_not_written_to_the_run() -> None:
    assert "on_finding" not in Plan.load({"on_finding": "command:curl https://secret"}).kept()
    assert Plan.load({"on_finding": "raise"}).kept()["on_finding"] == "raise"


def test_a_process_that_writes_a_run_does_not_judge_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = torch.nn.Linear(2, 1)
    watch = trueline.watch(model, torch.optim.SGD(model.parameters(), lr=0.1), out=tmp_path / "run")
    monkeypatch.setattr(trueline, "check", lambda *_: pytest.fail("judged in the process that trains"))
    clean = trueline.clean(tmp_path / "run")
    watch.close()
    assert (clean.step, clean.judged_to, str(clean)) == (None, None, "No step was judged yet.")
