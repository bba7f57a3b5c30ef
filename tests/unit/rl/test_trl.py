"""Rollouts of trainers of TRL that know nothing of Trueline.

The trainer here has the names of TRL 1.16 and shuffles as it does; the real one is tried in ``benchmarks/frameworks``.
"""

from __future__ import annotations

import importlib
import json
import logging
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

import trueline
from trueline import rl
from trueline.rl import frameworks, imported

PROMPTS, GROUP, LENGTH = 4, 2, 3
SIZE = PROMPTS * GROUP


class Trainer:
    """Generates for ``steps_per_generation`` micro-batches of a step each, and goes over them ``num_iterations`` times.
    ``seen`` are what its loss got.
    """

    multi_objective_aggregation = "sum_then_normalize"
    num_generations, use_vllm, beta = GROUP, True, 0.0

    def __init__(self, micro_batches=2, num_iterations=1, max_length=LENGTH):
        self.model = torch.nn.Linear(2, 2)
        self.micro_batches, self.num_iterations = micro_batches, num_iterations
        self.args = SimpleNamespace(
            max_completion_length=max_length, temperature=0.5, top_p=1.0, bf16=True, fp16=False, top_k=None
        )
        self.state, self.accelerator = SimpleNamespace(global_step=0), SimpleNamespace(num_processes=1, process_index=0)
        self.reward_weights, self.seen, self.generated = torch.tensor([1.0, 2.0]), [], 0

    def _calculate_rewards(self, prompts, completions):
        return torch.stack([completions[:, 0].float(), torch.zeros(len(completions))], 1)

    def _generate_and_score_completions(self, batch):
        self.generated += 1
        ids = torch.arange(SIZE * LENGTH).view(SIZE, LENGTH) + 1000 * self.generated
        rewards = (self._calculate_rewards(batch, ids) * self.reward_weights).sum(1)
        groups = rewards.view(-1, GROUP)
        mask = torch.ones(SIZE, LENGTH, dtype=torch.long)
        mask[0, -1] = 0
        return {
            "prompt_ids": torch.tensor([[0, 5]] * SIZE),
            "prompt_mask": torch.tensor([[0, 1]] * SIZE),
            "completion_ids": ids,
            "completion_mask": mask,
            "advantages": (groups - groups.mean(1, keepdim=True)).flatten(),
            "num_items_in_batch": torch.tensor(3),
            "sampling_per_token_logps": -ids / 1e4,
            "old_per_token_logps": -ids / 1e4 - 1e-4,
        }

    def _prepare_inputs(self, batch):
        made = self._generate_and_score_completions(batch)
        order = torch.randperm(SIZE)
        made = {name: value[order] if value.ndim else value for name, value in made.items()}
        size = SIZE // self.micro_batches
        cut = range(0, SIZE, size)
        return [{n: v[at : at + size] if v.ndim else v for n, v in made.items()} for at in cut]

    def _get_per_token_logps_and_entropies(self, model, ids, compute_entropy=False):
        logp = -ids.float().requires_grad_() / 1e4 - 2e-4
        return logp, torch.full(ids.shape, 0.5) if compute_entropy else None, None

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        self.seen.append(set(inputs))
        logp, _, _ = self._get_per_token_logps_and_entropies(model, inputs["completion_ids"], compute_entropy=True)
        return (logp * inputs["advantages"][:, None]).sum()

    def train(self, generations=1):
        for _ in range(generations):
            buffered = self._prepare_inputs(None)
            for _ in range(self.num_iterations):
                for inputs in buffered:
                    self.compute_loss(self.model, inputs, num_items_in_batch=3).backward()
                    self.state.global_step += 1


@pytest.fixture
def trainer_class(monkeypatch, tmp_path):
    """A new class, below the names of TRL, whose rollouts are recorded into a Run of their own."""
    module = ModuleType("trl.trainer.grpo_trainer")
    module.GRPOTrainer = type("GRPOTrainer", (Trainer,), {n: v for n, v in vars(Trainer).items() if n[:2] != "__"})
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.chdir(tmp_path)
    yield module.GRPOTrainer
    rl.close()
    imported._finder.waiting.clear()


def rows():
    rl.close()
    return trueline.open_run("runs/rollouts").kept("rollouts").table().to_pylist()


