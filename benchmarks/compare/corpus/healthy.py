"""Healthy ways: every family computed once more, and in other ways that only change how sums round."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch
from benchmarks.compare.corpus.kit import FAMILIES, Training, healthy
from benchmarks.compare.threads import two_threads
from torch import Tensor, nn
from torch.nn import functional

from trueline.testing.reference_training import in_halves


def _inside(t: Training, context: Callable[[], contextlib.AbstractContextManager[object]]) -> None:
    around = t.around

    @contextlib.contextmanager
    def both() -> Iterator[None]:
        with around(), context():
            yield

    t.around = both


def _kernels(t: Training, **ways: bool) -> None:
    t.settings = {name: value for name, value in t.settings.items() if name not in ("foreach", "fused")} | ways


def _in_double(t: Training) -> None:
    t.dtype = torch.float64


def _as(**fields: object) -> Callable[[Training], None]:
    def change(t: Training) -> None:
        for name, value in fields.items():
            setattr(t, name, value)

    return change


def _rows_apart(t: Training) -> None:
    """Each linear computes the halves of its batch apart."""
    for module in t.model.modules():
        if type(module) is nn.Linear:
            _halved(module)


def _halved(module: nn.Linear) -> None:
    def forward(x: Tensor) -> Tensor:
        if len(x) < 2:
            return functional.linear(x, module.weight, module.bias)
        parts = x.split([len(x) // 2, len(x) - len(x) // 2])
        return torch.cat([functional.linear(part, module.weight, module.bias) for part in parts])

    module.forward = forward


def register() -> None:
    """Add the ways that every family has."""
    for name, family in FAMILIES.items():
        healthy(name, "again")(lambda t: None)
        healthy(name, "two threads")(lambda t: _inside(t, two_threads))
        healthy(name, "no oneDNN")(lambda t: _inside(t, lambda: torch.backends.mkldnn.flags(enabled=False)))
        healthy(name, "linears in halves")(lambda t: in_halves(t.model))
        healthy(name, "rows apart")(_rows_apart)
        healthy(name, "foreach")(lambda t: _kernels(t, foreach=True))
        if name != "dlrm":
            healthy(name, "fused")(lambda t: _kernels(t, fused=True))
        healthy(name, "scaled loss")(_as(loss_scale=1024.0))
        healthy(name, "float64", needs="fp32")(_in_double)
        healthy(name, "bfloat16", needs="fp32")(_as(dtype=torch.bfloat16))
        healthy(name, "autocast", needs="fp32")(_as(autocast=True))
        healthy(name, "eager for compiled", needs="compiled")(_as(compiled=False))
        if family.micro:
            healthy(name, "two micro-batches")(_as(num_micro=2))
