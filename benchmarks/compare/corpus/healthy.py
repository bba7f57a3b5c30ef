"""Healthy ways: every family computed once more, and in other ways that only change how sums round."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator

import torch
from benchmarks.compare.corpus.families.language import heads
from benchmarks.compare.corpus.kit import FAMILIES, Training, healthy
from benchmarks.compare.trainings.changes import two_threads
from gallery.reference_training import in_halves
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


def _inside(t: Training, context: Callable[[], contextlib.AbstractContextManager[object]]) -> None:
    around = t.around

    @contextlib.contextmanager
    def both() -> Iterator[None]:
        with around(), context():
            yield

    t.around = both


def _kernels(t: Training, **ways: bool) -> None:
    t.settings = {name: value for name, value in t.settings.items() if name not in ("foreach", "fused")} | ways


def _in_double(t: Training) -> None:
    t.dtype = torch.float64


def _as(**fields: object) -> Callable[[Training], None]:
    def change(t: Training) -> None:
        for name, value in fields.items():
            setattr(t, name, value)

    return change


def _rows_apart(t: Training) -> None:
    """Each linear computes the halves of its batch apart."""
    for module in t.model.modules():
        if type(module) is nn.Linear:
            _halved(module)


def _halved(module: nn.Linear) -> None:
    def forward(x: Tensor) -> Tensor:
        if len(x) < 2:
            return functional.linear(x, module.weight, module.bias)
        parts = x.split([len(x) // 2, len(x) - len(x) // 2])
        return torch.cat([functional.linear(part, module.weight, module.bias) for part in parts])

    module.forward = forward


def _checkpointed(module: nn.Module) -> None:
    forward = module.forward
    module.forward = lambda *args: checkpoint(forward, *args, use_reentrant=False)


def register() -> None:
    """Add the ways that every family has, and ``equivalents``."""
    importlib.import_module("benchmarks.compare.corpus.equivalents")
    for name, family in FAMILIES.items():
        healthy(name, "again")(lambda t: None)
        healthy(name, "two threads")(lambda t: _inside(t, two_threads))
        healthy(name, "no oneDNN")(lambda t: _inside(t, lambda: torch.backends.mkldnn.flags(enabled=False)))
        if name != "qat":  # its linears are others, and what bfloat16 rounds is rounded to other steps
            healthy(name, "linears in halves")(lambda t: in_halves(t.model))
            if name != "t5":  # Adafactor's first epsilon is that of the dtype
                healthy(name, "bfloat16", needs="fp32")(_as(dtype=torch.bfloat16))
            healthy(name, "autocast", needs="fp32")(_as(autocast=True))
        if name != "t5":
            healthy(name, "float64", needs="fp32", undecided=name == "vae")(_in_double)  # VAE draws in the dtype
        healthy(name, "rows apart")(_rows_apart)
        healthy(name, "foreach")(lambda t: _kernels(t, foreach=True))
        if name not in ("t5", "gru", "lstm"):
            sgd = name in ("mlp", "resnet")  # torch 2.13's fused SGD is wrong in bfloat16: a fault, ``faults.settings``
            healthy(name, "fused", needs="wide" if sgd else "")(lambda t: _kernels(t, fused=True))
        healthy(name, "scaled loss")(_as(loss_scale=1024.0))
        healthy(name, "eager for compiled", needs="compiled")(_as(compiled=False))
        if family.micro:
            healthy(name, "two micro-batches")(_as(num_micro=2))


@healthy("gpt", "fused attention")
def _(t: Training) -> None:
    for block in t.model.blocks:
        block.attn.attend = lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, is_causal=True)


@healthy("vit", "fused attention")
def _(t: Training) -> None:
    for block in t.model.blocks:
        block.attn.attend = functional.scaled_dot_product_attention


def _sdpa(t: Training) -> None:
    t.model.set_attn_implementation("sdpa")


for _name in ("gpt2", "bert", "t5", "whisper"):
    healthy(_name, "fused attention")(_sdpa)


@healthy("llama", "attention written out")
def _(t: Training) -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool) -> Tensor:
        later = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).triu(1)
        scores = (q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5).masked_fill(later, -torch.inf)
        return scores.softmax(-1) @ v

    for layer in t.model.layers:
        layer.self_attn.attend = attend


@healthy("gpt", "checkpointing")
def _(t: Training) -> None:
    for block in t.model.blocks:
        _checkpointed(block)


@healthy("llama", "checkpointing")
def _(t: Training) -> None:
    for layer in t.model.layers:
        _checkpointed(layer)


@healthy("unet", "checkpointing")
def _(t: Training) -> None:
    for block in (t.model.down1, t.model.down2, t.model.mid, t.model.up1):
        _checkpointed(block)


def _split(t: Training) -> None:
    for block in t.model.blocks:
        attn = block.attn
        for name, weight, bias in zip("qkv", attn.qkv.weight.chunk(3), attn.qkv.bias.chunk(3), strict=True):
            part = nn.Linear(48, 48)
            part.weight.data, part.bias.data = weight.detach().clone(), bias.detach().clone()
            attn.add_module(name, part)
        del attn.qkv
        attn.split = _split_by(attn)


def _split_by(attn: nn.Module) -> Callable[[Tensor], tuple[Tensor, ...]]:
    return lambda x: tuple(heads(part(x), attn.num_heads) for part in (attn.q, attn.k, attn.v))


healthy("gpt", "split q, k and v")(_split)
healthy("gpt", "split q, k and v, with a map", names="q, k, v = qkv")(_split)


@healthy("moe", "experts in another order")
def _(t: Training) -> None:
    for layer in t.model.layers:
        layer.moe.order = [3, 1, 0, 2]


@healthy("gnn", "a matrix product for index_add")
def _(t: Training) -> None:
    for layer in t.model.layers:
        layer.gather = _by_product


def _by_product(sent_ED: Tensor, target_E: Tensor, num: int) -> Tensor:
    return functional.one_hot(target_E, num).to(sent_ED.dtype).t() @ sent_ED


@healthy("gnn", "scatter_add for index_add")
def _(t: Training) -> None:
    def gather(sent_ED: Tensor, target_E: Tensor, num: int) -> Tensor:
        zeros_ND = torch.zeros(num, sent_ED.shape[1], dtype=sent_ED.dtype)
        return zeros_ND.scatter_add(0, target_E[:, None].expand_as(sent_ED), sent_ED)

    for layer in t.model.layers:
        layer.gather = gather


@healthy("mlp", "a subclass of SGD")
def _(t: Training) -> None:
    t.optimizer = type("OurSGD", (torch.optim.SGD,), {})


@healthy("unet", "AdamW without decay for Adam")
def _(t: Training) -> None:
    t.optimizer, t.settings = torch.optim.AdamW, {**t.settings, "weight_decay": 0.0}


@healthy("resnet", "channels last")
def _(t: Training) -> None:
    t.model.to(memory_format=torch.channels_last)


@healthy("convnext", "channels last")
def _(t: Training) -> None:
    t.model.to(memory_format=torch.channels_last)


@healthy("perceiver", "pieces of six")
def _(t: Training) -> None:
    t.model.piece = 6


@healthy("tp", "partial sums in another order")
def _(t: Training) -> None:
    for block in t.model.blocks:
        for row in (block.out, block.down):
            row.reduce = lambda partial: partial[1] + partial[0]


@healthy("mamba", "fused multiply and add")
def _(t: Training) -> None:
    for mixer in t.model.mixers:
        mixer.skip = lambda scanned, x, mixer=mixer: torch.addcmul(scanned, x, mixer.D)


@healthy("clip", "einsum for the products")
def _(t: Training) -> None:
    m = t.model
    m.compare = lambda image, text: m.logit_scale.exp() * torch.einsum("id,td->it", image, text)


@healthy("dlrm", "embeddings summed, not bags")
def _(t: Training) -> None:
    for table in t.model.tables:
        table.forward = lambda ids, table=table: functional.embedding(ids, table.weight).sum(1)


@healthy("lstm", "zeros made another way")
def _(t: Training) -> None:
    t.model.start = lambda x: (x.new_zeros(1, len(x), 32), x.new_zeros(1, len(x), 32))


@healthy("gru", "lerp for two products")
def _(t: Training) -> None:
    t.model.cell.mix = lambda new, update, state: torch.lerp(new, state, update)


@healthy("vae", "a square root for half of a logarithm")
def _(t: Training) -> None:
    t.model.sample = lambda mean, log_var: mean + log_var.exp().sqrt() * torch.randn_like(mean)
