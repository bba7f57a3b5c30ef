"""The settings of torch's optimizers that laws predict exactly, and the small training in which each is looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trueline.capture.probes.around_update.update_slices import ParamSlice, UpdateSample
from trueline.judge.series.sampled_updates import slices_of
from trueline.laws.optimizer.judgement import JudgedUpdate, judge_updates

NUMEL, STEPS, SPIKE_AT, SPIKE, MAX_NORM = 4096, 120, 100, 100.0, 1.0

RULES: dict[str, tuple[str, dict[str, Any]]] = {
    "AdamW": ("AdamW", {"lr": 1e-3, "weight_decay": 0.1}),
    "Adam, L2": ("Adam", {"lr": 1e-3, "weight_decay": 0.1}),
    "AMSGrad": ("Adam", {"lr": 1e-3, "amsgrad": True, "maximize": True}),
    "SGD": ("SGD", {"lr": 0.1, "weight_decay": 1e-2}),
    "SGD, momentum": ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.1, "weight_decay": 1e-2}),
    "SGD, Nesterov": ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 1e-2}),
    "Adagrad": ("Adagrad", {"lr": 1e-2, "lr_decay": 1e-3, "weight_decay": 1e-2}),
    "RMSprop": ("RMSprop", {"lr": 1e-3, "weight_decay": 1e-2}),
    "RMSprop, centered, momentum": ("RMSprop", {"lr": 1e-3, "centered": True, "momentum": 0.9}),
    "Adamax": ("Adamax", {"lr": 1e-3, "weight_decay": 1e-2}),
    "NAdam": ("NAdam", {"lr": 1e-3, "weight_decay": 1e-2}),
    "NAdam, decoupled": ("NAdam", {"lr": 1e-3, "weight_decay": 0.1, "decoupled_weight_decay": True}),
}
"""By the name in the table: a class of ``torch.optim`` and its hyper-parameters."""

FORMS: dict[str, dict[str, bool]] = {
    "for-loop": {"foreach": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
    "differentiable": {"foreach": False, "differentiable": True},
}
FUSED = ("Adam", "AdamW", "SGD", "Adagrad")
DTYPES = (torch.float32, torch.bfloat16)
BROKEN = "pytorch#191763"
"""``SGD(fused=True)`` of bfloat16 on the CPU, torch 2.13.0."""


@dataclass(frozen=True)
class Setting:
    """One optimizer (a key of ``RULES``), one form of it, one dtype."""

    rule: str
    form: str
    dtype: torch.dtype

    @property
    def broken(self) -> bool:
        """Whether torch's own kernel is known to be wrong."""
        return self.rule.startswith("SGD") and self.form == "fused" and self.dtype is torch.bfloat16

    def make(self, params: list[Tensor]) -> torch.optim.Optimizer:
        """The optimizer over ``params``."""
        name, settings = RULES[self.rule]
        return getattr(torch.optim, name)(params, **settings, **FORMS[self.form])


def settings() -> Iterator[Setting]:
    """All of them."""
    for rule, (name, _) in RULES.items():
        for form in FORMS:
            if form != "fused" or name in FUSED:
                yield from (Setting(rule, form, dtype) for dtype in DTYPES)


def train(
    setting: Setting,
    *,
    steps: int = STEPS,
    numel: int = NUMEL,
    tamper: Callable[[int, torch.optim.Optimizer, dict[str, Any]], None] | None = None,
    shrinks: float = 1.0,
) -> Iterator[tuple[int, JudgedUpdate]]:
    """(step, its update, judged) of a tensor [numel] that is fitted to another in ``steps`` noisy steps, with clipping,
    and gradients that are ``SPIKE`` times as large at ``SPIKE_AT``. ``tamper`` is called between what is seen of an
    update before and after, with the step, the optimizer and copies of what was there before. A parameter of zeros has
    gradients that are as many times as small as ``shrinks`` says.
    """
    draw = torch.Generator().manual_seed(0)
    goal, start = (torch.randn(numel, generator=draw) * scale for scale in (0.1, 0.05))
    start = start if shrinks == 1.0 else torch.zeros_like(start)
    param = torch.nn.Parameter(start.to(setting.dtype), requires_grad=False)  # else not differentiable
    optimizer = setting.make([param])
    for step in range(steps):
        noise = torch.randn(numel, generator=draw) * 10.0 ** torch.randint(-6, 0, (numel,), generator=draw)
        grad = (param.detach().float() - goal) * 0.1 + noise
        grad = grad * (SPIKE if step == SPIKE_AT else 1.0)
        param.grad = (grad * min(1.0, MAX_NORM / float(grad.norm())) * shrinks).to(setting.dtype)
        sample = UpdateSample(optimizer, _NO_LAYOUT, [ParamSlice(param, "w", 0, 0, 0, numel, None, param.shape)])
        sample.before()
        held = {"param": param.detach().clone(), **{k: v.clone() for k, v in optimizer.state.get(param, {}).items()}}
        optimizer.step()
        if tamper is not None:
            with torch.no_grad():
                tamper(step, optimizer, held)
        sample.after()
        (one,) = slices_of((step, 0), sample.facts, sample.values(sample.hand_over()))
        (judged,) = judge_updates([one])
        assert judged is not None, setting
        yield step, judged


class _NoLayout:
    """What a sample asks of the model's Layout, where there is no model."""

    names: tuple[str, ...] = ()
    params: tuple[Tensor, ...] = ()
    frozen: tuple[tuple[str, Tensor], ...] = ()
    gone: Tensor | None = None


_NO_LAYOUT: Any = _NoLayout()
