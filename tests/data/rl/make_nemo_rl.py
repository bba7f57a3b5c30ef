"""Writes train_data_step4.jsonl by NeMo-RL's own Logger.log_batched_dict_as_jsonl, with what grpo_train logs.

Made with NVIDIA-NeMo/RL 7ea279a, torch 2.13.0; matplotlib, swanlab, tensorboard and wandb were stand-ins. No engine
ran: log-probabilities are random numbers.
Again: PYTHONPATH=NEMO_RL python tests/data/rl/make_nemo_rl.py FOLDER
"""

import sys

import torch
from nemo_rl.utils.logger import Logger

logger = object.__new__(Logger)
logger.loggers, logger.base_log_dir, logger.gpu_monitor = [], sys.argv[1], None
torch.manual_seed(0)
B, P, L = 2, 3, 4
ids = torch.arange(B * (P + L)).view(B, P + L) + 1
mask = torch.zeros(B, P + L, dtype=torch.long)
mask[:, P:] = 1
mask[1, -1] = 0
rollout = -(torch.rand(B, P + L) + 0.1) * mask
log = {
    "content": ["a", "b"],
    "rewards": torch.arange(B).float().tolist(),
    "input_lengths": [P + L] * B,
    "token_ids": ids.tolist(),
    "token_loss_mask": mask.tolist(),
    "sample_loss_mask": [1.0] * B,
    "advantages": torch.zeros(B, P + L).tolist(),
    "generation_logprobs": rollout.tolist(),
    "prev_logprobs": ((rollout - 0.25) * mask).tolist(),
}
logger.log_batched_dict_as_jsonl(log, "nemo_rl/train_data_step4.jsonl")
logger.log_batched_dict_as_jsonl(
    log | {"prev_logprobs": torch.zeros(B, P + L).tolist()}, "nemo_rl_skipped/train_data_step5.jsonl"
)
