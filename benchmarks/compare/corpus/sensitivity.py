"""The smallest relative change of an activation, a gradient or a weight that compare finds.

    python -m benchmarks.compare.corpus.sensitivity [--dtype fp32|bf16|autocast] [--depth stats|fingerprint|tensor]
        [--only NAME] [--jobs N]

One module of each of four models is changed by a factor of one and a bit, below what is recorded. The reference has the
same code with a factor of one, so that nothing differs but numbers. A cell is ``found/named``: of how many models a
difference is found, and of how many at that module; then the median of what rounding was expected to explain there.
"""

from __future__ import annotations

import dataclasses
import importlib
import statistics
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from benchmarks.compare.corpus import families
from benchmarks.compare.corpus.children import results_of
from benchmarks.compare.corpus.kit import FAMILIES, Training, after, gradient
from benchmarks.compare.corpus.recording import Setting, record
from benchmarks.page import arguments, table
from torch import Tensor

from trueline.comparison.compare import compare

PLACES = {"resnet": "layer2.conv2", "vit": "blocks.1.mlp.fc1", "gpt": "blocks.1.mlp.0", "llama": "layers.1.mlp.up_proj"}
CHANGES = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7)
_PHASES = {"activation": "fwd", "gradient": "bwd", "weight": "param"}


@dataclasses.dataclass(frozen=True)
class Pair:
    """What is changed, by how much: 0 for the reference."""

    family: str
    what: str
    change: float
    setting: Setting

    def facts(self) -> dict[str, Any]:
        """What a result says of its pair."""
        return {"family": self.family, "what": self.what, "change": self.change}


def plant(pair: Pair) -> Callable[[Training], None]:
    """What makes the run of ``pair``; no call of it is recorded."""

    def put(t: Training) -> None:
        module, factor = t.model.get_submodule(PLACES[pair.family]), 1 + pair.change
        if pair.what == "weight":
            module.weight.data.mul_(factor)
        elif pair.what == "gradient":
            after(module, _unseen(gradient(_unseen(lambda g: g * factor))))
        else:
            after(module, _unseen(lambda x: x * factor))

    return put


def _unseen(change: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def call(x: Tensor) -> Tensor:
        with torch._C.DisableTorchFunction():
            return change(x)

    return call


def reference(pair: Pair, work: Path) -> dict[str, Any]:
    """Record the reference of ``pair``."""
    record(_reference(pair, work), FAMILIES[pair.family], plant(pair), pair.setting)
    return pair.facts()


def _reference(pair: Pair, work: Path) -> Path:
    return work / f"{pair.family}-{pair.what}"


def result(pair: Pair, work: Path) -> dict[str, Any]:
    """Whether the change was found and named, and what was expected of rounding at that place."""
    run = Path(tempfile.mkdtemp(dir=work)) / "run"
    record(run, FAMILIES[pair.family], plant(pair), pair.setting)
    comparison = compare(run, _reference(pair, work))
    place = PLACES[pair.family]
    at = [row for row in comparison.rows if f"/{_PHASES[pair.what]}/{place}" in str(row.site) and row.step == 0]
    first = "" if comparison.first is None else str(comparison.first.site)
    expected = [row.expected for row in at if row.expected]
    return {
        **pair.facts(),
        "found": comparison.exit_code == 1,
        "named": comparison.exit_code == 1 and f"/{place}" in first,
        "expected": expected[0] if expected else None,
    }


def main() -> None:
    """Print the table of one dtype and depth."""
    parser = arguments(__doc__)
    parser.add_argument("--dtype", default="fp32", choices=("fp32", "bf16", "autocast"))
    parser.add_argument("--depth", default="stats", choices=("stats", "fingerprint", "tensor"))
    parser.add_argument("--only", default="", help="one of the models")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    for name in ("convolution", "language"):
        importlib.import_module(f"{families.__name__}.{name}")
    for name in ("pandas", "torch._dynamo", "trueline.capture.watch", "trueline.store.writer"):
        importlib.import_module(name)
    setting = Setting(options.depth, "mix", options.dtype)
    models = [name for name in PLACES if options.only in name]
    done = []
    with tempfile.TemporaryDirectory(prefix="corpus-") as folder:
        begun = [(reference, (Pair(name, what, 0.0, setting), Path(folder))) for name in models for what in _PHASES]
        list(results_of(begun, options.jobs, 300))
        pairs = [Pair(name, what, change, setting) for name in models for what in _PHASES for change in CHANGES]
        for each in results_of([(result, (pair, Path(folder))) for pair in pairs], options.jobs, 300):
            done.append(each)
            print(f"{len(done)}/{len(pairs)} {each}", file=sys.stderr, flush=True)
    rows = [
        [what, *(_cell([d for d in done if (d["what"], d["change"]) == (what, c)]) for c in CHANGES)]
        for what in _PHASES
    ]
    print(table([f"{options.dtype}, {options.depth}: factor 1 +", *(f"{change:.0e}" for change in CHANGES)], rows))


def _cell(results: list[dict[str, Any]]) -> str:
    expected = [each["expected"] for each in results if each.get("expected")]
    law = f", {statistics.median(expected):.0e}" if expected else ""
    return (
        f"{sum(each.get('found', False) for each in results)}/{sum(each.get('named', False) for each in results)}{law}"
    )


if __name__ == "__main__":
    main()
