"""What the samples cost, over the optimizer step beside which they are taken."""

from __future__ import annotations

import json
import random
import statistics
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from benchmarks.page import table

from trueline.capture.probes.around_update.sampling import LEAST_GAP
from trueline.capture.probes.around_update.update_slices import UpdateSample, sample_slices

SIZES = {"150 tensors, 9.8M parameters": (150, 65_536), "600 tensors, 39M parameters": (600, 65_536)}
TURNS = 40


def measure() -> str:
    """A table of CPU times of one optimizer step (AdamW, foreach, float32, one thread) and of one sample, by turns."""
    torch.set_num_threads(1)
    rows = [[name, *_row(*size)] for name, size in SIZES.items()]
    heads = ["model", "optimizer step, ms", "one sample, ms", f"share at every {LEAST_GAP}th step", "at every step"]
    return table(heads, rows, right=range(1, 5))


def _row(tensors: int, numel: int) -> list[str]:
    params = [torch.nn.Parameter(torch.randn(numel // 256, 256)) for _ in range(tensors)]
    for param in params:
        param.grad = torch.randn_like(param)
    optimizer = torch.optim.AdamW(params, foreach=True)
    layout: Any = SimpleNamespace(
        frozen=(), params=params, names=[f"layers.{i}.weight" for i in range(tensors)], index_of={}
    )
    layout.index_of = {id(param): place for place, param in enumerate(params)}
    optimizer.step()
    first, steps, samples = 0, [], []
    for turn in range(TURNS):
        steps.append(_cpu(optimizer.step))
        begin = time.process_time()
        places, first = sample_slices(optimizer, layout, first=first, random=random.Random(turn))
        sample = UpdateSample(optimizer, layout, places)
        sample.before()
        between = time.process_time()
        optimizer.step()
        after = time.process_time()
        sample.after()
        sample.values(sample.hand_over())
        json.dumps(sample.facts)
        samples.append(between - begin + time.process_time() - after)
    step, one = statistics.median(steps), statistics.median(samples)
    return [f"{step * 1e3:.1f}", f"{one * 1e3:.2f}", f"{one / step / LEAST_GAP:.2%}", f"{one / step:.1%}"]


def _cpu(call: Callable[[], object]) -> float:
    begin = time.process_time()
    call()
    return time.process_time() - begin
