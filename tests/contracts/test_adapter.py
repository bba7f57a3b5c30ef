"""What every adapter owes: the local gradient before reduction, the reduction's own result, and nothing else changed.

The slow truth: each rank's gradient computed by the same model alone, gathered, in float64.
"""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

STEPS, WORLD = 3, 2
KINDS = ("ddp", "ddp inside", "ddp hidden", "ddp taken", "fsdp2", "fsdp1", "fsdp1 original", "manual", "manual clipped")


def make_model():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(30, 70), nn.Tanh(), nn.Linear(70, 70), nn.Tanh(), nn.Linear(70, 5))


def batch(rank, step, micro=0):
    generator = torch.Generator().manual_seed(7 * rank + 100 * step + 10_000 * micro)
    return torch.randn(6, 30, generator=generator), torch.randint(0, 5, (6,), generator=generator)


def train(rank, world, kind, out, micros, held, clears=None):
    """One short training; returns the local gradients per step, from a twin that is never reduced. Micro-batches in
    ``held`` are not reduced; ``clears``, if given, is what all gradients are before the last one.
    """
    import trueline

    model = wrap(make_model(), kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    plan = {"every": 1, "exact": True, "matrix_every": 1, "params_every": 1}
    watch = trueline.watch(model, optimizer, out=out, plan=plan)
    truths = []
    for step in range(STEPS):
        truths.append(true_gradient(model, rank, step, micros, first=0 if clears is None else micros - 1))
        for micro in range(micros):
            x, y = batch(rank, step, micro)
            if clears is not None and micro + 1 == micros:
                unrelated = torch.ones(2, requires_grad=True).sum()  # another model's backward pass
                unrelated.backward()
                optimizer.zero_grad(set_to_none=clears == "none")
            with hold(model, kind) if micro in held else contextlib.nullcontext():
                backward(model, kind, x, y)
        assert not any(param._backward_hooks for param in model.parameters())
        if kind.startswith("manual"):
            for param in model.parameters():
                dist.all_reduce(param.grad)
                param.grad /= world
        if kind == "manual clipped":
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
    watch.close()
    return truths


class Inside(nn.Sequential):
    """Calls backward before it returns, as Lightning does with a whole training step ("manual optimization")."""

    def forward(self, x, y, ddp):
        if ddp.require_backward_grad_sync:
            ddp.reducer.prepare_for_backward([])
        nn.functional.cross_entropy(super().forward(x), y).backward()
        ddp.require_backward_grad_sync = False  # else DDP prepares for another


class Hidden(nn.Sequential):
    """Returns what nobody finds a tensor in."""

    def forward(self, x):
        out = super().forward(x)
        return lambda: out


def backward(model, kind, x, y):
    if kind == "ddp inside":
        reduces = model.require_backward_grad_sync
        model(x, y, model)
        model.require_backward_grad_sync = reduces
    else:
        out = model(x)
        nn.functional.cross_entropy(out() if kind == "ddp hidden" else out, y).backward()


def wrap(model, kind):
    if kind.startswith("ddp"):
        model.__class__ = {"ddp inside": Inside, "ddp hidden": Hidden}.get(kind, nn.Sequential)
        view = kind == "ddp in buckets"
        ddp = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.01, gradient_as_bucket_view=view)
        if kind == "ddp taken":
            from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

            ddp.register_comm_hook(None, allreduce_hook)
        return ddp
    if kind == "fsdp2":
        from torch.distributed.fsdp import fully_shard

        fully_shard([model[0], model[2]])  # several modules in one group
        return fully_shard(model)
    if kind.startswith("fsdp1"):
        from torch.distributed.fsdp import FullyShardedDataParallel as Fsdp1

        options = {"device_id": torch.device("cpu"), "use_orig_params": kind == "fsdp1 original"}
        model[0] = Fsdp1(model[0], **options)
        return Fsdp1(model, **options)
    return model


