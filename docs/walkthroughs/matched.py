"""Two ranks train a small residual network; what a machine sets for itself comes from the command line."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

APPROXIMATIONS = {"gelu": "none", "gelu_new": "tanh"}


class Block(nn.Module):
    def __init__(self, activation: str) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(32), nn.Linear(32, 128), nn.Linear(128, 32)
        self.activation = nn.GELU(approximate=APPROXIMATIONS[activation])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.activation(self.up(self.norm(x))))


parser = argparse.ArgumentParser()
parser.add_argument("--activation", default="gelu", choices=APPROXIMATIONS)
args = parser.parse_args()
dist.init_process_group("gloo")
torch.manual_seed(0)
points = torch.randn(1024, 32)
dataset = TensorDataset(points, points.square().mean(dim=1, keepdim=True))
loader = DataLoader(dataset, batch_size=16, sampler=DistributedSampler(dataset))
blocks = [Block(args.activation) for _ in range(3)]
model = DistributedDataParallel(nn.Sequential(*blocks, nn.Linear(32, 1)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step, (inputs, targets) in enumerate(loader):
    loss = nn.functional.mse_loss(model(inputs), targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 8 == 0 and dist.get_rank() == 0:
        print(f"step {step}: loss {loss.item():.5f}")
dist.destroy_process_group()
