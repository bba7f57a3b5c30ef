"""Transfers are passed on as they were asked for, whatever way they are called, and nothing of them is kept."""

import contextlib
import dataclasses
import datetime
import gc
import weakref

import pytest
import torch
import torch.distributed as dist
from gallery.laws.transfers import lossy_link
from tests.unit.capture.probes.test_probes import STEP
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

from trueline.capture.model.layout import make_layout
from trueline.laws.transfers.probe import TransferProbe


@contextlib.contextmanager
def guard(name):
    yield


@pytest.fixture
def probe():
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    calls = (dist.ProcessGroup.send, dist.ProcessGroup.recv, dist.ProcessGroup.recv_anysource, dist.Work.wait)
    probe = TransferProbe(guard)
    yield probe
    probe.detach()
    assert (dist.ProcessGroup.send, dist.ProcessGroup.recv, dist.ProcessGroup.recv_anysource, dist.Work.wait) == calls
    dist.destroy_process_group()


def numbers(probe):
    """What is measured since the last call: the places of what was sent and of what was received."""
    tensors = probe.take(
        "update", dataclasses.replace(STEP, layout=make_layout(nn.Linear(1, 1), patterns=("*",), max_groups=1))
    )
    return [tensors.get(f"{column}_places", torch.empty(0)).tolist() for column in ("sent", "received")]


def test_calls_by_keywords_and_a_wait_with_a_timeout_go_through(probe):
    group, x = dist.group.WORLD, torch.zeros(3)
    group.send(tensors=[x], dstRank=1, tag=0)
    work = group.recv([x], tag=0, srcRank=1)
    assert work.wait(timeout=datetime.timedelta(seconds=5))
    sent, received = numbers(probe)
    assert sent == received
    assert [rank for rank, _ in sent] == [1]


def test_what_nobody_waits_for_is_not_kept(probe):
    x = torch.zeros(3)
    work = dist.irecv(x, src=1)
    refs = [weakref.ref(x), weakref.ref(work)]
    del x, work
    _, received = numbers(probe)
    gc.collect()
    assert received == [ref() for ref in refs if ref() is not None] == []


def test_a_row_of_a_buffer_is_seen_to_arrive(probe):
    buffer = torch.zeros(2, 3)
    work = dist.irecv(buffer[1], src=1)
    work.wait()
    assert len(numbers(probe)[1]) == 1


def test_transfers_of_another_tag_or_group_are_counted_apart(probe):
    x, group = torch.zeros(3), dist.new_group([0, 1])
    for tag, of in ((0, None), (5, None), (0, group)):
        dist.send(x, 1, tag=tag, group=of)
    for tag, of in ((0, group), (5, None), (0, None)):
        dist.recv(x, 1, tag=tag, group=of)
    sent, received = numbers(probe)
    assert len({number for _, number in sent}) == 3
    assert received == sent[::-1]


def test_beside_receives_from_any_rank_none_is_compared(probe):
    x = torch.zeros(3)
    dist.recv(x, 1)
    dist.group.WORLD.recv_anysource([x], 0)
    dist.recv(x, 1)
    dist.recv(x, 1, tag=5)
    _, received = numbers(probe)
    assert len(received) == 2


def test_a_link_that_lost_data_is_put_back_as_it_was():
    before = vars(dist.ProcessGroup)["recv"]
    with lossy_link(lambda number: True):
        pass
    assert vars(dist.ProcessGroup)["recv"] is before
