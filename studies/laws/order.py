"""Measure on models of transformers whether their order reaches the first attention, as `order-ignored` asks, and how
much of it must be lost to be seen; writes order.md.

    python -m studies.laws.order

About twenty minutes on one core. Nothing is downloaded: models are made from configurations, smaller than published
ones, and judged without dropout by the code of the probe, on rows of tokens of which each stands several times.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from studies.laws.initial_values import of_transformers, within_patience
from benchmarks.page import arguments, head, table, write
from gallery.scoring import upper_bound
from torch import Tensor, nn

from trueline.laws.influence.order_ignored import line
from trueline.laws.influence.probe.order import OrderReader
from trueline.schema.columns.influence import DOUBTS, OrderInfluence

ROWS, LENGTH, TOKENS = 4, 24, 8
SHARES = (1e-2, 1e-4, 1e-6, 0.0)
"""How much of what positions add, or rotate by, is left."""

ABOUT = (
    "Models are judged as they begin; the preset `laws` looks ten steps later. ZAYA multiplies queries by a "
    "temperature that begins at 0, so that its first attention has no order yet: after one update with AdamW (1e-3) "
    "its distance is 4.9e-3 in float32. The least distances of the others are those of OpenAI GPT, 7.8e-5 in float32 "
    "and 4.5e-4 in bfloat16 (line: 2.4e-4), and of Blenderbot, 3.3e-3 and 7.9e-3."
)


def judged(model: nn.Module, dtype: torch.dtype) -> OrderInfluence:
    """What the probe holds of one forward pass."""
    ids = torch.randint(3, 3 + TOKENS, (ROWS, LENGTH))
    reader, embedded = OrderReader(model), list[tuple[Tensor, Tensor]]()

    def returned(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        reader.at_module(output)
        read = (args[0] if args else kwargs.get("input")) if isinstance(module, nn.Embedding) else None
        if isinstance(read, Tensor) and read.dim() == 2 and isinstance(output, Tensor) and output.requires_grad:
            embedded.append((read, output))

    parts = [part for part in model.modules() if next(part.children(), None) is None]
    handles = [part.register_forward_hook(returned, with_kwargs=True) for part in parts]
    more = {"labels": ids} if "labels" in model.forward.__code__.co_varnames else {}
    model.to(dtype).eval()(input_ids=ids, **more)
    for handle in handles:
        handle.remove()
    return OrderInfluence(*reader.judged(embedded, usable=True, placed=False))


def weaken(model: nn.Module, share: float) -> bool:
    """Leave so much of rotary and of learned positions; whether there are any."""
    found = False
    for name, part in model.named_modules():
        last = name.rpartition(".")[2].lower()
        if "rotary" in last:
            part.register_forward_hook(lambda module, args, output, share=share: _rotated(output, share))
            found = True
        elif isinstance(part, nn.Embedding) and ("position" in last or last == "wpe"):
            part.register_forward_hook(lambda module, args, output, share=share: output * share)
            found = True
    return found


def _rotated(output: Any, share: float) -> Any:
    if not (isinstance(output, tuple) and len(output) == 2 and all(isinstance(each, Tensor) for each in output)):
        return output
    cos, sin = output
    return 1 + (cos - 1) * share, sin * share


def main() -> None:
    """Measure all and write the page."""
    parser = arguments(__doc__)
    parser.add_argument("--models", type=int, default=10_000, help="at most so many")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    about = head("Whether order reaches a model", command="python -m studies.laws.order")
    apart: defaultdict[str, list[float]] = defaultdict(list)
    doubts, seen, tried = Counter[str](), Counter[tuple[str, float]](), Counter[tuple[str, float]]()
    ignored: list[tuple[str, str, float, bool]] = []
    for seed, (name, make) in enumerate(of_transformers()):
        if len(apart["float32"]) >= chosen.models:
            break
        for kind, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
            one = _tried(make, seed, dtype)
            if one is None:
                break
            if one.doubt:
                doubts[f"{kind}: {DOUBTS[int(one.doubt)]}"] += 1
                continue
            apart[kind].append(one.apart)
            if one.apart <= line(one.eps):
                ignored.append((name, kind, one.apart, bool(one.tells_places)))
                continue
            for share in SHARES if kind == "float32" else (0.0,):
                bad = _tried(make, seed, dtype, share)
                if bad is not None and not bad.doubt:
                    tried[kind, share] += 1
                    seen[kind, share] += bad.apart <= line(bad.eps)
        print(seed, name, {kind: values[-1:] for kind, values in apart.items()}, dict(seen), dict(tried), flush=True)
    alarms, total = sum(told for *_, told in ignored), sum(map(len, apart.values()))
    least = [(kind, len(values), f"{min(values):.2g}", f"{median(values):.2g}") for kind, values in apart.items()]
    said = [f"{name} ({kind}, {far:.2g})" for name, kind, far, _ in ignored]
    write(
        __file__,
        about,
        f"Of {total} healthy models, those in either precision counted apart, {alarms} are warned of, and "
        f"{len(ignored) - alarms} told for information: at most {upper_bound(alarms, total):.1%} are warned of "
        "wrongly (Clopper-Pearson, 95 %, one-sided).",
        table(("precision", "models", "least distance", "median"), least, right={1, 2, 3}),
        f"Order ignored: {'; '.join(said) or 'none'}.",
        ABOUT,
        "With so much of rotary and learned positions left, in how many models it is found:",
        table(
            ("precision", "share left", "found", "of"),
            [(*key, seen[key], tried[key]) for key in sorted(tried)],
            right={1, 2, 3},
        ),
        "Not judged: " + ("; ".join(f"{why} ({count})" for why, count in doubts.items()) or "none") + ".",
        name="order.md",
    )


def _tried(
    make: Callable[[], nn.Module], seed: int, dtype: torch.dtype, share: float | None = None
) -> OrderInfluence | None:
    def made() -> OrderInfluence | None:
        torch.manual_seed(seed)
        model = make()
        return judged(model, dtype) if share is None or weaken(model, share) else None

    return within_patience(made)


if __name__ == "__main__":
    main()
