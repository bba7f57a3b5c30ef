"""I2, I3. What the model is given besides its data is the same at every step, or random numbers begin again.

Who had it: diffusion trainings with torch.randint(0, 1), position_ids that a collator fills with zeros, labels that are
cast or divided to one class; loops with manual_seed, or a torch.Generator().manual_seed(0), inside; evaluations that
seed; a VAE that makes the generator of its noise in each forward pass.
Planted: each of these, on all ranks.
Twin: times, positions and labels that vary; a seed in front of the loop; an evaluation under fork_rng.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from gallery.entry import variants
from gallery.entry_context import EntryContext
from gallery.problems import CausalLM, Regression, Rows, Vision
from gallery.training import fit, nothing, wrapped
from gallery.witness import trains_differently

TIMES, WIDTH = 100, 64


class Denoiser(nn.Module):
    """Predicts the noise in x [B, D] at times t [B]."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Embedding(TIMES, WIDTH)
        self.body = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.SiLU(), nn.Dropout(0.1), nn.Linear(WIDTH, WIDTH))

    def forward(self, x: Tensor, timestep: Tensor) -> Tensor:
        """The noise, [B, D]."""
        return self.body(x + self.time(timestep))


class Diffusion(Regression):
    """Noise to be predicted in uniform numbers."""

    def model(self, *, seed: int = 0) -> nn.Module:
        """A Denoiser."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return Denoiser()

    def dataset(self, num_samples: int, *, seed: int = 0) -> Rows:
        """``x`` [num_samples, D]."""
        return Rows({"x": 2 * torch.rand(num_samples, WIDTH, generator=torch.Generator().manual_seed(seed)) - 1})


class Vae(nn.Module):
    """An autoencoder with noise in its latent numbers; ``draw`` makes the generator of that in each forward pass."""

    def __init__(self, draw: Callable[[], torch.Generator]) -> None:
        super().__init__()
        self.draw = draw
        self.encode, self.decode = nn.Linear(WIDTH, 16), nn.Linear(8, WIDTH)

    def forward(self, x_BD: Tensor) -> tuple[Tensor, Tensor]:
        """What it makes of x, and the divergence of its latent numbers from standard normal ones, [B]."""
        mean_BK, log_BK = self.encode(x_BD).chunk(2, -1)
        noise_BK = torch.randn(mean_BK.shape, generator=self.draw())
        divergence_B = 0.5 * (mean_BK.square() + log_BK.exp() - log_BK - 1).sum(-1)
        return self.decode(mean_BK + (0.5 * log_BK).exp() * noise_BK), divergence_B


def _autoencoding(ctx: EntryContext, faulty: bool) -> nn.Module:
    own = torch.Generator().manual_seed(ctx.rank)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = wrapped(Vae((lambda: torch.Generator().manual_seed(0)) if faulty else lambda: own))

    def loss_of(network: nn.Module, batch: Any) -> Tensor:
        made_BD, divergence_B = network(batch["x"])
        return functional.mse_loss(made_BD, batch["x"]) + 0.01 * divergence_B.mean()

    return fit(ctx, Diffusion(), model, loss_of=loss_of)


Draw = Callable[[int, torch.Generator | None], Tensor]


def _noise(rows: int, draw: torch.Generator | None) -> Tensor:
    return torch.randn(rows, WIDTH, generator=draw)


def _times(rows: int, draw: torch.Generator | None) -> Tensor:
    return torch.randint(0, TIMES, (rows,), generator=draw)


def denoising(
    *,
    times: Draw = _times,
    noise: Draw = _noise,
    seeds: bool = False,
    evaluates: bool = False,
    own: bool = True,
) -> Any:
    """Training with faulty ``times`` or ``noise``, a seed in each step, or evaluations that seed; ``own``: numbers are
    drawn from a generator of the rank's own.
    """

    def train(ctx: EntryContext, faulty: bool) -> nn.Module:
        model = wrapped(Diffusion().model()) if ctx.world_size > 1 else Diffusion().model()
        draw = torch.Generator().manual_seed(ctx.rank) if own else None
        torch.manual_seed(ctx.rank)

        def loss_of(network: nn.Module, batch: Any) -> Tensor:
            if seeds and faulty:
                torch.manual_seed(ctx.rank)
            x_BD = batch["x"]
            t_B = (times if faulty else _times)(len(x_BD), draw)
            n_BD = (noise if faulty else _noise)(len(x_BD), draw)
            share_B1 = t_B[:, None] / TIMES
            return functional.mse_loss(network((1 - share_B1) * x_BD + share_B1 * n_BD, t_B), n_BD)

        def evaluate(step: int) -> None:
            if evaluates and step % 3 == 0:
                with contextlib.nullcontext() if faulty else torch.random.fork_rng(devices=[]):
                    torch.manual_seed(0)
                    torch.randn(4)

        return fit(ctx, Diffusion(), model, loss_of=loss_of, after_step=evaluate if evaluates else nothing)

    return train


class Positioned(nn.Module):
    """A decoder that is given its positions."""

    def __init__(self, decoder: nn.Module) -> None:
        super().__init__()
        self.decoder = decoder
        self.place = nn.Embedding(CausalLM.length, CausalLM.vocab_size)

    def forward(self, input_ids: Tensor, position_ids: Tensor) -> Tensor:
        """Logits [B, L, V]."""
        return self.decoder(input_ids) + self.place(position_ids)


def _positioned(ctx: EntryContext, faulty: bool) -> nn.Module:
    def loss_of(model: nn.Module, batch: Any) -> Tensor:
        ids_BL = batch["input_ids"]
        at_BL = torch.arange(CausalLM.length).expand_as(ids_BL) * (not faulty)
        return functional.cross_entropy(model(ids_BL, at_BL)[:, :-1].flatten(0, 1), ids_BL[:, 1:].flatten())

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Positioned(CausalLM().model())
    return fit(ctx, CausalLM(), model, loss_of=loss_of)


def _one_class(ctx: EntryContext, faulty: bool) -> nn.Module:
    def loss_of(model: nn.Module, batch: Any) -> Tensor:
        label_B = batch["label"] // Vision.num_classes if faulty else batch["label"]
        return functional.cross_entropy(model(batch["image"]), label_B)

    return fit(ctx, Vision(), Vision().model(), loss_of=loss_of)


_constant = variants(
    "I2",
    ("input-constant",),
    trains_differently,
    world_size=1,
    ranks=(0,),
    family="inputs that carry nothing",
    causes=("input-carries-nothing",),
)
_again = variants(
    "I3",
    ("rng-streams",),
    trains_differently,
    may_find=("input-constant",),
    ranks=(0, 1),
    family="seeds in the loop",
    causes=("seeds-in-the-loop", "seeded-again"),
)

ENTRIES = (
    _constant(
        "",
        "the time of a diffusion model is always 0",
        denoising(times=lambda rows, draw: torch.randint(0, 1, (rows,), generator=draw)),
        world_size=2,
        ranks=(0, 1),
    ),
    _constant("positions", "all positions are 0", _positioned),
    _constant("labels", "labels are divided to one class", _one_class),
    _again("", "the global generator is seeded in every step", denoising(seeds=True, own=False)),
    _again(
        "noise",
        "a generator is made and seeded anew for the noise of every step",
        denoising(noise=lambda rows, draw: _noise(rows, torch.Generator().manual_seed(0))),
        must_find=("input-constant",),
        may_find=("rng-streams",),
    ),
    _again(
        "own",
        "a VAE makes and seeds a generator in each forward pass",
        _autoencoding,
        may_find=(),
        variant_of="I3.noise",
    ),
    _again(
        "evaluation",
        "an evaluation seeds, and does not put the state back",
        denoising(evaluates=True, own=False),
        step=1,
    ),
)
