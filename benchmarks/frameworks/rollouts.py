"""The recorders of rollouts on the frameworks' own classes: each makes a batch by code of its own, and what Trueline
records of it is compared with what went in.

    python -m benchmarks.frameworks.rollouts verl|verl_v1|openrlhf|nemo_rl|areal|slime FOLDER

FOLDER is where the Run goes. Needed are the framework (verl 0.9.1, openrlhf 0.11.2, areal 1.0.4 of PyPI; NVIDIA-NeMo/RL
7ea279a and THUDM/slime 624b824 as sources on PYTHONPATH) and what it imports on a CPU. What cannot be installed without
a GPU is a stand-in, named in the last line: no engine runs, and log-probabilities are random numbers.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import os
import sys
import types
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

import trueline
from trueline import rl

B, P, L, GROUP = 4, 3, 5, 2
STAND_INS: set[str] = set()
MISSING = frozenset(
    (
        "aiofiles",
        "aiohttp",
        "awex",
        "bitsandbytes",
        "colorlog",
        "decord",
        "deepspeed",
        "etcd3",
        "fastapi",
        "flash_attn",
        "httpx",
        "json_repair",
        "liger_kernel",
        "matplotlib",
        "mbridge",
        "megatron",
        "mlflow",
        "nltk",
        "numba",
        "openai",
        "optree",
        "peft",
        "prettytable",
        "pybase64",
        "pynvml",
        "ring_flash_attn",
        "sglang",
        "swanlab",
        "tensorboard",
        "tensorboardX",
        "torch_memory_saver",
        "trackio",
        "transformer_engine",
        "uvicorn",
        "uvloop",
        "vllm",
        "wandb",
    )
)


class _Anything:
    """Stands for a value of a module that is not there: as a decorator it leaves what it decorates."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return args[0] if len(args) == 1 and callable(args[0]) and not kwargs else _Anything()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything()

    def __getitem__(self, key: Any) -> Any:
        return self

    def __or__(self, other: Any) -> Any:
        return self

    __ror__ = __or__


class _Module(types.ModuleType):
    __path__ = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = type(name, (_Anything,), {}) if name[:1].isupper() else _Anything()
        setattr(self, name, value)
        return value


class _StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """The last to be asked for a module: makes those of ``MISSING`` up."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.partition(".")[0] not in MISSING:
            return None
        STAND_INS.add(name.partition(".")[0])
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: Any) -> Any:
        return _Module(spec.name)

    def exec_module(self, module: Any) -> None:
        module.__version__ = "9.9.9"


def sequences() -> dict[str, torch.Tensor]:
    """Ids [B, P + L], the mask of responses, and log-probabilities of both sides at each token."""
    ids = torch.arange(B * (P + L)).view(B, P + L) + 1
    mask = torch.zeros(B, P + L, dtype=torch.long)
    mask[:, P:] = 1
    mask[1, -2:] = 0
    rollout = -(torch.rand(B, P + L) + 0.1) * mask
    return {"ids": ids, "mask": mask, "rollout": rollout, "train": (rollout - 0.25) * mask}


def verl(made: dict[str, torch.Tensor]) -> None:
    from omegaconf import OmegaConf
    from verl import DataProto  # type: ignore[import-not-found]
    from verl.trainer.ppo import ray_trainer  # type: ignore[import-not-found]
    from verl.utils import tensordict_utils  # type: ignore[import-not-found]

    class Workers:
        """Returns log-probabilities as the actor's workers do: of all tokens but the last, nested."""

        def compute_log_prob(self, batch: Any) -> Any:
            ahead = made["train"].roll(-1, 1)
            rows = [ahead[row, :length] for row, length in enumerate(batch["input_ids"].offsets().diff().tolist())]
            nested = torch.nested.nested_tensor(rows, layout=torch.jagged)
            named = {"log_probs": nested, "entropy": torch.ones_like(nested)}
            return tensordict_utils.get_tensordict(named, non_tensor_dict={"metrics": {"mfu": 0.0}})

        def update_actor(self, batch: Any) -> Any:
            return tensordict_utils.get_tensordict({}, non_tensor_dict={"metrics": {"mfu": 0.0}})

    trainer = object.__new__(ray_trainer.RayPPOTrainer)
    actor = {"ppo_mini_batch_size": 2, "ppo_epochs": 1, "data_loader_seed": 1, "shuffle": False, "entropy_coeff": 0.0}
    rollout = {"name": "vllm", "temperature": 1.0, "dtype": "bfloat16", "n": GROUP, "multi_turn": {"enable": False}}
    trainer.config = OmegaConf.create(
        {
            "actor_rollout_ref": {"actor": actor | {"calculate_entropy": False}, "rollout": rollout},
            "algorithm": {"adv_estimator": "grpo", "use_kl_in_reward": False, "norm_adv_by_std_in_grpo": True},
            "trainer": {},
        }
    )
    trainer.actor_rollout_wg, trainer.global_steps = Workers(), 1
    attended = torch.ones(B, P + L, dtype=torch.long)
    attended[1, -2:] = 0
    scores = torch.zeros(B, L)
    scores[:, 2] = torch.arange(B).float()
    batch = DataProto.from_dict(
        {
            "prompts": made["ids"][:, :P],
            "responses": made["ids"][:, P:],
            "input_ids": made["ids"],
            "attention_mask": attended,
            "position_ids": attended.cumsum(1) - 1,
            "response_mask": made["mask"][:, P:],
            "rollout_log_probs": made["rollout"][:, P:],
        },
        non_tensors={"uid": np.array([f"u{row // GROUP}" for row in range(B)], dtype=object)},
        meta_info={"temperature": 1.0},
    )
    computed, _ = trainer._compute_old_log_prob(batch)
    computed.batch.pop("entropys")
    batch = batch.union(computed)
    batch.batch["token_level_scores"] = batch.batch["token_level_rewards"] = scores
    batch = ray_trainer.compute_advantage(batch, "grpo", num_repeat=GROUP, config=trainer.config.algorithm)
    trainer._update_actor(batch)


