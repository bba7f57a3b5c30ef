"""A graph network keeps its graph layers in a Python list: only the two linear layers at its end are trained.

Repaired: nn.ModuleList.
"""

import torch
from common import begin, options, say
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


def graphs(size=768, nodes=12, seed=0):
    """Features [N, 12, 6] and links [N, 12, 12] of graphs of three kinds: by how alike linked nodes are."""
    draw = torch.Generator().manual_seed(seed)
    kind = torch.randint(0, 3, (size,), generator=draw)
    side = torch.randint(0, 2, (size, nodes), generator=draw)
    alike = side[:, :, None] == side[:, None, :]
    chance = torch.tensor([0.1, 0.3, 0.5])[kind][:, None, None]
    chance = torch.where(alike, chance, 0.6 - chance)
    links = (torch.rand(size, nodes, nodes, generator=draw) < chance).float().triu(1)
    links = links + links.transpose(1, 2)
    way = torch.randn(6, generator=torch.Generator().manual_seed(4))
    x = (2.0 * side[..., None] - 1) * way + 0.7 * torch.randn(size, nodes, 6, generator=draw)
    return TensorDataset(x, links, kind)


class GraphConvolution(nn.Module):
    def __init__(self, inside, outside):
        super().__init__()
        self.own, self.neighbours = nn.Linear(inside, outside), nn.Linear(inside, outside)

    def forward(self, x, links):
        share = links / links.sum(-1, keepdim=True).clamp(min=1)
        return self.own(x) + self.neighbours(share @ x)


class GCN(nn.Module):
    def __init__(self, fix, layers=2, hidden=24):
        super().__init__()
        made = [GraphConvolution(6 if k == 0 else hidden, hidden) for k in range(layers)]
        self.layers = nn.ModuleList(made) if fix else made
        self.fc1, self.fc2 = nn.Linear(hidden, 24), nn.Linear(24, 3)

    def forward(self, x, links):
        for layer in self.layers:
            x = F.relu(layer(x, links))
        return self.fc2(F.relu(self.fc1(x.mean(1))))


def main():
    args = options()
    begin()
    model = GCN(args.fix)
    first = [layer.own.weight.detach().clone() for layer in model.layers]
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    loader = DataLoader(graphs(), batch_size=32, shuffle=True)
    for epoch in range(5):
        for x, links, kind in loader:
            loss = F.cross_entropy(model(x, links), kind)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        say(f"epoch {epoch} loss {loss.item():.4f}")
    moved = sum(not torch.equal(layer.own.weight, weight) for layer, weight in zip(model.layers, first, strict=True))
    say(f"end: {moved} of {len(first)} graph layers have moved")


main()
