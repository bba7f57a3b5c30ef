"""Rollouts of trainers of verl that know nothing of Trueline.

The trainers here have the names and the batches of verl 0.9.1, whose own classes are tried in
``benchmarks/frameworks/rollouts.py``: they cannot be installed beside what the tests need.
"""

from __future__ import annotations

import json
import logging
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch

import trueline
from trueline import rl
from trueline.capture import child_env
from trueline.rl import frameworks

PROMPTS, GROUP, P, L = 3, 2, 3, 4
SIZE = PROMPTS * GROUP
MORE: dict[str, torch.Tensor] = {}


class Config(dict):
    __getattr__ = dict.__getitem__


class Batch:
    def __init__(self, batch, non_tensor_batch):
        self.batch, self.non_tensor_batch = batch, non_tensor_batch


def config(**algorithm):
    rollout = Config(name="vllm", temperature=0.5, top_p=1.0, top_k=-1, dtype="bfloat16", n=GROUP, response_length=L)
    algorithm = Config({"adv_estimator": "grpo", "use_kl_in_reward": False} | algorithm)
    return Config(actor_rollout_ref=Config(rollout=rollout), algorithm=algorithm)


def columns(step):
    """What a batch of ``step`` has, by verl's names."""
    mask = torch.ones(SIZE, L, dtype=torch.long)
    mask[0, 2:] = 0
    prompt_mask = torch.ones(SIZE, P, dtype=torch.long)
    prompt_mask[1, 0] = 0
    ids = torch.arange(SIZE * L).view(SIZE, L) + 100 * step
    return {
        "prompts": torch.full((SIZE, P), 7) * prompt_mask,
        "responses": ids,
        "attention_mask": torch.cat([prompt_mask, mask], 1),
        "response_mask": mask,
        "rollout_log_probs": -ids / 1e4,
    } | MORE


def rewards(ids):
    scores = torch.zeros(SIZE, L)
    scores[:, 1] = torch.arange(SIZE).float()
    means = scores.sum(1).view(-1, GROUP).mean(1).repeat_interleave(GROUP)
    return scores, (scores.sum(1) - means)[:, None].expand(SIZE, L)


class RayTrainer:
    """Goes over a batch as ``RayPPOTrainer.fit`` does; ``seen`` is what its update got."""

    def __init__(self, rejects=False, **algorithm):
        self.config, self.global_steps, self.seen, self.rejects = config(**algorithm), 1, [], rejects

    def _compute_old_log_prob(self, batch):
        ids = batch.batch["responses"]
        return Batch({"old_log_probs": -ids / 1e4 - 1e-4, "entropys": torch.full(ids.shape, 0.5)}, {}), 0.1

    def _update_actor(self, batch):
        self.seen.append(set(batch.batch))
        return "updated"

    def step(self):
        uids = np.array([f"u{index // GROUP}" for index in range(SIZE)], dtype=object)
        versions = np.array([self.global_steps - 1] * SIZE, dtype=object)
        batch = Batch(columns(self.global_steps), {"uid": uids, "min_global_steps": versions})
        computed, _ = self._compute_old_log_prob(batch)
        computed.batch.pop("entropys")
        batch.batch |= computed.batch
        scores, advantages = rewards(batch.batch["responses"])
        if self.rejects:
            batch.batch["response_mask"] = batch.batch["response_mask"].clone()
            batch.batch["response_mask"][2] = 0
        batch.batch |= {
            "token_level_scores": scores,
            "advantages": advantages * batch.batch["response_mask"],
        }
        assert self._update_actor(batch) == "updated"
        self.global_steps += 1


class Rows(dict):
    def __getitem__(self, name):
        return SimpleNamespace(unbind=lambda: super(Rows, self).__getitem__(name))


class Queue:
    """TransferQueue: what was put by key, and how many keys were asked for."""

    def __init__(self):
        self.held, self.asked = {}, []

    def kv_batch_get(self, keys, partition_id, select_fields):
        self.asked.append(len(keys))
        return Rows(
            {name: [self.held[key][name] for key in keys] for name in select_fields if name in self.held["u0_0_0"]}
        )


