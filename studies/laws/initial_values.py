"""Measure on fresh and trained models what init-differs says, and how wrong a spread must be; writes initial_values.md.

    python -m studies.laws.initial_values

About five minutes on one core. Nothing is downloaded: models of transformers, and of timm where it is installed, are
made from configurations, smaller than published ones.
"""

from __future__ import annotations

import contextlib
import importlib
import signal
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from benchmarks.page import arguments, head, table, write
from torch import Tensor, nn

from trueline.laws.initial_values.columns import InitialValues
from trueline.laws.initial_values.init_differs import judge
from trueline.laws.initial_values.initial_values import InitialParams, look_fresh, matrices_by_role
from trueline.laws.initial_values.probe.values import numbers_of
from trueline.schema.errors import CannotTell

LAYERS, WIDTH, VOCABULARY, MAX_PARAMS, PATIENCE_S = 6, 128, 2000, 20e6, 20
SIZES: dict[str, int] = {
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_decoder_layers"), LAYERS),
    **dict.fromkeys(("encoder_layers", "decoder_layers"), LAYERS),
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "dim", "embedding_size", "word_embed_proj_dim"), WIDTH),
    **dict.fromkeys(("intermediate_size", "encoder_ffn_dim", "decoder_ffn_dim", "d_ff", "ffn_dim"), 2 * WIDTH),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "num_key_value_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    "head_dim": WIDTH // 4,
    "d_kv": WIDTH // 4,
    "moe_intermediate_size": WIDTH,
    "hidden_dim": 2 * WIDTH,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 256,
}
"""What a configuration calls its sizes."""

DRAWS, FOUND_SHARE = 100, 0.95
ELEMENTS = (256, 1024, 4096, 16384)
STEPS = (0, 1, 3, 10, 30, 100, 300)


def begun(model: nn.Module) -> InitialParams:
    """What a Run would hold of ``model`` as it is."""
    named = [(name, param.detach()) for name, param in model.named_parameters() if param.is_floating_point()]
    values = [InitialValues(*numbers_of(param).tolist()) for _, param in named]
    return InitialParams(0, [name for name, _ in named], [tuple(param.shape) for _, param in named], values)


def outcome(model: nn.Module) -> tuple[str, ...]:
    """The severities of what is said of ``model``, or why nothing can be."""
    try:
        return tuple(sorted({finding.severity for finding in judge([begun(model)])})) or ("silent",)
    except CannotTell as cannot:
        return ("weights not judged" if "drawn" in str(cannot) else "no layer repeated",)


def of_transformers() -> Iterator[tuple[str, Callable[[], nn.Module]]]:
    """Each architecture that can be made from a small configuration."""
    import transformers
    from transformers.models.auto import modeling_auto

    transformers.logging.set_verbosity_error()
    kinds = ("CAUSAL_LM", "SEQ_TO_SEQ_CAUSAL_LM", "MASKED_LM")
    maps = [getattr(modeling_auto, f"MODEL_FOR_{kind}_MAPPING") for kind in kinds] + [modeling_auto.MODEL_MAPPING]
    for name, config_class in sorted(transformers.CONFIG_MAPPING.items()):
        found = None
        with contextlib.suppress(ValueError, ImportError):  # names of models that this version does not hold
            found = next((each[config_class] for each in maps if config_class in each), None)
        if found is not None:
            chosen = found[0] if isinstance(found, (tuple, list)) else found
            yield name, lambda config_class=config_class, chosen=chosen: _small(chosen, _shrunk(config_class()))


def _shrunk(config: Any) -> Any:
    for name, size in SIZES.items():
        if hasattr(config, name):
            with contextlib.suppress(Exception):
                setattr(config, name, size)
    for name in ("vision_config", "text_config", "encoder", "decoder"):
        inner = getattr(config, name, None)
        if hasattr(inner, "to_dict"):
            _shrunk(inner)
    if getattr(config, "layer_types", None):
        config.layer_types = (list(config.layer_types) * LAYERS)[:LAYERS]
    if isinstance(getattr(config, "pad_token_id", None), int) and config.pad_token_id >= VOCABULARY:
        config.pad_token_id = 0
    return config


def _small(make: Callable[..., nn.Module], *args: Any) -> nn.Module:
    with torch.device("meta"):
        num = sum(param.numel() for param in make(*args).parameters())
    if num > MAX_PARAMS:
        raise MemoryError
    return make(*args)


