"""Measure what `input-constant` and the repeats of `rng-streams` say of healthy trainings, and when they see a fault;
writes constants.md.

    python -m studies.laws.constants

About ten minutes on one core. Nothing is downloaded: models of transformers, and of diffusers where it is installed,
are made from configurations, smaller than published ones; the loops are written as tutorials and examples write them.
"""

from __future__ import annotations

import contextlib
import copy
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from studies.laws.initial_values import VOCABULARY, of_transformers, within_patience
from benchmarks.page import arguments, head, table, write
from gallery.scoring import upper_bound
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import trueline
from trueline.schema.finding import Finding

STEPS, ROWS, LENGTH, WIDTH = 24, 4, 16, 32
Loss = Callable[[int], Tensor]
"""Of a step, by its number."""
Job = tuple[nn.Module, Loss]


@contextlib.contextmanager
def watched(job: Job, *, steps: int = STEPS, after: Callable[[], object] = lambda: None) -> Iterator[Path]:
    """The Run of a training that was watched by the default plan; it is gone afterwards.

    ``after`` follows each update.
    """
    model, loss_of = job
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        watch = trueline.watch(model, optimizer, out=out)
        for step in range(steps):
            loss_of(step).backward()
            optimizer.step()
            optimizer.zero_grad()
            after()
        watch.close()
        yield out


def said(job: Job) -> list[Finding]:
    """What the two checks find in a training."""
    with watched(job) as out:
        report = trueline.check(out)
    asked = [each for each in report.findings if each.code == "input-constant" or each.evidence.get("kind") == AGAIN]
    broken = [each for each in report.checks_not_run if each.check == "input-constant" and each.reason == "failed"]
    assert not broken, broken
    return asked


AGAIN = "begins-again"


def of_language() -> Iterator[tuple[str, Callable[[], Job]]]:
    """Models of transformers, on ids with a mask, token types and positions where they take such."""
    for name, make in of_transformers():
        yield name, lambda make=make: _language(make())


def _language(model: nn.Module) -> Job:
    takes = model.forward.__code__.co_varnames
    first = torch.arange(LENGTH).expand(ROWS, -1)
    more = {
        "attention_mask": torch.ones(ROWS, LENGTH, dtype=torch.long),
        "token_type_ids": torch.zeros(ROWS, LENGTH, dtype=torch.long),
        "position_ids": first,
    }
    more = {key: value for key, value in more.items() if key in takes}

    def loss_of(step: int) -> Tensor:
        ids = torch.randint(3, VOCABULARY, (ROWS, LENGTH))
        return model(input_ids=ids, labels=ids, **more).loss

    loss_of(0)
    return model.train(), loss_of


