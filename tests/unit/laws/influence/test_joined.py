"""Samples that are joined into one batch: found where one reaches another, or edges lack their offsets."""

import pytest
import torch
from tests.unit.asked import asked
from torch import nn

import trueline

SIZES, WIDTH = (4, 7, 5, 6, 3, 8), 8


def joined(*, offsets=True, sizes=SIZES):
    """Features [N, 3], edges [2, E] of a ring in each graph, and the graph of each node."""
    edges, start = [], 0
    for size in sizes:
        ring = torch.stack([torch.arange(size), (torch.arange(size) + 1) % size])
        edges += [torch.cat([ring, ring.flip(0)], 1) + start * offsets]
        start += size
    return torch.randn(start, 3), torch.cat(edges, 1), torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))


class Graphs(nn.Module):
    """Messages along edges, and a number for each graph, or for each node."""

    def __init__(self, *, nodes=False, pool="own"):
        super().__init__()
        self.first, self.head, self.nodes, self.pool = nn.Linear(3, WIDTH), nn.Linear(WIDTH, 2), nodes, pool

    def forward(self, x, edge_index=None, batch=None, ptr=None):
        h = self.first(x)
        if edge_index is not None:
            h = h + torch.zeros_like(h).index_add(0, edge_index[1], h[edge_index[0]])
        if ptr is not None:
            batch = torch.arange(len(ptr) - 1).repeat_interleave(ptr.diff())
        if self.pool == "all":
            h = h - h.mean(0)
        if self.nodes:
            return self.head(h)
        return self.head(torch.zeros(int(batch.max()) + 1, WIDTH).index_add(0, batch, h))


def said(out, model, **inputs):
    torch.manual_seed(1)
    updates = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = trueline.watch(model, updates, out=out, plan={"every": 1, "influence": 1})
    for _ in range(2):
        model(**inputs).square().mean().backward()
        updates.step()
        updates.zero_grad()
    watch.close()
    findings, why = asked(out, "batch-leak")
    return [(each.severity, each.evidence["kind"]) for each in findings], why


@pytest.mark.in_turn
@pytest.mark.parametrize("nodes", [False, True])
@pytest.mark.parametrize("borders", [False, True])
@pytest.mark.parametrize(
    ("graphs", "pool", "found"),
    [
        ({}, "own", []),
        ({}, "all", [("warning", "rows")]),
        ({"offsets": False}, "own", [("warning", "rows")]),
        ({"offsets": False, "sizes": (5,) * 6}, "own", [("warning", "edges")]),
        ({"offsets": False, "sizes": (5,) * 3}, "own", []),
    ],
)
def test_graphs_that_are_joined(tmp_path, nodes, borders, graphs, pool, found):
    x, edge_index, batch = joined(**graphs)
    ptr = torch.cat([torch.zeros(1, dtype=torch.long), batch.bincount().cumsum(0)])
    whose = {"ptr": ptr} if borders else {"batch": batch}
    assert said(tmp_path / "run", Graphs(nodes=nodes, pool=pool), x=x, edge_index=edge_index, **whose) == (found, [])


def test_rows_of_joined_sets_are_told_apart_without_edges(tmp_path):
    x, _, batch = joined()
    assert said(tmp_path / "run", Graphs(), x=x, batch=batch) == ([], [])
    assert said(tmp_path / "mixed", Graphs(pool="all"), x=x, batch=batch) == ([("warning", "rows")], [])


def test_as_many_edges_as_nodes_are_left_open(tmp_path):
    x, edge_index, batch = joined()
    found, (why,) = said(tmp_path / "run", Graphs(), x=x, edge_index=edge_index[:, : len(x)], batch=batch)
    assert found == []
    assert "as graphs" in why
