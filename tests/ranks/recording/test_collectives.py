"""Collectives as they are recorded, whoever starts them: Python, DDP's reducer in C++, DTensor, compiled code."""

from __future__ import annotations

import copy
import json
import threading

import pytest
import torch
import torch.distributed as dist
from tests.unit.recording import Recording
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from trueline.schema.columns.records import Unmeasured


def comm_of(rows):
    return [row for row in rows if row["phase"] == "comm"]


def told(rows):
    """(name, slot, sum) of the rows of collectives."""
    return [(row["name"], row["slot"], row.get("sum")) for row in comm_of(rows)]


# -- DDP ---------------------------------------------------------------------------------------------------------------

DDP = {
    "plain": ({}, None),
    "one bucket": ({"bucket_cap_mb": 25}, None),
    "views": ({"gradient_as_bucket_view": True}, None),
    "static graph": ({"static_graph": True}, None),
    "unused": ({"find_unused_parameters": True}, None),
    "fp16 hook": ({}, default_hooks.fp16_compress_hook),
}


def reduce_in_buckets(rank, world, case, preset):
    """Rows of three steps of a DDP model, its own gradients by a twin that nobody reduces, and parameter names."""
    options, hook = DDP[case]
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(40, 40) for _ in range(5)))
    twin = copy.deepcopy(model)
    ddp = nn.parallel.DistributedDataParallel(model, **{"bucket_cap_mb": 0.015} | options)
    if hook is not None:
        ddp.register_comm_hook(None, hook)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    recording = Recording(ddp, {"preset": preset, "phases": ["comm"]}, optimizer)
    steps = []
    for step in range(3):
        x = torch.randn(8, 40, generator=torch.Generator().manual_seed(10 * step + rank))
        twin.load_state_dict(model.state_dict())
        twin.zero_grad()
        twin(x).square().mean().backward()
        local = {name: param.grad.double().sum().item() for name, param in twin.named_parameters()}

        def train(x=x):
            ddp(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

        steps.append((local, recording.step(step, train)))
    return steps


@pytest.mark.parametrize("preset", ["modules", "mix"])
@pytest.mark.parametrize("case", DDP)
def test_every_bucket_that_ddp_reduces_is_recorded_with_its_parameters(two, case, preset):
    ranks = two.run(reduce_in_buckets, case, preset)
    rel = 1e-3 if "fp16" in case else 1e-4
    for step in range(3):
        locals_ = [steps[step][0] for steps in ranks]
        for rank, steps in enumerate(ranks):
            rows = comm_of(steps[step][1])
            given, got = ([row for row in rows if row["slot"] == slot] for slot in ("in0", "out0"))
            facts = [json.loads(row["args"]) for row in given]
            assert {row["name"] for row in rows} == {"allreduce"}
            assert [fact["bucket"] for fact in facts] == list(range(len(facts)))
            assert sorted(name for fact in facts for name in fact["parameters"]) == sorted(locals_[0])
            assert len(given) == len(got)
            assert case == "one bucket" or step < 2 or len(given) > 1  # DDP has cut its buckets anew by then
            for fact, before, after in zip(facts, given, got, strict=True):
                assert (fact["group"], fact["op"]) == ([0, 1], "SUM")
                mine, mean = (
                    [sum(local[name] for name in fact["parameters"]) / 2 for local in pair]
                    for pair in ([locals_[rank]], locals_)
                )
                assert before["sum"] == pytest.approx(mine[0], rel=rel, abs=rel)
                assert after["sum"] == pytest.approx(sum(mean), rel=rel, abs=rel)


def accumulate(rank, world):
    ddp = nn.parallel.DistributedDataParallel(nn.Linear(3, 2))
    recording = Recording(ddp, {"preset": "modules", "phases": ["comm"]})

    def run():
        with ddp.no_sync():
            ddp(torch.ones(4, 3)).sum().backward()
        ddp(torch.ones(4, 3)).sum().backward()

    return recording.step(0, run), ddp.module.weight.grad


def test_ddp_reduces_once_for_all_micro_batches(two):
    for rows, grad in two.run(accumulate):
        (before, after) = comm_of(rows)
        assert (before["micro"], before["sum"], after["sum"]) == (1, 32.0, 64.0)
        assert grad.sum() == 48.0


def send_buffers(rank, world):
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    model[1].running_mean.fill_(rank + 5.0)
    ddp = nn.parallel.DistributedDataParallel(model)
    model[1].running_mean.fill_(rank + 7.0)
    return Recording(ddp, {"preset": "modules"}).step(0, lambda: ddp(torch.ones(4, 3)).sum().backward())


def test_buffers_that_ddp_sends_are_there_before_the_forward_pass(two):
    for rank, rows in enumerate(two.run(send_buffers)):
        sent = [row for row in rows if row["name"] == "broadcast"]
        forward = min(at for at, row in enumerate(rows) if row["phase"] == "fwd")
        assert all(rows.index(row) < forward for row in sent)
        mean_and_var = [row["sum"] for row in sent if row["dtype"] == "float32"]
        assert mean_and_var == [16.0] * (1 if rank else 2)  # two means of 7 and two variances of 1, given by rank 0


def send_objects(rank, world):
    model, told, everywhere = nn.Linear(1, 1), ["something" if rank == 0 else None], [None, None]

    def run():
        model(torch.zeros(1, 1))
        dist.broadcast_object_list(told, src=0)
        dist.all_gather_object(everywhere, {"rank": rank, "names": "x" * rank})
        dist.all_reduce(values(rank))

    return Recording(model, {"preset": "modules"}).step(0, run), told, everywhere


def test_pickled_objects_are_no_values_of_the_step(two):
    for rank, (rows, sent, everywhere) in enumerate(two.run(send_objects)):
        assert sent == ["something"]
        assert [one["rank"] for one in everywhere] == [0, 1]
        assert told(rows) == [("allreduce", "in0", 1.0 + rank), ("allreduce", "out0", 3.0)]


def reduce_shards(rank, world, shape):
    """Rows of one step under FSDP2, and this rank's own gradients, layer by layer, by a twin."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    twin, x = copy.deepcopy(model), torch.full((4, 3), rank + 1.0)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard")[-len(shape) :])
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    twin(x).square().sum().backward()
    local = [sum(param.grad.double().sum().item() for param in layer.parameters()) for layer in twin]
    recording = Recording(model, {"preset": "modules", "phases": ["comm"]})
    return recording.step(0, lambda: model(x).square().sum().backward()), local


@pytest.mark.parametrize("shape", [(2,), (2, 2)])
def test_what_fsdp2_reduces_is_recorded_before_and_after(ranks_of, shape):
    results = ranks_of(2 * len(shape)).run(reduce_shards, shape)
    last = "allreduce" if len(shape) == 2 else "_reduce_scatter_base"
    whole = [0.0, 0.0]
    for rows, local in results:
        given = [row["sum"] for row in comm_of(rows) if (row["name"], row["slot"]) == ("_reduce_scatter_base", "in0")]
        assert given == pytest.approx(local[::-1], rel=1e-5)  # the last layer comes first
        got = [row["sum"] for row in comm_of(rows) if (row["name"], row["slot"]) == (last, "out0")]
        whole = [a + b for a, b in zip(whole, got, strict=True)]
    mean = [sum(local[layer] for _, local in results) / len(results) for layer in (1, 0)]
    assert [total / len(shape) for total in whole] == pytest.approx(mean, rel=1e-5)


# -- calls of torch.distributed ----------------------------------------------------------------------------------------


def values(rank, *more):
    return torch.tensor([rank + 1.0, *more])


def all_reduce(rank, group):
    dist.all_reduce(values(rank))


def all_reduce_max_async(rank, group):
    x = values(rank)
    work = dist.all_reduce(x, op=dist.ReduceOp.MAX, async_op=True)
    work.wait()
    x.mul_(100)  # not what the collective returned


def all_reduce_never_waited_for(rank, group):
    x = values(rank)
    work = dist.all_reduce(x, async_op=True)
    while not work.is_completed():
        pass


def all_gather(rank, group):
    dist.all_gather([torch.zeros(1), torch.zeros(1)], values(rank))


def all_gather_into_tensor(rank, group):
    dist.all_gather_into_tensor(torch.zeros(2), values(rank))


def reduce_scatter_tensor(rank, group):
    dist.reduce_scatter_tensor(torch.zeros(1), values(rank, 10.0 * (rank + 1)))


def all_to_all_single(rank, group):
    dist.all_to_all_single(torch.zeros(2), values(rank, 10.0 * (rank + 1)))


def broadcast(rank, group):
    dist.broadcast(values(rank), src=1)


def reduce(rank, group):
    dist.reduce(values(rank), dst=1)


def scatter(rank, group):
    dist.scatter(torch.zeros(1), [torch.tensor([5.0]), torch.tensor([6.0])] if rank == 0 else None, src=0)


def gather(rank, group):
    dist.gather(values(rank), [torch.zeros(1), torch.zeros(1)] if rank == 0 else None, dst=0)


def batch_isend_irecv(rank, group):
    got = torch.zeros(1)
    ops = [dist.P2POp(dist.isend, values(rank), 1 - rank), dist.P2POp(dist.irecv, got, 1 - rank)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()


def barrier(rank, group):
    dist.barrier()


ALL = {
    all_reduce: [[("allreduce", "in0", 1.0 + r), ("allreduce", "out0", 3.0)] for r in (0, 1)],
    all_reduce_max_async: [[("allreduce", "in0", 1.0 + r), ("allreduce", "out0", 2.0)] for r in (0, 1)],
    all_reduce_never_waited_for: [[("allreduce", "in0", 1.0 + r), ("allreduce", "out0", 3.0)] for r in (0, 1)],
    all_gather: [
        [("allgather", "in0", 1.0 + r), ("allgather", "out0", 1.0), ("allgather", "out1", 2.0)] for r in (0, 1)
    ],
    all_gather_into_tensor: [[("_allgather_base", "in0", 1.0 + r), ("_allgather_base", "out0", 3.0)] for r in (0, 1)],
    reduce_scatter_tensor: [
        [("_reduce_scatter_base", "in0", 11.0 * (1 + r)), ("_reduce_scatter_base", "out0", (3.0, 30.0)[r])]
        for r in (0, 1)
    ],
    all_to_all_single: [
        [("alltoall_base", "in0", 11.0 * (1 + r)), ("alltoall_base", "out0", (3.0, 30.0)[r])] for r in (0, 1)
    ],
    broadcast: [[("broadcast", "out0", 2.0)], [("broadcast", "in0", 2.0), ("broadcast", "out0", 2.0)]],
    reduce: [[("reduce", "in0", 1.0)], [("reduce", "in0", 2.0), ("reduce", "out0", 3.0)]],
    scatter: [
        [("scatter", "in0", 5.0), ("scatter", "in1", 6.0), ("scatter", "out0", 5.0)],
        [("scatter", "out0", 6.0)],
    ],
    gather: [
        [("gather", "in0", 1.0), ("gather", "out0", 1.0), ("gather", "out1", 2.0)],
        [("gather", "in0", 2.0)],
    ],
    batch_isend_irecv: [[("send", "in0", 1.0 + r), ("recv", "out0", 2.0 - r)] for r in (0, 1)],
    barrier: [[], []],
}


def start_all(rank, world):
    model = nn.Linear(1, 1)
    recording = Recording(model, {"preset": "modules"})
    rows = {}
    for step, call in enumerate(ALL):

        def run(call=call):
            model(torch.zeros(1, 1))
            call(rank, None)

        rows[call.__name__] = recording.step(step, run)
    gone = not torch._C._dispatch_has_kernel_for_dispatch_key("c10d::allreduce_", "BackendSelect")
    return rows, gone


def test_collectives_are_recorded_as_they_were_given_and_returned(two):
    results = two.run(start_all)
    for rank, (rows, gone) in enumerate(results):
        assert gone, "something of ours is left in the dispatcher between steps"
        for call, expected in ALL.items():
            assert told(rows[call.__name__]) == expected[rank], (call.__name__, rank)
    rows = results[0][0]
    facts = {name: json.loads(comm_of(found)[0]["args"]) for name, found in rows.items() if comm_of(found)}
    assert (facts["broadcast"]["root"], facts["reduce"]["root"], facts["scatter"]["root"]) == (1, 1, 0)
    assert facts["batch_isend_irecv"]["to"] == 1
    assert facts["all_reduce_max_async"] == {"group": [0, 1], "op": "MAX"}


def reduce_what_was_seen(rank, world):
    x = values(rank)

    def run():
        torch.abs(x)
        dist.all_reduce(x)
        torch.abs(x)
        torch.abs(x)

    model = nn.Linear(1, 1)
    return Recording(model, {"preset": "ops"}).step(0, lambda: (model(torch.zeros(1, 1)), run()))


def test_a_value_that_a_collective_has_changed_is_measured_again_and_others_are_not(two):
    """The change leaves no trace in the version of the tensor."""
    for rank, rows in enumerate(two.run(reduce_what_was_seen)):
        seen = [row for row in rows if row["name"] in ("abs", "allreduce") and row["slot"] == "in0"]
        seen += [row for row in rows if row["name"] == "allreduce" and row["slot"] == "out0"]
        assert [row["sum"] for row in seen] == [rank + 1.0, rank + 1.0, 3.0, 3.0, 3.0]
        assert [row["name"] for row in seen if row["measured"]] == ["abs", "allreduce", "allreduce"]


def save_in_the_background(rank, world):
    group = dist.new_group()

    def run():
        model(torch.zeros(1, 1))
        thread = threading.Thread(target=dist.all_reduce, args=(values(rank),), kwargs={"group": group})
        thread.start()
        dist.broadcast(values(rank), src=0)
        thread.join()

    model = nn.Linear(1, 1)
    return Recording(model, {"preset": "modules"}).step(0, run)


def test_collectives_of_other_threads_are_not_part_of_the_step(two):
    for rows in two.run(save_in_the_background):
        assert {row["name"] for row in comm_of(rows)} == {"broadcast"}


def leave_under_way(rank, world):
    model = nn.Linear(1, 1)
    recording = Recording(model, {"preset": "modules"})
    x, works, other = values(rank), [], dist.new_group()

    def run():
        model(torch.zeros(1, 1))
        if rank == 0:
            works.append(dist.all_reduce(x, async_op=True))

    rows = recording.step(0, run)
    dist.barrier(other)
    if rank == 1:
        works.append(dist.all_reduce(x, async_op=True))
    works[0].wait()
    return rows


def test_a_result_that_is_not_there_when_the_step_ends_is_named(two):
    rows, _ = two.run(leave_under_way)
    assert [(row["slot"], row["note"]) for row in comm_of(rows)] == [("in0", None), ("out0", Unmeasured.UNDER_WAY)]


def send_wrongly(rank, world):
    model = nn.Linear(1, 1)
    recording = Recording(model, {"preset": "modules"})
    outcome = []

    def run():
        model(torch.zeros(1, 1))
        with pytest.raises((RuntimeError, ValueError)) as caught:
            dist.all_gather_into_tensor(torch.zeros(3), torch.zeros(1))
        outcome.append((type(caught.value).__name__, str(caught.value)))

    with pytest.raises((RuntimeError, ValueError)) as bare:
        dist.all_gather_into_tensor(torch.zeros(3), torch.zeros(1))
    recording.step(0, run)
    return (type(bare.value).__name__, str(bare.value)), outcome[0]


def test_what_a_backend_refuses_is_refused_in_its_own_words(two):
    for bare, recorded in two.run(send_wrongly):
        assert bare == recorded


# -- DTensor and compiled code -----------------------------------------------------------------------------------------


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(3, 4), nn.Linear(4, 2, bias=False)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


def redistribute(rank, world, preset):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("tp",))
    torch.manual_seed(0)
    whole = Pair()
    model = parallelize_module(copy.deepcopy(whole), mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    x = torch.randn(5, 3)
    recording = Recording(model, {"preset": preset, "stacks": False})
    rows = recording.step(0, lambda: model(x).sum().backward())
    return rows, whole(x).sum().item()


@pytest.mark.parametrize("preset", ["modules", "mix"])
def test_what_dtensor_redistributes_is_recorded_in_its_module(two, preset):
    results = two.run(redistribute, preset)
    sent = 0.0
    for rows, whole in results:
        (before, after) = comm_of(rows)
        assert [(row["name"], row["slot"]) for row in (before, after)] == [
            ("down.allreduce", "in0"),
            ("down.allreduce", "out0"),
        ]
        assert before["module"] == "down"
        assert after["sum"] == pytest.approx(whole, rel=1e-5)
        sent += before["sum"]
    assert sent == pytest.approx(results[0][1], rel=1e-5)


class Reducing(nn.Module):
    def forward(self, x):
        import torch.distributed._functional_collectives as functional

        return functional.all_reduce(x * 2, "sum", dist.group.WORLD) + 1


def compile_collective(rank, world):
    model = torch.compile(nn.Sequential(Reducing()), backend="aot_eager", fullgraph=True)
    x = values(rank)
    bare = model(x)
    rows = Recording(model, {"preset": "mix"}).step(0, lambda: model(x))
    return rows, bare.item()


def test_collectives_inside_compiled_code_are_recorded(two):
    for rank, (rows, bare) in enumerate(two.run(compile_collective)):
        assert bare == 7.0
        assert [(name.rpartition(".")[2], slot, total) for name, slot, total in told(rows)] == [
            ("allreduce", "in0", 2.0 * (rank + 1)),
            ("allreduce", "out0", 6.0),
        ]
