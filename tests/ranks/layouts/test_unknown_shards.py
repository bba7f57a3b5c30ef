"""A wrapper that nobody knows, which shards weights and gathers them in its forward pass: shards are no replicas."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn

STEPS = 6


class Gathered(torch.autograd.Function):
    """The whole of a vector of which every rank has one piece; backward gives each its piece of the mean gradient."""

    @staticmethod
    def forward(ctx, piece):
        pieces = [torch.empty_like(piece) for _ in range(dist.get_world_size())]
        dist.all_gather(pieces, piece.contiguous())
        return torch.cat(pieces)

    @staticmethod
    def backward(ctx, gradient):
        mean = gradient.contiguous() / dist.get_world_size()
        dist.all_reduce(mean)
        return mean.chunk(dist.get_world_size())[dist.get_rank()]


class Sharded(nn.Module):
    def __init__(self, linear):
        super().__init__()
        self.shape = linear.weight.shape
        self.piece = nn.Parameter(linear.weight.data.flatten().chunk(dist.get_world_size())[dist.get_rank()].clone())
        self.bias = nn.Parameter(linear.bias.data.clone())

    def forward(self, x):
        return nn.functional.linear(x, Gathered.apply(self.piece).view(self.shape), self.bias)


def train(rank, world, out, kind):
    """Losses and weights; ``unreduced``: biases are not averaged; ``apart``: whole, other weights on each rank."""
    import trueline

    torch.manual_seed(rank if kind == "apart" else 0)
    model = nn.Sequential(nn.Linear(20, 40), nn.Tanh(), nn.Linear(40, 6))
    if kind != "apart":
        model[0], model[2] = Sharded(model[0]), Sharded(model[2])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    watch = trueline.watch(model, optimizer, out=out, plan={"every": 1, "params_every": 1}) if out else None
    losses = []
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(100 * step + rank)
        x, y = torch.randn(8, 20, generator=generator), torch.randint(0, 6, (8,), generator=generator)
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        for layer in (model[0], model[2]) if kind == "healthy" else ():
            dist.all_reduce(layer.bias.grad)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    if watch is not None:
        watch.close()
    return losses, [param.detach().clone() for param in model.parameters()]


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("healthy", {("replica-drift", "info", "0.piece and 2.piece")}),
        (
            "unreduced",
            {
                ("replica-drift", "info", "0.piece and 2.piece"),
                ("replica-drift", "error", "0.bias and 2.bias"),
                ("gradient-not-reduced", "error", "0.bias and 2.bias"),
            },
        ),
        ("apart", {("replica-drift", "error", "0.weight"), ("gradient-not-reduced", "error", "all parameters")}),
    ],
)
def test_shards_of_an_unknown_wrapper_are_no_replicas(two, tmp_path, kind, told):
    import trueline

    out = str(tmp_path / "run")
    for (losses, weights), (seen_losses, seen_weights) in zip(
        two.run(train, None, kind), two.run(train, out, kind), strict=True
    ):
        assert losses == seen_losses
        assert all(map(torch.equal, weights, seen_weights))
    found = [finding for finding in trueline.check(out).findings if finding.code != "rng-streams"]
    assert {(finding.code, finding.severity) for finding in found} == {(code, severity) for code, severity, _ in told}
    for code, severity, names in told:
        assert any((f.code, f.severity) == (code, severity) and names in f.claim for f in found)


class Summed(torch.autograd.Function):
    """A sum over ranks in the forward pass, or in the backward pass."""

    @staticmethod
    def forward(ctx, x, in_forward):
        ctx.in_forward = in_forward
        x = x.clone()
        if in_forward:
            dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone()
        if not ctx.in_forward:
            dist.all_reduce(gradient)
        return gradient, None


class TwoLayers(nn.Module):
    """Columns of one layer and rows of the next on each rank, behind a norm that all have."""

    def __init__(self, kind):
        super().__init__()
        rank, self.kind = dist.get_rank(), kind
        self.norm, self.up, self.down = nn.LayerNorm(20), nn.Linear(20, 8), nn.Linear(8, 6, bias=False)
        for param in (self.up.weight, self.up.bias, self.down.weight):
            nn.init.normal_(param, generator=torch.Generator().manual_seed(rank))

    def forward(self, x):
        x = self.norm(x)
        x = Summed.apply(x, False) if self.kind != "unsummed" else x
        return Summed.apply(self.down(torch.tanh(self.up(x))), True)


def train_parts(rank, world, out, kind):
    """``unsummed``: each rank's norm has the gradient of its own part alone; ``workers``: ranks read other batches."""
    import trueline

    torch.manual_seed(0)
    model = TwoLayers(kind)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with trueline.watch(model, optimizer, out=out, plan={"every": 1, "params_every": 1}):
        for step in range(STEPS):
            generator = torch.Generator().manual_seed(100 * step + (rank if kind == "workers" else 0))
            x, y = torch.randn(8, 20, generator=generator), torch.randint(0, 6, (8,), generator=generator)
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.parametrize(
    ("kind", "of_one_model", "began_equal"),
    [("healthy", True, None), ("unsummed", True, "norm.bias and norm.weight"), ("workers", False, None)],
)
def test_parts_of_one_model_read_the_same_batches_on_purpose(two, tmp_path, kind, of_one_model, began_equal):
    import trueline

    out = str(tmp_path / "run")
    two.run(train_parts, out, kind)
    result = trueline.check(out)
    why = {each.check: each.why for each in result.checks_not_run}
    assert ("tensor parallelism" in why.get("duplicate-data", "")) == of_one_model
    if of_one_model:
        found, *others = [finding for finding in result.findings if finding.code != "rng-streams"]
        assert [(one.code, one.severity) for one in (found, *others)] == [("replica-drift", "info")]
        assert (f"{began_equal} began equal on all of them" in found.claim) == (began_equal is not None)
        assert any("column-parallel" in advice for advice in found.next) == (began_equal is not None)


