"""Settings of optimizers, schedules and norms; weights; and code between the batch and the model, or in the loss."""

from __future__ import annotations

from typing import Any

import torch
from benchmarks.compare.corpus.kit import FIRST, INPUT, OPTIMIZER, STRUCTURE, WEIGHT, Batch, Training, fault
from torch import Tensor, nn
from torch.nn import functional

UPDATE = ("opt", "param", "grad")
DATA = (FIRST, STRUCTURE)
LOSS = (FIRST, STRUCTURE)
WEIGHTS = (WEIGHT,)


def _setting(family: str, name: str, word: str, **settings: Any) -> None:
    at = ("SGD:-", "Adam:-", "AdamW:-", "Adagrad:-")

    @fault(family, name, "setting", at, phase=UPDATE, codes=OPTIMIZER, word=word)
    def _(t: Training) -> None:
        t.settings = {**t.settings, **settings}


_setting("gpt", "beta2 0.999 for 0.95", "betas", betas=(0.9, 0.999))
_setting("mlp", "lr 10 % more", "lr", lr=0.055)
_setting("resnet", "momentum 0.95 for 0.9", "momentum", momentum=0.95)
_setting("resnet", "Nesterov's momentum", "nesterov", nesterov=True)
_setting("llama", "Adam's eps 1e-6", "eps", eps=1e-6)
_setting("convnext", "weight decay 0.01 for 0.05", "weight_decay", weight_decay=0.01)
_setting("vae", "AMSGrad", "amsgrad", amsgrad=True)
_setting("dlrm", "lr decays", "lr_decay", lr_decay=0.1)
_setting("vit", "beta1 0.8 for 0.9", "betas", betas=(0.8, 0.999))
_setting("mamba", "lr twice", "lr", lr=2e-3)
_setting("mlp", "dampening", "dampening", dampening=0.1)


@fault("gpt", "warm-up of another length", "setting", "AdamW:-", phase=UPDATE, codes=OPTIMIZER, word="lr")
def _(t: Training) -> None:
    t.schedule = lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (step + 1) / 8)


@fault(
    "mlp", "a schedule from a stale initial_lr", "setting", "SGD:-", phase=UPDATE, codes=OPTIMIZER, word="initial_lr|lr"
)
def _(t: Training) -> None:
    schedule = t.schedule

    def stale(optimizer: torch.optim.Optimizer) -> object:
        optimizer.param_groups[0]["initial_lr"] = 0.08
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.625 * 0.5**step, last_epoch=0)

    assert schedule is not None
    t.schedule = stale


@fault(
    "gpt",
    "gradients clipped at 0.5",
    "setting",
    "~:rdiv|clamp|clip|mul_|mul|div|truediv",
    phase=("grad", "opt", "bwd"),
    codes=(OPTIMIZER, FIRST, STRUCTURE),
    word="clip|max_norm",
)
def _(t: Training) -> None:
    t.before_update = lambda _: nn.utils.clip_grad_norm_(t.model.parameters(), 0.5)


@fault(
    "resnet",
    "momentum of a BatchNorm 0.01",
    "setting",
    "layer1.bn1",
    phase=("fwd", "param"),
    codes=(FIRST, OPTIMIZER, STRUCTURE, WEIGHT),
    word="momentum",
)
def _(t: Training) -> None:
    t.model.layer1.bn1.momentum = 0.01


@fault(
    "mamba",
    "a parameter that the optimizer does not have",
    "setting",
    "mixers.1.D",
    phase=(*UPDATE, "bwd"),
    codes=(OPTIMIZER, STRUCTURE),
    word="mixers.1.D",
)
def _(t: Training) -> None:
    make = t.optimizer
    t.optimizer = lambda params, **settings: make([p for p in params if p is not t.model.mixers[1].D], **settings)


def _weight(family: str, name: str, at: str, change: Any, *places: str) -> None:
    @fault(family, name, "weight", (at, at.rpartition(".")[0], *places), phase=("param", "fwd"), codes=WEIGHTS)
    def _(t: Training) -> None:
        change(t.model.get_parameter(at).data)


_weight("llama", "one element of a weight", "layers.1.mlp.up_proj.weight", lambda w: w[3, 5:6].fill_(1.0))
_weight("resnet", "a layer times 1.001", "layer2.conv2.weight", lambda w: w.mul_(1.001))
_weight("convnext", "one module from elsewhere", "stages.1.pwconv1.weight", lambda w: w.normal_(std=0.1))
_weight("unet", "a kernel flipped", "mid.conv1.weight", lambda w: w.copy_(w.flip(3)))
_weight("vit", "rows of qkv in another order", "blocks.1.attn.qkv.weight", lambda w: w.copy_(w.roll(32, 0)))
_weight("moe", "an expert one rounding off", "layers.1.moe.experts.0.down_proj.weight", lambda w: w.mul_(1.01))
_weight("mamba", "A from another formula", "mixers.0.A_log", lambda w: w.add_(0.1))
_weight("dlrm", "a table that was not loaded", "tables.3.weight", lambda w: w.normal_())
_weight("gnn", "a bias zeroed", "layers.0.own.bias", lambda w: w.zero_())
_weight("vae", "a sign in a weight", "decoder.2.weight", lambda w: w[0].neg_())


@fault(
    "gpt",
    "the head no longer tied",
    "weight",
    ("head.weight", "head", "embed.weight"),
    phase=("param", "fwd", "bwd", "grad"),
    codes=(WEIGHT, STRUCTURE, "site-missing"),
)
def _(t: Training) -> None:
    t.model.head.weight = nn.Parameter(t.model.head.weight.detach().clone())