class Denoiser(nn.Module):
    """Predicts the noise in x, given a time, a class and a mask."""

    def __init__(self, width: int = WIDTH, classes: int = 10, dropout: float = 0.0) -> None:
        super().__init__()
        self.time, self.label = nn.Linear(1, width), nn.Embedding(classes, width)
        self.body = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Dropout(dropout), nn.Linear(width, width))

    def forward(self, x: Tensor, t: Tensor, y: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """Of [B, D] and [B]."""
        h = x + self.time(t[:, None].float())
        h = h if y is None else h + self.label(y)
        return self.body(h if mask is None else h * mask[:, None])


def diffusion(
    *,
    time: Callable[[int], Tensor] = lambda step: torch.rand(ROWS * 4),
    noise: Callable[[int], Tensor] = lambda step: torch.randn(ROWS * 4, WIDTH),
    label: Callable[[int], Tensor] = lambda step: torch.randint(10, (ROWS * 4,)),
    data: Callable[[int], Tensor] = lambda step: torch.rand(ROWS * 4, WIDTH) * 2 - 1,
    flow: bool = False,
    dropout: float = 0.0,
    before: Callable[[int], object] = lambda step: None,
) -> Job:
    """Denoising with these parts of a batch."""
    model = Denoiser(dropout=dropout)

    def loss_of(step: int) -> Tensor:
        before(step)
        x, t, n, y = data(step), time(step), noise(step), label(step)
        share = t[:, None].float() / max(1.0, float(t.max()))
        mixed = (1 - share) * x + share * n
        return functional.mse_loss(model(mixed, t, y=y, mask=torch.ones(len(x))), n - x if flow else n)

    return model, loss_of


def of_loops() -> Iterator[tuple[str, Callable[[], Job]]]:
    """Healthy loops in which something is constant on purpose, or random numbers are seeded, put back or not drawn."""
    rows = ROWS * 4
    for name, parts in _DIFFUSIONS.items():
        yield f"diffusion: {name}", lambda parts=parts: diffusion(**parts())
    yield "a generator in one step, from noise at a fixed time", lambda: _one_step()
    yield "images, classes in balance", lambda: _classes(lambda s: torch.arange(rows) % 10)
    yield "images, two classes in file order", lambda: _classes(lambda s: torch.full((rows,), s // 6 % 2))
    yield (
        "labels beside -100",
        lambda: _classes(lambda s: torch.where(torch.rand(rows) < 0.5, -100, torch.randint(10, (rows,)))),
    )
    yield "contrast to a queue: targets of 0", _queue
    yield "contrast within a batch: targets of arange", _pairs
    yield "a physics-informed network, fixed points", lambda: _physics(False)
    yield "a physics-informed network, points drawn anew", lambda: _physics(True)
    yield "a graph in full batches", _graph
    yield "a graph with node masks drawn anew", lambda: _graph(masked=True)
    yield "an autoencoder", lambda: _autoencoder(lambda x: x)
    yield (
        "an autoencoder of full batches with noise",
        lambda: _autoencoder(_with_noise, full=True),
    )
    yield "an autoencoder of normal numbers with noise", lambda: _autoencoder(_with_noise, full=True, draw=torch.randn)
    yield "a prior of one fixed noise", _prior
    yield "a grid beside images", _grid
    yield "lengths that are all alike", _lengths
    yield "a domain classifier of one domain a pass", _domains
    yield "a critic and its targets of 1 and 0", _critic
    yield "a recurrent network with a state of zeros", _recurrent
    yield "a policy with fixed parameters of its environments", _environments
    for name, loop in _STREAMS.items():
        yield f"random numbers: {name}", loop


_DIFFUSIONS: dict[str, Callable[[], dict[str, Any]]] = {
    "as usual": dict,
    "one class": lambda: {"label": lambda step: torch.full((16,), 3)},
    "one speaker, index 0": lambda: {"label": lambda step: torch.zeros(16, dtype=torch.long)},
    "one noise level": lambda: {"time": lambda step: torch.full((16,), 0.5)},
    "one time for all samples of a step": lambda: {"time": lambda step: torch.rand(1).expand(16)},
    "times of steps": lambda: {"time": lambda step: torch.randint(0, 1000, (16,))},
    "times in strata": lambda: {"time": lambda step: (torch.arange(16) + torch.rand(16)) / 16},
    "flow matching": lambda: {"flow": True},
    "latents that are nearly normal": lambda: {"data": lambda step: torch.randn(16, WIDTH)},
    "a generator of its own": lambda: _own_generator(),
}


def _own_generator() -> dict[str, Any]:
    own = torch.Generator().manual_seed(0)
    return {"noise": lambda step: torch.randn(16, WIDTH, generator=own)}


def _one_step() -> Job:
    model = Denoiser()

    def loss_of(step: int) -> Tensor:
        z = torch.randn(16, WIDTH)
        return functional.mse_loss(model(z, torch.zeros(16)), z.sin())

    return model, loss_of


def _classes(labels: Callable[[int], Tensor]) -> Job:
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, WIDTH), nn.ReLU(), nn.Dropout(0.1), nn.Linear(WIDTH, 10))
    return model, lambda step: functional.cross_entropy(model(torch.rand(16, 3, 8, 8)), labels(step))


class _Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        one, two = (functional.normalize(self.body(each), dim=-1) for each in (x, other))
        return one @ two.T / 0.1


def _pairs() -> Job:
    model = _Encoder()

    def loss_of(step: int) -> Tensor:
        x = torch.rand(16, WIDTH)
        return functional.cross_entropy(model(x, x + 0.1 * torch.randn_like(x)), torch.arange(16))

    return model, loss_of


def _queue() -> Job:
    model, queue = _Encoder(), functional.normalize(torch.randn(64, WIDTH), dim=-1)

    def loss_of(step: int) -> Tensor:
        x = torch.rand(16, WIDTH)
        own = model(x, x + 0.1 * torch.randn_like(x)).diagonal()[:, None]
        others = functional.normalize(model.body(x), dim=-1) @ queue.T / 0.1
        return functional.cross_entropy(torch.cat([own, others], 1), torch.zeros(16, dtype=torch.long))

    return model, loss_of


def _physics(anew: bool) -> Job:
    model = nn.Sequential(nn.Linear(2, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))
    fixed = torch.rand(256, 2)

    def loss_of(step: int) -> Tensor:
        x = (torch.rand(256, 2) if anew else fixed.clone()).requires_grad_()
        u = model(x)
        (slope,) = torch.autograd.grad(u.sum(), x, create_graph=True)
        return functional.mse_loss(slope.sum(-1, keepdim=True), torch.zeros(256, 1)) + functional.mse_loss(
            model(fixed), fixed[:, :1]
        )

    return model, loss_of


class _Graph(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor, edge_index: Tensor, node_mask: Tensor | None = None) -> Tensor:
        h = self.first(x if node_mask is None else x * node_mask[:, None])
        return self.last(torch.zeros_like(h).index_add(0, edge_index[1], h[edge_index[0]]).relu())


def _graph(masked: bool = False) -> Job:
    model, x, y = _Graph(), torch.randn(200, WIDTH), torch.randint(5, (200,))
    edges = torch.randint(200, (2, 800))
    return model, lambda step: functional.cross_entropy(
        model(x, edges, (torch.rand(200) < 0.8).float() if masked else None), y
    )


def _with_noise(x: Tensor) -> Tensor:
    return x + torch.randn_like(x)


def _autoencoder(spoil: Callable[[Tensor], Tensor], full: bool = False, draw: Any = torch.rand) -> Job:
    model = nn.Sequential(nn.Linear(WIDTH, 8), nn.ReLU(), nn.Linear(8, WIDTH))
    data = draw(64, WIDTH)

    def loss_of(step: int) -> Tensor:
        x = data if full else torch.rand(64, WIDTH)
        return functional.mse_loss(model(spoil(x)), x)

    return model, loss_of


def _prior() -> Job:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
    z, image = torch.randn(16, WIDTH), torch.rand(16, WIDTH)
    return model, lambda step: functional.mse_loss(model(z + 0.03 * torch.randn_like(z)), image)


class _Sampler(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(3 * 64, WIDTH)

    def forward(self, image: Tensor, grid: Tensor) -> Tensor:
        return self.body(functional.grid_sample(image, grid, align_corners=False).flatten(1))


def _grid() -> Job:
    model = _Sampler()
    grid = functional.affine_grid(torch.eye(2, 3).expand(16, 2, 3), [16, 3, 8, 8], align_corners=False)
    return model, lambda step: model(torch.rand(16, 3, 8, 8), grid).square().mean()


class _Read(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.read, self.head = nn.LSTM(WIDTH, WIDTH, batch_first=True), nn.Linear(WIDTH, 5)

    def forward(self, x: Tensor, lengths: Tensor, h0: Tensor | None = None, c0: Tensor | None = None) -> Tensor:
        read, _ = self.read(x, None if h0 is None else (h0, c0))
        return self.head(read[torch.arange(len(x)), lengths - 1])


def _lengths() -> Job:
    model = _Read()
    return model, lambda step: functional.cross_entropy(
        model(torch.randn(8, 6, WIDTH), torch.full((8,), 6)), torch.randint(5, (8,))
    )


def _recurrent() -> Job:
    model, zero = _Read(), torch.zeros(1, 8, WIDTH)
    return model, lambda step: functional.cross_entropy(
        model(torch.randn(8, 6, WIDTH), torch.randint(1, 7, (8,)), zero, zero), torch.randint(5, (8,))
    )


def _domains() -> Job:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 2))
    of = [torch.full((16,), each) for each in (0, 1)]
    return model, lambda step: sum(
        functional.cross_entropy(model(torch.rand(16, WIDTH) + each[0]), each) for each in of
    )  # type: ignore[return-value]


def _critic() -> Job:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))

    def loss_of(step: int) -> Tensor:
        real, false = model(torch.rand(16, WIDTH)), model(torch.randn(16, WIDTH))
        binary = functional.binary_cross_entropy_with_logits
        return binary(real, torch.ones_like(real)) + functional.mse_loss(false, torch.zeros_like(false))

    return model, loss_of