def train_masters(rank, world, out, kind):
    """``healthy``: an optimizer of copies in float64; ``drift``: rank 1 changes its norm from step 2 on."""
    import trueline

    torch.manual_seed(0)
    model = TwoLayers("healthy")
    masters = [nn.Parameter(param.detach().double()) for param in model.parameters()]
    optimizer = torch.optim.AdamW(masters, lr=1e-2)
    with trueline.watch(model, optimizer, out=out, plan={"every": 1, "params_every": 1}):
        for step in range(STEPS):
            generator = torch.Generator().manual_seed(100 * step)
            x, y = torch.randn(8, 20, generator=generator), torch.randint(0, 6, (8,), generator=generator)
            nn.functional.cross_entropy(model(x), y).backward()
            for param, master in zip(model.parameters(), masters, strict=True):
                master.grad, param.grad = param.grad.double(), None
            if kind == "drift" and rank == 1 and step >= 2:
                masters[0].grad *= -1
            optimizer.step()
            with torch.no_grad():
                for param, master in zip(model.parameters(), masters, strict=True):
                    param.copy_(master)


@pytest.mark.parametrize(("kind", "severities"), [("healthy", ["info"]), ("drift", ["error", "info"])])
def test_parts_whose_optimizer_holds_copies_are_no_replicas_and_their_norms_are(two, tmp_path, kind, severities):
    import trueline

    out = str(tmp_path / "run")
    two.run(train_masters, out, kind)
    result = trueline.check(out)
    found = [finding for finding in result.findings if finding.code != "rng-streams"]
    assert [(finding.code, finding.severity) for finding in found] == [("replica-drift", each) for each in severities]
    if kind == "drift":
        assert (found[0].step_first, found[0].evidence["names"]) == (3, ["norm.weight"])


class Experts(nn.Module):
    """An expert of each rank's own, to which all ranks send a part of their rows, behind a layer that all have."""

    def __init__(self, rank):
        super().__init__()
        self.shared = nn.Linear(20, 20)
        self.expert = nn.Sequential(nn.Linear(20, 40), nn.ReLU(), nn.Linear(40, 6))
        for param in self.expert.parameters():
            nn.init.normal_(param, std=0.1 * 3**rank, generator=torch.Generator().manual_seed(rank))

    def forward(self, x):
        return Exchanged.apply(self.expert(Exchanged.apply(torch.tanh(self.shared(x)))))


class Exchanged(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        out = torch.empty_like(x)
        dist.all_to_all_single(out, x.contiguous())
        return out

    @staticmethod
    def backward(ctx, gradient):
        return Exchanged.forward(ctx, gradient)


def train_experts(rank, world, out):
    import trueline

    torch.manual_seed(0)
    model = Experts(rank)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with trueline.watch(model, optimizer, out=out, plan={"every": 1, "params_every": 1}):
        for step in range(40):
            generator = torch.Generator().manual_seed(100 * step + rank)
            x, y = torch.randn(12, 20, generator=generator), torch.randint(0, 6, (12,), generator=generator)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            for param in model.shared.parameters():
                dist.all_reduce(param.grad)
                param.grad /= world
            optimizer.step()


@pytest.mark.in_turn
def test_gradients_of_experts_by_hand_are_not_compared_as_if_they_were_copies(three, tmp_path):
    import trueline

    out = str(tmp_path / "run")
    three.run(train_experts, out)
    result = trueline.check(out)
    assert {finding.code for finding in result.findings if finding.is_grave} == set()
