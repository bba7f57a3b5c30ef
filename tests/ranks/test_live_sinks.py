"""What sinks and ``on_finding`` do to a training: nothing, or what was asked for, on all ranks at the same step."""

from __future__ import annotations

import json
import time

import pytest
import torch
from torch import nn

MOST = 2000
"""Steps within which the process beside training has to find a fault that comes at step 5: a minute and more."""


def train(rank, world, out, steps, options, sinks=()):
    """Losses and weights of ``steps`` steps, or of those before ``TrainingStopped`` is raised, and what that says. Both
    ranks read the same samples. Of ``sinks``, functions are named by what they do.
    """
    import trueline
    from trueline.schema.errors import TrainingStopped

    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Linear(6, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    heard, watch = [], None
    if out is not None:
        functions = {"hear": heard.append, "raise": _raises, "hang": _hangs}
        given = [functions.get(one, one) for one in sinks]
        watch = trueline.watch(model, optimizer, out=out, sinks=given, **options)
    losses, stopped = [], ""
    try:
        for step in range(steps):
            x = torch.randn(4, 6, generator=torch.Generator().manual_seed(step))
            loss = model(x).square().mean()
            loss.backward()
            losses.append(loss.item())
            optimizer.step()
            optimizer.zero_grad()
            if watch is not None and options.get("on_finding") == "raise":
                time.sleep(0.05)  # with less, both ranks keep the process beside them from looking
    except TrainingStopped as error:
        stopped = str(error)
    if watch is not None:
        watch.close()
    return losses, [param.tolist() for param in model.parameters()], stopped, heard


def _raises(event):
    raise RuntimeError("no")


def _hangs(event):
    time.sleep(1e6)


@pytest.mark.in_turn
def test_raise_stops_all_ranks_at_one_step_with_one_sentence_and_a_dead_sink_changes_nothing(two, tmp_path):
    import trueline

    out = tmp_path / "run"
    sinks = [f"jsonl:{tmp_path}/live.jsonl", "jsonl:/proc/nowhere/live.jsonl", "raise", "hear"]
    watched = two.run(train, str(out), MOST, {"on_finding": "raise"}, sinks)
    (losses, weights, said, heard), (_, _, said_too, _) = watched
    assert said == said_too
    assert "as the Plan asks: error duplicate-data, ranks 0 and 1, since step 0: Ranks 0 and 1" in said
    assert len(losses) < MOST
    assert two.run(train, None, len(losses), {})[0][:2] == (losses, weights), "bitwise as without watching"
    assert [param for _, param, _, _ in watched] == [weights, weights]
    run = trueline.open_run(out)
    assert int(run.steps[-1]) == len(losses) - 1
    assert run.manifest.plans[-1].step == len(losses)
    assert "sinks" not in run.manifest.plan, "targets may be secret"
    assert "jsonl" not in (out / "plan.json").read_text()
    lines = [json.loads(line) for line in (tmp_path / "live.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line["kind"] == "numbers" and "loss" in line["values"]] == [
        *range(len(losses))
    ]
    told = [line["code"] for line in lines if line["kind"] == "finding"]
    assert told == [event.code for event in heard if hasattr(event, "code")]
    assert "duplicate-data" in told


def test_a_callback_that_hangs_does_not_keep_the_end_waiting_for_ever(two, tmp_path, monkeypatch):
    out = str(tmp_path / "run")
    plain = two.run(train, None, 30, {})
    watched = two.run(train_impatiently, out, 30, {}, ["hang"])
    assert [one[:2] for one in watched] == [one[:2] for one in plain]


def train_impatiently(rank, world, *arguments):
    from unittest import mock

    from trueline.sinks import side_process

    with mock.patch.object(side_process, "FINISH_S", 0.5):
        return train(rank, world, *arguments)


@pytest.mark.parametrize(("wanted", "asked"), [("record", {"preset": "mix", "next_steps": 3}), ("log", {})])
def test_what_a_finding_does_is_asked_for_in_the_plan_file_once(tmp_path, wanted, asked):
    from trueline.schema.files.plan_files import plan_path, read_changes, write_plan
    from trueline.schema.finding import Finding
    from trueline.schema.plan import Plan
    from trueline.sinks.attached import Side
    from trueline.sinks.look import News
    from trueline.sinks.side_process import Settings

    class Wire(list):
        put = say = list.append

    write_plan(plan_path(str(tmp_path)), Plan())
    wire = Wire()
    side = Side(Settings(str(tmp_path), 0, (), wanted, 3, sends_numbers=False), wire)
    side.take(News(findings=(Finding("c", "info", "no fault"),)))
    assert read_changes(plan_path(str(tmp_path))) == Plan().kept()
    for _ in range(2):
        side.take(News(findings=(Finding("c", "error", "a fault"),)))
        assert read_changes(plan_path(str(tmp_path))) == Plan().kept() | asked
        write_plan(plan_path(str(tmp_path)), Plan())
        asked = {}
    assert [finding.severity for finding in wire] == ["info", "error", "error"]
