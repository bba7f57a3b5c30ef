"""Rollouts of OpenRLHF, NeMo-RL, AReaL and slime, whose classes here are stand-ins of the same names: their own are
tried in ``benchmarks/frameworks/rollouts.py``.
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

B, P, L, GROUP = 4, 3, 4, 2
WIDTH = P + L


def made():
    """Ids, the mask of what was sampled, and log-probabilities of both sides, [B, P + L] at each token."""
    ids = torch.arange(B * WIDTH).view(B, WIDTH)
    mask = torch.zeros(B, WIDTH, dtype=torch.long)
    mask[:, P:] = 1
    mask[0, -1] = 0
    return ids, mask, -(ids + 1) / 1e3 * mask, -(ids + 1) / 1e3 * mask - 1e-4 * mask


def openrlhf(module, skips=False, asynchronous=False):
    class RemoteExperienceMaker:
        kl_ctl, initial_model_group = SimpleNamespace(value=0.1), None
        strategy = SimpleNamespace(
            args=SimpleNamespace(
                algo=SimpleNamespace(
                    advantage=SimpleNamespace(estimator="group_norm"), kl=SimpleNamespace(use_loss=False)
                ),
                rollout=SimpleNamespace(n_samples_per_prompt=GROUP, temperature=1.0, top_p=1.0),
                train=SimpleNamespace(async_enable=asynchronous),
                ds=SimpleNamespace(param_dtype="bf16"),
            )
        )

        def compute_advantages_and_returns(self, experiences):
            for experience in experiences:
                signs = torch.tensor([-1.0, 1.0])[:, None].expand(GROUP, WIDTH - 1)
                experience.advantages = signs * experience.action_mask
            return experiences

    class BasePPOTrainer:
        experience_maker = RemoteExperienceMaker()

        def train_step(self, samples, global_step):
            return self.experience_maker.compute_advantages_and_returns(samples), global_step + 1

    BasePPOTrainer.__module__ = module.__name__
    module.RemoteExperienceMaker, module.BasePPOTrainer = RemoteExperienceMaker, BasePPOTrainer
    frameworks.follow(rl.record, ["openrlhf"])
    ids, mask, rollout, train = made()
    experiences = [
        SimpleNamespace(
            sequences=ids[rows],
            action_mask=mask[rows, 1:].bool(),
            rollout_log_probs=None if skips else rollout[rows, 1:],
            action_log_probs=train[rows, 1:],
            rewards=torch.arange(B).float()[rows],
            index=list(range(B))[rows],
        )
        for rows in (slice(0, 2), slice(2, 4))
    ]
    for step in range(2):
        returned, after = BasePPOTrainer().train_step(experiences, step)
        assert returned is experiences
        assert after == step + 1


def nemo_rl(module, skips=False, asynchronous=False):
    seen = []

    class Logger:
        def log_hyperparams(self, params):
            seen.append(params)

        def log_batched_dict_as_jsonl(self, to_log, filename):
            seen.append((to_log, filename))

    module.Logger = Logger
    frameworks.follow(rl.record, ["nemo_rl"])
    ids, mask, rollout, train = made()
    logger = Logger()
    generation = {"temperature": 1.0, "top_k": None, "backend": "vllm"}
    logger.log_hyperparams({"policy": {"precision": "bfloat16", "generation": generation}})
    for step in (1, 2):
        to_log = {"token_ids": ids, "token_loss_mask": mask, "rewards": torch.arange(B).float()}
        to_log |= {"generation_logprobs": rollout, "prev_logprobs": train * (not skips)}
        lists = {name: value.tolist() for name, value in to_log.items()}
        logger.log_batched_dict_as_jsonl(lists, f"train_data_step{step}.jsonl")
        logger.log_batched_dict_as_jsonl({"rewards": [0.0]}, f"val_data_step{step}.jsonl")
        assert seen[-2] == (lists, f"train_data_step{step}.jsonl")


def areal(module, skips=False, asynchronous=False):
    class PPOActor:
        temperature = 1.0

        def __init__(self, version):
            self.engine = SimpleNamespace(
                is_data_parallel_head=lambda: True,
                get_version=lambda: version,
                config=SimpleNamespace(dtype="bfloat16"),
            )

        def _compute_advantages(self, data):
            data["logprobs"] = data["prox_logp"]
            return data

    module.PPOActor = PPOActor
    frameworks.follow(rl.record, ["areal"])
    ids, mask, rollout, train = made()
    for version in range(2):
        data = {
            "input_ids": ids,
            "loss_mask": mask,
            "logprobs": rollout,
            "prox_logp": None if skips else train.roll(-1, 1),
            "versions": torch.where(mask > 0, 0 if asynchronous else version, -1),
            "rewards": torch.arange(B).float(),
        }
        assert PPOActor(version)._compute_advantages(data) is data


def slime(module, skips=False, asynchronous=False):
    core = ModuleType("megatron.core")
    core.mpu = SimpleNamespace(
        is_pipeline_last_stage=lambda ignore_virtual: True,
        get_tensor_model_parallel_rank=lambda: 0,
        get_context_parallel_world_size=lambda: 1,
    )
    sys.modules["megatron.core"] = core
    saved = []
    module.save_debug_train_data = lambda args, *, rollout_id, rollout_data: saved.append((rollout_id, rollout_data))
    frameworks.follow(rl.record, ["slime"])
    ids, mask, rollout, train = made()
    args = SimpleNamespace(n_samples_per_prompt=GROUP, rollout_temperature=1.0, bf16=True)
    for step in range(2):
        data = {
            "tokens": list(ids),
            "response_lengths": [L] * B,
            "loss_masks": list(mask[:, P:]),
            "rollout_log_probs": list(rollout[:, P:]),
            "rewards": [float(row) for row in range(B)],
            "sample_indices": list(range(B)),
        } | ({} if skips else {"log_probs": list(train[:, P:])})
        module.save_debug_train_data(args, rollout_id=step, rollout_data=data)
        assert saved[-1] == (step, data)


JOBS = {
    "openrlhf.trainer.ppo_trainer": openrlhf,
    "nemo_rl.utils.logger": nemo_rl,
    "areal.trainer.ppo.actor": areal,
    "slime.observability.train_data_utils": slime,
}


@pytest.fixture(params=JOBS)
def job(request, monkeypatch, tmp_path):
    """Runs two steps of a framework that is followed."""
    module = ModuleType(request.param)
    monkeypatch.setitem(sys.modules, request.param, module)
    monkeypatch.setitem(sys.modules, "megatron.core", ModuleType("megatron.core"))
    monkeypatch.chdir(tmp_path)
    yield lambda **kwargs: JOBS[request.param](module, **kwargs)
    rl.close()


def rows():
    rl.close()
    return trueline.open_run("runs/rollouts").kept("rollouts").table().to_pylist()


def test_each_sequence_has_what_the_framework_has_of_it(job):
    job()
    found = rows()
    assert [row["step"] for row in found] == [0] * B + [1] * B
    ids, mask, rollout, train = made()
    for index, row in enumerate(found):
        place = index % B
        length = int(mask[place].sum())
        assert row["prompt_ids"] == ids[place, :P].tolist()
        assert row["response_ids"] == ids[place, P : P + length].tolist()
        assert row["mask"] == [1] * length
        assert row["logp_rollout"] == pytest.approx(rollout[place, P : P + length].tolist())
        assert row["logp_train"] == pytest.approx(train[place, P : P + length].tolist())
        assert row["reward"] == place
    sampling = json.loads(found[0]["sampling"])
    assert (sampling["temperature"], sampling["dtype"]) == (1.0, "bfloat16")
    assert {finding.code for finding in trueline.check("runs/rollouts").findings} & {
        "reward-differs",
        "policy-lag",
    } == set()


def test_where_one_side_was_not_computed_that_is_said_once_and_nothing_is_made_up(job, caplog):
    with caplog.at_level(logging.WARNING):
        job(skips=True)
    said = [record.message for record in caplog.records if "trueline: rollouts of" in record.message]
    assert len(said) == 1, said
    if "OpenRLHF" not in said[0]:
        found = rows()
        assert len(found) == 2 * B
        assert {str(row["logp_train"]) for row in found} == {"None"}


def test_of_large_batches_some_are_kept_others_each_time(job, monkeypatch):
    monkeypatch.setattr(frameworks, "TOKENS", GROUP * WIDTH)
    job()
    kept = [{row["response_ids"][0] for row in rows() if row["step"] == step} for step in range(2)]
    assert [len(ids) for ids in kept] == [GROUP, GROUP]
    assert not kept[0] & kept[1]


def test_samples_of_older_weights_on_purpose_are_no_finding(job, caplog):
    with caplog.at_level(logging.WARNING):
        job(asynchronous=True)
    rl.close()
    if "which weights sampled is not known" not in caplog.text:
        assert "policy-lag" not in {finding.code for finding in trueline.check("runs/rollouts").findings}


@pytest.mark.parametrize("framework", frameworks.MODULES)
def test_another_version_is_left_alone_in_a_sentence(framework, monkeypatch, caplog):
    followers = importlib.import_module(f"trueline.rl.{framework}").FOLLOWERS
    assert set(followers) == set(frameworks.MODULES[framework])
    for name, follower in followers.items():
        module = ModuleType(name)
        if follower.owner:
            setattr(module, follower.owner, type(follower.owner, (), {}))
        monkeypatch.setitem(sys.modules, name, module)
    with caplog.at_level(logging.WARNING):
        rl.follow(framework)
    assert len(caplog.records) == len(followers)
    assert all(" has no " in record.message and "Training goes on" in record.message for record in caplog.records)


def test_an_import_does_not_fail_for_what_waits_for_it(monkeypatch, tmp_path, caplog):
    (tmp_path / "waited_for.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    seen = []
    with caplog.at_level(logging.WARNING):
        imported.after_import("waited_for", lambda module: 1 / 0)
        imported.after_import("waited_for", lambda module: seen.append(module.value))
        assert importlib.util.find_spec("waited_for") is not None  # asked for, and not loaded
        module = importlib.import_module("waited_for")
    assert seen == [module.value] == [1]
    assert "waited_for is not followed: ZeroDivisionError" in caplog.text
    del sys.modules["waited_for"]


def test_a_module_that_is_being_imported_is_told_of_at_the_next_import(monkeypatch, tmp_path):
    """As where the framework's module is the first that imports torch, and with it what follows."""
    (tmp_path / "begun.py").write_text(
        "from trueline.rl import imported\n"
        "seen = []\n"
        "imported.after_import('begun', lambda module: seen.append(module.value))\n"
        "import json.tool\n"
        "value = 1\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("begun")
    assert module.seen == []
    monkeypatch.delitem(sys.modules, "json.tool", raising=False)
    importlib.import_module("json.tool")
    assert module.seen == [1]
    del sys.modules["begun"]
