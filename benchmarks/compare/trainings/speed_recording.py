"""One training step of a Llama with random weights, recorded by either tool, with one weight matrix changed or not."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from benchmarks.recording.tools import MsProbe, Tool, Trueline
from torch import nn

HEADS, VOCAB = 4, 1000
CHANGED = "model.layers.1.mlp.up_proj.weight"
FACTOR = 1.001


@dataclass(frozen=True)
class Size:
    """How large the model and its batch are; ``settings`` of the two tools."""

    name: str
    layers: int
    width: int
    inner: int
    batch: int
    length: int
    msprobe: dict[str, Any]
    trueline: dict[str, Any]


SIZES = {
    "statistics": Size(
        "statistics of 16,000 values",
        layers=53,
        width=32,
        inner=88,
        batch=1,
        length=16,
        msprobe={"task": "statistics", "level": "mix"},
        trueline={"preset": "mix", "depth": "stats"},
    ),
    "tensors": Size(
        "0.8 GB of tensors",
        layers=4,
        width=256,
        inner=688,
        batch=6,
        length=128,
        msprobe={"task": "tensor", "level": "mix"},
        trueline={"preset": "mix", "depth": "tensor", "max_bytes": 2**60},
    ),
}


def record(tool_name: str, size: Size, out: Path, changed: bool) -> None:
    """One step into ``out``: ``msprobe`` in it is the dump, ``run`` the Run."""
    torch.set_num_threads(1)
    out.mkdir()
    tool: Tool = MsProbe(out, **size.msprobe) if tool_name == "msprobe" else Trueline(out, **size.trueline)
    tool.prepare()
    model = _build(size)
    if changed:
        model.get_parameter(CHANGED).data.mul_(FACTOR)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    batch = torch.randint(0, VOCAB, (size.batch, size.length), generator=torch.Generator().manual_seed(0))
    tool.attach(model, optimizer)
    tool.begin()
    model(input_ids=batch, labels=batch).loss.backward()
    optimizer.step()
    tool.end()
    tool.close()


def _build(size: Size) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=size.width,
        intermediate_size=size.inner,
        num_hidden_layers=size.layers,
        num_attention_heads=HEADS,
        max_position_embeddings=size.length,
        use_cache=False,
    )
    return LlamaForCausalLM(config).train()
