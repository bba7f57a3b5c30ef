"""Training is bitwise the same with watching on and off: loss, gradients and weights, for every adapter and option."""

from __future__ import annotations

import contextlib
import copy
import functools
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.utils.checkpoint import checkpoint

STEPS = 4
VOCAB = 64


class TinyLM(nn.Module):
    """Embedding tied to the head, three blocks, dropout, BatchNorm; options switch what a case is about."""

    def __init__(self, *, tied=True, checkpointing=None, unused=False, layer_norm=False):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, 32)
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(32, 48), nn.GELU(), nn.Linear(48, 32)) for _ in range(3)])
        self.norm = nn.LayerNorm(32) if layer_norm else nn.BatchNorm1d(32)
        self.drop = nn.Dropout(0.1)
        self.head = nn.Linear(32, VOCAB, bias=False)
        self.spare = nn.Linear(32, 32) if unused else None
        self.checkpointing = checkpointing
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, input_ids):
        x = self.embed(input_ids)
        for block in self.blocks:
            if self.checkpointing is None:
                x = x + block(x)
            else:
                x = x + checkpoint(block, x, use_reentrant=self.checkpointing == "reentrant")
        x = self.norm(x.flatten(0, 1)).view_as(x)
        return self.head(self.drop(x))


def train(rank, world, case, out, records=None):
    torch.manual_seed(0)
    model, wrapped = build(case)
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-2)
    watch = None
    if out is not None:
        import trueline

        plan = {"every": 1, "params_every": 2, "exact": case.get("exact", False), "matrix_every": 2}
        plan |= records or {}
        watch = trueline.watch(wrapped, optimizer, out=out, plan=plan)
    if "hook" in case:
        register(wrapped, case["hook"])
    torch.manual_seed(7 + rank)
    losses = [one_step(rank, world, case, wrapped, optimizer, watch, step) for step in range(STEPS)]
    if watch is not None:
        watch.close()
    state = {name: full(value).clone() for name, value in model.state_dict().items()}
    return losses, state


def build(case):
    options = {name: case[name] for name in ("tied", "checkpointing", "unused", "layer_norm") if name in case}
    model = TinyLM(**options)
    if case.get("dtype"):
        model = model.to(case["dtype"])
    kind = case["kind"]
    if kind == "ddp":
        inner = torch.compile(model, backend="aot_eager") if case.get("compile") == "inside" else model
        wrapped = nn.parallel.DistributedDataParallel(inner, **case.get("ddp", {}))
        return model, torch.compile(wrapped, backend="aot_eager") if case.get("compile") == "outside" else wrapped
    if kind == "fsdp2":
        return model, shard(model, case)
    return model, model


def shard(model, case):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    shape = case["mesh"]
    names = ("replicate", "shard")[-len(shape) :]
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    policy = MixedPrecisionPolicy(**case.get("policy", {}))
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    return fully_shard(model, mesh=mesh, mp_policy=policy)


def register(ddp, hook):
    if hook == "powersgd":
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
        ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    elif hook == "builtin_fp16":
        ddp._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
    elif hook == "own":
        ddp.register_comm_hook(None, average)
    else:
        ddp.register_comm_hook(None, getattr(default_hooks, hook))


def average(state, bucket):
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    return work.get_future().then(lambda future: future.value()[0] / dist.get_world_size())


def one_step(rank, world, case, wrapped, optimizer, watch, step):
    total = 0.0
    micros = case.get("micros", 1)
    for micro in range(micros):
        generator = torch.Generator().manual_seed(1000 * step + 10 * micro + rank)
        tokens = torch.randint(0, VOCAB, (4, 9), generator=generator)
        waits = micro + 1 < micros and case.get("no_sync", True)
        with delay(wrapped, case) if waits else contextlib.nullcontext():
            with torch.autocast("cpu", torch.bfloat16, enabled=case.get("autocast", False)):
                logits = wrapped(tokens[:, :-1])
            loss = nn.functional.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten()) / micros
            loss.backward()
        total += loss.item()
    if case.get("sync_last") is not None:
        wrapped.set_requires_gradient_sync(True)
    if case["kind"] == "manual":
        for param in wrapped.parameters():
            if param.grad is not None:
                dist.all_reduce(param.grad)
                param.grad /= world
    if case.get("clip"):
        nn.utils.clip_grad_norm_(wrapped.parameters(), case["clip"])
    optimizer.step()
    optimizer.zero_grad(set_to_none=case.get("set_to_none", True))
    return total


def delay(wrapped, case):
    if case["kind"] == "ddp":
        return wrapped.no_sync()
    if case["kind"] == "fsdp2":
        return gradient_sync_off(wrapped)
    return contextlib.nullcontext()


