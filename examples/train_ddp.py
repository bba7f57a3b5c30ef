"""A data-parallel training script that knows nothing of Trueline, to try `trueline run` on:

trueline run --out runs/sound -- torchrun --nproc-per-node 2 examples/train_ddp.py
trueline run --out runs/same-data -- torchrun --nproc-per-node 2 examples/train_ddp.py --no-sampler
trueline check runs/sound; trueline check runs/same-data
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--no-sampler", action="store_true", help="the classic mistake: every rank reads the same data")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    x = torch.randn(256, 16)
    dataset = TensorDataset(x, x.square().sum(dim=1, keepdim=True))
    sampler = None if args.no_sampler else DistributedSampler(dataset, seed=0)
    loader = DataLoader(dataset, batch_size=16, sampler=sampler)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for epoch in range(args.epochs):
        if sampler is not None:
            sampler.set_epoch(epoch)
        for inputs, targets in loader:
            loss = nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {loss.item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