@contextlib.contextmanager
def hold(model, kind):
    if kind.startswith(("ddp", "fsdp1")):
        with model.no_sync():
            yield
    elif kind == "fsdp2":
        model.set_requires_gradient_sync(False)
        yield
        model.set_requires_gradient_sync(True)
    else:
        yield


def true_gradient(model, rank, step, micros, *, first=0):
    """float64 [n] of this rank's gradient, from a copy of the weights that no framework touches."""
    state = {name.removeprefix("module."): full(value) for name, value in model.state_dict().items()}
    twin = make_model()
    twin.load_state_dict(state)
    for micro in range(first, micros):
        x, y = batch(rank, step, micro)
        nn.functional.cross_entropy(twin(x), y).backward()
    return torch.cat([param.grad.flatten() for param in twin.parameters()]).double().numpy()


def full(value):
    return value.full_tensor() if hasattr(value, "full_tensor") else value


@pytest.mark.in_turn
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("micros", "held"), [(1, ()), (2, (0,))])
def test_recorded_signals_equal_a_brute_force_gather(two, tmp_path, kind, micros, held):
    import trueline

    out = tmp_path / "run"
    truths = np.array(two.run(train, kind, str(out), micros, held))  # [N, T, n]
    run = trueline.open_run(out)
    assert [finding.claim for finding in run.live_findings] == []
    for step in range(STEPS):
        g_Nn = truths[:, step]
        norms = np.linalg.norm(g_Nn, axis=1)
        cosine = g_Nn[0] @ g_Nn[1] / norms.prod()
        for rank in range(WORLD):
            row = row_of(run, step, rank)
            # gradients of one model computed twice agree to float32 rounding of the whole backward pass
            assert row["grad_norm"] == pytest.approx(norms[rank], rel=1e-5)
            assert row["exact_cosines"][1 - rank] == pytest.approx(cosine, abs=1e-5)
            assert row["cosine_mean"] == pytest.approx(cosine, abs=max(5 * row["cosine_se"], 1e-5))
            assert row["reduced_norm"] == pytest.approx(np.linalg.norm(g_Nn.mean(axis=0)), rel=1e-5)
            # k = 2053 for three groups: five standard errors of the sketch
            assert row["cosine_others"] == pytest.approx(cosine, abs=5 * (1 - cosine**2) / np.sqrt(2053) + 1e-5)
            assert row["group_seen"] == [1.0] * len(row["group_seen"])
            held = row["group_reduce_shape_residual"] if "clipped" in kind else row["group_reduce_residual"]
            assert all(r <= f for r, f in zip(held, row["group_reduce_floor"], strict=True))


REDUCED_AGAIN = {
    **{
        f"ddp{more}": {"kind": f"ddp{more}", "micros": 2}
        for more in ("", " inside", " hidden", " taken", " in buckets")
    },
    "fsdp2": {"kind": "fsdp2", "micros": 2},
    "ddp, one held": {"kind": "ddp", "micros": 3, "held": (1,)},
    "ddp, cleared": {"kind": "ddp", "micros": 2, "clears": "none"},
    "ddp, zeroed": {"kind": "ddp", "micros": 2, "clears": "zero"},
}


@pytest.mark.in_turn
@pytest.mark.parametrize("case", REDUCED_AGAIN)
def test_gradients_that_are_reduced_several_times_a_step_are_the_workers_own(two, tmp_path, case):
    """DDP adds to what it averaged before, FSDP2 hands over each micro-batch by itself. The norm of a sum of several is
    that of its sketch, whose standard error is 1 / sqrt(2k): five of these.
    """
    import trueline

    out, given = tmp_path / "run", {"held": (), "clears": None} | REDUCED_AGAIN[case]
    truths = np.array(two.run(train, given["kind"], str(out), given["micros"], given["held"], given["clears"]))
    run = trueline.open_run(out)
    for step in range(STEPS):
        norms = np.linalg.norm(truths[:, step], axis=1)
        cosine = truths[0, step] @ truths[1, step] / norms.prod()
        for rank in range(WORLD):
            row = row_of(run, step, rank)
            within = 1e-5 if given["clears"] else 5 / np.sqrt(2 * 2053)
            assert row["grad_norm"] == pytest.approx(norms[rank], rel=within)
            assert row["exact_cosines"][1 - rank] == pytest.approx(cosine, abs=1e-5)
    residual, floor = run.stack("group_reduce_residual")[0], run.stack("group_reduce_floor")[0]
    assert (residual <= floor).all()
    assert run.pivot("cosine_mean")[1].all()


