"""Greedy responses of two Runs, token by token: what rounding explains by the margin, and what it does not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from gallery.rollouts.policy import Policy, Sampling, generate

import trueline
from trueline.store.job_files.job import Job

B, P, L = 64, 6, 24


def _answers(
    out: Path, *, change=None, dtype="float32", drift=0.0, told=("logp", "odds"), temperature=0, seed=0
) -> str:
    torch.manual_seed(0)
    policy, prompts = Policy(vocabulary=64), torch.randint(64, (B, P))
    if change is not None:
        change(policy)
    policy = policy.to(getattr(torch, dtype))
    cold = Sampling(1e-3, 1.0, processed=False)  # as good as greedy, and what is recorded is of temperature 1
    generator = torch.Generator().manual_seed(0)
    made = generate(policy, prompts, length=L, sampling=cold, generator=generator, cache_drift=drift)
    given = {"logp_rollout": made.logp} if "logp" in told else {}
    given |= {"odds_rollout": made.odds} if "odds" in told else {}
    declared = {"temperature": temperature, "dtype": dtype}
    trueline.rl.record(0, prompts, made.ids, sampling=declared, out=str(out), **given)
    trueline.rl.close()
    return str(out)


def _found(report):
    return [each for each in report.findings if each.code == "tokens-differ"]


def _kinds(report):
    (finding,) = _found(report)
    return finding.evidence["kind"]


def test_an_engine_that_rounds_otherwise_has_other_tokens_and_no_finding(tmp_path):
    ref = _answers(tmp_path / "ref")
    report = trueline.check(_answers(tmp_path / "run", dtype="bfloat16"), ref=ref)
    runs = [trueline.open_run(tmp_path / name).kept("rollouts").table() for name in ("run", "ref")]
    pairs = zip(*(run["response_ids"].to_pylist() for run in runs), strict=True)
    assert sum(one[:20] != other[:20] for one, other in pairs) > 3
    assert _found(report) == []
    assert not any("not compared" in note for note in report.notes if "Rollouts" in note)


@torch.no_grad()
def _one_tensor(policy):
    policy.layers[1].down_proj.weight.mul_(1.5)


@pytest.mark.parametrize(
    ("told", "kinds"),
    [(("logp", "odds"), ["greedy", "at-once"]), (("odds",), ["greedy", "at-once"]), (("logp",), ["greedy"])],
)
def test_other_weights_change_tokens_where_the_margin_is_large(tmp_path, told, kinds):
    ref = _answers(tmp_path / "ref", told=told)
    report = trueline.check(_answers(tmp_path / "run", change=_one_tensor, told=told), ref=ref)
    assert _kinds(report)[: len(kinds)] == kinds
    assert report.exit_code == 1
    assert {each.standing for each in report.causes} <= {"undecided", "excluded"}  # the prompt, or the weights
    assert not any("no finite log-probability" in note for note in report.notes)  # none was recorded


def test_a_cache_that_loses_precision_changes_later_tokens(tmp_path):
    ref = _answers(tmp_path / "ref")
    report = trueline.check(_answers(tmp_path / "run", drift=0.2), ref=ref)
    assert _kinds(report) == ["greedy", "later"]
    assert _found(report)[0].evidence["first_token"] > 0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"temperature": 1}, "no prompt was answered greedily in both Runs"),
        ({"told": (), "change": _one_tensor}, "by what the likeliest token leads was not recorded"),
    ],
)
def test_what_cannot_be_compared_is_said(tmp_path, options, says):
    ref = _answers(tmp_path / "ref", **{**options, "change": None})
    report = trueline.check(_answers(tmp_path / "run", **options), ref=ref)
    assert _found(report) == []
    assert any(
        "Rollouts and those of the reference were not compared" in note and says in note for note in report.notes
    )


def test_a_run_and_itself_agree(tmp_path):
    run = _answers(tmp_path / "run")
    assert _found(trueline.check(run, ref=run)) == []


def test_switches_that_order_rollouts_by_chance_are_named(tmp_path, monkeypatch):
    run, ref = (_answers(tmp_path / name) for name in ("run", "ref"))
    config = {"trl": {"shuffle_dataset": True, "use_liger_kernel": True}}
    monkeypatch.setattr("trueline.store.job_files.job.open_job", lambda path: Job("job", configs=config))
    (note,) = [each for each in trueline.check(run, ref=ref).notes if "one by one" in each]
    assert note.endswith("off on both sides: shuffle_dataset (run); shuffle_dataset (ref).")
