"""rng-streams: random numbers that begin again in the loop are told; seeds by the step and forks are left alone."""

import pytest
import torch
from tests.unit.asked import asked
from tests.unit.healthy_run import healthy_rows, write_run
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import trueline
from trueline.laws.random_streams import rng_streams
from trueline.schema.columns.own_draws import OwnDraw, draws_text

ROWS, WIDTH, STEPS = 8, 16, 12


def trained(out, before, *, dropout=0.0, noise=True, recompute=False):
    """Weights after a training that calls ``before(step)`` at each step and then draws noise; watched into ``out``."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(dropout), nn.Linear(WIDTH, WIDTH))
    updates = torch.optim.SGD(model.parameters(), lr=0.01)
    own = torch.Generator().manual_seed(3)
    watch = None if out is None else trueline.watch(model, updates, out=out, plan={"every": 1})
    for step in range(STEPS):
        x = torch.rand(ROWS, WIDTH, generator=own)
        before(step)
        target = torch.randn(ROWS, WIDTH) if noise else x
        y = checkpoint(model, x, use_reentrant=False) if recompute else model(x)
        functional.mse_loss(y, target).backward()
        updates.step()
        updates.zero_grad()
    if watch is not None:
        watch.close()
    return [param.detach().clone() for param in model.parameters()]


def again(out):
    return [finding for finding in asked(out, "rng-streams")[0] if finding.evidence.get("kind") == "begins-again"]


def seeded(step):
    torch.manual_seed(0)


def forked(step):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        torch.randn(4)


def put_back(step):
    state = torch.get_rng_state()
    torch.manual_seed(0)
    torch.randn(4)
    torch.random.set_rng_state(state)


@pytest.mark.parametrize(("dropout", "noise"), [(0.0, True), (0.1, True), (0.1, False)])
def test_a_seed_in_every_step_is_told(tmp_path, dropout, noise):
    trained(tmp_path / "run", seeded, dropout=dropout, noise=noise)
    (finding,) = again(tmp_path / "run")
    assert (finding.severity, finding.step_first, finding.measured) == ("warning", 0, STEPS)
    assert "at every step" in finding.claim


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_a_seed_now_and_then_is_told_with_its_steps(tmp_path, dropout):
    trained(tmp_path / "run", lambda step: step % 4 or torch.manual_seed(0), dropout=dropout)
    (finding,) = again(tmp_path / "run")
    assert finding.evidence["steps"] == [0, 4, 8]


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("before", "more"),
    [
        (lambda step: None, {"dropout": 0.1}),
        (torch.manual_seed, {"dropout": 0.1}),
        (forked, {"dropout": 0.1}),
        (forked, {"noise": False}),
        (put_back, {"dropout": 0.1}),
        (put_back, {"noise": False}),
        (seeded, {"noise": False}),  # nothing is drawn
        (lambda step: None, {"dropout": 0.1, "recompute": True}),
        (lambda step: step % 6 or torch.manual_seed(0), {"dropout": 0.1}),  # twice
    ],
)
def test_others_are_left_alone(tmp_path, before, more):
    trained(tmp_path / "run", before, **more)
    assert again(tmp_path / "run") == []


def test_training_is_the_same_to_the_bit(tmp_path):
    alone, watched = trained(None, seeded, dropout=0.1), trained(tmp_path / "run", seeded, dropout=0.1)
    assert all(torch.equal(weight, watched_weight) for weight, watched_weight in zip(alone, watched, strict=True))


def test_a_restart_that_seeds_as_before_is_no_repeat_within_the_loop(tmp_path, monkeypatch):
    rows = healthy_rows(2, 8)
    for (step, _), row in rows.items():
        row["rng_drawn"] = [1 + step % 3, 0, 0, 0]  # each state twice in the first start, once in the second
    run = write_run(tmp_path, rows)
    assert [finding for finding in rng_streams.check(run) if finding.evidence.get("kind")] != []
    monkeypatch.setattr(type(run), "restarts", [3, 6])
    assert [finding for finding in rng_streams.check(run) if finding.evidence.get("kind")] == []


@pytest.mark.parametrize(
    ("state", "of_rows", "found"),
    [
        (lambda step, rank: step, True, [("info", "shared-draws", (0, 1))]),
        (lambda step, rank: step, False, []),
        (lambda step, rank: 2 * step + rank, True, []),
        (lambda step, rank: 7, True, [("warning", "begins-again", (0, 1))]),
        (lambda step, rank: rank, True, [("warning", "begins-again", (0, 1))]),
        (lambda step, rank: step * rank, True, [("warning", "begins-again", (0,))]),
        (lambda step, rank: step // 2, True, []),
        (lambda step, rank: step, None, []),
    ],
)
def test_draws_from_own_generators_that_ranks_share_or_that_begin_again(tmp_path, state, of_rows, found):
    rows = healthy_rows(2, 6)
    for (step, rank), row in rows.items():
        draws = [] if of_rows is None else [OwnDraw("normal_", (4, 2), "vae.py:7", state(step, rank), of_rows)]
        row["own_draws"] = draws_text(draws)
    findings = [finding for finding in rng_streams.check(write_run(tmp_path, rows)) if "called_at" in finding.evidence]
    assert [(finding.severity, finding.evidence["kind"], finding.ranks) for finding in findings] == found


@pytest.mark.parametrize(("line", "found"), [("vae.py:7", []), ("data.py:3", ["begins-again"])])
def test_a_line_that_draws_the_same_for_an_evaluation_and_others_to_train_on_is_left_alone(tmp_path, line, found):
    rows = healthy_rows(2, 6)
    for (step, rank), row in rows.items():
        evaluation_draw = OwnDraw("normal_", (4, 2), line, 99 + rank, True)
        row["own_draws"] = draws_text([evaluation_draw, OwnDraw("normal_", (4, 2), "vae.py:7", 2 * step + rank, True)])
    findings = [finding for finding in rng_streams.check(write_run(tmp_path, rows)) if "called_at" in finding.evidence]
    assert [finding.evidence["kind"] for finding in findings] == found
