"""Buffers are digested where DDP has broadcast them, and left out where it has not yet."""

import pytest
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trueline.laws.replicas.probe import broadcast_inside, buffer_digests


def wrapped(module, *, broadcasts):
    """A DDP without its process group."""
    ddp = DistributedDataParallel.__new__(DistributedDataParallel)
    nn.Module.__init__(ddp)
    ddp.module, ddp.broadcast_buffers = module, broadcasts
    return ddp


@pytest.mark.parametrize(("broadcasts", "names"), [(True, ["after"]), (False, ["after", "net.1"])])
def test_buffers_that_a_ddp_inside_of_the_model_broadcasts_later_are_left_out(broadcasts, names):
    model = nn.ModuleDict(
        {
            "net": wrapped(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), broadcasts=broadcasts),
            "after": nn.BatchNorm1d(2),
        }
    )
    buffers, digests = buffer_digests(model, without=broadcast_inside(model))
    assert sorted({name.rpartition(".")[0] for name in buffers}) == names
    assert len(digests) == 3 * len(names)


def test_buffers_of_a_model_that_is_a_ddp_are_digested():
    ddp = wrapped(nn.BatchNorm1d(2), broadcasts=True)
    assert broadcast_inside(ddp) == frozenset()
    assert broadcast_inside(nn.Sequential(ddp)) == {id(buffer) for buffer in ddp.buffers()}
