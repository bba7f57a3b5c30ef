"""What it costs to compute the losses of single samples again, against the forward and backward pass they come from."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

import torch
from benchmarks import page
from torch import Tensor, nn

from trueline.capture.model.layout import make_layout
from trueline.capture.probes.base import Step
from trueline.capture.probes.losses.sample_losses import CHUNK, SampleLossProbe
from trueline.capture.step.passes import CountedPasses
from trueline.schema.plan import Plan

BATCH, LENGTH, WIDTH = 4, 128, 512
VOCABULARIES = (4_096, 32_000)

INTRODUCTION = (
    f"One process, {BATCH} x {LENGTH} tokens, four linear layers {WIDTH} wide and a head over the vocabulary; "
    "medians over rounds that take the unmonitored step and the losses in turn. This is paid at the first four steps "
    f"and at those whose sketches are kept, for models that return their logits; in addition to what training holds it "
    f"takes at most {CHUNK * 8 // 2**20} MiB. A deeper body makes the share smaller."
)


def measure(*, ranks: int, rounds: int, folder: Path) -> str:
    """The table, as Markdown."""
    rows = []
    for words in VOCABULARIES:
        bare_s, again_s = both(words, rounds=max(rounds // 4, 3))
        rows.append([f"{words:,}", f"{1000 * bare_s:.0f} ms", f"{1000 * again_s:.0f} ms", f"{again_s / bare_s:.2f}"])
    found = page.table(["vocabulary", "forward and backward", "losses of samples", "share"], rows)
    return f"## Losses of samples\n\n{INTRODUCTION}\n\n{found}"


def both(words: int, *, rounds: int) -> tuple[float, float]:
    """Median seconds of a forward and backward pass, and of the losses of its samples."""
    torch.manual_seed(0)
    body = nn.Sequential(nn.Embedding(words, WIDTH), *(nn.Linear(WIDTH, WIDTH) for _ in range(4)))
    head = nn.Linear(WIDTH, words, bias=False)
    probe = SampleLossProbe([])
    step = Step(0, layout=make_layout(body, patterns=("*",), max_groups=1), plan=Plan(), facts={})
    bare_s, again_s = [], []
    for _ in range(rounds + 1):
        ids = torch.randint(0, words, (BATCH, LENGTH))
        begin = time.perf_counter()
        output = forward(body, head, ids)
        middle = time.perf_counter()
        probe.begin(step)
        probe.see(output, (), {"labels": ids})
        assert "part_losses" in probe.columns(probe.result(CountedPasses()), step, {}), "the losses did not agree"
        after = time.perf_counter()
        output["loss"].backward()
        end = time.perf_counter()
        bare_s.append(end - after + middle - begin)
        again_s.append(after - middle)
    return statistics.median(bare_s[1:]), statistics.median(again_s[1:])


def forward(body: nn.Module, head: nn.Module, ids: Tensor) -> dict[str, Any]:
    """What a causal language model of Hugging Face returns."""
    logits = head(body(ids))
    following = nn.functional.pad(ids[:, 1:], (0, 1), value=-100)
    return {"logits": logits, "loss": nn.functional.cross_entropy(logits.flatten(0, 1), following.flatten())}
