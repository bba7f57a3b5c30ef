"""A training job that knows nothing of a drill: by itself, or on ranks that meet at the file STORE or by torchrun."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

world, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
if world > 1:
    method = f"file://{os.environ['STORE']}" if "STORE" in os.environ else "env://"
    dist.init_process_group("gloo", init_method=method, rank=rank, world_size=world)
torch.manual_seed(3)
inputs = torch.randn(2048, 16)
classes = (inputs @ torch.randn(16, 8)).argmax(1)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 8))
net = nn.parallel.DistributedDataParallel(model) if world > 1 else model
updates = torch.optim.AdamW(net.parameters(), lr=3e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(updates, T_max=1000)
data = TensorDataset(inputs, classes)
sampler = DistributedSampler(data, num_replicas=world, rank=rank, seed=1)
loader = DataLoader(data, batch_size=16, sampler=sampler)
for epoch in range(100):
    sampler.set_epoch(epoch)
    for x, y in loader:
        loss = functional.cross_entropy(net(x), y)
        loss.backward()
        updates.step()
        updates.zero_grad()
        schedule.step()