def verl_v1(made: dict[str, torch.Tensor]) -> None:
    """Of ``trainer.use_v1``, with a stand-in for TransferQueue."""
    from omegaconf import OmegaConf
    from tensordict import NonTensorStack, TensorDict  # type: ignore[import-not-found]
    from transfer_queue import KVBatchMeta  # type: ignore[import-not-found]
    from verl.trainer.ppo.v1 import trainer_base  # type: ignore[import-not-found]

    class Queue:
        def __init__(self) -> None:
            self.held: dict[str, dict[str, Any]] = {}

        def kv_batch_get(self, keys: list[str], partition_id: str, select_fields: list[str]) -> Any:
            names = [name for name in select_fields if name in self.held[keys[0]]]
            values = {name: [self.held[key][name] for key in keys] for name in names}
            return TensorDict(
                {
                    name: NonTensorStack(*rows)
                    if isinstance(rows[0], str)
                    else torch.nested.as_nested_tensor(rows, layout=torch.jagged)
                    for name, rows in values.items()
                },
                batch_size=len(keys),
            )

        def kv_batch_put(self, keys: list[str], partition_id: str, fields: Any) -> Any:
            for name in fields.keys():  # noqa: SIM118  (a TensorDict iterates over rows)
                for key, row in zip(keys, fields[name].unbind(), strict=True):
                    self.held[key][name] = row
            return KVBatchMeta(keys=keys, tags=[{} for _ in keys], partition_id=partition_id)

    class Workers:
        """Computes log-probabilities of the tokens ahead, as the actor's workers do."""

        def compute_log_prob(self, batch: Any) -> Any:
            for row, key in enumerate(batch.keys):
                held = queue.held[key]
                length = P + len(held["responses"])
                held |= {"log_probs": made["train"][row].roll(-1)[:length], "entropy": torch.ones(length)}
            return batch

    queue = trainer_base.tq = Queue()
    STAND_INS.add("transfer_queue")
    for row in range(B):
        length = int(made["mask"][row].sum())
        score = torch.zeros(length)
        score[-1] = row
        queue.held[f"u{row // GROUP}_{row % GROUP}_0"] = {
            "uid": f"u{row // GROUP}",
            "prompts": made["ids"][row, :P],
            "responses": made["ids"][row, P : P + length],
            "response_mask": made["mask"][row, P : P + length],
            "rollout_log_probs": made["rollout"][row, P : P + length],
            "rm_scores": score,
        }
    hooks = dict.fromkeys(trainer_base.PPOTrainer.__abstractmethods__, lambda self: None)
    trainer = object.__new__(type("Trainer", (trainer_base.PPOTrainer,), hooks))
    rollout = {"name": "vllm", "temperature": 1.0, "dtype": "bfloat16", "n": GROUP, "response_length": L}
    trainer.config = OmegaConf.create(
        {
            "actor_rollout_ref": {
                "actor": {"loss_agg_mode": "token-mean", "loss_scale_factor": None},
                "rollout": rollout | {"calculate_log_probs": True},
            },
            "algorithm": {"adv_estimator": "grpo", "use_kl_in_reward": False, "gamma": 1.0, "lam": 1.0},
        }
    )
    trainer.actor_rollout_wg, trainer.global_steps = Workers(), 1
    tags = [{"min_global_steps": 0} for _ in queue.held]
    batch = KVBatchMeta(keys=list(queue.held), tags=tags, partition_id="train")
    batch = trainer._compute_old_log_prob(batch, {})
    trainer._compute_advantage(batch, {})


