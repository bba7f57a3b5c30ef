"""Two ranks learn to classify short texts, which are padded with token 0 to one length."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.score, self.head = nn.Embedding(100, 32), nn.Linear(32, 1), nn.Linear(32, 2)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        values = self.embed(tokens)
        scores = self.score(values).squeeze(-1).masked_fill(tokens == 0, -torch.inf)
        attention = scores.softmax(dim=-1)
        return self.head((attention.unsqueeze(-1) * values).sum(dim=1))


dist.init_process_group("gloo")
torch.manual_seed(0)
tokens = torch.randint(1, 100, (1024, 12))
labels = (tokens.float().mean(dim=1) > 50).long()
for row, length in enumerate(torch.randint(1, 13, (1024,)).tolist()):
    tokens[row, length:] = 0
tokens[202] = 0  # one text is empty
dataset = TensorDataset(tokens, labels)
loader = DataLoader(dataset, batch_size=16, sampler=DistributedSampler(dataset))
model = DistributedDataParallel(Classifier())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step, (inputs, targets) in enumerate(loader):
    loss = nn.functional.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 4 == 0 and dist.get_rank() == 0:
        print(f"step {step}: loss {loss.item():.2f}")
dist.destroy_process_group()