def meshes(rank, world):
    """Workers, replicas, shards and own shard, and whether ranks are compared, by framework; a model of each."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    from trueline.capture.adapters import choose_adapter

    shards = init_device_mesh("cpu", (1, 2), mesh_dim_names=("replicate", "shard"))
    replicas = init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicate", "shard"))
    cpu = {"device_id": torch.device("cpu"), "sharding_strategy": ShardingStrategy.HYBRID_SHARD}
    models = {
        "ddp": wrap(make_model(), "ddp"),
        "manual": make_model(),
        "fsdp2": wrap(make_model(), "fsdp2"),
        "fsdp2 of replicas": fully_shard(make_model(), mesh=replicas),
        "fsdp1": FullyShardedDataParallel(make_model(), device_mesh=shards, **cpu),
        "sharded": parallelize_module(make_model(), shards["shard"], {"0": ColwiseParallel()}),
    }
    found = {kind: choose_adapter(model).mesh for kind, model in models.items()}
    alone = choose_adapter(make_model(), dist.new_group([rank], use_local_synchronization=True)).mesh
    assert (alone.members, alone.workers, alone.compares) == ((rank,), (rank,), True)
    return {
        kind: (mesh.members, mesh.workers, mesh.replicas, mesh.shards, mesh.shard, mesh.compares)
        for kind, mesh in found.items()
    }


def test_the_mesh_of_each_framework_says_who_holds_what(two):
    both = (0, 1)
    for rank, found in enumerate(two.run(meshes)):
        own = (rank,)
        assert found == {
            "ddp": (both, both, both, 1, 0, True),
            "manual": (both, both, both, 1, 0, True),
            "fsdp2": (both, both, own, 2, rank, True),
            "fsdp2 of replicas": (both, both, both, 1, 0, True),
            "fsdp1": (both, both, own, 2, rank, True),
            "sharded": (both, own, own, 1, 0, False),
        }


def row_of(run, step, rank):
    return next(row for row in run.table().to_pylist() if row["step"] == step and row["rank"] == rank)


def single(rank, world, out):
    import trueline

    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    truths = []
    with trueline.watch(model, optimizer, out=out, plan={"every": 1}):
        for step in range(STEPS):
            truths.append(np.linalg.norm(true_gradient(model, 0, step, 1)))
            x, y = batch(0, step)
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    return truths


def test_one_process_is_watched_without_ranks(tmp_path):
    import trueline

    truths = single(0, 1, str(tmp_path / "run"))
    run = trueline.open_run(tmp_path / "run")
    assert run.manifest.adapter == "single"
    np.testing.assert_allclose(run.pivot("grad_norm")[0][:, 0], truths, rtol=1e-5)
    assert run.pivot("loss")[1].all()
    assert not run.pivot("cosine_mean")[1].any()


def closures(rank, world, out):
    import trueline

    model = make_model()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=2)
    x, y = batch(0, 0)

    def closure():
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        return loss

    with trueline.watch(model, optimizer, out=out, plan={"every": 1}):
        for _ in range(STEPS):
            optimizer.step(closure)


def test_an_optimizer_that_takes_a_closure_still_makes_rows(tmp_path):
    import trueline

    closures(0, 1, str(tmp_path / "run"))
    run = trueline.open_run(tmp_path / "run")
    assert len(run.steps) == STEPS
    assert run.pivot("grad_norm")[1].all()


class Spoiling(torch.optim.SGD):
    """Uses its gradients up, as kernels that unscale in place do."""

    @torch.no_grad()
    def step(self, closure=None):
        result = super().step(closure)
        for group in self.param_groups:
            for param in group["params"]:
                param.grad.mul_(1000)
        return result


def test_gradients_are_seen_before_the_optimizer_touches_them(tmp_path):
    import trueline

    torch.optim.SGD(make_model().parameters(), lr=0.05)  # from now on SGD's own step, called by Spoiling's, has hooks
    model = make_model()
    optimizer = Spoiling(model.parameters(), lr=0.05)
    truths = []
    with trueline.watch(model, optimizer, out=tmp_path / "run", plan={"every": 1}):
        for step in range(STEPS):
            truths.append(np.linalg.norm(true_gradient(model, 0, step, 1)))
            x, y = batch(0, step)
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    run = trueline.open_run(tmp_path / "run")
    assert run.steps.tolist() == list(range(STEPS))
    np.testing.assert_allclose(run.pivot("grad_norm")[0][:, 0], truths, rtol=1e-5)


class Failing(torch.optim.SGD):
    """Its second update raises."""

    updates = 0

    def step(self, closure=None):
        self.updates += 1
        if self.updates == 2:
            raise FloatingPointError("no update today")
        return super().step(closure)


def test_an_update_that_raises_is_no_step_and_ends_nothing(tmp_path):
    import trueline

    model = make_model()
    optimizer = Failing(model.parameters(), lr=0.05)
    with trueline.watch(model, optimizer, out=tmp_path / "run", plan={"every": 1}):
        for step in range(STEPS + 1):
            x, y = batch(0, step)
            nn.functional.cross_entropy(model(x), y).backward()
            with contextlib.suppress(FloatingPointError):
                optimizer.step()
            optimizer.zero_grad()
    run = trueline.open_run(tmp_path / "run")
    assert run.steps.tolist() == list(range(STEPS))
    assert run.pivot("grad_norm")[1].all()


def test_several_optimizers_make_one_step(tmp_path):
    import trueline

    model = make_model()
    first = torch.optim.SGD(model[0].parameters(), lr=0.1)
    second = torch.optim.AdamW(model[2].parameters(), lr=0.1)
    with trueline.watch(model, [first, second], out=tmp_path / "run", plan={"every": 1}):
        for step in range(STEPS):
            x, y = batch(0, step)
            nn.functional.cross_entropy(model(x), y).backward()
            first.step()
            second.step()
            model.zero_grad()
    assert len(trueline.open_run(tmp_path / "run").steps) == STEPS


def test_watching_can_stop_and_start_again_on_one_model(two, tmp_path):
    two.run(watch_twice, str(tmp_path))


def watch_twice(rank, world, folder):
    import trueline

    ddp = nn.parallel.DistributedDataParallel(make_model())
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    for part in ("a", "b"):
        with trueline.watch(ddp, optimizer, out=f"{folder}/{part}", plan={"every": 1}):
            for step in range(2):
                x, y = batch(rank, step)
                nn.functional.cross_entropy(ddp(x), y).backward()
                optimizer.step()
                optimizer.zero_grad()
        dist.barrier()
        run = trueline.open_run(f"{folder}/{part}")
        assert len(run.steps) == 2
        assert run.pivot("grad_norm")[1].all()
        assert run.manifest.notes == []


def replaced_after_wrapping(rank, world, out):
    import trueline

    model = make_model()
    ddp = nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
    model[4] = nn.Linear(70, 5)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    with trueline.watch(ddp, optimizer, out=out, plan={"every": 1, "params_every": 1}):
        for step in range(4):
            if step == 2:
                model[2] = nn.Linear(70, 70)
                optimizer.add_param_group({"params": model[2].parameters()})
            x, y = batch(rank, step)
            nn.functional.cross_entropy(ddp(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()


def test_parameters_replaced_while_training_are_followed(two, tmp_path):
    import trueline

    two.run(replaced_after_wrapping, str(tmp_path / "run"))
    run = trueline.open_run(tmp_path / "run")
    assert [finding.claim for finding in run.live_findings] == []
    codes = {finding.code for finding in trueline.check(tmp_path / "run").findings}
    assert {"gradient-not-reduced", "replica-drift"} <= codes
