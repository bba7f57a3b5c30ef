"""Real models compared with themselves computed another way, healthy and with a fault: what `compare` says of each.

    python -m benchmarks.compare.models [--preset mix] [--depth stats] [--seeds 1] [--only NAME] [--contrast NAME]

One process; both runs of a pair start from one seed and see the same batches. A healthy pair must be without an error
(silent); of a faulty one the first site must be of the module that the fault is in. What is missed is printed below
the table, with what was named instead.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from benchmarks.compare.trainings.changes import two_threads
from benchmarks.compare.trainings.model_families import BATCH_SIZE, FAMILIES, Family
from benchmarks.compare.verdict import largest, named, said
from benchmarks.page import arguments, line, table
from gallery.changed_kernel import ChangedKernel
from torch import nn

import trueline
from trueline.comparison.compare import compare
from trueline.comparison.result import Comparison

STEPS = 3
HEAD = (
    *("the run compared with float32, one thread, AdamW in a loop", "models", "silent"),
    *("largest times", "faults", "first"),
)


class Replaced(ChangedKernel):
    """Every second call of ``kernel`` in a step is made with what ``changed`` makes of its arguments, below what is
    recorded, from step ``since`` on.
    """

    def __init__(self, kernel: str, changed: Callable[[tuple[Any, ...], dict[str, Any]], Any], since: int = 0) -> None:
        super().__init__(kernel)
        self.step = 0
        self._replaced, self._since = changed, since

    def given(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What the kernel is given instead, once the step is there."""
        return self._replaced(args, kwargs) if self.step >= self._since else (args, kwargs)


