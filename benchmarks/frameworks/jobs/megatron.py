"""Megatron-core: its DDP, with the distributed optimizer or without. A shim lets it start on a CPU."""

from __future__ import annotations

from typing import Any

import torch
from benchmarks.frameworks.job import Job
from torch import Tensor
from torch.overrides import TorchFunctionMode

PACKAGE = "megatron-core"
IMPORTS = ("megatron.core",)

MODES = (
    "DDP, fp32",
    "DDP, bf16",
    "distributed optimizer, bf16",
    "distributed optimizer, overlapped, bf16, 2 micro-batches",
)


def train(job: Job) -> None:
    """Train as Megatron's own minimal example does, ``examples/run_simple_mcore_train_loop.py``."""
    torch.cuda.current_device = lambda: "cpu"  # type: ignore[assignment, return-value]
    from megatron.core import parallel_state
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.transformer.transformer_config import TransformerConfig

    parallel_state.initialize_model_parallel()
    is_bf16, is_cut, overlaps = ("bf16" in job.mode, "distributed" in job.mode, "overlapped" in job.mode)
    module = job.model().bfloat16() if is_bf16 else job.model()
    ddp_config = DistributedDataParallelConfig(
        grad_reduce_in_fp32=is_bf16, use_distributed_optimizer=is_cut, overlap_grad_reduce=overlaps, bucket_size=8000
    )
    config = TransformerConfig(num_layers=1, hidden_size=32, num_attention_heads=2, bf16=is_bf16)
    model = DistributedDataParallel(config, ddp_config, module)
    asked = OptimizerConfig(
        optimizer="adam", lr=job.lr, bf16=is_bf16, use_distributed_optimizer=is_cut, clip_grad=0.0, weight_decay=0.0
    )
    with OnCpu():
        optimizer = get_megatron_optimizer(asked, [model])
    for step, micro_batches in enumerate(job.batches()):
        job.keep(step, module.state_dict)
        model.zero_grad_buffer()
        optimizer.zero_grad()
        for batch in micro_batches[:-1]:
            with model.no_sync():
                (job.loss(model(batch["input_ids"]), batch) / len(micro_batches)).backward()
        (job.loss(model(micro_batches[-1]["input_ids"]), micro_batches[-1]) / len(micro_batches)).backward()
        finalize_model_grads([model])
        with OnCpu():
            optimizer.step()
    job.end(module.state_dict())


class OnCpu(TorchFunctionMode):
    """Makes on the CPU what asks for CUDA, and lets the types of tensors name CUDA, as Megatron knows them."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = "cpu"
        if func is Tensor.cuda:
            return args[0]
        result = func(*args, **kwargs)
        if func is Tensor.type and isinstance(result, str):
            return result.replace("torch.", "torch.cuda.")
        return result
