"""How gradients grow from layer to layer in healthy models, and how far they stay from the end of their range."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from benchmarks import page
from gallery.problems import CausalLM, Regression, Vision
from torch import Tensor, nn
from torch.nn import functional

import trueline
from trueline.judge.recorded.step_values import StepValues, read_step
from trueline.laws.overflow import grad_explosion
from trueline.laws.overflow.gradient_growth import growths
from trueline.store.reader import Run

STEPS = 3
DEPTH = 24
NO_END = {"float16": 0.0, "bfloat16": 0.0, "float32": 0.0}
"""As if every number were at the end of its range: then every chain is looked at."""


class Deep(nn.Module):
    """A stack of linear layers of width 64, tanh or ReLU between them, residual or not, by a gain of the weights."""

    def __init__(self, *, gain: float, residual: bool, act: Callable[[Tensor], Tensor], norm: bool = False) -> None:
        super().__init__()
        self.residual, self.act = residual, act
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(DEPTH))
        self.norms = nn.ModuleList(nn.LayerNorm(64) if norm else nn.Identity() for _ in range(DEPTH))
        for layer in self.layers:
            nn.init.normal_(layer.weight, std=gain / 8)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        """[B, 64] to the same."""
        for layer, norm in zip(self.layers, self.norms, strict=True):
            y = self.act(layer(norm(x)))
            x = x + y if self.residual else y
        return x


def table() -> str:
    """One line a model and precision: the largest growth over three layers or more, and how near the end it came."""
    about = (
        f"{STEPS} recorded steps of each under AdamW; deep stacks have {DEPTH} layers. Growth: the largest over three "
        "layers or more in a row that each have a larger gradient than the one before, up to the first layer. Room: by "
        "how many doublings the largest gradient is from overflow. A model whose loss is not finite is not healthy."
    )
    rows = []
    for name, make in MODELS.items():
        (grown, room, told), (grown_half, room_half, told_half) = (_measured(make, half=half) for half in (False, True))
        cells = [_text(grown), _text(room), _text(grown_half), _text(room_half), str(told + told_half)]
        rows.append([name, *cells])
    head = ["model", "float32: growth", "room", "autocast float16: growth", "room", "reported"]
    return f"{about}\n\n{page.table(head, rows)}"


def _text(value: float) -> str:
    return "loss not finite" if value != value else "none" if value == 1.0 else f"{value:,.3g}"


Made = tuple[nn.Module, Callable[[nn.Module], Tensor]]


def _deep(**settings: object) -> Callable[[], Made]:
    def make() -> Made:
        x, y = torch.randn(32, 64), torch.randn(32, 64)
        return Deep(**settings), lambda model: functional.mse_loss(model(x).float(), y)  # type: ignore[arg-type]

    return make


def _problem(kind: type) -> Callable[[], Made]:
    def make() -> Made:
        problem = kind()
        batch = problem.dataset(8)[slice(None)]
        return problem.model(), lambda model: problem.loss(model, batch)

    return make


def _transformer() -> Made:
    layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True, norm_first=False)
    model = nn.TransformerEncoder(layer, 12)
    x, y = torch.randn(4, 16, 64), torch.randn(4, 16, 64)
    return model, lambda called: functional.mse_loss(called(x).float(), y)


MODELS: dict[str, Callable[[], Made]] = {
    "MLP": _problem(Regression),
    "conv net with BatchNorm": _problem(Vision),
    "language model": _problem(CausalLM),
    "transformer, 12 layers, norms last": _transformer,
    "deep, tanh, gain 1": _deep(gain=1.0, residual=False, act=torch.tanh),
    "deep, tanh, gain 1.5": _deep(gain=1.5, residual=False, act=torch.tanh),
    "deep, tanh, gain 3": _deep(gain=3.0, residual=False, act=torch.tanh),
    "deep, ReLU, gain 1.4": _deep(gain=1.4, residual=False, act=torch.relu),
    "deep, ReLU, gain 0.7": _deep(gain=0.7, residual=False, act=torch.relu),
    "deep, ReLU, residual, gain 1.4": _deep(gain=1.4, residual=True, act=torch.relu),
    "deep, ReLU, residual, norms first": _deep(gain=1.4, residual=True, act=torch.relu, norm=True),
}


def _measured(make: Callable[[], Made], *, half: bool) -> tuple[float, float, int]:
    torch.manual_seed(0)
    model, loss_of = make()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with tempfile.TemporaryDirectory() as folder:
        watch = trueline.watch(model, optimizer, out=folder + "/run", plan={"preset": "mix", "depth": "stats"})
        for _ in range(STEPS):
            with watch.step():
                with torch.autocast("cpu", torch.float16, enabled=half):
                    loss = loss_of(model)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
        watch.close()
        if not loss.isfinite():
            return float("nan"), float("nan"), 0
        run = Run(Path(folder) / "run")
        steps = [read_step(run, step, 0) for step in run.record_steps.tolist()]
        grown = [each.ratio for step in steps for each in growths(step, NO_END) if each.num_layers >= 3]
        return max(grown, default=1.0), min(map(_room, steps)), len(grad_explosion.check(run))


def _room(step: StepValues) -> float:
    """Doublings that the largest gradient of a step has left."""
    ends = {"float16": 65_504.0, "float32": torch.finfo(torch.float32).max}
    left = [
        ends[value.dtype] / value.largest
        for value in step.values
        if value.site.phase == "bwd" and value.dtype in ends and value.largest
    ]
    return float(torch.tensor(left).double().min().log2())
