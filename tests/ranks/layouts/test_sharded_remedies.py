"""Remedies of a trial on modules that FSDP2 shards, and on compiled ones."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn


class Block(nn.Module):
    """Its ``up`` overflows in float16 where it is ``large``."""

    def __init__(self, *, large):
        super().__init__()
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)
        if large:
            with torch.no_grad():
                self.up.weight.mul_(1e5)
                self.down.weight.div_(1e5)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


def losses(rank, world, kind, module, sham=False, compiled=False):
    """Of two steps in float16 of blocks that are units of FSDP2, with a remedy; the norms that gradients of block 1 had
    at the update; and what was told.
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.distributed.tensor import DTensor

    from trueline.capture.model import patches
    from trueline.capture.trial.remedies import Remedy

    torch.manual_seed(0)
    model = nn.Sequential(*(Block(large=place == 1 and kind != "clip") for place in range(3)))
    if compiled:
        for block in model:
            block.compile(backend="aot_eager")
    policy = MixedPrecisionPolicy(param_dtype=torch.float16, reduce_dtype=torch.float32)
    for block in model:
        fully_shard(block, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    told = []
    remedy = Remedy(kind, module, sham=sham, norm=1e-3, tell=told.append) if kind else None
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-8)
    if remedy is not None:
        patches.module_call.add(remedy._at_call)
    found, norms = [], []
    try:
        for step in range(2):
            generator = torch.Generator().manual_seed(10 * step + rank)
            loss = model(torch.randn(8, 16, generator=generator)).float().square().mean()
            optimizer.zero_grad()
            loss.backward()
            if kind == "clip":
                remedy._clip(optimizer, (), {})
            grads = [param.grad.full_tensor() for param in model[1].parameters() if isinstance(param.grad, DTensor)]
            norms.append(float(torch.linalg.vector_norm(torch.cat([grad.flatten() for grad in grads]))))
            optimizer.step()
            found.append(loss.item())
    finally:
        if remedy is not None:
            patches.module_call.remove(remedy._at_call)
    return found, norms, told


@pytest.mark.in_turn
@pytest.mark.parametrize("compiled", [False, True])
def test_float32_in_a_sharded_module_takes_the_overflow_away_and_the_sham_does_not(two, compiled):
    """A unit, and a module within one, whose output is too large for float16 outside."""
    for kind, module, sham, is_well in (
        *(("", "", False, False), ("fp32", "1", True, False)),
        *(("fp32", "1", False, True), ("fp32", "1.up", False, False)),
    ):
        found, _, told = two.run(losses, kind, module, sham, compiled)[0]
        assert [math.isfinite(loss) for loss in found] == [is_well] * 2, (kind, module, sham, found)
        assert not kind or f"remedy:fp32 {'0' if sham else module}" in told


def test_the_gradient_of_a_sharded_module_is_clipped_by_its_whole_norm(two):
    _, norms, _ = two.run(losses, "clip", "1")[0]
    assert norms == pytest.approx([1e-3, 1e-3], rel=1e-2)