@contextlib.contextmanager
def gradient_sync_off(wrapped):
    wrapped.set_requires_gradient_sync(False)
    yield
    wrapped.set_requires_gradient_sync(True)


def full(value):
    return value.full_tensor() if hasattr(value, "full_tensor") else value


CASES = {
    "ddp": {"kind": "ddp"},
    "ddp exact": {"kind": "ddp", "exact": True},
    "ddp clipped": {"kind": "ddp", "clip": 0.5},
    "ddp bucket view": {"kind": "ddp", "ddp": {"gradient_as_bucket_view": True}},
    "ddp bucket view fp16 hook": {
        "kind": "ddp",
        "ddp": {"gradient_as_bucket_view": True},
        "hook": "fp16_compress_hook",
    },
    "ddp bucket view kept": {"kind": "ddp", "ddp": {"gradient_as_bucket_view": True}, "set_to_none": False},
    "ddp small buckets": {"kind": "ddp", "ddp": {"bucket_cap_mb": 0.01}, "tied": False},
    "ddp static graph": {"kind": "ddp", "ddp": {"static_graph": True}, "tied": False},
    "ddp unused": {"kind": "ddp", "ddp": {"find_unused_parameters": True}, "unused": True},
    "ddp no_sync": {"kind": "ddp", "micros": 3},
    "ddp accumulate with sync": {"kind": "ddp", "micros": 2, "no_sync": False},
    "ddp fp16 hook": {"kind": "ddp", "hook": "fp16_compress_hook"},
    "ddp hook of one's own": {"kind": "ddp", "hook": "own"},
    "ddp builtin fp16 hook": {"kind": "ddp", "hook": "builtin_fp16"},
    "ddp powersgd": {"kind": "ddp", "hook": "powersgd", "tied": False},
    "ddp autocast": {"kind": "ddp", "autocast": True},
    "ddp pure bf16": {"kind": "ddp", "dtype": torch.bfloat16},
    "ddp checkpoint": {"kind": "ddp", "checkpointing": "non-reentrant", "tied": False},
    "ddp reentrant checkpoint": {"kind": "ddp", "checkpointing": "reentrant", "tied": False},
    "ddp of compiled": {"kind": "ddp", "compile": "inside", "tied": False},
    "compiled ddp": {"kind": "ddp", "compile": "outside", "tied": False},
    "fsdp2": {"kind": "fsdp2", "mesh": (2,), "tied": False, "layer_norm": True},
    "fsdp2 accumulate": {"kind": "fsdp2", "mesh": (2,), "tied": False, "layer_norm": True, "micros": 2},
    "fsdp2 accumulate with sync": {
        "kind": "fsdp2",
        "mesh": (2,),
        "tied": False,
        "layer_norm": True,
        "micros": 2,
        "no_sync": False,
    },
    "fsdp2 bf16, reduced in fp32": {
        "kind": "fsdp2",
        "mesh": (2,),
        "tied": False,
        "layer_norm": True,
        "policy": {"param_dtype": torch.bfloat16, "reduce_dtype": torch.float32},
    },
    "fsdp2 exact": {"kind": "fsdp2", "mesh": (2,), "tied": False, "layer_norm": True, "exact": True},
    "manual": {"kind": "manual", "layer_norm": True},
    "manual accumulate, clipped": {"kind": "manual", "micros": 2, "clip": 0.5, "layer_norm": True},
}


@pytest.fixture(scope="module")
def unwatched(two):
    """What two ranks end a case with that nobody watches, trained once."""
    return functools.cache(lambda name: two.run(train, CASES[name], None))


@pytest.mark.in_turn
@pytest.mark.parametrize("name", CASES)
def test_training_is_bitwise_equal_watched_and_not(two, unwatched, tmp_path, name):
    assert_same(two, CASES[name], tmp_path, unwatched(name))


RECORDED = (
    *("ddp", "ddp bucket view", "ddp no_sync", "ddp hook of one's own", "ddp autocast", "ddp checkpoint"),
    *("ddp reentrant checkpoint", "ddp of compiled", "fsdp2", "fsdp2 accumulate", "fsdp2 bf16, reduced in fp32"),
    "manual accumulate, clipped",
)


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("name", "plan"),
    [
        *((name, {"preset": "mix", "depth": "fingerprint"}) for name in RECORDED),
        *((name, {"preset": "bits"}) for name in RECORDED),
        *((name, {"preset": "monitor", "every": 1}) for name in ("ddp", "fsdp2")),
    ],
)
def test_training_is_bitwise_equal_recorded_and_not(two, unwatched, tmp_path, name, plan):
    import trueline

    recorded = two.run(train, CASES[name], str(tmp_path / "run"), plan)
    for (losses, state), (losses_recorded, state_recorded) in zip(unwatched(name), recorded, strict=True):
        assert losses == losses_recorded
        for key, value in state.items():
            assert torch.equal(value, state_recorded[key]), key
    run = trueline.open_run(tmp_path / "run")
    assert [finding.claim for finding in run.live_findings] == []
    assert run.problems == []
    records = run.records()
    assert set(records["rank"].to_pylist()) == {0, 1}
    assert set(records["step"].to_pylist()) == set(range(STEPS))
    assert {"fwd", "bwd", "param", "grad", "opt"} <= set(records["phase"].to_pylist())


