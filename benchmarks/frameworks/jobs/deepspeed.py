"""DeepSpeed: ZeRO 0 to 3, as ``deepspeed.initialize`` sets it up from a configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from benchmarks.frameworks.job import Job
from torch import Tensor

PACKAGE = "deepspeed"

MODES = (
    *(f"ZeRO {stage}, {dtype}" for stage in range(4) for dtype in ("fp32", "bf16", "fp16")),
    *(f"ZeRO {stage}, bf16, 2 micro-batches" for stage in range(4)),
)


def train(job: Job) -> None:
    """Train as DeepSpeed's own examples do."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # else it compiles that on a CPU, for inference only
    if "fp16" in job.mode:  # which DeepSpeed refuses on most CPUs, as it is slow there
        deepspeed.get_accelerator().is_fp16_supported = lambda: True
    model = job.model()
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=torch.optim.AdamW(model.parameters(), lr=job.lr), config=config_of(job)
    )
    dtype = next(model.parameters()).dtype
    for step, micro_batches in enumerate(job.batches()):
        job.keep(step, lambda: whole(engine.module))
        for batch in micro_batches:
            logits = engine(batch["input_ids"])
            engine.backward(job.loss(logits, batch))
            engine.step()
    job.end(whole(engine.module), dtype=str(dtype), skipped=engine.skipped_steps)


def config_of(job: Job) -> dict[str, Any]:
    """A configuration of DeepSpeed."""
    dtypes = {"bf16": {"bf16": {"enabled": True}}, "fp16": {"fp16": {"enabled": True, "initial_scale_power": 12}}}
    return {
        "train_micro_batch_size_per_gpu": job.batch_size,
        "gradient_accumulation_steps": job.micros,
        "zero_optimization": {"stage": int(job.mode.split(",")[0][-1]), "stage3_param_persistence_threshold": 1000},
        "zero_allow_untested_optimizer": True,
        **next((settings for dtype, settings in dtypes.items() if dtype in job.mode), {}),
    }


def whole(model: torch.nn.Module) -> Mapping[str, Tensor]:
    """All weights, gathered where ZeRO 3 has cut them."""
    import deepspeed

    with deepspeed.zero.GatheredParameters(list(model.parameters())):
        return {name: param.detach().clone() for name, param in model.named_parameters()}
