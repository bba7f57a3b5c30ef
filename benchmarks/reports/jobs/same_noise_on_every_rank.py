"""Learns to take noise away from curves on two ranks; all ranks seed with the same number and draw the same noise.

Each rank reads its own curves, and adds the same noise at the same times to them. Repaired: the rank is added to the
seed once the model is made.
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def curves(size=512):
    draw = torch.Generator().manual_seed(7)
    speed, phase = 1 + 2 * torch.rand(size, 1, generator=draw), 6.28 * torch.rand(size, 1, generator=draw)
    return TensorDataset((speed * torch.linspace(0, 6.28, 32) + phase).sin())


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.time = nn.Linear(1, 64)
        self.first, self.middle, self.last = nn.Linear(32, 64), nn.Linear(64, 64), nn.Linear(64, 32)

    def forward(self, x, time):
        hidden = nn.functional.silu(self.first(x) + self.time(time))
        return self.last(nn.functional.silu(self.middle(hidden)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fix", action="store_true")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(42)
    model = DistributedDataParallel(Denoiser())
    if args.fix:
        torch.manual_seed(43 + rank)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    dataset = curves()
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=32, sampler=sampler)
    for epoch in range(10):
        sampler.set_epoch(epoch)
        for (clean,) in loader:
            noise = torch.randn_like(clean)
            time = torch.rand(len(clean), 1)
            noisy = time.mul(1.57).cos() * clean + time.mul(1.57).sin() * noise
            loss = nn.functional.mse_loss(model(noisy, time), noise)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)
    both = [torch.empty_like(noise) for _ in range(2)]
    dist.all_gather(both, noise)
    if rank == 0:
        print(f"end: the ranks drew {'the same' if torch.equal(*both) else 'different'} noise", flush=True)
    dist.destroy_process_group()


main()
