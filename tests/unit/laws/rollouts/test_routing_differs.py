"""Experts that engine and trainer choose, in a small mixture of experts that both compute for real."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import trueline
from trueline import rl
from trueline.laws.rollouts import routing_differs
from trueline.rl.routing import compare_routing
from trueline.schema.errors import CannotTell
from trueline.store.reader import Run

B, L, WORDS, WIDTH, LAYERS, EXPERTS, SLOTS = 32, 24, 40, 16, 2, 8, 2


class Mixture:
    """Predicts a word from the one before it, by two layers of eight experts; ``ties`` moves the routers' logits,
    ``noise`` the outputs.
    """

    def __init__(self, ties: float = 0.0, noise: float = 0.0, seed: int = 0) -> None:
        made = torch.Generator().manual_seed(0)
        self.embedding = torch.randn(WORDS, WIDTH, generator=made)
        self.routers = torch.randn(LAYERS, WIDTH, EXPERTS, generator=made) / WIDTH**0.5
        self.experts = 2 * torch.randn(LAYERS, EXPERTS, WIDTH, WIDTH, generator=made) / WIDTH**0.5
        self.head = torch.randn(WIDTH, WORDS, generator=made) / WIDTH**0.5
        self.ties, self.noise, self.random = ties, noise, torch.Generator().manual_seed(seed)

    def __call__(self, words: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Log-probabilities [N, WORDS], experts and their weights [N, LAYERS, SLOTS]."""
        hidden, chosen, weights = self.embedding[words], [], []
        for router, experts in zip(self.routers, self.experts, strict=True):
            scores = hidden @ router
            scores = scores + self.ties * torch.randn(scores.shape, generator=self.random)
            top = scores.softmax(-1).topk(SLOTS)
            weight = top.values / top.values.sum(-1, keepdim=True)
            made = torch.einsum("nkij,nj->nki", experts[top.indices], hidden)
            hidden = hidden + (made * weight[..., None]).sum(1)
            hidden = hidden / hidden.pow(2).mean(-1, keepdim=True).sqrt()
            chosen.append(top.indices)
            weights.append(weight)
        logits = 2 * hidden @ self.head
        logits = logits + self.noise * torch.randn(logits.shape, generator=self.random)
        return logits.log_softmax(-1), torch.stack(chosen, 1), torch.stack(weights, 1)


def recorded(tmp_path: Path, engine: Mixture, change: Any = None, steps: int = 3) -> str:
    """A Run of rollouts that ``engine`` sampled and ``Mixture()`` trains on."""
    out = str(tmp_path / "run")
    for step in range(steps):
        random = torch.Generator().manual_seed(step)
        words = torch.randint(WORDS, (B, L), generator=random).view(-1)
        logp, experts, weights = engine(words)
        ids = torch.multinomial(logp.exp(), 1, generator=random)[:, 0]
        of_trainer, train_experts, train_weights = Mixture()(words)
        at = torch.arange(len(ids))
        batch: dict[str, Any] = {
            "response_ids": ids.view(B, L),
            "logp_rollout": logp[at, ids].view(B, L),
            "logp_train": of_trainer[at, ids].view(B, L),
            "experts_rollout": experts.view(B, L, LAYERS, SLOTS),
            "experts_train": train_experts.view(B, L, LAYERS, SLOTS),
            "expert_weights_rollout": weights.view(B, L, LAYERS, SLOTS),
            "expert_weights_train": train_weights.view(B, L, LAYERS, SLOTS),
        }
        if change is not None:
            change(batch)
        assert rl.record(step, **batch, versions=(step, step), sampling={"dtype": "bfloat16"}, out=out)
    rl.close()
    return out


def _named(run: str) -> dict[str, str]:
    """The causes that are not excluded, with how sure each is."""
    verdicts = trueline.diagnose(run).verdicts
    return {verdict.cause: verdict.standing for verdict in verdicts if verdict.standing != "excluded"}


def test_near_ties_that_go_the_other_way_and_carry_the_gap_are_the_cause(tmp_path: Path) -> None:
    run = recorded(tmp_path, Mixture(ties=0.05))
    (finding,) = [each for each in trueline.check(run).findings if each.code == "routing-differs"]
    assert finding.evidence["kind"] == "carries-gap"
    assert finding.measured > 0.1
    assert "of 2 layers on average" in finding.claim
    assert _named(run) == {"routing-differs": "supported"}


