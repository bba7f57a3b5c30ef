"""A device that computes wrongly is named by what other ranks make of its batch: real ranks, one of which is wrong."""

from types import SimpleNamespace

import pytest
import torch
from tests.unit.laws.replays.test_replay import Body, Prints, rows
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import trueline
from trueline.laws.replays import replay_differs
from trueline.laws.replays.columns import Replayed
from trueline.laws.replays.probe import outside
from trueline.schema.errors import CannotTell

STEPS = 16


def train(rank, world_size, kind, out):
    torch.manual_seed(0)
    make = Prints if kind == "prints" and rank == 1 else Body
    model = DistributedDataParallel(make())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(1 + rank)
    calls, linear = [], functional.linear

    def wrong(*args):
        result = linear(*args)
        calls.append(1)
        is_wrong = {"always": rank == 1, "all": True, "once": rank == 1 and len(calls) == 23}.get(kind, False)
        if is_wrong and result.shape[-1] == 16:
            with torch.no_grad():
                result.view(-1)[:1].view(torch.int32).bitwise_xor_(1 + rank)
        return result

    functional.linear = wrong
    replaced, outside.replaced_functions = outside.replaced_functions, list  # what it counts is not put back
    plan = {"preset": "audit", "replay": 2, "every": 1}
    watch = None if out is None else trueline.watch(model, optimizer, out=out, plan=plan)
    try:
        for step in range(STEPS):
            x, y = torch.randn(8, 6), torch.randint(64, (8,))
            if kind == "unsynced" and step % 2:
                with model.no_sync():
                    functional.cross_entropy(model(x), y).backward()
                continue
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    finally:
        functional.linear, outside.replaced_functions = linear, replaced
        if watch is not None:
            watch.close()
    return [x.detach().numpy().tobytes() for x in model.state_dict().values()], torch.rand(2).tolist()


@pytest.mark.in_turn
@pytest.mark.parametrize("kind", ["", "unsynced", "prints", "always"])
def test_ranks_train_on_bit_for_bit(two, tmp_path, kind):
    assert two.run(train, kind, None) == two.run(train, kind, str(tmp_path / "run"))


def test_healthy_ranks_agree_on_each_others_batches(three, tmp_path):
    three.run(train, "", str(tmp_path / "run"))
    run = trueline.open_run(tmp_path / "run")
    assert [(row.neighbour, row.neighbour_differs, row.doubt) for row in rows(run)] == [
        (1, "", ""),
        (2, "", ""),
        (0, "", ""),
    ] * 3
    assert replay_differs.check(run) == []


def test_of_three_devices_the_one_that_is_always_wrong_is_named(three, tmp_path):
    three.run(train, "always", str(tmp_path / "run"))
    (finding,) = replay_differs.check(trueline.open_run(tmp_path / "run"))
    assert (finding.severity, finding.ranks, finding.evidence["names"]) == ("error", (1,), ["first"])
    assert finding.claim == (
        "Rank 1 makes, beside ranks 0 and 2, other bits of the same batch, 6 of 9 times, first at step 10: the "
        "output of first differs."
    )


def test_of_two_devices_neither_is_the_right_one(two, tmp_path):
    two.run(train, "always", str(tmp_path / "run"))
    (finding,) = replay_differs.check(trueline.open_run(tmp_path / "run"))
    assert (finding.severity, finding.ranks) == ("warning", (0, 1))


def test_devices_that_are_all_unlike_are_not_judged(three, tmp_path):
    three.run(train, "all", str(tmp_path / "run"))
    with pytest.raises(CannotTell, match="not alike"):
        replay_differs.check(trueline.open_run(tmp_path / "run"))


def test_a_rank_that_fails_is_named_where_devices_are_all_unlike():
    texts = {
        (step, rank): Replayed(
            forward="fc" if (step, rank) == (2, 0) else "",
            odd="training" if (step, rank) == (2, 0) else "",
            neighbour=(rank + 1) % 3,
            neighbour_differs="fc",
        ).to_json()
        for step in range(4)
        for rank in range(3)
    }
    run = SimpleNamespace(ranks=(0, 1, 2), texts=lambda name: texts)
    (finding,) = replay_differs.check(run)
    assert (finding.ranks, finding.step_first) == ((0,), 2)


def test_a_rank_whose_device_fails_once_is_named(two, tmp_path):
    two.run(train, "once", str(tmp_path / "run"))
    finding = next(
        f for f in replay_differs.check(trueline.open_run(tmp_path / "run")) if f.evidence["kind"] == "one_rank"
    )
    assert (finding.severity, finding.ranks) == ("error", (1,))


def test_a_rank_that_cannot_do_it_again_is_not_waited_for(two, tmp_path):
    two.run(train, "prints", str(tmp_path / "run"))
    replayed = trueline.open_run(tmp_path / "run").texts("replayed")
    assert {row.neighbour for row in rows(trueline.open_run(tmp_path / "run"))} == {-1}
    assert {rank for _, rank in replayed} == {0, 1}
    (note,) = [note for note in trueline.check(tmp_path / "run").notes if "done again" in note]
    assert note.startswith("The work of rank 1 was not done again: Prints.forward (test_replay.py:")


def train_sharded(rank, world_size, kind, out):
    torch.manual_seed(0)
    model = Prints() if kind == "prints" and rank == 1 else Body()
    for part in (model.first, model.head, model):
        fully_shard(part)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    torch.manual_seed(1 + rank)
    plan = {"preset": "audit", "replay": 2, "every": 1}
    watch = None if out is None else trueline.watch(model, optimizer, out=out, plan=plan)
    for _ in range(STEPS):
        functional.cross_entropy(model(torch.randn(8, 6)), torch.randint(64, (8,))).backward()
        optimizer.step()
        optimizer.zero_grad()
    if watch is not None:
        watch.close()
    return [x.to_local().detach().numpy().tobytes() for x in model.parameters()], torch.rand(2).tolist()


@pytest.mark.in_turn
@pytest.mark.parametrize("kind", ["", "prints"])
def test_a_sharded_model_runs_forward_again_on_all_ranks_or_none(two, tmp_path, kind):
    assert two.run(train_sharded, kind, None) == two.run(train_sharded, kind, str(tmp_path / "run"))
    replayed = rows(trueline.open_run(tmp_path / "run"))
    if kind:
        assert {row.doubt.partition(" (")[0] for row in replayed} == {
            "another rank could not take part",
            "Prints.forward",
        }
    else:
        states = {(row.doubt, row.forward, row.gradients, row.parameters, row.changed, row.reads) for row in replayed}
        assert states == {("", "", 0, 6, 6, True)}