def rescaled(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """The scale of an attention times 1.25."""
    scale = kwargs.get("scale") or args[0].shape[-1] ** -0.5
    return args, {**kwargs, "scale": 1.25 * scale}


def not_causal(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """Attention that sees what comes after."""
    if len(args) > 4:
        return (*args[:4], False, *args[5:]), kwargs
    return args, {**kwargs, "is_causal": False}


def tanh(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """The GELU that is an approximation."""
    return args, {**kwargs, "approximate": "tanh"}


@dataclass(frozen=True)
class Contrast:
    """How the run differs from its reference. ``coarse``: by so much rounding that only coarse faults stand out."""

    name: str
    dtype: torch.dtype = torch.float32
    change: Callable[[nn.Module], Any] = lambda model: None
    inside: Callable[[], Any] = contextlib.nullcontext
    optimizer: tuple[str, dict[str, Any]] = ("AdamW", {"lr": 1e-3, "foreach": False})
    ref_optimizer: tuple[str, dict[str, Any]] = ("AdamW", {"lr": 1e-3, "foreach": False})
    num_micro: int = 1
    fits: Callable[[Family], bool] = lambda family: True
    coarse: bool = False
    kernels: bool = True
    """Whether attention is one kernel, in which a fault can be hidden."""


@dataclass(frozen=True)
class Fault:
    """What is wrong with a run: ``plant`` gives the kernel that computes otherwise, if that; ``place`` is where."""

    name: str
    plant: Callable[[Family, nn.Module], Replaced | None]
    place: Callable[[Family], str]
    fits: Callable[[Family], bool]
    coarse: bool = False
    in_kernel: bool = False
    step: int = 0


def eager(model: nn.Module) -> None:
    model.set_attn_implementation("eager")


def checkpointed(model: nn.Module) -> None:
    if hasattr(model, "gradient_checkpointing_enable"):
        model.gradient_checkpointing_enable({"use_reentrant": False})
    else:
        model.checkpointing = "non-reentrant"


def scaled(family: Family, model: nn.Module) -> None:
    with torch.no_grad():
        model.get_submodule(family.linear).weight.mul_(1.001)


def wide_eps(family: Family, model: nn.Module) -> None:
    norm = model.get_submodule(family.norm)
    setattr(norm, "eps" if hasattr(norm, "eps") else "variance_epsilon", 1e-2)


def layer(family: Family) -> str:
    """The second layer of a model: where its second attention and its second GELU are."""
    return family.norm[: family.norm.index(".1") + 2] if family.norm else "vit.layers.1"


_SGD = {"lr": 1e-2, "momentum": 0.9}
CONTRASTS = (
    Contrast("the same again"),
    Contrast("bfloat16", dtype=torch.bfloat16, coarse=True),
    Contrast("bfloat16 autocast", inside=lambda: torch.autocast("cpu", torch.bfloat16), coarse=True),
    Contrast("eager attention", change=eager, fits=lambda family: family.hugging_face, kernels=False),
    Contrast("checkpointing", change=checkpointed, fits=lambda family: family.hugging_face or family.causal),
    Contrast("4 micro-batches", num_micro=4, fits=lambda family: family.name != "Vision"),
    Contrast("foreach", optimizer=("AdamW", {"lr": 1e-3, "foreach": True})),
    Contrast("fused", optimizer=("AdamW", {"lr": 1e-3, "fused": True})),
    Contrast("SGD, foreach", optimizer=("SGD", {**_SGD, "foreach": True}), ref_optimizer=("SGD", _SGD)),
    Contrast("two threads", inside=two_threads),
    Contrast("no oneDNN", inside=lambda: torch.backends.mkldnn.flags(enabled=False)),
)

FAULTS = (
    Fault("weight x 1.001", scaled, lambda family: family.linear, lambda family: bool(family.linear)),
    Fault("eps 1e-2", wide_eps, lambda family: family.norm, lambda family: bool(family.norm), coarse=True),
    Fault("scale x 1.25", lambda *_: Replaced("attention", rescaled), layer, lambda f: f.causal, in_kernel=True),
    Fault(
        "late scale", lambda *_: Replaced("attention", rescaled, 1), layer, lambda f: f.causal, in_kernel=True, step=1
    ),
    Fault("not causal", lambda *_: Replaced("attention", not_causal), layer, lambda f: f.causal, True, True),
    Fault("hidden tanh", lambda *_: Replaced("aten.gelu", tanh), layer, lambda family: family.gelu),
)


@dataclass
class Tally:
    """What became of the pairs of a contrast."""

    models: int = 0
    silent: int = 0
    times: float = 0.0
    faults: int = 0
    found: int = 0
    missed: list[str] = field(default_factory=list)


def main() -> None:
    parser = arguments(__doc__, seeds=1)
    parser.add_argument("--preset", default="mix", choices=("mix", "ops", "modules"))
    parser.add_argument("--depth", default="stats", choices=("stats", "fingerprint", "tensor"))
    parser.add_argument("--only", default="", help="models with this in their name")
    parser.add_argument("--contrast", default="", help="contrasts with this in their name")
    parser.add_argument("--healthy", action="store_true", help="plant nothing")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    print(f"`--preset {options.preset} --depth {options.depth} --seeds {options.seeds}`\n\n{table(HEAD, [])}")
    missed: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for contrast in (each for each in CONTRASTS if options.contrast in each.name):
            tally = Tally()
            for family in FAMILIES:
                if options.only in family.name and contrast.fits(family):
                    for seed in range(options.seeds):
                        tell(family, contrast, seed, options, tally, Path(folder))
            counts = [tally.models, tally.silent, f"{tally.times:.1f}", tally.faults, tally.found]
            print(line([contrast.name, *counts]), flush=True)
            missed += tally.missed
    print("\n".join(["", *missed]))


def tell(family: Family, contrast: Contrast, seed: int, options: argparse.Namespace, tally: Tally, runs: Path) -> None:
    """Record and compare the pairs of one model, and add what was said of them to ``tally``."""
    plain = Contrast("reference", optimizer=contrast.ref_optimizer)
    ref = runs / f"{family.name} {seed} {contrast.ref_optimizer[0]}"
    if not ref.exists():
        record(ref, family, plain, None, seed, options)
    healthy = _beside(ref, family, contrast, None, seed, options)
    tally.models += 1
    tally.silent += healthy.exit_code == 0
    tally.times = max(tally.times, largest(healthy))
    if healthy.exit_code:
        tally.missed.append(f"- alarm: {family.name}, {contrast.name}, seed {seed}: {said(healthy)}")
        print(tally.missed[-1], file=sys.stderr, flush=True)
    for fault in FAULTS:
        unfit = (contrast.coarse and not fault.coarse) or (fault.in_kernel and not contrast.kernels)
        if options.healthy or unfit or not fault.fits(family):
            continue
        bad = _beside(ref, family, contrast, fault, seed, options)
        tally.faults += 1
        found = named(bad, fault.step, fault.place(family))
        tally.found += found
        if not found:
            tally.missed.append(f"- missed: {family.name}, {contrast.name}, {fault.name}, seed {seed}: {said(bad)}")
            print(tally.missed[-1], file=sys.stderr, flush=True)


def _beside(
    ref: Path, family: Family, contrast: Contrast, fault: Fault | None, seed: int, options: argparse.Namespace
) -> Comparison:
    with tempfile.TemporaryDirectory() as folder:
        record(Path(folder) / "run", family, contrast, fault, seed, options)
        return compare(Path(folder) / "run", ref)


def record(
    out: Path, family: Family, contrast: Contrast, fault: Fault | None, seed: int, options: argparse.Namespace
) -> None:
    """A Run of the family's training in the contrast's way, with the fault."""
    model = family.model(seed).to(contrast.dtype)
    contrast.change(model)
    hidden = None if fault is None else fault.plant(family, model)
    kind, settings = contrast.optimizer
    optimizer = getattr(torch.optim, kind)(model.parameters(), **settings)
    draw = torch.Generator().manual_seed(seed)
    watch = trueline.watch(model, optimizer, out=out, plan={"preset": options.preset, "depth": options.depth})
    size = BATCH_SIZE // contrast.num_micro
    with hidden or contextlib.nullcontext():
        for step in range(STEPS):
            if hidden is not None:
                hidden.step = step
            batch = family.batch(draw)
            # Entered anew in each step: autocast keeps weights that it cast until it is left, updates or not.
            with contrast.inside(), watch.step(batch):
                for start in range(0, BATCH_SIZE, size):
                    part = {name: value[start : start + size] for name, value in batch.items()}
                    loss = family.loss(model, part)
                    (loss if contrast.num_micro == 1 else loss / contrast.num_micro).backward()
                optimizer.step()
                optimizer.zero_grad()
    watch.close()


if __name__ == "__main__":
    main()
