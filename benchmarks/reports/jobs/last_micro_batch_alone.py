"""Trains with Accelerate, four micro-batches an update; zero_grad is called first thing in accumulate.

Accelerate lets it do something only where it synchronises, which is at the fourth micro-batch: what the three before
added is cleared just then. Repaired: zero_grad comes after the optimizer's step.
"""

import argparse

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def actions(size=1280):
    draw = torch.Generator().manual_seed(28)
    seen = torch.randn(size, 10, generator=draw)
    action = torch.tanh(seen[:, :3] * seen[:, 3:6]) + 0.5 * seen[:, 6:9]
    return TensorDataset(seen, action + 0.05 * torch.randn(size, 3, generator=draw))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fix", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(22)
    accelerator = Accelerator(gradient_accumulation_steps=4, cpu=True)
    model = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loader = DataLoader(actions(), batch_size=16, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for epoch in range(5):
        for seen, action in loader:
            with accelerator.accumulate(model):
                if not args.fix:
                    optimizer.zero_grad()
                if accelerator.sync_gradients:
                    earlier = any(p.grad is not None for p in model.parameters())
                loss = nn.functional.mse_loss(model(seen), action)
                accelerator.backward(loss)
                optimizer.step()
                if args.fix:
                    optimizer.zero_grad()
        print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)
    print(f"end: the gradients of earlier micro-batches {'are there' if earlier else 'are gone'}", flush=True)


main()
