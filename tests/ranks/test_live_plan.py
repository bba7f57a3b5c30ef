"""The Plan changes while training goes on: at one step on all ranks, and training stays bitwise the same."""

from __future__ import annotations

import functools
import json
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn

from trueline.store.summary import summarize

STEPS = 24


def train(rank, world, out, plan, edits, fault=None, steps=STEPS):
    """``trained`` with a plan file that is looked at after every step, as the steps here take milliseconds."""
    from trueline.capture.job import live_plan

    with mock.patch.object(live_plan, "LOOK_S", 0.0):
        return trained(rank, world, out, plan, edits, fault, steps)


def trained(rank, world, out, plan, edits, fault, steps):
    """Losses and weights of ``steps`` steps. The first rank puts ``edits[step]`` into the plan file after that step. A
    ``fault`` comes at step 6: a NaN in the batch of rank 1, or in a loop that reduces by itself, twice the gradient on
    rank 1, or no reduction at all.
    """
    import trueline
    from trueline.schema.files.plan_files import plan_path

    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    by_hand = fault in ("doubled", "not reduced")
    model = inner if by_hand or world == 1 else nn.parallel.DistributedDataParallel(inner)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    watch = trueline.watch(model, optimizer, out=out, plan=plan) if out is not None else None
    losses = []
    for step in range(steps):
        generator = torch.Generator().manual_seed(100 * step + rank)
        x = torch.randn(4, 6, generator=generator)
        if fault == "nan" and (rank, step) == (world - 1, 6):
            x[0, 0] = torch.nan
        loss = model(x).square().mean()
        loss.backward()
        if by_hand and not (fault == "not reduced" and step == 6):
            for param in model.parameters():
                dist.all_reduce(param.grad)
                param.grad /= world
        if fault == "doubled" and (rank, step) == (1, 6):
            inner[0].weight.grad *= 2
        optimizer.step()
        optimizer.zero_grad()
        losses.append(repr(loss.item()))
        if rank == 0 and watch is not None and step in edits:
            edit = edits[step]
            with open(plan_path(out), "w") as file:
                file.write(edit if isinstance(edit, str) else json.dumps(edit))
    if watch is not None:
        watch.close()
    return losses, {name: value.clone() for name, value in inner.state_dict().items()}


def recorded_steps(run, world):
    """Steps that each rank recorded, which must be the same for all."""
    rows = run.records()
    by_rank = [set() for _ in range(world)]
    for rank, step in zip(rows["rank"].to_pylist(), rows["step"].to_pylist(), strict=True):
        by_rank[rank].add(step)
    assert all(steps == by_rank[0] for steps in by_rank), by_rank
    return sorted(by_rank[0])


def assert_same_training(plain, watched):
    for (losses, state), (losses_watched, state_watched) in zip(plain, watched, strict=True):
        assert losses == losses_watched
        for name, value in state.items():
            assert torch.equal(value.view(torch.int32), state_watched[name].view(torch.int32)), name


@pytest.fixture(scope="module")
def unwatched(ranks_of):
    """What ranks say that nobody watches, called once for each; neither plan nor edits matter to them."""

    @functools.cache
    def losses_and_weights(world, fault=None, steps=STEPS):
        return ranks_of(world).run(train, None, {}, {}, fault, steps)

    return losses_and_weights


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("world", "plan", "begins", "ends"),
    [(2, {}, 8, 26), (3, {}, 8, 26), (2, {"every": 2}, 10, 26), (3, {"steps": [0, 3]}, 20, 40)],
    ids=["every step-2", "every step-3", "every other step-2", "outside of steps-3"],
)
def test_all_ranks_begin_and_end_at_the_same_step(ranks_of, unwatched, tmp_path, world, plan, begins, ends):
    """An edit after step 4 is seen before step 6 and told with the next sum: that of 6, or, where no step is watched,
    the beat of 10.
    """
    import trueline

    edits = {4: {"preset": "mix", "steps": [0, None], "every": 1}, 22: {"preset": "workers"}}
    out = str(tmp_path / "run")
    watched = ranks_of(world).run(train, out, plan, edits, None, ends + 2)
    assert_same_training(unwatched(world, None, ends + 2), watched)
    run = trueline.open_run(out)
    assert [finding.claim for finding in run.live_findings] == []
    assert [(entry.revision, entry.step, entry.plan["preset"]) for entry in run.manifest.plans] == [
        (1, begins, "mix"),
        (2, ends, "workers"),
    ]
    assert recorded_steps(run, world) == list(range(begins, ends))
    presets = [run.manifest.plan_at(step)["preset"] for step in (0, begins - 1, begins, ends - 1, ends)]
    assert presets == ["workers", "workers", "mix", "mix", "workers"]
    assert trueline.check(out).exit_code == 0


