"""The process group that watching makes for itself is given back with all its threads, and never waited for."""

from __future__ import annotations

import gc
import os

import pytest
import torch
import torch.distributed as dist
from torch import nn

from trueline.capture.step import exchange
from trueline.demo.ranks import Ranks
from trueline.schema.errors import InputError


def threads():
    return len(os.listdir("/proc/self/task"))


def train(model, optimizer, steps):
    for _ in range(steps):
        model(torch.ones(1, 2)).sum().backward()
        for param in model.parameters():
            dist.all_reduce(param.grad)
        optimizer.step()
        optimizer.zero_grad()


def watch_often(rank, world, folder):
    import trueline

    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gc.collect()
    counts, watches = [], []
    for number in range(4):
        watch = trueline.watch(model, optimizer, out=f"{folder}/{number}", plan={"every": 1})
        train(model, optimizer, 3)
        watch.close()
        watches.append(watch)
        counts.append(threads())
    held = dist.new_group([0, 1])  # whatever comes after it works as if there had been no other
    dist.all_reduce(torch.ones(1), group=held)
    return counts, [len(trueline.open_run(f"{folder}/{number}").steps) for number in range(4)]


def test_watches_leave_no_threads_behind(two, tmp_path):
    for counts, steps in two.run(watch_often, str(tmp_path)):
        assert counts[-1] == counts[0], counts
        assert steps == [3] * 4


def watch_subsets(rank, world, folder):
    """Groups of some ranks have names that depend on how many groups a rank has."""
    import trueline

    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    model = nn.Linear(2, 2)
    for number in range(3):
        with trueline.watch(model, out=f"{folder}/{number}-{rank // 2}", process_group=pairs[rank // 2]):
            pass
    mine = dist.new_group([rank // 2 * 2, rank // 2 * 2 + 1], use_local_synchronization=True)
    total = torch.tensor([float(rank)])
    dist.all_reduce(total, group=mine)
    return total.item()


def test_groups_of_some_ranks_are_made_as_before_after_watching(tmp_path):
    with Ranks(4, timeout_s=60) as ranks:
        assert ranks.run(watch_subsets, str(tmp_path)) == [1.0, 1.0, 5.0, 5.0]


def close_with_sums_under_way(rank, world, folder):
    """Rank 0 makes three steps and closes before rank 1, which makes one, goes on."""
    import trueline

    exchange.PATIENCE_S = 0.2
    store = dist.distributed_c10d._get_default_store()
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = trueline.watch(model, optimizer, out=f"{folder}/run", plan={"every": 1})
    for _ in range(1 if rank else 3):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    if rank:
        store.wait(["closed"])
    watch.close()
    if not rank:
        store.set("closed", "yes")
    gone = watch._recorder.team.group is None
    del watch
    gc.collect()
    return gone


def test_a_rank_that_is_behind_holds_up_nobody_who_closes(tmp_path):
    with Ranks(2, timeout_s=60) as ranks:
        assert ranks.run(close_with_sums_under_way, str(tmp_path)) == [True, True]


def destroy_first(rank, world, folder):
    import trueline

    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = trueline.watch(model, optimizer, out=f"{folder}/run", plan={"every": 1})
    train(model, optimizer, 2)
    dist.destroy_process_group()
    watch.close()
    return len(trueline.open_run(f"{folder}/run").steps) if rank == 0 else 2


def test_closing_after_all_groups_were_destroyed_is_quiet(tmp_path):
    with Ranks(2, timeout_s=60) as ranks:
        assert ranks.run(destroy_first, str(tmp_path)) == [2, 2]


def refused(rank, world, folder):
    import trueline

    os.makedirs(f"{folder}/there", exist_ok=True)
    with open(f"{folder}/there/a file", "w") as file:
        file.write("something of the user's")
    before = threads()
    for _ in range(3):
        with pytest.raises(InputError):
            trueline.watch(nn.Linear(2, 2), out=f"{folder}/there")
    gc.collect()
    return threads() - before


def test_watching_that_is_refused_leaves_no_threads_behind(two, tmp_path):
    assert two.run(refused, str(tmp_path)) == [0, 0]