@pytest.mark.parametrize("ties", [0.0, 0.002])
def test_a_gap_at_all_tokens_alike_is_of_another_cause(tmp_path: Path, ties: float) -> None:
    """Routers agree, or a few near ties go the other way, and another part of the model differs."""
    run = recorded(tmp_path, Mixture(ties=ties, noise=0.5))
    report = trueline.check(run)
    assert {finding.code for finding in report.findings} == {"logprob-gap"}
    assert "routing-differs" in report.checks_run
    assert set(_named(run)) & {"implementations-differ", "routing-differs"} == {"implementations-differ"}


def test_experts_that_differ_where_the_gap_is_not_are_excluded(tmp_path: Path) -> None:
    random = torch.Generator().manual_seed(0)

    def change(batch: dict[str, Any]) -> None:
        other = torch.rand(B, L, generator=random) < 0.3
        batch["experts_train"] = torch.where(other[..., None, None], batch["experts_train"] + 1, batch["experts_train"])

    run = recorded(tmp_path, Mixture(noise=0.5), change)
    assert "routing-differs" in trueline.check(run).checks_run
    assert "routing-differs" not in _named(run)


def test_where_the_same_experts_have_a_gap_too_the_cause_stays_open(tmp_path: Path) -> None:
    run = recorded(tmp_path, Mixture(ties=0.2))
    assert "routing-differs" not in trueline.check(run).checks_run
    assert _named(run)["routing-differs"] == _named(run)["implementations-differ"] == "undecided"


def test_experts_that_were_not_recorded_leave_it_open(tmp_path: Path) -> None:
    run = recorded(tmp_path, Mixture(noise=0.5), lambda batch: [batch.pop(n) for n in list(batch) if "expert" in n])
    assert _named(run)["routing-differs"] == _named(run)["implementations-differ"] == "undecided"


def _other_slots(batch: dict[str, Any]) -> None:
    """The trainer has slots the other way round, with their weights."""
    for name in ("experts_train", "expert_weights_train"):
        batch[name] = batch[name].flip(-1)


def _replayed(batch: dict[str, Any]) -> None:
    for name in ("logp", "experts", "expert_weights"):
        batch[f"{name}_train"] = batch[f"{name}_rollout"]


def _rounded(batch: dict[str, Any]) -> None:
    for name in ("expert_weights_rollout", "expert_weights_train"):
        batch[name] = batch[name].bfloat16()


@pytest.mark.parametrize("change", [None, _other_slots, _replayed, _rounded])
@pytest.mark.parametrize("ties", [0.0, 0.002, 0.01])
def test_near_ties_and_slots_in_another_order_are_healthy(tmp_path: Path, ties: float, change: Any) -> None:
    run = recorded(tmp_path, Mixture(ties=ties), change)
    assert trueline.check(run).findings == ()


def test_weights_that_stay_with_the_slots_are_found(tmp_path: Path) -> None:
    def change(batch: dict[str, Any]) -> None:
        batch["experts_train"] = batch["experts_train"].flip(-1)

    found = {finding.code: finding for finding in trueline.check(recorded(tmp_path, Mixture(), change)).findings}
    assert set(found) == {"routing-differs"}
    assert found["routing-differs"].evidence["kind"] == "slots"
    assert "their weights did not move with them" in found["routing-differs"].claim


def test_experts_of_one_side_or_none_are_no_answer(tmp_path: Path) -> None:
    def drop(*names: str) -> Any:
        return lambda batch: [batch.pop(name) for name in names]

    mine = ("experts_train", "expert_weights_train")
    run = recorded(tmp_path / "one", Mixture(), drop(*mine))
    with pytest.raises(CannotTell, match="one side only"):
        routing_differs.check(Run(run))
    run = recorded(tmp_path / "none", Mixture(), drop(*mine, "experts_rollout", "expert_weights_rollout"))
    with pytest.raises(CannotTell, match="were not recorded"):
        routing_differs.check(Run(run))


def test_experts_of_another_shape_are_left_out_with_a_note(tmp_path: Path) -> None:
    def change(batch: dict[str, Any]) -> None:
        batch["experts_train"] = batch["experts_train"][:, :, :1]

    run = recorded(tmp_path, Mixture(), change)
    rows = trueline.open_run(run).kept("rollouts").table().to_pylist()
    assert rows[0]["note"].startswith("experts and their weights have shapes (24, 1, 2), (24, 2, 2), expected")
    assert len(rows[0]["logp_train"]) == L


def test_layers_are_counted_by_token() -> None:
    rollout = np.array([[[1, 2], [3, 4]], [[1, 2], [3, 4]], [[1, 2], [3, 4]]])
    train = np.array([[[1, 2], [3, 4]], [[2, 1], [3, 5]], [[1, 5], [0, 4]]])
    counted = compare_routing(rollout, train)
    assert counted["experts_differ"].tolist() == [0, 1, 2]
    assert counted["slots_differ"].tolist() == [0, 1, 0]