class QueueTrainer:
    """Leaves its batches with a queue, as ``PPOTrainer``; responses are as long as their masks."""

    def __init__(self, **algorithm):
        self.config, self.global_steps = config(**algorithm), 1

    def _compute_old_log_prob(self, batch, metrics):
        for held in sys.modules[TQ].tq.held.values():
            held |= {
                "old_log_probs": -held["responses"] / 1e4 - 1e-4,
                "entropy": torch.full_like(held["rollout_log_probs"], 0.5),
            }
        return SimpleNamespace(keys=batch.keys, tags=[{}] * SIZE, partition_id="train")

    def _compute_advantage(self, batch, metrics):
        _, advantages = rewards(None)
        for index, held in enumerate(sys.modules[TQ].tq.held.values()):
            held["advantages"] = advantages[index, : len(held["responses"])]
        return batch

    def step(self):
        queue, made = sys.modules[TQ].tq, columns(self.global_steps)
        lengths = made["response_mask"].sum(1)
        for index in range(SIZE):
            length, start = lengths[index], int(made["attention_mask"][index, :P].logical_not().sum())
            held = {name: made[name][index, :length] for name in ("responses", "response_mask", "rollout_log_probs")}
            queue.held[f"u{index // GROUP}_{index % GROUP}_0"] = held | {
                "prompts": made["prompts"][index, start:],
                "rm_scores": rewards(None)[0][index, :length],
            }
        tags = [{"min_global_steps": self.global_steps - 1}] * SIZE
        batch = SimpleNamespace(keys=list(queue.held), tags=tags, partition_id="train")
        batch = self._compute_old_log_prob(batch, metrics={})
        assert self._compute_advantage(batch, metrics={}) is batch
        self.global_steps += 1


RAY, TQ = "verl.trainer.ppo.ray_trainer", "verl.trainer.ppo.v1.trainer_base"
KINDS = {RAY: ("RayPPOTrainer", RayTrainer), TQ: ("PPOTrainer", QueueTrainer)}


@pytest.fixture
def made(monkeypatch, tmp_path):
    """Makes new classes, below the names of verl, which are followed."""

    def make(module_name):
        name, base = KINDS[module_name]
        module = ModuleType(module_name)
        module.tq = Queue()
        followed = type(
            name, (base,), {n: v for n, v in vars(base).items() if n[:2] != "__"} | {"__module__": module_name}
        )
        setattr(module, name, followed)
        monkeypatch.setitem(sys.modules, module_name, module)
        rl.follow("verl")
        return followed

    monkeypatch.chdir(tmp_path)
    yield make
    rl.close()


def rows(path="runs/rollouts"):
    rl.close()
    return trueline.open_run(path).kept("rollouts").table().to_pylist()


