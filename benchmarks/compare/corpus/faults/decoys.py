"""Faults that hide: behind random branches, decisions, copies, and calls that only one run makes.

Letters: B batch, D width.
"""

from __future__ import annotations

import torch
from benchmarks.compare.corpus.families.decoys import Block, copies, some_samples, sorted_and_back
from benchmarks.compare.corpus.kit import FIRST, STRUCTURE, Training, fault, healthy
from torch import Tensor

OTHERWISE = (FIRST, STRUCTURE)


def _block(t: Training, index: int) -> Block:
    block = t.model[index]
    assert isinstance(block, Block)
    return block


def _rewritten(block: Block, *, times: float) -> None:
    """The branch by other calls, a row of the last weight at a time."""

    def branch(x_BD: Tensor) -> Tensor:
        h_BD = torch.einsum("bi,oi->bo", x_BD, block.a.weight) + block.a.bias
        g_BD = 0.5 * h_BD * (1 + torch.erf(h_BD / 2**0.5))
        g_BD = g_BD if times == 1 else g_BD * times
        return torch.stack([g_BD @ row_D for row_D in block.b.weight], 1) + block.b.bias

    block.branch = branch


@healthy("decoys", "a branch rewritten")
def _(t: Training) -> None:
    _rewritten(_block(t, 1), times=1)


@fault(
    "decoys",
    "a branch rewritten, and 10 percent more",
    "structure",
    ("1:mul|einsum|linear|gelu|add", "1.a", "1.b"),
    codes=OTHERWISE,
)
def _(t: Training) -> None:
    _rewritten(_block(t, 1), times=1.1)


@fault("decoys", "10 percent more among copies", "structure", "4:mul|clone|reshape", codes=OTHERWISE)
def _(t: Training) -> None:
    _block(t, 4).inside = lambda h_BD: copies(copies(h_BD) * 1.1)


@fault("decoys", "kept samples divided by another share", "numerics", "2:div|truediv")
def _(t: Training) -> None:
    _block(t, 2).inside = lambda h_BD: some_samples(h_BD, kept=0.8)


@fault("decoys", "10 percent more after a decision", "structure", "3:mul|gather|add", codes=OTHERWISE)
def _(t: Training) -> None:
    _block(t, 3).inside = lambda h_BD: sorted_and_back(h_BD) * 1.1


@fault(
    "decoys",
    "gradient of a branch behind copies halved",
    "gradient",
    ("4", "4:mul|clone|view|reshape"),
    phase=("bwd", "grad"),
    codes=OTHERWISE,
)
def _(t: Training) -> None:
    def inside(h_BD: Tensor) -> Tensor:
        h_BD = copies(h_BD)
        h_BD.register_hook(lambda grad_BD: grad_BD * 0.5)
        return h_BD

    _block(t, 4).inside = inside


@healthy("decoys", "other copies")
def _(t: Training) -> None:
    _block(t, 4).inside = lambda h_BD: copies(copies(h_BD) + 0.0)