def test_next_steps_are_recorded_from_where_they_are_taken_up(two, unwatched, tmp_path):
    import trueline

    out = str(tmp_path / "run")
    watched = two.run(train, out, {}, {4: {"preset": "mix", "next_steps": 2}})
    assert_same_training(unwatched(2), watched)
    assert recorded_steps(trueline.open_run(out), 2) == [8, 9]


@pytest.mark.in_turn
@pytest.mark.parametrize("edit", ["{", {"preset": "all"}, {"worker_groups": [[0, 1]]}, {"preset": "mix", "ranks": [2]}])
def test_an_edit_that_cannot_be_followed_is_refused_in_words_and_the_plan_stays(two, unwatched, tmp_path, edit):
    import trueline

    out = str(tmp_path / "run")
    watched = two.run(train, out, {}, {4: edit, 12: {"preset": "modules", "steps": [20, 22]}})
    assert_same_training(unwatched(2), watched)
    run = trueline.open_run(out)
    (finding,) = run.live_findings
    assert (finding.code, finding.severity, finding.ranks) == ("plan-refused", "info", (0,))
    words = {"{": "cannot be parsed", "preset": "'all'", "worker_groups": "cannot change", "ranks": "0 to 1"}
    assert words["{" if edit == "{" else list(edit)[-1]] in finding.claim
    assert [entry.plan["preset"] for entry in run.manifest.plans] == ["modules"], "a later edit is followed"
    assert recorded_steps(run, 2) == [20, 21]


@pytest.mark.parametrize(
    ("fault", "code", "ranks"),
    [
        ("nan", "worker-nonfinite", {1}),
        ("doubled", "reduction-mismatch", {0, 1}),
        ("not reduced", "gradient-not-reduced", {0, 1}),
    ],
)
def test_a_fault_on_one_rank_starts_a_recording_on_both(two, unwatched, tmp_path, fault, code, ranks):
    """A NaN is told in the sum of its own step, which all have two steps later; what a rank reads from that sum it
    tells in one of the next two. Named is who told first.
    """
    import trueline

    out = str(tmp_path / "run")
    plan = {"preset": "mix", "depth": "fingerprint", "when": [code], "when_steps": 2, "every": 1}
    watched = two.run(train, out, plan, {}, fault, 16)
    assert_same_training(unwatched(2, fault, 16), watched)
    run = trueline.open_run(out)
    steps = recorded_steps(run, 2)
    assert steps == [8, 9] if fault == "nan" else steps in ([9, 10], [10, 11])
    (finding,) = run.live_findings
    assert (finding.code, finding.severity) == ("recording-started", "info")
    assert finding.ranks
    assert set(finding.ranks) <= ranks
    assert finding.claim.startswith(f"{code} was seen on rank")
    assert f"steps {steps[0]} to {steps[1]} are recorded (recording 1 of at most 3)" in finding.claim
    assert "fingerprint" in run.records().column_names


def test_a_finding_that_is_not_asked_for_starts_nothing(two, tmp_path):
    import trueline

    out = str(tmp_path / "run")
    two.run(train, out, {"preset": "mix", "when": ["reduction-mismatch"], "every": 1}, {}, "nan", 16)
    run = trueline.open_run(out)
    assert run.live_findings == []
    assert len(run.records()) == 0


def test_one_process_follows_at_its_next_step_and_records_after_its_own_nan(tmp_path):
    import trueline

    out = str(tmp_path / "edited")
    train(0, 1, out, {}, {4: {"preset": "ops", "steps": [6, 9]}}, steps=12)
    run = trueline.open_run(out)
    assert [entry.step for entry in run.manifest.plans] == [6]
    assert recorded_steps(run, 1) == [6, 7, 8]
    assert summarize(run)["records"]["preset"] == "ops", "not what the job started with"
    out = str(tmp_path / "poisoned")
    train(0, 1, out, {"preset": "modules", "when": ["worker-nonfinite"]}, {}, "nan", 12)
    assert recorded_steps(trueline.open_run(out), 1) == [7, 8, 9]


def run_ahead(rank, world, out, flag):
    """Workers that never meet: rank 0 makes its first update when rank 1 has made 40."""
    import time
    from pathlib import Path

    import trueline

    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with trueline.watch(model, optimizer, out=out, plan={"every": 50}):
        for step in range(60):
            model(torch.ones(1, 2)).sum().backward()
            while rank == 0 and not Path(flag).exists():
                time.sleep(0.01)
            optimizer.step()
            if rank == 1 and step == 40:
                Path(flag).touch()


def test_a_worker_far_ahead_of_the_others_still_hears_what_they_agree_on(two, tmp_path):
    import trueline

    two.run(run_ahead, str(tmp_path / "run"), str(tmp_path / "flag"))
    run = trueline.open_run(tmp_path / "run")
    assert run.live_findings == []
    _, measured = run.pivot("cosine_others")
    assert [run.steps[index] for index in range(60) if measured[index].all()] == [0, 50]
