"""Four ranks learn which of 8 classes a point belongs to. A communication hook of their own counts the bytes sent."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def counted(num_bytes: list[int], bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    gradients = bucket.buffer()
    num_bytes.append(gradients.nbytes)
    return dist.all_reduce(gradients, async_op=True).get_future().then(lambda done: done.value()[0])


dist.init_process_group("gloo")
torch.manual_seed(0)
points = torch.randn(8192, 32)
classes = (points @ torch.randn(32, 8)).argmax(dim=1)
dataset = TensorDataset(points, classes)
loader = DataLoader(dataset, batch_size=16, sampler=DistributedSampler(dataset))
model = DistributedDataParallel(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8)))
model.register_comm_hook([], counted)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for step, (inputs, targets) in enumerate(loader):
    loss = nn.functional.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 16 == 0 and dist.get_rank() == 0:
        print(f"step {step}: loss {loss.item():.2f}")
dist.destroy_process_group()