def of_timm() -> Iterator[tuple[str, Callable[[], nn.Module]]]:
    """Each family of timm, its first model that is small enough."""
    timm = importlib.import_module("timm")

    for module in timm.list_modules():
        names = timm.list_models(module=module)
        if names:
            yield module, lambda names=names: _first_small(timm.create_model, names)


def _first_small(make: Callable[..., nn.Module], names: list[str]) -> nn.Module:
    for name in names[:8]:
        with contextlib.suppress(MemoryError):
            return _small(make, name)
    raise MemoryError


def of_torch() -> Iterator[tuple[str, Callable[[], nn.Module]]]:
    """Stacks of torch's own layers, as they are made and as scripts draw them anew."""
    layer = {"d_model": WIDTH, "nhead": 4, "dim_feedforward": 2 * WIDTH}
    yield "TransformerEncoder", lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(**layer), 8)
    yield "Transformer", lambda: nn.Transformer(WIDTH, 4, 6, 6, 2 * WIDTH)
    yield "LSTM", lambda: nn.LSTM(WIDTH, WIDTH, 6)
    rules: dict[str, Callable[[Tensor, int], object]] = {
        "as made": lambda weight, number: None,
        "orthogonal": lambda weight, number: nn.init.orthogonal_(weight),
        "truncated normal": lambda weight, number: nn.init.trunc_normal_(weight, std=0.02, a=-0.04, b=0.04),
        "xavier uniform": lambda weight, number: nn.init.xavier_uniform_(weight),
        "normal, by depth": lambda weight, number: nn.init.normal_(weight, std=0.02 * (number + 1) ** -0.5),
        "SIREN": lambda weight, number: (
            nn.init.uniform_(weight, -1 / WIDTH, 1 / WIDTH)
            if number == 0
            else nn.init.uniform_(weight, -((6 / WIDTH) ** 0.5) / 30, (6 / WIDTH) ** 0.5 / 30)
        ),
        "last one zero": lambda weight, number: nn.init.zeros_(weight) if number == 7 else None,
        "last one a hundredth": lambda weight, number: nn.init.orthogonal_(weight, 0.01 if number == 7 else 1),
        "every fourth a tenth": lambda weight, number: weight.data.mul_(0.1 if number % 4 == 3 else 1),
    }
    for name, rule in rules.items():
        yield f"8 linear layers, {name}", lambda rule=rule: _stack(rule)


def _stack(rule: Callable[[Tensor, int], object]) -> nn.Module:
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(8)))
    for number, layer in enumerate(model):
        rule(layer.weight, number)  # type: ignore[arg-type]
    return model


def fresh() -> tuple[str, list[str]]:
    """A table of what is said of the models of each library; and of which more than nothing is."""
    rows: list[list[Any]] = []
    loud: list[str] = []
    for library in (of_transformers, of_timm, of_torch):
        counts, compared = Counter[str](), 0
        with contextlib.suppress(ImportError):
            for seed, (name, make) in enumerate(library()):
                torch.manual_seed(seed)
                model = within_patience(make)
                if model is None:
                    continue
                counts["models"] += 1
                one = begun(model)
                compared += sum(map(len, matrices_by_role(one).values())) if look_fresh(one) else 0
                said = outcome(model)
                counts.update(said)
                loud += [f"{name}: {', '.join(said)}"] if {"info", "warning", "error"} & set(said) else []
            states = ("models", "error", "warning", "info", "silent", "no layer repeated", "weights not judged")
            rows.append([library.__name__.removeprefix("of_"), *(counts[each] for each in states), compared])
    header = ["library", "models", "error", "warning", "information", "silent"]
    return table([*header, "no layer repeated", "weights not judged", "weights compared"], rows), loud