def test_each_sequence_has_what_was_told_of_it_though_they_are_shuffled(trainer_class):
    rl.follow_trl()
    trainer = trainer_class()
    trainer.train(generations=2)
    found = rows()
    assert sorted({row["step"] for row in found}) == [0, 1, 2, 3]
    assert len(found) == 2 * SIZE
    for row in found:
        first = row["response_ids"][0]
        index, generation = first % 1000 // LENGTH, first // 1000
        assert row["reward"] == first
        assert row["group"] == index // GROUP
        assert row["advantage"] == (1.5 if index % 2 else -1.5)
        assert row["prompt_ids"] == [5]
        assert row["mask"] == [1] * (LENGTH - (index == 0))
        assert row["logp_rollout"][0] == pytest.approx(-first / 1e4)
        assert row["logp_train"][0] == pytest.approx(-first / 1e4 - 1e-4)
        assert row["version_rollout"] == row["version_train"] == 2 * (generation - 1)
        if row["step"] % 2 == 0:  # the weights that generated
            assert row["logp_update"][0] == pytest.approx(-first / 1e4 - 2e-4)
            assert row["entropy"] == [0.5] * len(row["mask"])
        else:
            assert row["logp_update"] is None
            assert row["entropy"] is None
    assert json.loads(found[0]["sampling"]) == {
        "temperature": 0.5,
        "top_p": 1.0,
        "dtype": "bfloat16",
        "engine": "vllm",
        "group_size": GROUP,
    }
    assert "trueline" not in set().union(*trainer.seen)
    report = trueline.check("runs/rollouts")
    assert "reward-differs" not in {finding.code for finding in report.findings}


def test_sequences_that_are_trained_on_again_are_recorded_once(trainer_class):
    rl.follow_trl()
    trainer_class(num_iterations=3).train()
    assert len(rows()) == SIZE


def test_a_class_that_is_imported_later_is_followed_once(trainer_class, monkeypatch, tmp_path):
    name = "trl.trainer.grpo_trainer"
    monkeypatch.delitem(sys.modules, name)
    for folder in ("trl", "trl/trainer"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").touch()
    (tmp_path / "trl/trainer/grpo_trainer.py").write_text("from tests.unit.rl.test_trl import Trainer\n")
    with (tmp_path / "trl/trainer/grpo_trainer.py").open("a") as file:
        file.write("names = {n: v for n, v in vars(Trainer).items() if n[:2] != '__'}\n")
        file.write("GRPOTrainer = type('GRPOTrainer', (Trainer,), names)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    rl.follow_trl()
    rl.follow_trl()
    module = importlib.import_module(name)
    monkeypatch.setitem(sys.modules, name, module)
    module.GRPOTrainer().train()
    assert len(rows()) == SIZE
    assert not hasattr(module.GRPOTrainer.compute_loss.__wrapped__, "__wrapped__")
    assert type(module.__spec__.loader).__module__.startswith("_frozen_importlib")


def test_of_large_batches_whole_groups_are_kept_others_each_time(trainer_class):
    rl.follow_trl()
    trainer_class(micro_batches=1, max_length=frameworks.TOKENS // GROUP // 2).train(generations=2)
    kept = [sorted(row["group"] for row in rows() if row["step"] == step) for step in (0, 1)]
    assert kept == [[0, 0, 2, 2], [1, 1, 3, 3]]


def test_a_trainer_with_advantages_of_its_own_has_no_groups(trainer_class):
    class Own(trainer_class):
        def _generate_and_score_completions(self, batch):
            made = super()._generate_and_score_completions(batch)
            return made | {"advantages": made["advantages"].abs() + 1}

    rl.follow_trl()
    Own().train()
    found = rows()
    assert {row["group"] for row in found} == {None}
    assert {row["advantage"] for row in found} == {2.5}


def test_training_is_the_same_and_goes_on_where_rollouts_are_of_another_kind(trainer_class, caplog):
    rl.follow_trl()
    trainer = trainer_class()
    trainer.num_generations = None
    with caplog.at_level(logging.WARNING):
        trainer.train(generations=2)
    assert [len(names) for names in trainer.seen] == [8] * 4
    assert [each.message.startswith("trueline: the rollouts of TRL are not recorded") for each in caplog.records] == [
        True
    ]


def test_another_trl_is_left_alone(trainer_class, monkeypatch, caplog):
    module = sys.modules["trl.trainer.grpo_trainer"]
    monkeypatch.setattr(module, "GRPOTrainer", type("GRPOTrainer", (), {"compute_loss": Trainer.compute_loss}))
    with caplog.at_level(logging.WARNING):
        rl.follow_trl()
    assert "GRPOTrainer of this TRL has no _calculate_rewards" in caplog.text
    assert module.GRPOTrainer.compute_loss is Trainer.compute_loss