class _Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(WIDTH + 4, 3)

    def forward(self, state: Tensor, constants: Tensor) -> Tensor:
        return self.body(torch.cat([state, constants], -1))


def _environments() -> Job:
    model, constants = _Policy(), torch.rand(64, 4)
    return model, lambda step: functional.cross_entropy(
        model(torch.randn(64, WIDTH), constants), torch.randint(3, (64,))
    )


def _dropout(before: Callable[[int, nn.Module, Tensor], object], *, checkpointed: bool = False) -> Job:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.1), nn.Linear(WIDTH, 5))
    own = torch.Generator().manual_seed(1)

    def loss_of(step: int) -> Tensor:
        x = torch.randn(16, WIDTH, generator=own)
        before(step, model, x)
        y = checkpoint(model, x, use_reentrant=False) if checkpointed else model(x)
        return functional.cross_entropy(y, torch.randint(5, (16,), generator=own))

    return model, loss_of


def _forked(step: int, model: nn.Module, x: Tensor) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model(x)


def _put_back(step: int, model: nn.Module, x: Tensor) -> None:
    state = torch.get_rng_state()
    torch.manual_seed(0)
    with torch.no_grad():
        model(x)
    torch.set_rng_state(state)


def _by_generator(step: int, model: nn.Module, x: Tensor) -> None:
    torch.randn(4, generator=torch.Generator().manual_seed(0))


