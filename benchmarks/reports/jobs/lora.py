"""Low-rank adapters, written by hand: a frozen linear layer and two small matrices for each adapter's name."""

import torch
from torch import nn


class LoraLinear(nn.Module):
    """``base`` plus the sum of the active adapters."""

    def __init__(self, base, rank=4, scale=2.0, name="default"):
        super().__init__()
        self.base, self.rank, self.scale = base, rank, scale
        base.requires_grad_(False)
        self.lora_A, self.lora_B = nn.ParameterDict(), nn.ParameterDict()
        self.active = [name]
        self.add(name)

    def add(self, name):
        """A further adapter; which is active does not change."""
        self.lora_A[name] = nn.Parameter(torch.randn(self.rank, self.base.in_features) / self.base.in_features**0.5)
        self.lora_B[name] = nn.Parameter(torch.zeros(self.base.out_features, self.rank))

    def forward(self, x):
        y = self.base(x)
        for name in self.active:
            y = y + self.scale * (x @ self.lora_A[name].T) @ self.lora_B[name].T
        return y


def adapt(model, suffixes=("q_proj", "v_proj"), **settings):
    """The model, frozen, with an adapter around each linear layer whose name ends as ``suffixes`` say."""
    model.requires_grad_(False)
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Linear) and name.endswith(suffixes):
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, LoraLinear(module, **settings))
    return model


def adapters(model):
    """All adapted layers."""
    return [module for module in model.modules() if isinstance(module, LoraLinear)]
