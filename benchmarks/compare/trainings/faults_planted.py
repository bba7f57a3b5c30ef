"""How each tool records one training step of a small language model with RMSNorm, with or without a fault."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from benchmarks.compare.trainings.changes import WIDTH, Fault, language_model
from gallery.problems import CausalLM
from torch import nn

BATCH_SIZE = 8
KINDS = ("statistics", "tensors")
CONFIGS = {"statistics": "statistics", "tensors": "tensor"}
"""The name of the task in the settings of msProbe."""
DEPTHS = {"statistics": "stats", "tensors": "tensor"}


def record(fault: Fault, *, tool: str, kind: str, out: Path) -> None:
    """One step of a new model with ``fault``, recorded by ``tool`` (``trueline`` or ``msprobe``) into ``out``."""
    torch.set_num_threads(1)
    problem, model = CausalLM(width=WIDTH), language_model()
    model.norm = nn.RMSNorm(WIDTH, eps=1e-5)
    fault.begin(model)
    batch = next(iter(torch.utils.data.DataLoader(problem.dataset(BATCH_SIZE), batch_size=BATCH_SIZE)))
    begin = {"trueline": _by_trueline, "msprobe": _by_msprobe}[tool]
    step = begin(model, kind, out)
    with fault.inside(0):
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


CONTROL = Fault("none (control)", (), ())
