"""Pairs of runs that differ by rounding alone, and the same with a fault planted: what `compare` says of each.

    python -m benchmarks.compare.contrasts [--seeds 20] [--steps 3] [--depth fingerprint]

One process; every pair is of one small causal LM, from one seed, on one stream of batches.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from benchmarks.compare.trainings.changes import WIDTH, hidden_scale, not_causal, two_threads
from benchmarks.compare.verdict import largest
from benchmarks.page import arguments, line, table
from gallery.problems import CausalLM
from gallery.reference_training import in_halves
from torch import nn

import trueline
from trueline.comparison.compare import compare

BATCH_SIZE = 8
FAULT = "0.0/r0/fwd/blocks.1.scaled_dot_product_attention#0:out0"
SEAM = "0.0/r0/fwd/"
"""All that can be named in a compiled model: what it returns."""


@dataclass(frozen=True)
class Contrast:
    """How the other run differs. ``inside`` is a context for the whole run; ``coarse`` says that a fault must be larger
    than a hidden scale to stand out.
    """

    name: str
    dtype: torch.dtype = torch.float32
    change: Callable[[nn.Module], nn.Module] = lambda model: model
    inside: Callable[[], Any] = contextlib.nullcontext
    coarse: bool = False


def main() -> None:
    options = arguments(__doc__, seeds=20, steps=3, depth="fingerprint", only="").parse_args()
    torch.set_num_threads(1)
    head = ["contrast", "pairs", "silent", "largest times, first step", "later", "fault found first"]
    print(table(head, []))
    for contrast in CONTRASTS:
        if options.only in contrast.name:
            print(row(contrast, options), flush=True)


def row(contrast: Contrast, options: argparse.Namespace) -> str:
    silent = found = 0
    first, later = 0.0, 0.0
    for seed in range(options.seeds):
        with tempfile.TemporaryDirectory() as folder:
            runs = Path(folder)
            record(runs / "ref", CONTRASTS[0], seed, options)
            record(runs / "run", contrast, seed, options)
            healthy = compare(runs / "run", runs / "ref")
            silent += healthy.exit_code == 0
            if healthy.exit_code:
                print("  alarm", seed, [finding.claim for finding in healthy.findings][:1])
            first = max(first, largest(healthy, 0, 1))
            later = max(later, largest(healthy, 1))
            record(runs / "bad", contrast, seed, options, faulty=True)
            bad = compare(runs / "bad", runs / "ref")
            place = SEAM if contrast.change is compiled else FAULT
            named = bad.first is not None and str(bad.first.site).startswith(place)
            found += named
            if not named:
                print("  missed", seed, bad.first and bad.first.site, [finding.claim for finding in bad.findings][:1])
    return line([contrast.name, options.seeds, silent, f"{first:.2f}", f"{later:.2f}", found])


def record(out: Path, contrast: Contrast, seed: int, options: argparse.Namespace, *, faulty: bool = False) -> None:
    problem = CausalLM(width=WIDTH)
    model = problem.model(seed=seed).to(contrast.dtype)
    hidden = contextlib.nullcontext()
    if faulty and contrast.coarse:
        not_causal(model)
    elif faulty:
        hidden = hidden_scale(0)
    model = contrast.change(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    batches = torch.utils.data.DataLoader(problem.dataset(256, seed=seed), batch_size=BATCH_SIZE)
    watch = trueline.watch(model, optimizer, out=out, plan={"preset": "mix", "depth": options.depth})
    with contrast.inside(), hidden:
        for _, batch in zip(range(options.steps), batches, strict=False):
            with watch.step(batch):
                problem.loss(model, batch).backward()
                optimizer.step()
                optimizer.zero_grad()
    watch.close()


def halved(model: nn.Module) -> nn.Module:
    """Each linear adds its products in two halves."""
    in_halves(model)
    return model


def compiled(model: nn.Module) -> nn.Module:
    """Inductor's kernels."""
    torch._dynamo.reset()
    return torch.compile(model)


CONTRASTS = (
    Contrast("none"),
    Contrast("bfloat16 against float32", dtype=torch.bfloat16, coarse=True),
    Contrast("bfloat16 autocast", inside=lambda: torch.autocast("cpu", torch.bfloat16), coarse=True),
    Contrast("float64 against float32", dtype=torch.float64),
    Contrast("two threads", inside=two_threads),
    Contrast("no oneDNN", inside=lambda: torch.backends.mkldnn.flags(enabled=False)),
    Contrast("linears in halves", change=halved),
    Contrast("torch.compile", change=compiled, coarse=True),
)

if __name__ == "__main__":
    main()
