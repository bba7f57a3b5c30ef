"""Writes what verl leaves on disk, by verl's own code: DataProto.save_to_disk and a TensorDict, of a batch that
compute_advantage went over; the metrics that compute_rollout_correction_and_add_to_batch makes of it, as the file
logger has them; and lines of trainer.rollout_data_dir by RayPPOTrainer._write_generations.

Made with verl 0.9.1 (PyPI; verl-project/verl), tensordict 0.15.3, torch 2.13.0. No engine ran: log-probabilities are
random numbers. Again: pip install verl==0.9.1 and what it asks for, then python tests/data/rl/make_verl.py FOLDER
"""

import os
import sys
from pathlib import Path

import numpy as np
import torch
from omegaconf import OmegaConf
from verl import DataProto
from verl.trainer.ppo.ray_trainer import RayPPOTrainer, compute_advantage
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_add_to_batch
from verl.utils.tracking import FileLogger

B, P, L, N = 4, 3, 5, 2
folder = Path(sys.argv[1])
torch.manual_seed(0)
prompts = torch.randint(1, 50, (B, P))
prompt_mask = torch.ones(B, P, dtype=torch.long)
prompt_mask[0, :2] = 0
mask = torch.ones(B, L, dtype=torch.long)
mask[1, 3:] = 0
rollout = -torch.rand(B, L)
scores = torch.zeros(B, L)
scores[:, 2] = torch.arange(B).float()
batch = DataProto.from_dict(
    {
        "prompts": prompts * prompt_mask,
        "responses": torch.arange(B * L).reshape(B, L),
        "attention_mask": torch.cat([prompt_mask, mask], 1),
        "response_mask": mask,
        "rollout_log_probs": rollout,
        "old_log_probs": rollout - 0.25,
        "token_level_scores": scores,
        "token_level_rewards": scores,
    },
    non_tensors={
        "uid": np.array([f"prompt-{i // N}" for i in range(B)], dtype=object),
        "min_global_steps": np.array([2] * B, dtype=object),
    },
    meta_info={"temperature": 1.0},
)
algorithm = OmegaConf.create({"adv_estimator": "grpo", "norm_adv_by_std_in_grpo": True})
batch = compute_advantage(batch, adv_estimator="grpo", num_repeat=N, config=algorithm)
batch.save_to_disk(folder / "verl_batch_3.pt")
torch.save(batch.batch, folder / "verl_tensordict_3.pt")
correction = OmegaConf.create({"rollout_is": "token", "rollout_is_threshold": 2.0, "rollout_rs": None})
_, metrics = compute_rollout_correction_and_add_to_batch(batch, correction)
os.environ["VERL_FILE_LOGGER_PATH"] = str(folder / "verl_metrics.jsonl")
FileLogger("project", "experiment").log(metrics, 3)
trainer = object.__new__(RayPPOTrainer)
trainer._write_generations(["2 + 2 ="] * B, ["4"] * B, ["4"] * B, [1.0] * B, {}, str(folder / "verl_generations"), 3)
