"""Case 3.2.1.3: from step 60 on the gradient of the embedding jumps, and the loss with it: `embedding.py good|bad`."""

import sys

import torch
from torch import nn

BAD = sys.argv[1] == "bad"
torch.manual_seed(0)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.middle, self.head = nn.Embedding(20, 16), nn.Linear(16, 16), nn.Linear(16, 20)

    def forward(self, ids):
        x = self.embed(ids).mean(1)
        return self.head(x + torch.tanh(self.middle(x)))


model = Model()
step = 0
if BAD:
    model.embed.weight.register_hook(
        lambda grad: grad + 20 * torch.randn_like(grad) if step > 60 and step % 10 == 0 else grad
    )
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
for step in range(120):  # noqa: B007  # the hook reads it
    ids = torch.randint(20, (32, 3))
    loss = nn.functional.cross_entropy(model(ids), ids[:, 0])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