LOOKED = {
    "ddp": ({"kind": "ddp"}, {}, ""),
    "ddp recorded": ({"kind": "ddp", "micros": 2}, {"preset": "mix"}, ""),
    "ddp checkpoint": ({"kind": "ddp", "checkpointing": "non-reentrant", "tied": False}, {}, "are recomputed"),
    "ddp reentrant checkpoint": ({"kind": "ddp", "checkpointing": "reentrant", "tied": False}, {}, "are recomputed"),
    "fsdp2": ({"kind": "fsdp2", "mesh": (2,), "tied": False}, {}, "parameters are sharded"),
    "fsdp2 recorded": ({"kind": "fsdp2", "mesh": (2,), "tied": False}, {"preset": "mix"}, "parameters are sharded"),
}
"""Cases with what the plan records, and why influences cannot be told; "" where they can."""


@pytest.mark.in_turn
@pytest.mark.parametrize("name", LOOKED)
def test_training_is_bitwise_equal_where_influences_are_looked_at_and_not(two, tmp_path, name):
    import trueline

    case, plan, reason = LOOKED[name]
    case = {**case, "layer_norm": True}
    plain, looked = two.run(train, case, None), two.run(train, case, str(tmp_path / "run"), {"influence": 2, **plan})
    for (losses, state), (losses_looked, state_looked) in zip(plain, looked, strict=True):
        assert losses == losses_looked
        for key, value in state.items():
            assert torch.equal(value, state_looked[key]), key
    report = trueline.check(tmp_path / "run")
    assert [finding.claim for finding in trueline.open_run(tmp_path / "run").live_findings] == []
    why = {entry.check: entry.why for entry in report.checks_not_run}
    assert ("influence-leak" in report.checks_run, reason in why.get("influence-leak", "")) == (not reason, True)
    assert "influence-leak" not in [finding.code for finding in report.findings]


@pytest.mark.in_turn
@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("view", [True, False])
def test_three_ranks_divide_as_ddp_does_itself(three, tmp_path, view, kept):
    """1/3 is not exact: DDP multiplies while it copies into a bucket and divides what lives there."""
    case = {"kind": "ddp", "ddp": {"gradient_as_bucket_view": view}, "set_to_none": not kept, "micros": 2}
    assert_same(three, case, tmp_path, three.run(train, case, None))


@pytest.mark.in_turn
def test_hsdp_is_bitwise_equal_watched_and_not(four, tmp_path):
    case = {"kind": "fsdp2", "mesh": (2, 2), "tied": False, "layer_norm": True}
    assert_same(four, case, tmp_path, four.run(train, case, None))


def assert_same(ranks, case, tmp_path: Path, plain):
    import trueline

    out = tmp_path / "run"
    watched = ranks.run(train, case, str(out))
    for (losses, state), (losses_watched, state_watched) in zip(plain, watched, strict=True):
        assert losses == losses_watched
        for name, value in state.items():
            assert torch.equal(value, state_watched[name]), name
    run = trueline.open_run(out)
    assert len(run.steps) == STEPS
    assert [finding.claim for finding in run.live_findings] == []
    assert run.problems == []
    norms, measured = run.pivot("grad_norm")
    assert measured.all(), "gradients were not seen"
    assert (norms > 0).all()
    report = trueline.check(out)
    assert [finding.claim for finding in report.findings if finding.is_grave] == []


def test_upstreams_rules_for_comm_hooks_still_hold(two, tmp_path):
    two.run(register_twice_and_wrongly, str(tmp_path / "run"))


def register_twice_and_wrongly(rank, world, out):
    import trueline

    ddp = nn.parallel.DistributedDataParallel(nn.Linear(2, 2), gradient_as_bucket_view=True)
    with trueline.watch(ddp, out=out):
        with pytest.raises(TypeError, match="BF16"):  # DDP refuses it on the CPU
            ddp.register_comm_hook(None, default_hooks.bf16_compress_hook)
        ddp.register_comm_hook(None, default_hooks.allreduce_hook)
        with pytest.raises(RuntimeError, match="once"):
            ddp.register_comm_hook(None, default_hooks.allreduce_hook)