def _evaluated(step: int, model: nn.Module, x: Tensor) -> None:
    model.eval()
    with torch.no_grad():
        copy.deepcopy(model)(x)
    model.train()


_STREAMS: dict[str, Callable[[], Job]] = {
    "dropout": lambda: _dropout(lambda *_: None),
    "seeded by the step": lambda: _dropout(lambda step, *_: torch.manual_seed(step)),
    "seeded by the epoch": lambda: _dropout(lambda step, *_: step % 6 or torch.manual_seed(step)),
    "dropout under checkpointing": lambda: _dropout(lambda *_: None, checkpointed=True),
    "forked and seeded within": lambda: _dropout(_forked),
    "seeded, evaluated and put back": lambda: _dropout(_put_back),
    "a generator of its own is seeded anew": lambda: _dropout(_by_generator),
    "evaluated in between": lambda: _dropout(_evaluated),
    "none is drawn": lambda: _autoencoder(lambda x: x, full=True),
}


def of_diffusers() -> Iterator[tuple[str, Callable[[], Job]]]:
    """Models of diffusers, made small, on what its training examples give them; nothing where it is not installed."""
    with contextlib.suppress(ImportError):
        import diffusers  # pyright: ignore[reportMissingImports]

        small = {
            "UNet2DModel": lambda: diffusers.UNet2DModel(
                8, 1, 1, block_out_channels=(32, 32), down_block_types=("DownBlock2D",) * 2,
                up_block_types=("UpBlock2D",) * 2, layers_per_block=1),
            "UNet2DConditionModel, one prompt": lambda: diffusers.UNet2DConditionModel(
                8, 1, 1, block_out_channels=(32, 32), cross_attention_dim=16, attention_head_dim=8,
                down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
                up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"), layers_per_block=1),
            "DiTTransformer2DModel": lambda: diffusers.DiTTransformer2DModel(
                2, 16, in_channels=1, out_channels=1, num_layers=2, sample_size=8, patch_size=2),
            "FluxTransformer2DModel, one guidance": lambda: diffusers.FluxTransformer2DModel(
                1, 4, num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=2,
                joint_attention_dim=16, pooled_projection_dim=16, guidance_embeds=True, axes_dims_rope=(4, 4, 8)),
            "AutoencoderKL": lambda: diffusers.AutoencoderKL(
                1, 1, block_out_channels=(32,), latent_channels=2, norm_num_groups=8),
        }  # fmt: skip
        for name, make in small.items():
            yield f"diffusers: {name}", lambda name=name, make=make: _diffusers(name, make())


def _diffusers(name: str, model: nn.Module) -> Job:
    prompt, pooled = torch.randn(1, 5, 16).expand(4, 5, 16), torch.randn(1, 16).expand(4, 16)

    def loss_of(step: int) -> Tensor:
        n = torch.randn(4, 1, 8, 8)
        x, t = torch.rand(4, 1, 8, 8) + n, torch.randint(0, 1000, (4,))
        if "Autoencoder" in name:
            return functional.mse_loss(model(x, sample_posterior=True).sample, x)
        if "Flux" in name:
            tokens = x.view(4, 16, 4)
            more = {
                "img_ids": torch.rand(16, 3).round(),
                "txt_ids": torch.zeros(5, 3),
                "guidance": torch.full((4,), 3.5),
            }
            made = model(tokens, prompt, pooled, t / 1000, **more).sample
            return functional.mse_loss(made, n.view(4, 16, 4) - tokens)
        if "DiT" in name:
            return functional.mse_loss(model(x, t, class_labels=torch.randint(0, 1000, (4,))).sample, n)
        return functional.mse_loss((model(x, t, prompt) if "Condition" in name else model(x, t)).sample, n)

    loss_of(0)
    return model.train(), loss_of


def faults() -> Iterator[tuple[str, str, Callable[[float], Job]]]:
    """A fault, what must be said, and the training in which a step has it with this probability."""
    fixed = torch.Generator()

    def some(share: float, bad: Callable[[], Tensor], good: Callable[[], Tensor]) -> Callable[[int], Tensor]:
        return lambda step: bad() if float(torch.rand(())) < share else good()

    def noise(own: torch.Generator | None = None) -> Tensor:
        return torch.randn(16, WIDTH, generator=own)

    def labels() -> Tensor:
        return torch.randint(10, (16,))

    def seeded(share: float, step: int) -> None:
        torch.manual_seed(0 if step * 7 % STEPS < STEPS * share else step + 9)

    yield (
        "time is 0",
        "condition",
        lambda share: diffusion(time=some(share, lambda: torch.zeros(16), lambda: torch.rand(16))),
    )
    yield (
        "noise of a generator that is made anew",
        "noise",
        lambda share: diffusion(noise=some(share, lambda: noise(fixed.manual_seed(0)), noise)),
    )
    yield "labels are cast to one class", "one-class", lambda share: _classes(some(share, lambda: labels() * 0, labels))
    yield (
        "the global generator is seeded",
        AGAIN,
        lambda share: diffusion(dropout=0.1, before=lambda step: seeded(share, step)),
    )


def main() -> None:
    """Measure all and write the page."""
    parser = arguments(__doc__)
    parser.add_argument("--models", type=int, default=10_000, help="at most so many of transformers")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    about = head("What never changes, in healthy trainings", command="python -m studies.laws.constants")
    counts: dict[str, Counter[str]] = {}
    remarks: list[tuple[str, str, str]] = []
    for kind, jobs in (("loops", of_loops), ("diffusers", of_diffusers), ("transformers", of_language)):
        counts[kind] = Counter()
        for seed, (name, make) in enumerate(jobs()):
            if kind == "transformers" and counts[kind]["judged"] >= chosen.models:
                break
            torch.manual_seed(seed)
            found = within_patience(lambda make=make: said(make())) if kind == "transformers" else said(make())
            if found is None:
                continue
            counts[kind]["judged"] += 1
            alarms = [each for each in found if each.is_grave]
            counts[kind]["alarms"] += bool(alarms)
            counts[kind]["remarks"] += len(found) > len(alarms)
            remarks += [(name, each.severity, each.claim) for each in found]
            print(kind, seed, name, [each.claim for each in found], flush=True)
    rows = [(kind, n["judged"], n["alarms"], n["remarks"]) for kind, n in counts.items()]
    judged, alarms = sum(row[1] for row in rows), sum(row[2] for row in rows)
    power = [(name, *(_seen(make, share, kind) for share in SHARES)) for name, kind, make in faults()]
    write(
        __file__,
        about,
        f"Of {judged} healthy trainings of {STEPS} steps {alarms} had an alarm: at most "
        f"{upper_bound(alarms, judged):.1%} (Clopper-Pearson, 95 %, one-sided).",
        table(("trainings", "judged", "with an alarm", "with a remark"), rows, right={1, 2, 3}),
        "Remarks and alarms:",
        table(("training", "severity", "claim"), remarks) if remarks else "None.",
        f"Of {TRIALS} trainings each, in how many a fault is reported that a step has with this probability:",
        table(("fault", *map(str, SHARES)), power, right=set(range(1, 1 + len(SHARES)))),
        name="constants.md",
    )


SHARES, TRIALS = (0.0, 0.25, 0.5, 0.9, 1.0), 5


def _seen(make: Callable[[float], Job], share: float, kind: str) -> int:
    count = 0
    for seed in range(TRIALS):
        torch.manual_seed(seed)
        count += any(each.evidence.get("kind") == kind for each in said(make(share)))
    return count


if __name__ == "__main__":
    main()
