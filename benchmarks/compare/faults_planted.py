"""Eight faults in a small language model with RMSNorm, and how each tool records one training step of it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from benchmarks.compare.changes import UP, WIDTH, infinite, not_causal, scaled, tanh, wide_eps
from torch import nn

from trueline.testing.changed_kernel import ChangedKernel
from trueline.testing.problems import CausalLM

BATCH_SIZE = 8
KINDS = ("statistics", "tensors")
CONFIGS = {"statistics": "statistics", "tensors": "tensor"}
"""The name of the task in the settings of msProbe."""
DEPTHS = {"statistics": "stats", "tensors": "tensor"}


@dataclass(frozen=True)
class Planted:
    """A fault: how it changes the model, or a context for the step. ``calls`` are the names of the call that is wrong
    first, as either tool may give them: of the op, or of the module that is around it alone.
    """

    name: str
    calls: tuple[str, ...] = ()
    change: Callable[[nn.Module], object] = lambda model: None
    inside: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext


def build() -> nn.Module:
    """A causal decoder of two layers with RMSNorm in place of LayerNorm, the same at every call."""
    model = CausalLM(width=WIDTH).model()
    for block in model.blocks:
        block.norm_attn, block.norm_mlp = nn.RMSNorm(WIDTH, eps=1e-5), nn.RMSNorm(WIDTH, eps=1e-5)
    model.norm = nn.RMSNorm(WIDTH, eps=1e-5)
    return model


def record(fault: Planted, *, tool: str, kind: str, out: Path) -> None:
    """One step of a new model with ``fault``, recorded by ``tool`` (``trueline`` or ``msprobe``) into ``out``."""
    torch.set_num_threads(1)
    problem, model = CausalLM(width=WIDTH), build()
    fault.change(model)
    batch = next(iter(torch.utils.data.DataLoader(problem.dataset(BATCH_SIZE), batch_size=BATCH_SIZE)))
    begin = {"trueline": _by_trueline, "msprobe": _by_msprobe}[tool]
    step = begin(model, kind, out)
    with fault.inside():
        step(lambda: problem.loss(model, batch).backward(), batch)


def _by_trueline(model: nn.Module, kind: str, out: Path) -> Callable[[Callable[[], None], Any], None]:
    import trueline

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = trueline.watch(model, optimizer, out=out, plan={"preset": "mix", "depth": DEPTHS[kind], "stacks": True})

    def step(train: Callable[[], None], batch: Any) -> None:
        with watch.step(batch):
            train()
            optimizer.step()
        watch.close()

    return step


def _by_msprobe(model: nn.Module, kind: str, out: Path) -> Callable[[Callable[[], None], Any], None]:
    from msprobe.pytorch import PrecisionDebugger

    out.mkdir()
    task = CONFIGS[kind]
    settings = {"task": task, "dump_path": str(out), "rank": [], "step": [], "level": "mix"}
    config = out.parent / f"{out.name}.json"
    config.write_text(json.dumps({**settings, task: {"scope": [], "list": [], "data_mode": ["all"]}}))
    debugger = PrecisionDebugger(config_path=str(config))
    debugger.start(model=model)

    def step(train: Callable[[], None], batch: Any) -> None:
        del batch
        train()
        debugger.stop()
        debugger.step()

    return step


_GELU = (
    "fwd/blocks.1.mlp.1.gelu#0",
    "fwd/blocks.1.mlp.1#0",
    "Functional.gelu.1.forward",
    "Module.blocks.1.mlp.1.GELU.forward.0",
)
_ATTENTION = ("fwd/blocks.1.scaled_dot_product_attention#0", "Functional.scaled_dot_product_attention.1.forward")
_LINEAR = (f"fwd/{UP}.linear#0", f"fwd/{UP}#0", "Functional.linear.6.forward", f"Module.{UP}.Linear.forward.0")
_NORM = (
    "fwd/blocks.1.norm_attn.rms_norm#0",
    "fwd/blocks.1.norm_attn#0",
    "Functional.rms_norm.2.forward",
    "Torch.rms_norm.2.forward",
    "Module.blocks.1.norm_attn.RMSNorm.forward.0",
)

CONTROL = Planted("none (control)")
FAULTS = (
    Planted("tanh GELU by argument", _GELU, change=tanh),
    Planted("tanh GELU hidden in the kernel", _GELU, inside=lambda: ChangedKernel("aten.gelu", approximate="tanh")),
    Planted(
        "attention scale x 1.25 hidden",
        _ATTENTION,
        inside=lambda: ChangedKernel("flash_attention", scale=1.25 / (WIDTH / 2) ** 0.5),
    ),
    Planted("one weight x 1.001", _LINEAR, change=scaled(1.001)),
    Planted("one weight x 1.00001", _LINEAR, change=scaled(1.00001)),
    Planted("attention not causal", _ATTENTION, change=not_causal),
    Planted("eps of an RMSNorm 1e-2", _NORM, change=wide_eps),
    Planted("+inf in a weight", _LINEAR, change=infinite),
)