def test_a_hook_taken_before_watching_falls_back_and_says_so(two, tmp_path):
    import trueline

    out = tmp_path / "run"
    two.run(train_with_taken_hook, str(out), True)
    run = trueline.open_run(out)
    assert run.pivot("grad_norm")[1].all()
    assert any("comm hook was taken by fp16_compress_hook" in note for note in run.manifest.notes)


def test_outside_of_buckets_nobody_needs_the_comm_hook(two, tmp_path):
    import trueline

    out = tmp_path / "run"
    two.run(train_with_taken_hook, str(out), False)
    run = trueline.open_run(out)
    assert run.pivot("grad_norm")[1].all()
    assert run.lists("group_reduce_residual")
    assert run.env[0].reduce_hook == "fp16_compress_hook"
    assert run.manifest.notes == []


@dataclass
class Answer:
    scores: list[torch.Tensor]
    name: str = "scores"


class Hidden:
    """What a search for tensors cannot look into."""

    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value


class Wrapping(nn.Module):
    def __init__(self, wrap):
        super().__init__()
        self.linear, self.wrap = nn.Linear(8, 8), wrap

    def forward(self, x):
        return self.wrap(self.linear(x))


OUTPUTS = {
    "tensor": (lambda y: y, lambda out: out),
    "mapping in a tuple": (lambda y: ({"y": y}, None), lambda out: out[0]["y"]),
    "dataclass": (lambda y: Answer([y]), lambda out: out.scores[0]),
    "hidden": (Hidden, lambda out: out.value),
}


@pytest.mark.parametrize("kind", OUTPUTS)
def test_gradients_are_seen_whatever_the_module_returns(two, tmp_path, kind):
    import trueline

    local = two.run(train_with_output, str(tmp_path / "run"), kind)
    run = trueline.open_run(tmp_path / "run")
    for step in range(3):
        for rank in range(2):
            assert run.pivot("grad_norm")[0][step, rank] == pytest.approx(local[rank][step], rel=1e-5)


def train_with_output(rank, world, out, kind):
    """Norms of the worker's own gradients, by a twin that nobody reduces."""
    import trueline

    wrap, read = OUTPUTS[kind]
    torch.manual_seed(0)
    ddp = nn.parallel.DistributedDataParallel(Wrapping(wrap))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    norms = []
    with trueline.watch(ddp, optimizer, out=out, plan={"every": 1}):
        for step in range(3):
            x = torch.full((2, 8), float(rank + step + 1))
            twin = copy.deepcopy(ddp.module)
            read(twin(x)).square().mean().backward()
            norms.append(sum(float(param.grad.square().sum()) for param in twin.parameters()) ** 0.5)
            read(ddp(x)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return norms


def train_with_taken_hook(rank, world, out, view):
    import trueline

    torch.manual_seed(0)
    ddp = nn.parallel.DistributedDataParallel(nn.Linear(8, 8), gradient_as_bucket_view=view)
    ddp.register_comm_hook(None, default_hooks.fp16_compress_hook)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    with trueline.watch(ddp, optimizer, out=out, plan={"every": 1}):
        for micro in range(6):
            with ddp.no_sync() if micro % 2 == 0 else contextlib.nullcontext():
                ddp(torch.ones(2, 8) * (rank + 1)).square().mean().backward()
            if micro % 2:
                optimizer.step()
                optimizer.zero_grad()


def test_a_watched_model_can_be_copied_and_saved(two, tmp_path):
    two.run(copy_and_save, str(tmp_path))


def copy_and_save(rank, world, folder):
    import trueline

    model = TinyLM()
    ddp = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    with trueline.watch(ddp, optimizer, out=f"{folder}/run"):
        ema = copy.deepcopy(model)
        torch.save(model, f"{folder}/model{rank}.pt")
        ema(torch.zeros(2, 3, dtype=torch.int64))
        loaded = torch.load(f"{folder}/model{rank}.pt", weights_only=False)
        loaded(torch.zeros(2, 3, dtype=torch.int64))
        ddp(torch.ones(2, 3, dtype=torch.int64)).sum().backward()
        optimizer.step()
    rows = trueline.open_run(f"{folder}/run").table().to_pylist() if rank == 0 else []
    assert all(len(row["sample_digests"]) == 2 for row in rows), "the copies' forward passes were counted"


def test_running_statistics_that_fsdp2_leaves_to_each_rank_are_told(two, tmp_path):
    import trueline

    two.run(train, {"kind": "fsdp2", "mesh": (2,), "tied": False}, str(tmp_path / "run"))
    findings = trueline.check(tmp_path / "run").findings
    (finding,) = [finding for finding in findings if finding.is_grave]
    assert (finding.code, finding.severity, finding.ranks) == ("replica-drift", "warning", (0, 1))
    assert "norm.running_mean" in finding.claim