@fault(
    "llama",
    "a buffer of another base",
    "weight",
    ("layers.0.self_attn.rotary", "layers.0.self_attn.rotary.rates"),
    phase=("param", "fwd"),
    codes=(WEIGHT, FIRST, INPUT),
)
def _(t: Training) -> None:
    rotary = t.model.layers[0].self_attn.rotary
    rotary.rates = 5000.0 ** (-torch.arange(0, 12, 2) / 12)


@fault(
    "resnet",
    "a LayerScale of BatchNorm loaded twice",
    "weight",
    ("layer3.bn2.weight", "layer3.bn2"),
    phase=("param", "fwd"),
    codes=WEIGHT,
)
def _(t: Training) -> None:
    t.model.layer3.bn2.weight.data.mul_(1.1)


def _prepared(family: str, name: str, at: str, change: Any) -> None:
    @fault(family, name, "between", f"~:{at}", codes=DATA)
    def _(t: Training) -> None:
        t.prepare = change(t.prepare)


_prepared("mlp", "another mean", "sub|div|truediv", lambda _: lambda b: {**b, "x": (b["x"] - 1.1) / 3.0})
_prepared(
    "unet", "another schedule of noise", "rsub|cumprod|linspace", lambda p: (setattr(p, "betas", p.betas * 1.05), p)[1]
)


@fault("unet", "noise of another variance", "between", "~:mul|rsub|sqrt|add", codes=DATA)
def _(t: Training) -> None:
    diffusion = t.prepare

    def prepare(batch: Batch) -> Batch:
        image, kept = batch["image"] * 2 - 1, torch.cumprod(1 - diffusion.betas, 0)[batch["t"]]
        kept = kept.view(-1, 1, 1, 1).to(image.dtype)
        return {**batch, "noisy": kept.sqrt() * image + (1 - kept) * batch["noise"]}

    t.prepare = prepare


@fault("gpt", "labels not shifted", "between", "~:getitem|cross_entropy|flatten", codes=DATA)
def _(t: Training) -> None:
    t.prepare = lambda batch: {**batch, "inputs": batch["ids"][:, :-1], "labels": batch["ids"][:, :-1]}


@fault("dlrm", "log of counts, not log1p", "between", "~:log|log1p|add", codes=DATA)
def _(t: Training) -> None:
    dtype = t.model.top[0].weight
    t.prepare = lambda batch: {**batch, "dense": torch.log(batch["counts"].float() + 2).to(dtype.dtype)}


@fault("vit", "images not normalised", "between", "~:sub|div|truediv|to", codes=DATA)
def _(t: Training) -> None:
    t.prepare = lambda batch: batch


def _scored(family: str, name: str, at: str, loss: Any) -> None:
    @fault(family, name, "loss", f"~:{at}", codes=LOSS)
    def _(t: Training) -> None:
        t.loss = loss


_scored(
    "mlp",
    "labels smoothed by 0.05",
    "cross_entropy",
    lambda model, batch: functional.cross_entropy(model(batch["x"]).float(), batch["y"], label_smoothing=0.05),
)
_scored(
    "unet",
    "L1 for squares",
    "l1_loss|mse_loss",
    lambda model, batch: functional.l1_loss(model(batch["noisy"], batch["t"]).float(), batch["noise"].float()),
)
_scored(
    "gpt",
    "summed, not averaged",
    "cross_entropy|truediv|div",
    lambda model, batch: (
        functional.cross_entropy(
            model(batch["inputs"]).flatten(0, 1).float(), batch["labels"].flatten(), reduction="sum"
        )
        / 64
    ),
)
_scored(
    "resnet",
    "labels smoothed",
    "cross_entropy",
    lambda model, batch: functional.cross_entropy(model(batch["image"]).float(), batch["label"], label_smoothing=0.1),
)
_scored(
    "dlrm",
    "positives weigh more",
    "binary_cross_entropy_with_logits|tensor",
    lambda model, batch: functional.binary_cross_entropy_with_logits(
        model(batch["dense"], batch["ids"]).float(), batch["y"].float(), pos_weight=torch.tensor(1.2)
    ),
)


@fault("vae", "divergence averaged over the wrong dimension", "loss", "~:sum|mean|mul", codes=LOSS)
def _(t: Training) -> None:
    def loss(model: nn.Module, batch: Batch) -> Tensor:
        logits, mean, log_var = (each.float() for each in model(batch["x"]))
        rebuilt = functional.binary_cross_entropy_with_logits(logits, batch["x"].float(), reduction="sum")
        divergence = -0.5 * torch.mean(1 + log_var - mean.pow(2) - log_var.exp())
        return (rebuilt + divergence) / len(batch["x"])

    t.loss = loss


@fault("moe", "twice the balance", "loss", "~:mul", codes=LOSS)
def _(t: Training) -> None:
    def loss(model: nn.Module, batch: Batch) -> Tensor:
        logits, balance = model(batch["inputs"])
        return functional.cross_entropy(logits.flatten(0, 1).float(), batch["labels"].flatten()) + 0.02 * balance

    t.loss = loss


for _name in ("mlp", "resnet"):

    @fault(_name, "the fused SGD of torch 2.13", "setting", "SGD:-", phase=UPDATE, codes=OPTIMIZER, needs="bf16")
    def _(t: Training) -> None:
        """It leaves whole vectors of numbers as they are (pytorch issue 191763)."""
        t.settings = {**t.settings, "foreach": None, "fused": True}
