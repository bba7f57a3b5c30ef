"""Writes what slime leaves on disk with --dump-details, by its own save_debug_rollout_data and save_debug_train_data.

Made with THUDM/slime 624b824, torch 2.13.0; megatron.core.mpu is a stand-in for one rank. No engine ran:
log-probabilities are random numbers. Again: PYTHONPATH=SLIME python tests/data/rl/make_slime.py FOLDER
"""

import importlib
import sys
import types
from types import SimpleNamespace

import torch

core = types.ModuleType("megatron.core")
core.mpu = SimpleNamespace(
    is_pipeline_last_stage=lambda ignore_virtual: True,
    get_tensor_model_parallel_rank=lambda: 0,
    get_context_parallel_rank=lambda: 0,
    get_data_parallel_rank=lambda with_context_parallel: 0,
    get_data_parallel_world_size=lambda with_context_parallel: 1,
    get_data_parallel_src_rank=lambda with_context_parallel: 0,
)
cut = types.ModuleType("slime.backends.megatron_utils.cp_utils")
cut.all_gather_with_cp = lambda value, total, length: value
torch.distributed.get_rank = lambda: 0
sys.modules |= {"megatron": types.ModuleType("megatron"), "megatron.core": core, cut.__name__: cut}
for name in ("slime.backends", "slime.backends.megatron_utils"):
    sys.modules[name] = types.ModuleType(name)
rollouts = importlib.import_module("slime.observability.rollout_data_utils")
trained = importlib.import_module("slime.observability.train_data_utils")
Sample = importlib.import_module("slime.utils.types").Sample

folder, P, L = sys.argv[1], 3, 4
torch.manual_seed(0)
samples = [
    Sample(
        index=index,
        tokens=[1 + index, 2, 3, *range(10 * index, 10 * index + L)],
        response_length=L,
        reward=float(index),
        loss_mask=[1, 1, 0, 1],
        rollout_log_probs=(-torch.rand(L)).tolist(),
        weight_versions=["2"],
    )
    for index in range(2)
]
rollouts.save_debug_rollout_data(
    f"{folder}/slime/rollout_data/{{rollout_id}}.pt", samples, rollout_id=3, evaluation=False
)
order = [1, 0]
data = {
    "tokens": [torch.tensor(samples[index].tokens) for index in order],
    "total_lengths": [P + L] * 2,
    "response_lengths": [L] * 2,
    "loss_masks": [torch.tensor(samples[index].loss_mask) for index in order],
    "log_probs": [torch.tensor(samples[index].rollout_log_probs) - 0.25 for index in order],
    "rewards": [float(index) for index in order],
    "partition": order,
    "sample_indices": order,
}
args = SimpleNamespace(save_debug_train_data=f"{folder}/slime/train_data/{{rollout_id}}.pt")
trained.save_debug_train_data(args, rollout_id=3, rollout_data=data)