def openrlhf(made: dict[str, torch.Tensor]) -> None:
    from openrlhf.trainer import ppo_trainer  # type: ignore[import-not-found]
    from openrlhf.trainer.ppo_utils.experience import Experience  # type: ignore[import-not-found]

    args = SimpleNamespace(
        algo=SimpleNamespace(
            advantage=SimpleNamespace(estimator="group_norm", gamma=1.0, lambd=1.0, no_std_norm=False),
            kl=SimpleNamespace(use_loss=False, init_coef=0.0),
        ),
        reward=SimpleNamespace(clip_range=None, overlong_buffer_len=None, stop_properly_penalty_coef=None),
        rollout=SimpleNamespace(n_samples_per_prompt=GROUP, temperature=1.0, top_p=1.0, max_new_tokens=L),
        train=SimpleNamespace(async_enable=False, dynamic_batch_enable=False),
        ds=SimpleNamespace(param_dtype="bf16"),
    )
    maker = object.__new__(ppo_trainer.RemoteExperienceMaker)
    maker.strategy, maker.kl_ctl, maker.initial_model_group = (
        SimpleNamespace(args=args),
        SimpleNamespace(value=0.0),
        None,
    )
    maker.advantage_estimator = "group_norm"

    def experience(rows: slice) -> Any:
        mask = made["mask"][rows, 1:].bool()
        return Experience(
            sequences=made["ids"][rows],
            attention_mask=torch.ones_like(made["ids"][rows]),
            action_mask=mask,
            action_log_probs=made["train"][rows, 1:],
            rollout_log_probs=made["rollout"][rows, 1:],
            rewards=torch.arange(B).float()[rows],
            response_length=mask.sum(1),
            kl=torch.zeros(mask.shape),
            index=list(range(B))[rows],
        )

    maker.make_experience_batch = lambda samples: maker.compute_advantages_and_returns(samples)
    trainer = object.__new__(ppo_trainer.BasePPOTrainer)
    trainer.experience_maker, trainer.args = maker, args
    try:
        trainer.train_step([experience(slice(0, 2)), experience(slice(2, 4))], 0)
    except AttributeError as error:  # of what comes after the experiences, with workers
        print(f"training ended as it has no workers: {error}")


def nemo_rl(made: dict[str, torch.Tensor]) -> None:
    from nemo_rl.utils.logger import Logger  # type: ignore[import-not-found]

    logger = object.__new__(Logger)
    logger.loggers, logger.base_log_dir, logger.gpu_monitor = [], "logs", None
    logger.log_hyperparams({"policy": {"precision": "bfloat16", "generation": {"temperature": 1.0, "backend": "vllm"}}})
    log = {"token_ids": made["ids"], "token_loss_mask": made["mask"], "rewards": torch.arange(B).float()}
    log |= {"generation_logprobs": made["rollout"], "prev_logprobs": made["train"]}
    logger.log_batched_dict_as_jsonl({name: value.tolist() for name, value in log.items()}, "train_data_step1.jsonl")