def within_patience(make: Callable[[], nn.Module]) -> nn.Module | None:
    """The model; None where it takes too long, is too large, or cannot be made from such a configuration."""

    def stop(*_: object) -> None:
        raise TimeoutError

    signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, PATIENCE_S)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return make()
    except Exception:  # many configurations do not allow such sizes
        return None
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def trained() -> str:
    """A table: of how many small models something is said after so many updates, and how many are not judged."""
    rows: list[list[Any]] = []
    every = [(depth, width, name, lr) for depth in (4, 8, 16) for width in (32, 64, 128) for name, lr in _OPTIMIZERS]
    by_steps: dict[int, Counter[str]] = {steps: Counter() for steps in STEPS}
    for seed, (depth, width, name, lr) in enumerate(every):
        torch.manual_seed(seed)
        model = _Residual(depth, width)
        optimizer = getattr(torch.optim, name)(model.parameters(), lr=lr)
        x, y = torch.randn(512, width), torch.randn(512, width)
        for step in range(max(STEPS) + 1):
            if step in by_steps:
                by_steps[step].update(outcome(model))
            some = torch.randint(512, (32,))
            loss = (model(x[some]) - y[some]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    for steps, counts in by_steps.items():
        rows.append([steps, *(counts[each] for each in ("warning", "info", "silent", "weights not judged"))])
    return table(["updates before watching", "warning", "information", "silent", "weights not judged"], rows)


_OPTIMIZERS = (("AdamW", 1e-3), ("AdamW", 1e-2), ("SGD", 0.1))


class _Residual(nn.Module):
    def __init__(self, depth: int, width: int) -> None:
        super().__init__()
        self.up = nn.ModuleList(nn.Linear(width, 2 * width) for _ in range(depth))
        self.down = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        for up, down in zip(self.up, self.down, strict=True):
            x = x + down(torch.relu(up(nn.functional.layer_norm(x, x.shape[-1:]))))
        return x


def power() -> str:
    """A table: the smallest factor of the spread of one layer that is found, by elements of its weight and layers."""
    rows: list[list[Any]] = []
    for elements in ELEMENTS:
        cells = [_smallest(elements, layers) for layers in (4, 12, 48)]
        rows.append([f"{elements:,}", *(f"{up:.2f}, {down:.2f}" for up, down in cells)])
    return table(["elements of the weight", "4 layers", "12 layers", "48 layers"], rows, right=range(4))


def _smallest(elements: int, layers: int) -> tuple[float, float]:
    """Factors above and below one from which on ``FOUND_SHARE`` of ``DRAWS`` are found."""
    looked = min(elements, 16384)
    torch.manual_seed(elements + layers)
    columns = (torch.randn(DRAWS + layers, looked, dtype=torch.float64)).unbind()
    numbers = [numbers_of(row).tolist() for row in columns]

    def found(factor: float) -> float:
        hits = 0
        for draw in range(DRAWS):
            peers = [InitialValues(*row) for row in numbers[draw : draw + layers]]
            odd = peers[layers // 2]
            peers[layers // 2] = InitialValues(
                *(odd.looked, 0.0, 0.0), odd.mean * factor, odd.spread * factor, odd.kurtosis, odd.largest * factor
            )
            always = [InitialValues(16384, 0, 0, 0.0, 1.0, 3.0, 4.0)] * 40  # a model that looks drawn just now
            names = [f"layers.{number}.weight" for number in range(layers)] + [f"w{n}" for n in range(len(always))]
            one = InitialParams(0, names, [(2, elements // 2)] * len(names), [*peers, *always])
            with contextlib.suppress(CannotTell):
                hits += any(f"layers.{layers // 2}.weight" in each.evidence["names"] for each in judge([one]))
        return hits / DRAWS

    steps = [1 + 0.05 * step for step in range(1, 60)]
    up = next(factor for factor in steps if found(factor) >= FOUND_SHARE)
    down = next(factor for factor in steps if found(1 / factor) >= FOUND_SHARE)
    return up, 1 / down


def main() -> None:
    """Measure all and write the page."""
    arguments(__doc__).parse_args()
    command = "python -m studies.laws.initial_values"
    top = head("Initial values of healthy models, and of one odd layer", command=command)
    models, loud = fresh()
    write(
        __file__,
        top,
        "## Fresh models",
        f"What `init-differs` says of models that were just made, each from one seed: {LAYERS} layers, {WIDTH} wide, "
        "as far as their configuration has such sizes. The last column is how many weight matrices were compared with "
        "others of their role.",
        models,
        "What is told of: " + ("; ".join(loud) or "nothing") + ".",
        "## Trained models",
        "Of 27 residual MLPs (4, 8, 16 layers; 32, 64, 128 wide; AdamW at 1e-3 and 1e-2, SGD at 0.1), as if watching "
        "had begun after so many updates with a new optimizer:",
        trained(),
        "## Power",
        f"The spread of the weight of one layer in the middle is that of the others (normal) times a factor; the "
        f"smallest above one and the largest below that at least {FOUND_SHARE:.0%} of {DRAWS} draws are found with, in "
        "steps of 0.05. Of larger weights as many elements are looked at as of the last.",
        power(),
        name="initial_values.md",
    )


if __name__ == "__main__":
    main()
