"""Two ranks learn to count on: each number of a sequence is the one before it plus the step of the sequence."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(64, 32), nn.Embedding(15, 32)
        self.mix, self.head = nn.Linear(32, 96), nn.Linear(32, 64)

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        x = self.embed(numbers) + self.place.weight
        query, key, value = self.mix(x).chunk(3, dim=-1)
        return self.head(x + nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True))


dist.init_process_group("gloo")
torch.manual_seed(0)
first, step_size = torch.randint(64, (4096, 1)), torch.randint(1, 64, (4096, 1))
dataset = TensorDataset((first + step_size * torch.arange(16)) % 64)
loader = DataLoader(dataset, batch_size=16, sampler=DistributedSampler(dataset))
model = DistributedDataParallel(Counter())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step, (numbers,) in enumerate(loader):
    scores = model(numbers[:, :-1])
    loss = nn.functional.cross_entropy(scores.flatten(0, 1), numbers[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 16 == 0 and dist.get_rank() == 0:
        print(f"step {step}: loss {loss.item():.2f}")
dist.destroy_process_group()
