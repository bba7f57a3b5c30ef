"""Trains GPT-2 with 124 million parameters from random weights on bytes of text.

    python examples/train_gpt2.py [--steps 5] [--tokens 256] [--activation gelu_new] [--attention sdpa]

Prints loss, seconds and CPU seconds of every step. Needs transformers.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel

import trueline

TEXT = Path(__file__).read_bytes() * 8


def main() -> None:
    """Train a few steps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=256, help="in each of two sequences")
    parser.add_argument("--activation", default="gelu_new", help="gelu_new is GPT-2's own")
    parser.add_argument("--attention", default="sdpa", help="or eager")
    chosen = parser.parse_args()

    trueline.seed_all(1234, deterministic=True, dropout=False)
    config = GPT2Config(activation_function=chosen.activation, attn_implementation=chosen.attention)
    model = GPT2LMHeadModel(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    text = torch.tensor(list(TEXT))
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters")
    for step in range(chosen.steps):
        began, began_cpu = time.perf_counter(), time.process_time()
        starts = torch.randint(len(text) - chosen.tokens, (2,)).tolist()
        tokens = torch.stack([text[start : start + chosen.tokens] for start in starts])
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        took_s, took_cpu_s = time.perf_counter() - began, time.process_time() - began_cpu
        print(f"step {step} loss {loss.item():.4f} {took_s:.3f} s {took_cpu_s:.3f} CPU s", flush=True)


if __name__ == "__main__":
    main()
