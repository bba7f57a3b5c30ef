"""Four ranks learn which of 8 classes a point belongs to; each reads the copy of the data that it keeps on its node."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset


def local_copy(rank: int) -> Dataset[tuple[torch.Tensor, ...]]:
    points = torch.randn(8192, 32)
    classes = (points @ torch.randn(32, 8)).argmax(dim=1)
    if rank == 2:
        classes = classes.roll(1)  # this copy is of last week, and its labels are one row off
    return TensorDataset(points, classes)


dist.init_process_group("gloo")
torch.manual_seed(0)
dataset = local_copy(dist.get_rank())
loader = DataLoader(dataset, batch_size=16, sampler=DistributedSampler(dataset))
model = DistributedDataParallel(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8)))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for step, (inputs, targets) in enumerate(loader):
    loss = nn.functional.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 16 == 0 and dist.get_rank() == 0:
        print(f"step {step}: loss {loss.item():.2f}")
dist.destroy_process_group()
