"""Healthy pairs that users have: one script with kernels of a library and one written out, wrapped or not, with other
masks, scalers, hooks and groups of parameters. Letters as in the families.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from benchmarks.compare.corpus.kit import Batch, Training, after, healthy
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

# Attention and its masks


@healthy("llama", "SDPA of another back end")
def _(t: Training) -> None:
    t.around = lambda: sdpa_kernel(SDPBackend.MATH)


@healthy("gpt", "attention block by block")
def _(t: Training) -> None:
    for block in t.model.blocks:
        block.attn.attend = _block_by_block


def _block_by_block(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """As flash attention does: keys in blocks of four, sums rescaled by the largest score so far."""
    at = torch.arange(q.shape[2])
    most = torch.full((*q.shape[:3], 1), -torch.inf, dtype=q.dtype)
    total, mixed = torch.zeros_like(most), torch.zeros_like(q)
    for begin in range(0, k.shape[2], 4):
        some = slice(begin, begin + 4)
        scores = q @ k[:, :, some].transpose(-2, -1) * q.shape[-1] ** -0.5
        scores = scores.masked_fill(at[some] > at[:, None], -1e30)
        larger = torch.maximum(most, scores.amax(-1, keepdim=True))
        weight, kept = torch.exp(scores - larger), torch.exp(most - larger)
        total, mixed = total * kept + weight.sum(-1, keepdim=True), mixed * kept + weight @ v[:, :, some]
        most = larger
    return mixed / total


@healthy("gpt", "einsum for the products of attention")
def _(t: Training) -> None:
    def attend(attn: nn.Module, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = torch.einsum("bhqk,bhlk->bhql", q, k) * attn.scale
        return torch.einsum("bhql,bhlk->bhqk", torch.softmax(scores + attn.mask(scores), -1), v)

    for block in t.model.blocks:
        block.attn.attend = lambda q, k, v, attn=block.attn: attend(attn, q, k, v)


def _masked_by(lowest: float) -> Callable[[Training], None]:
    def change(t: Training) -> None:
        for block in t.model.blocks:
            block.attn.mask = _mask_of(lowest)

    return change


def _mask_of(lowest: float) -> Callable[[Tensor], Tensor]:
    def mask(scores: Tensor) -> Tensor:
        later = torch.ones(*scores.shape[-2:], dtype=torch.bool).triu(1)
        return torch.zeros(*scores.shape[-2:], dtype=scores.dtype).masked_fill(later, lowest)

    return mask


for _lowest in (-torch.inf, -1e9, -65504.0, -1e4):
    healthy("gpt", f"a mask of {_lowest:g}")(_masked_by(_lowest))


@healthy("gpt", "scores filled, no mask added")
def _(t: Training) -> None:
    def attend(attn: nn.Module, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = torch.matmul(q, k.transpose(-2, -1)) * attn.scale
        later = torch.ones(*scores.shape[-2:], dtype=torch.bool).triu(1)
        return torch.matmul(torch.softmax(scores.masked_fill(later, -torch.inf), -1), v)

    for block in t.model.blocks:
        block.attn.attend = lambda q, k, v, attn=block.attn: attend(attn, q, k, v)


class _OfTorch(nn.Module):
    """``nn.MultiheadAttention`` with the weights of an attention written out."""

    def __init__(self, attn: nn.Module) -> None:
        super().__init__()
        width = attn.out.in_features
        self.of_torch = nn.MultiheadAttention(width, attn.num_heads, batch_first=True)
        with torch.no_grad():
            self.of_torch.in_proj_weight.copy_(attn.qkv.weight)
            self.of_torch.in_proj_bias.copy_(attn.qkv.bias)
            self.of_torch.out_proj.load_state_dict(attn.out.state_dict())

    def forward(self, x_BLD: Tensor) -> Tensor:
        later = torch.ones(x_BLD.shape[1], x_BLD.shape[1], dtype=torch.bool).triu(1)
        return self.of_torch(x_BLD, x_BLD, x_BLD, attn_mask=later, need_weights=False)[0]


@healthy("gpt", "attention of torch.nn")
def _(t: Training) -> None:
    for block in t.model.blocks:
        block.attn = _OfTorch(block.attn)


# Layers written out, or the other way round


@healthy("mlp", "LayerNorm written out")
def _(t: Training) -> None:
    for norm in (t.model.norm1, t.model.norm2):
        norm.forward = lambda x, norm=norm: _normalised(x, norm.eps) * norm.weight + norm.bias


def _normalised(x: Tensor, eps: float) -> Tensor:
    apart = x - x.mean(-1, keepdim=True)
    return apart / torch.sqrt(apart.pow(2).mean(-1, keepdim=True) + eps)


@healthy("llama", "RMSNorm of torch")
def _(t: Training) -> None:
    for module in t.model.modules():
        if type(module).__name__ == "RMSNorm":
            module.forward = lambda x, norm=module: functional.rms_norm(x, x.shape[-1:], norm.weight, norm.eps)


@healthy("mamba", "a quotient for rsqrt")
def _(t: Training) -> None:
    for module in t.model.modules():
        if type(module).__name__ == "RMSNorm":
            module.forward = lambda x, norm=module: norm.weight * _by_quotient(x.float(), norm.eps).to(x.dtype)


def _by_quotient(wide: Tensor, eps: float) -> Tensor:
    return wide / torch.sqrt((wide * wide).mean(-1, keepdim=True) + eps)


@healthy("mlp", "addmm for linear")
def _(t: Training) -> None:
    for layer in (t.model.fc1, t.model.fc2, t.model.head):
        layer.forward = lambda x, layer=layer: torch.addmm(layer.bias, x, layer.weight.t())


@healthy("convnext", "GELU by erf")
def _(t: Training) -> None:
    for block in t.model.stages:
        block.act.forward = lambda x: 0.5 * x * (1 + torch.erf(x * 2**-0.5))


@healthy("resnet", "ReLU in place")
def _(t: Training) -> None:
    for module in t.model.modules():
        if isinstance(module, nn.ReLU):
            module.inplace = True


@healthy("resnet", "convolutions by unfold")
def _(t: Training) -> None:
    for module in t.model.modules():
        if isinstance(module, nn.Conv2d) and module.kernel_size == (3, 3):
            module.forward = lambda x, conv=module: _unfolded(x, conv)


def _unfolded(x_BCHW: Tensor, conv: nn.Conv2d) -> Tensor:
    columns = functional.unfold(x_BCHW, 3, padding=1, stride=conv.stride)
    side = (x_BCHW.shape[-1] - 1) // conv.stride[0] + 1
    return (conv.weight.flatten(1) @ columns).unflatten(-1, (side, side))


@healthy("convnext", "the sum the other way round")
def _(t: Training) -> None:
    def forward(block: nn.Module, x_BCHW: Tensor) -> Tensor:
        return block.mix(block.dwconv(x_BCHW).permute(0, 2, 3, 1)).permute(0, 3, 1, 2) + x_BCHW

    for block in t.model.stages:
        block.forward = lambda x, block=block: forward(block, x)


@healthy("unet", "channels last")
def _(t: Training) -> None:
    t.model.to(memory_format=torch.channels_last)


@healthy("vit", "copies in between")
def _(t: Training) -> None:
    for block in t.model.blocks:
        after(block, lambda x: x.clone().contiguous())


@healthy("mlp", "dropout of nothing")
def _(t: Training) -> None:
    after(t.model.act1, lambda x: functional.dropout(x, 0.0))


class _Tied(nn.Module):
    """A head that takes the weight of the embedding, without one of its own."""

    def __init__(self, embed: nn.Embedding) -> None:
        super().__init__()
        self._embed = [embed]

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self._embed[0].weight)


@healthy("gpt", "weights tied by the call")
def _(t: Training) -> None:
    t.model.head = _Tied(t.model.embed)


# The loss


def _loss_by(t: Training, of_logits: Callable[[Tensor, Batch], Tensor], *names: str) -> None:
    t.loss = lambda model, batch: of_logits(model(*(batch[name] for name in names)).float(), batch)


@healthy("lstm", "cross-entropy by log_softmax")
def _(t: Training) -> None:
    def loss(logits: Tensor, batch: Batch) -> Tensor:
        return -logits.log_softmax(-1).gather(-1, batch["labels"][..., None]).mean()

    _loss_by(t, loss, "inputs")


@healthy("gru", "cross-entropy summed, then divided")
def _(t: Training) -> None:
    def loss(logits: Tensor, batch: Batch) -> Tensor:
        return functional.cross_entropy(logits, batch["y"], reduction="sum") / len(logits)

    _loss_by(t, loss, "x", "length")


@healthy("mamba", "cross-entropy of each token, then the mean")
def _(t: Training) -> None:
    def loss(logits: Tensor, batch: Batch) -> Tensor:
        each = functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), reduction="none")
        return each.mean()

    _loss_by(t, loss, "inputs")


@healthy("dlrm", "binary cross-entropy by logsigmoid")
def _(t: Training) -> None:
    def loss(logits: Tensor, batch: Batch) -> Tensor:
        y = batch["y"].float()
        return -(y * functional.logsigmoid(logits) + (1 - y) * functional.logsigmoid(-logits)).mean()

    _loss_by(t, loss, "dense", "ids")


@healthy("unet", "squares averaged by hand")
def _(t: Training) -> None:
    _loss_by(t, lambda out, batch: (out - batch["noise"].float()).square().mean(), "noisy", "t")


# Wrappers, hooks, and what looks on


@healthy("vit", "reentrant checkpointing")
def _(t: Training) -> None:
    for block in t.model.blocks:
        forward = block.forward
        block.forward = lambda x, forward=forward: checkpoint(forward, x, use_reentrant=True)


@healthy("lstm", "DDP of one rank")
def _(t: Training) -> None:
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    t.model = nn.parallel.DistributedDataParallel(t.model)


@healthy("mlp", "functional_call")
def _(t: Training) -> None:
    def loss(model: nn.Module, batch: Batch) -> Tensor:
        out = torch.func.functional_call(model, dict(model.named_parameters()), (batch["x"],))
        return functional.cross_entropy(out.float(), batch["y"], label_smoothing=0.1)

    t.loss = loss


@healthy("mlp", "a scripted activation")
def _(t: Training) -> None:
    t.model.act2 = torch.jit.script(nn.GELU())


@healthy("mlp", "a part compiled", needs="eager")
def _(t: Training) -> None:
    t.model.fc2.compile(backend="aot_eager")


@healthy("gpt2", "hooks on each module")
def _(t: Training) -> None:
    for module in t.model.modules():
        module.register_forward_hook(lambda *_: None)
        module.register_full_backward_hook(lambda *_: None)


@healthy("gru", "an evaluation before each step")
def _(t: Training) -> None:
    prepare = t.prepare

    def evaluated(batch: Batch) -> Batch:
        batch = prepare(batch)
        with torch.no_grad():
            t.loss(t.model, batch)
        return batch

    t.prepare = evaluated


@healthy("llama", "norms of activations are logged")
def _(t: Training) -> None:
    for layer in t.model.layers:
        layer.register_forward_hook(lambda _, taken, given: _looked_at(given))


def _looked_at(x: Tensor) -> None:
    x.detach().norm().item()


# The optimizer


@healthy("gpt", "clipped tensor by tensor")
def _(t: Training) -> None:
    t.before_update = lambda _: nn.utils.clip_grad_norm_(t.model.parameters(), 1.0, foreach=False)


@healthy("vit", "two groups of parameters")
def _(t: Training) -> None:
    made = t.optimizer

    def grouped(params: list[Tensor], **settings: Any) -> torch.optim.Optimizer:
        return made([{"params": params[::2]}, {"params": params[1::2]}], **settings)

    t.optimizer = grouped


@healthy("dlrm", "gradients added to zeros")
def _(t: Training) -> None:
    def zero_grad(self: torch.optim.Optimizer, set_to_none: bool = False) -> None:
        torch.optim.Optimizer.zero_grad(self, set_to_none=set_to_none)

    t.optimizer = type("Adagrad", (t.optimizer,), {"zero_grad": zero_grad})


@healthy("llama", "a gradient scaler")
def _(t: Training) -> None:
    scaler, loss = torch.amp.GradScaler("cpu", init_scale=2.0**16), t.loss
    t.loss = lambda model, batch: scaler.scale(loss(model, batch))
    t.before_update = scaler.unscale_
    t.after_update = lambda _: scaler.update()


# Sums by indices


@healthy("gnn", "index_put_ for index_add")
def _(t: Training) -> None:
    def gather(sent_ED: Tensor, target_E: Tensor, num: int) -> Tensor:
        zeros_ND = torch.zeros(num, sent_ED.shape[1], dtype=sent_ED.dtype)
        return zeros_ND.index_put((target_E,), sent_ED, accumulate=True)

    for layer in t.model.layers:
        layer.gather = gather


@healthy("gnn", "put_ for index_add")
def _(t: Training) -> None:
    def gather(sent_ED: Tensor, target_E: Tensor, num: int) -> Tensor:
        width = sent_ED.shape[1]
        places_ED = target_E[:, None] * width + torch.arange(width)
        return sent_ED.new_zeros(num, width).put(places_ED, sent_ED, accumulate=True)

    for layer in t.model.layers:
        layer.gather = gather


@healthy("gnn", "index_reduce by mean, times its count")
def _(t: Training) -> None:
    def gather(sent_ED: Tensor, target_E: Tensor, num: int) -> Tensor:
        mean_ND = sent_ED.new_zeros(num, sent_ED.shape[1]).index_reduce(
            0, target_E, sent_ED, "mean", include_self=False
        )
        return mean_ND * torch.bincount(target_E, minlength=num)[:, None].to(sent_ED.dtype)

    for layer in t.model.layers:
        layer.gather = gather


def packed(lstm: nn.LSTM, x_BLD: Tensor, state: object, lengths: list[int]) -> tuple[Tensor, object]:
    """What ``lstm`` returns for sequences of ``lengths``, padded with zeros."""
    together = nn.utils.rnn.pack_padded_sequence(x_BLD, lengths, batch_first=True, enforce_sorted=False)
    out, state = nn.LSTM.forward(lstm, together, state)
    return nn.utils.rnn.pad_packed_sequence(out, batch_first=True, total_length=x_BLD.shape[1])[0], state


@healthy("gnn", "edges in another order")
def _(t: Training) -> None:
    for layer in t.model.layers:
        layer.gather = lambda sent, target, num: sent.new_zeros(num, sent.shape[1]).index_add(
            0, target.flip(0), sent.flip(0)
        )


@healthy("dlrm", "a bag by index_select")
def _(t: Training) -> None:
    for table in t.model.tables:
        table.forward = lambda ids, table=table: (
            table.weight.index_select(0, ids.flatten()).unflatten(0, ids.shape).sum(1)
        )


@healthy("moe", "tokens sorted by expert")
def _(t: Training) -> None:
    for layer in t.model.layers:
        layer.moe.forward = lambda x, moe=layer.moe: _sorted_by_expert(moe, x)


def _sorted_by_expert(moe: nn.Module, x_BLD: Tensor) -> Tensor:
    x_ND = x_BLD.flatten(0, 1)
    weight_NK, expert_NK = moe.route(x_ND)
    order = expert_NK.flatten().argsort(stable=True)
    rows = order // moe.num_chosen
    parts = x_ND[rows].split(torch.bincount(expert_NK.flatten(), minlength=len(moe.experts)).tolist())
    done = torch.cat([expert(part) for expert, part in zip(moe.experts, parts, strict=True)])
    done = done * weight_NK.flatten()[order, None]
    return torch.zeros_like(x_ND).index_add(0, rows, done.to(x_ND.dtype)).view_as(x_BLD)


@contextlib.contextmanager
def _deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@healthy("gnn", "deterministic algorithms")
def _(t: Training) -> None:
    t.around = _deterministic