def areal(made: dict[str, torch.Tensor]) -> None:
    from areal.trainer.ppo.actor import PPOActor  # type: ignore[import-not-found]

    actor = object.__new__(PPOActor)
    engine = SimpleNamespace(is_data_parallel_head=lambda: True, get_version=lambda: 0)
    settings = {"overlong_reward_penalty": False, "use_decoupled_loss": True, "recompute_logprob": True}
    values = {"reward_bias": 0.0, "reward_scaling": 1.0, "reward_clip": 20.0, "reward_norm": None, "adv_norm": None}
    values |= {"kl_ctl": 0.0, "discount": 1.0, "gae_lambda": 1.0, "mask_no_eos_with_zero": False, "temperature": 1.0}
    vars(actor).update(values | {"engine": engine, "config": SimpleNamespace(**settings)})
    actor.kl_estimator = lambda new, old: new - old
    actor._compute_advantages(
        {
            "input_ids": made["ids"],
            "attention_mask": torch.ones(B, P + L, dtype=torch.bool),
            "loss_mask": made["mask"],
            "logprobs": made["rollout"],
            "prox_logp": made["train"].roll(-1, 1),
            "versions": torch.where(made["mask"] > 0, 0, -1),
            "rewards": torch.arange(B).float(),
        }
    )


def slime(made: dict[str, torch.Tensor]) -> None:
    core = types.ModuleType("megatron.core")
    core.mpu = SimpleNamespace(  # type: ignore[attr-defined]
        is_pipeline_last_stage=lambda ignore_virtual: True,
        get_tensor_model_parallel_rank=lambda: 0,
        get_context_parallel_world_size=lambda: 1,
    )
    STAND_INS.add("megatron")
    sys.modules["megatron"], sys.modules["megatron.core"] = types.ModuleType("megatron"), core
    train_data_utils = importlib.import_module("slime.observability.train_data_utils")
    args = SimpleNamespace(save_debug_train_data=None, n_samples_per_prompt=GROUP, rollout_temperature=1.0, bf16=True)
    data = {
        "tokens": list(made["ids"]),
        "response_lengths": [L] * B,
        "loss_masks": list(made["mask"][:, P:]),
        "rollout_log_probs": list(made["rollout"][:, P:]),
        "log_probs": list(made["train"][:, P:]),
        "rewards": [float(row) for row in range(B)],
        "sample_indices": list(range(B)),
    }
    train_data_utils.save_debug_train_data(args, rollout_id=0, rollout_data=data)


def main(name: str, folder: Path) -> None:
    # before stand-ins, which transformers would take for the packages themselves
    importlib.import_module("torch._dynamo")
    transformers: Any = importlib.import_module("transformers")
    for lazily in ("AutoConfig", "AutoModelForCausalLM", "AutoProcessor", "AutoTokenizer", "PreTrainedModel"):
        getattr(transformers, lazily)
    folder.mkdir(parents=True, exist_ok=True)
    os.chdir(folder)
    if not name.startswith("verl"):  # which does without what is not there
        sys.meta_path.append(_StandIns())
    rl.follow(name.removesuffix("_v1"))
    torch.manual_seed(0)
    made = sequences()
    {"verl": verl, "verl_v1": verl_v1, "openrlhf": openrlhf, "nemo_rl": nemo_rl, "areal": areal, "slime": slime}[name](
        made
    )
    rl.close()
    rows = trueline.open_run("runs/rollouts").kept("rollouts").table().to_pylist()
    assert len(rows) == B, len(rows)
    for row, ids, mask, rollout, train in zip(rows, *(made[key] for key in made), strict=True):
        length = int(mask.sum())
        assert row["prompt_ids"] == ids[:P].tolist(), row["prompt_ids"]
        assert row["response_ids"] == ids[P : P + length].tolist(), row["response_ids"]
        for column, values in (("logp_rollout", rollout), ("logp_train", train)):
            np.testing.assert_allclose(row[column], values[P : P + length], atol=1e-6)
    assert [row["reward"] for row in rows] == [float(row) for row in range(B)]
    groups = [(row["group"], row["advantage"]) for row in rows]
    print(f"{name}: {B} sequences as they went in; groups and advantages {groups}; sampling {rows[0]['sampling']}.")
    print(f"Stand-ins: {', '.join(sorted(STAND_INS)) or 'none'}.")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
