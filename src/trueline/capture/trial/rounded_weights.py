"""Weights moved by about one rounding of what a model computes in: what rounding by itself makes of a job."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from trueline.capture.model import patches
from trueline.capture.model.layout import local
from trueline.capture.model.untraced import Hook
from trueline.capture.trial.moved_weights import signs_of

_TF32 = 2.0**-11
"""Unit roundoff of TF32, to which CUDA may round the inputs of float32 products."""


class RoundedWeights:
    """Multiplies each weight by 1 + or - a rounding, once, before the first pass that trains. Signs are drawn from
    ``seed`` and the name of the parameter, so that replicas stay replicas.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._modules: set[int] = set()
        self._params: set[int] = set()

    def install(self) -> None:
        """Wait for the first calls of modules, up to the first update."""
        patches.module_call.add(self._at_call, keep=True)
        register_optimizer_step_pre_hook(Hook(self._at_update))

    def _at_call(self, module: nn.Module, *args: Any, **kwargs: Any) -> None:
        if id(module) in self._modules or not torch.is_grad_enabled():
            return
        self._modules |= {id(inner) for inner in module.modules()}
        for number, (_, param) in enumerate(module.named_parameters()):
            if id(param) not in self._params and param.requires_grad and param.is_floating_point():
                self._params.add(id(param))
                shard = local(param.detach())
                with torch.no_grad():
                    shard.mul_(signs_of(shard, seed=1000 * self._seed + number).to(shard.dtype) * _rounding(param) + 1)

    def _at_update(self, *args: Any) -> None:
        patches.module_call.remove(self._at_call)


def _rounding(param: Tensor) -> float:
    """The largest unit roundoff of what is computed with ``param``, at least one that moves it."""
    kind = param.device.type
    units = [torch.finfo(param.dtype).eps]
    if torch.is_autocast_enabled(kind):
        units.append(torch.finfo(torch.get_autocast_dtype(kind)).eps / 2)
    if kind == "cuda" and param.dtype == torch.float32 and torch.backends.cuda.matmul.allow_tf32:
        units.append(_TF32)
    return max(units)
