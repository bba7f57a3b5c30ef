"""One small transformer in one layout: `layouts_job.py LAYOUT [--ranks N] [--fault FAULT] [--steps N] [--sharp]`.

LAYOUT: single, accum (micro-batches of a quarter), dp, fsdp2, tp (tensor parallelism by hand, with the vocabulary cut
too), sp (the same with the sequence cut between), pp (two stages), cp (the sequence cut, keys and values gathered), ep
(an expert a rank). Every layout sees the same batches, begins with the same weights and clips the same norm.

FAULT: shard-norm, wrong-group, bias-per-rank, mask-off, expert-dropped, norm-not-reduced, no-max, own-max,
averaged-twice, summed, other-seed, other-data, micro-not-divided. ``--sharp``: logits of hundreds.

Letters: B batch, L sequence length, D model width, V vocabulary, T tokens.
"""

from __future__ import annotations

import argparse
import os
import tempfile

parser = argparse.ArgumentParser()
parser.add_argument("layout")
parser.add_argument("--ranks", type=int, default=1)
parser.add_argument("--fault", default="")
parser.add_argument("--steps", type=int, default=6)
parser.add_argument("--sharp", action="store_true")
parser.add_argument("--no-experts", action="store_true")
asked = parser.parse_args()
if asked.ranks > 1 and "RANK" not in os.environ:
    # ranks are forks that import torch by themselves, as processes of torchrun do
    store = tempfile.mktemp()
    os.environ |= {"WORLD_SIZE": str(asked.ranks), "RANK": "0", "LOCAL_RANK": "0", "STORE": store}
    for number in range(1, asked.ranks):
        if os.fork() == 0:
            os.environ |= {"RANK": str(number), "LOCAL_RANK": str(number)}
            break

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

layout, fault = asked.layout, asked.fault
rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
B, L, D, V, HEADS, CLIP = 8, 16, 32, 64, 4, 0.5
if world > 1:
    store = os.environ.get("STORE")
    dist.init_process_group(
        "gloo", **({"init_method": f"file://{store}", "rank": rank, "world_size": world} if store else {})
    )
is_cut = layout in ("tp", "sp")
parts = world if is_cut else 1
shares = world if layout in ("dp", "fsdp2", "ep") else 1


