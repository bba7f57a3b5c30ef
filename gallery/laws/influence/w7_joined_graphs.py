"""W7. Graphs that are joined into one batch influence each other, or lose their edges.

Who had it: collators of one's own that concatenate edges without adding where the nodes of each graph begin; poolings
that leave out whose a node is.
Planted: edges without offsets, of graphs of several sizes and of one size; features less their mean over all graphs.
Twin: edges with offsets; no such mean.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from gallery.entry import variants
from gallery.entry_context import EntryContext
from gallery.families import SAMPLES_THAT_ARE_MIXED
from gallery.laws.influence.w3_wrong_mask import STEP
from gallery.problems import Regression
from gallery.training import fit
from gallery.witness import trains_differently


class Messages(nn.Module):
    """One round of messages along edges, and four numbers for each graph.

    Letters: N nodes, E edges, G graphs, F features, D width.
    """

    def __init__(self, mixes: bool, width: int = 16) -> None:
        super().__init__()
        self.mixes = mixes
        self.first, self.last = nn.Linear(1, width), nn.Linear(width, 4)

    def forward(self, x_NF: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        """Of nodes, edges [2, E] and the graph of each node."""
        h_ND = self.first(x_NF)
        h_ND = h_ND - h_ND.mean(0) if self.mixes else h_ND
        h_ND = (h_ND + torch.zeros_like(h_ND).index_add(0, edge_index[1], h_ND[edge_index[0]])).relu()
        sums_GD = torch.zeros(int(batch[-1]) + 1, h_ND.shape[1]).index_add(0, batch, h_ND)
        return self.last(sums_GD / batch.bincount()[:, None])


def _joined(x_GF: Tensor, sizes: tuple[int, ...], *, offsets: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Rings of these sizes, one of each row, whose nodes are the row's first numbers."""
    nodes, edges, start = list[Tensor](), list[Tensor](), 0
    for row, size in zip(x_GF, sizes, strict=False):
        ring = torch.stack([torch.arange(size), (torch.arange(size) + 1) % size])
        nodes.append(row[:size, None])
        edges.append(torch.cat([ring, ring.flip(0)], 1) + start * offsets)
        start += size
    whose_N = torch.arange(len(nodes)).repeat_interleave(torch.tensor([len(each) for each in nodes]))
    return torch.cat(nodes), torch.cat(edges, 1), whose_N


def graphs(*, sizes: tuple[int, ...], pooled: bool = False) -> Any:
    """Training whose graphs, of these sizes, are joined wrongly, or whose features are."""

    def train(ctx: EntryContext, faulty: bool) -> nn.Module:
        def loss_of(model: nn.Module, batch: Any) -> Tensor:
            made = model(*_joined(batch["x"], sizes, offsets=pooled or not faulty))
            return (made - batch["y"]).square().mean()

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = Messages(mixes=pooled and faulty)
        return fit(ctx, Regression(), model, loss_of=loss_of, plan={"influence": STEP})

    return train


_fault = variants(
    "W7",
    ("batch-leak",),
    trains_differently,
    step=STEP,
    world_size=1,
    ranks=(0,),
    family=SAMPLES_THAT_ARE_MIXED,
    causes=("samples-mixed",),
)

ENTRIES = (
    _fault("", "edges of joined graphs have no offsets", graphs(sizes=(5, 9, 7, 8))),
    _fault("equal", "edges of joined graphs of one size have no offsets", graphs(sizes=(6, 6, 6, 6))),
    _fault("pooled", "a mean runs over all graphs", graphs(sizes=(5, 9, 7, 8), pooled=True)),
)