@pytest.mark.parametrize("module", [RAY, TQ])
def test_each_sequence_has_what_the_trainer_has_of_it(made, module):
    trainer = made(module)()
    trainer.step()
    trainer.step()
    found = rows()
    assert [row["step"] for row in found] == [0] * SIZE + [1] * SIZE
    for index, row in enumerate(found):
        place, step = index % SIZE, index // SIZE
        first = place * L + 100 * (step + 1)
        length = 2 if place == 0 else L
        assert row["prompt_ids"] == [7] * (2 if place == 1 else 3)
        assert row["response_ids"] == [first + offset for offset in range(length)]
        assert row["mask"] == [1] * length
        assert row["logp_rollout"][0] == pytest.approx(-first / 1e4)
        assert row["logp_train"][0] == pytest.approx(-first / 1e4 - 1e-4)
        assert row["entropy"] == [0.5] * length
        assert (row["reward"], row["group"]) == (place, place // GROUP)
        assert row["advantage"] == (0.5 if place % 2 else -0.5)
        assert row["version_rollout"] == row["version_train"] == step
    assert json.loads(found[0]["sampling"]) == {
        "temperature": 0.5,
        "top_p": 1.0,
        "top_k": -1,
        "engine": "vllm",
        "dtype": "bfloat16",
        "group_size": GROUP,
    }
    assert {finding.code for finding in trueline.check("runs/rollouts").findings} & {"reward-differs"} == set()


def test_tokens_that_verl_rejects_after_it_compared_them_are_recorded(made):
    made(RAY)(rejects=True).step()
    found = rows()
    assert len(found) == SIZE
    assert found[2]["mask"] == [1] * L


def test_below_trueline_run_rows_are_on_disk_at_once_beside_the_run(made, monkeypatch, tmp_path):
    monkeypatch.setenv(child_env.RUN, str(tmp_path / "it"))
    monkeypatch.setenv(child_env.UNSEEN, str(tmp_path / "unseen"))
    made(RAY)().step()
    found = trueline.open_run(tmp_path / "it.rollouts").kept("rollouts").table().to_pylist()  # nothing was closed
    assert len(found) == SIZE
    assert (tmp_path / f"unseen{child_env.WATCHED}").exists()


@pytest.mark.parametrize("module", [RAY, TQ])
def test_of_large_batches_whole_groups_are_kept_and_no_others_are_asked_for(made, module, monkeypatch):
    monkeypatch.setattr(frameworks, "TOKENS", L * GROUP)
    trainer = made(module)()
    for _ in range(PROMPTS):
        trainer.step()
    kept = [[row["response_ids"][0] % 100 // (L * GROUP) for row in rows() if row["step"] == step] for step in range(3)]
    assert sorted(kept) == [[0, 0], [1, 1], [2, 2]]
    if module == TQ:
        assert set(sys.modules[TQ].tq.asked) == {GROUP}


@pytest.mark.parametrize("module", [RAY, TQ])
def test_where_the_engines_are_taken_for_the_trainers_nothing_is_compared(made, module, caplog):
    trainer = made(module)(rollout_correction={"bypass_mode": True})
    with caplog.at_level(logging.WARNING):
        trainer.step()
        trainer.step()
    assert caplog.text.count("bypass_mode") == 1
    assert {row["logp_train"] for row in rows() if row["logp_train"] is not None} == set()


def test_of_replayed_experts_the_engines_are_there(made, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "MORE", {"routed_experts": torch.zeros(SIZE, P + L, 5, 2)})
    made(RAY)().step()
    found = rows()
    assert len(found) == SIZE
    assert {row["routed_layers"] for row in found} == {5}
    assert "routing-differs" not in trueline.check("runs/rollouts").checks_run


def test_rewards_less_a_penalty_have_no_groups(made):
    made(RAY)(use_kl_in_reward=True).step()
    assert {(row["group"], row["advantage"]) for row in rows()} == {(None, None)}


def test_samples_that_are_old_on_purpose_declare_how_old(made):
    followed = made(RAY)
    late = type("FullyAsyncTrainer", (followed,), {"current_param_version": 3})
    late().step()
    (row, *_) = rows()
    assert (row["version_rollout"], row["version_train"], json.loads(row["sampling"])["lag"]) == (0, 3, 3)
    assert "policy-lag" not in {finding.code for finding in trueline.check("runs/rollouts").findings}


def test_training_goes_on_where_batches_are_of_another_kind(made, caplog):
    trainer = made(RAY)()
    del trainer.config.actor_rollout_ref.rollout["n"]
    with caplog.at_level(logging.WARNING):
        trainer.step()
        trainer.step()
    assert caplog.text.count("the rollouts of verl are not recorded") == 1
    assert len(trainer.seen) == 2


def test_another_verl_is_left_alone(monkeypatch, caplog):
    module = ModuleType(RAY)
    module.RayPPOTrainer = type("RayPPOTrainer", (), {"fit": lambda self: None})
    monkeypatch.setitem(sys.modules, RAY, module)
    with caplog.at_level(logging.WARNING):
        rl.follow("verl")
    assert "RayPPOTrainer of this verl has no _compute_old_log_prob" in caplog.text