class Entered(torch.autograd.Function):
    """Into layers that are cut: the same forward, the sum over ranks backward."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        dist.all_reduce(grad)
        return grad


class Summed(torch.autograd.Function):
    """Out of layers that are cut: the sum over ranks forward, the same backward."""

    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad


class Gathered(torch.autograd.Function):
    """Pieces of all ranks along ``dim``; backward the sum of what each has of the own piece."""

    @staticmethod
    def forward(ctx, x, dim):
        ctx.dim = dim
        pieces = [torch.empty_like(x).contiguous() for _ in range(world)]
        dist.all_gather(pieces, x.contiguous())
        return torch.cat(pieces, dim)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone().contiguous()
        dist.all_reduce(grad)
        return grad.chunk(world, ctx.dim)[rank].contiguous(), None


class Scattered(torch.autograd.Function):
    """The own piece along ``dim`` of the sum over ranks; backward all pieces side by side."""

    @staticmethod
    def forward(ctx, x, dim):
        ctx.dim = dim
        x = x.clone()
        dist.all_reduce(x)
        return x.chunk(world, dim)[rank].contiguous()

    @staticmethod
    def backward(ctx, grad):
        pieces = [torch.empty_like(grad).contiguous() for _ in range(world)]
        dist.all_gather(pieces, grad.contiguous())
        return torch.cat(pieces, ctx.dim), None


class Piece(torch.autograd.Function):
    """The own piece along ``dim`` of what all ranks have alike; backward all pieces side by side."""

    @staticmethod
    def forward(ctx, x, dim):
        ctx.dim = dim
        return x.chunk(world, dim)[rank].contiguous()

    @staticmethod
    def backward(ctx, grad):
        pieces = [torch.empty_like(grad).contiguous() for _ in range(world)]
        dist.all_gather(pieces, grad.contiguous())
        return torch.cat(pieces, ctx.dim), None


def entered(x):
    return Gathered.apply(x, 1) if layout == "sp" else Entered.apply(x) if is_cut else x


def left(x):
    return Scattered.apply(x, 1) if layout == "sp" else Summed.apply(x) if is_cut else x


class Rows(nn.Linear):
    """A layer whose input may be cut: the sum over ranks, then the bias."""

    def forward(self, x):
        if not is_cut:
            return super().forward(x)
        if fault == "bias-per-rank":
            return left(super().forward(x))
        return left(functional.linear(x, self.weight)) + self.bias


class Attention(nn.Module):
    """Causal attention; of a sequence that is cut, keys and values are gathered."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(D, D) for _ in range(3))
        self.out = Rows(D, D)

    def forward(self, x):
        x = entered(x)
        q, k, v = (layer(x).unflatten(-1, (-1, D // HEADS)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        first = 0
        if layout == "cp":
            first = rank * q.shape[2]
            k, v = Gathered.apply(k, 2), Gathered.apply(v, 2)
            first += q.shape[2] * (fault == "mask-off" and rank == 0)
        seen = torch.arange(k.shape[2]) <= torch.arange(first, first + q.shape[2])[:, None]
        mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        return self.out(mixed.transpose(1, 2).flatten(-2))


class Dense(nn.Module):
    """down(gelu(up(x)))."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(D, 2 * D), Rows(2 * D, D)

    def forward(self, x):
        return self.down(functional.gelu(self.up(entered(x))))


class Expert(nn.Module):
    """One expert."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(D, 2 * D), nn.Linear(2 * D, D)

    def forward(self, x_TD):
        return self.down(functional.gelu(self.up(x_TD)))


class Experts(nn.Module):
    """Two experts, of which each token takes the one with the larger gate; in layout ep each rank has one."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(D, 2)
        self.experts = nn.ModuleDict({str(number): Expert() for number in range(2)})

    def forward(self, x_BLD):
        weight, choice = self.gate(x_BLD).softmax(-1).max(-1)
        x_TD, choice = x_BLD.flatten(0, 1), choice.flatten()
        if layout == "ep":
            x_TD = Gathered.apply(x_TD, 0)
            pieces = [torch.empty_like(choice) for _ in range(world)]
            dist.all_gather(pieces, choice)
            choice = torch.cat(pieces)
        out_TD = torch.zeros_like(x_TD)
        for name, expert in self.experts.items():
            rows = (choice == int(name)).nonzero().flatten()
            made = expert(x_TD[rows])
            if fault == "expert-dropped" and name == "1":
                made = made * 0.0
            out_TD = out_TD.index_add(0, rows, made)
        if layout == "ep":
            out_TD = Scattered.apply(out_TD, 0)
        return out_TD.view_as(x_BLD) * weight[..., None]


class Block(nn.Module):
    """Attention, then an MLP or experts."""

    def __init__(self, mlp):
        super().__init__()
        self.norm_attn, self.norm_mlp = nn.LayerNorm(D), nn.LayerNorm(D)
        self.attention, self.mlp = Attention(), mlp()

    def forward(self, x):
        x = x + self.attention(self.norm_attn(x))
        return x + self.mlp(self.norm_mlp(x))


class Model(nn.Module):
    """Embedding, two blocks and a head; of a stage some are absent."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(V, D)
        last = Dense if is_cut or layout == "pp" or asked.no_experts else Experts
        self.blocks = nn.ModuleDict({"0": Block(Dense), "1": Block(last)})
        self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, V, bias=False)

    def forward(self, x):
        x = x if self.embed is None else self.embed(x)
        if layout == "sp":
            x = Piece.apply(x, 1)
        for block in self.blocks.values():
            x = block(x)
        if self.head is None:
            return x
        return self.head(entered(self.norm(x)))


class VocabularyLoss(torch.autograd.Function):
    """Mean cross-entropy of logits [T, V / ranks] whose columns are cut."""

    @staticmethod
    def forward(ctx, logits_TV, labels_T):
        most_T = logits_TV.max(-1).values
        if fault != "own-max":
            dist.all_reduce(most_T, op=dist.ReduceOp.MAX)
        shifted_TV = logits_TV if fault == "no-max" else logits_TV - most_T[:, None]
        total_T = shifted_TV.exp().sum(-1)
        dist.all_reduce(total_T)
        own_T = labels_T - rank * logits_TV.shape[1]
        has_T = (own_T >= 0) & (own_T < logits_TV.shape[1])
        picked_T = shifted_TV.gather(1, own_T.clamp(0, logits_TV.shape[1] - 1)[:, None])[:, 0] * has_T
        dist.all_reduce(picked_T)
        probabilities_TV = shifted_TV.exp() / total_T[:, None]
        ctx.save_for_backward(probabilities_TV, own_T, has_T)
        return (total_T.log() - picked_T).mean()

    @staticmethod
    def backward(ctx, grad):
        probabilities_TV, own_T, has_T = ctx.saved_tensors
        grad_TV = probabilities_TV.clone()
        rows = has_T.nonzero().flatten()
        grad_TV[rows, own_T[rows]] -= 1.0
        return grad_TV * grad / len(own_T), None


def loss_of(logits, labels):
    if is_cut:
        return VocabularyLoss.apply(logits.flatten(0, 1), labels.flatten())
    return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def made():
    """The model of this rank, whose weights are those of the whole one."""
    torch.manual_seed(7 if fault == "other-seed" else 0)
    model = Model()
    with torch.no_grad():
        for name, param in model.named_parameters():
            if name.endswith("bias") and param.ndim == 1:
                param.normal_(0.0, 0.1)
        model.head.weight *= 200.0 if asked.sharp else 1.0
        for name, layer in list(model.named_modules()):
            last = name.rpartition(".")[2]
            if is_cut and last in ("q", "k", "v", "up", "head"):
                layer.weight = nn.Parameter(layer.weight.chunk(parts)[rank].clone())
                if layer.bias is not None:
                    layer.bias = nn.Parameter(layer.bias.chunk(parts)[rank].clone())
            if is_cut and last in ("out", "down"):
                layer.weight = nn.Parameter(layer.weight.chunk(parts, 1)[rank].clone())
    if layout == "pp":
        model.blocks = nn.ModuleDict({str(rank): model.blocks[str(rank)]})
        model.embed = model.embed if rank == 0 else None
        model.norm, model.head = (model.norm, model.head) if rank == world - 1 else (None, None)
    if layout == "ep":
        experts = model.blocks["1"].mlp.experts
        model.blocks["1"].mlp.experts = nn.ModuleDict({str(rank): experts[str(rank)]})
    return model


def is_shard(name):
    """Whether a parameter of this name is another one on each rank."""
    last, kind = name.split(".")[-2:]
    if is_cut:
        return last in ("q", "k", "v", "up", "head") or (last in ("out", "down") and kind == "weight")
    return layout == "pp" or (layout == "ep" and ".experts." in name)


def clip(model):
    """Clip the norm of all gradients, whoever holds them."""
    named = [(name, param.grad) for name, param in model.named_parameters()]
    if layout == "fsdp2" and fault != "shard-norm":
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        return
    grads = [(name, grad.to_local() if hasattr(grad, "to_local") else grad) for name, grad in named]
    cut, whole = (
        sum((grad.square().sum() for name, grad in grads if is_shard(name) is which), torch.zeros(()))
        for which in (True, False)
    )
    if world > 1 and fault != "shard-norm":
        dist.all_reduce(cut)
    scale = min(1.0, CLIP / ((cut + whole).sqrt().item() + 1e-6))
    for _, grad in grads:
        grad.mul_(scale)


def reduce(model):
    """What no wrapper sums over ranks."""
    for name, param in model.named_parameters():
        last = name.split(".")[-2]
        of_pieces = layout == "sp" and last in ("norm_attn", "norm_mlp", "norm", "out", "down") and not is_shard(name)
        if of_pieces and fault != "norm-not-reduced":
            dist.all_reduce(param.grad)
        if layout == "ep" and is_shard(name):
            param.grad /= world


def wrapped(model):
    if layout in ("dp", "cp", "ep"):
        if layout == "ep":
            own = [name for name, _ in model.named_parameters() if is_shard(name)]
            nn.parallel.DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, own)
        group = None
        if fault == "wrong-group":
            groups = [dist.new_group([first, first + 1]) for first in range(0, world, 2)]
            group = groups[rank // 2]
        return nn.parallel.DistributedDataParallel(model, process_group=group)
    if layout == "fsdp2":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("dp",))
        for module in (*model.blocks.values(), model):
            fully_shard(module, mesh=mesh)
    return model


def batch_of(step):
    draw = torch.Generator().manual_seed(step + (1000 if fault == "other-data" else 1))
    ids = torch.randint(V, (B, L + 1), generator=draw)
    tokens, labels = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
    if layout == "cp":
        return tuple(x.chunk(world, 1)[rank].contiguous() for x in (tokens, labels))
    return tuple(x.chunk(shares)[rank if shares > 1 else 0].contiguous() for x in (tokens, labels))


def pipelined(model, tokens, labels):
    """Two micro-batches through two stages, all forward, then all backward."""
    losses, sent, received = [], [], []
    micro = list(zip(tokens.chunk(2), labels.chunk(2), strict=True))
    for ids, targets in micro:
        if rank == 0:
            sent.append(model(ids))
            dist.send(sent[-1].detach(), 1)
        else:
            x = torch.empty(len(ids), L, D)
            dist.recv(x, 0)
            received.append(x.requires_grad_())
            losses.append(loss_of(model(x), targets) / (1 if fault == "micro-not-divided" else len(micro)))
    for number in range(len(micro)):
        if rank == 0:
            grad = torch.empty_like(sent[number])
            dist.recv(grad, 1)
            sent[number].backward(grad)
        else:
            losses[number].backward()
            dist.send(received[number].grad, 0)


model = made()
net = wrapped(model)
updates = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step in range(asked.steps):
    tokens, labels = batch_of(step)
    if layout == "pp":
        pipelined(model, tokens, labels)
    else:
        num_micro = 4 if layout == "accum" else 1
        for ids, targets in zip(tokens.chunk(num_micro), labels.chunk(num_micro), strict=True):
            loss = loss_of(net(ids), targets)
            if fault == "averaged-twice":
                loss = loss / max(shares, num_micro)
            (loss * shares if fault == "summed" else loss / num_micro).backward()
    reduce(model)
    clip(model)
    updates.step()
    updates.zero_grad()
if world > 1:
    dist.barrier()
    dist.destroy_process_group()
if rank == 0 and "RANK" in os.environ and asked.ranks > 1:
    for _ in range(1, asked.ranks):
        try:
            os.wait()
        except ChildProcessError:
            break
