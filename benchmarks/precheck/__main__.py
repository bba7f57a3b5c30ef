"""Call the operations of small real models again, right and with wrong kernels; rewrite README.md beside this.

    python -m benchmarks.precheck [--models GPT-2,Llama,…]

It needs transformers. About ten minutes on two cores.
"""

from __future__ import annotations

import functools
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from benchmarks.page import arguments, head, table, write
from benchmarks.precheck.faults import FAULTS, WrongKernel
from benchmarks.precheck.models import MODELS, train_one_step

import trueline
from trueline.trials.op.precheck import Precheck, precheck

TITLE = "Operations called again: false alarms and power"
PRECISIONS = ("float32", "bfloat16", "autocast")

HEALTHY = """\
One step of each model, recorded with preset `mix`, then every operation by signature as `trueline trial precheck` calls
it. *Drawn*: the same step recorded with statistics alone, so that inputs are drawn. Wanted: nothing inaccurate. What is
not judged is named below."""

FAULTY = """\
The same Runs, called again while one kernel is wrong (in all dtypes but float64). *Found*: signatures named inaccurate,
by function under *which*. Up to 8 times rounding counts as rounding: 1.4 % in bfloat16. The fused SGD is torch's own
(pytorch#191763), without any override."""


def main() -> None:
    """Record, call again, and write the page."""
    parser = arguments(__doc__, models=",".join(MODELS))
    names = parser.parse_args().models.split(",")
    first = head(TITLE, command=f"python -m benchmarks.precheck --models {','.join(names)}")
    with tempfile.TemporaryDirectory(prefix="trueline-") as place:
        runs = Runs(Path(place))
        rows = list(_healthy(runs, names))
        wrong = list(_faulty(runs, names))
    reasons = sum((row[1] for row in rows), Counter[str]())
    columns = ("model", "precision", "inputs", "signatures", "within", "inaccurate", "cannot tell", "not judged")
    total = ["**all**", "", "", *(sum(int(row[0][column]) for row in rows) for column in range(3, len(columns)))]
    write(
        __file__,
        first,
        "## Nothing is wrong",
        HEALTHY,
        table(columns, [*(row[0] for row in rows), total], right=range(3, len(columns))),
        "### Not judged, of all signatures above",
        table(("why", "signatures"), reasons.most_common(), right=(1,)),
        "## A kernel is wrong",
        FAULTY,
        table(("what is wrong", "model", "precision", "found", "which", "cannot tell"), wrong),
    )


class Runs:
    """Runs of one step by model and precision, each recorded once."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._known: dict[tuple[str, str, str], trueline.Run] = {}

    def of(self, model: str, precision: str, depth: str = "tensor") -> trueline.Run:
        """The Run, recorded where it is asked for first."""
        key = model, precision, depth
        if key not in self._known:
            self._known[key] = self.trained(MODELS[model], "-".join(key), precision, depth)
        return self._known[key]

    def trained(self, model: Any, name: str, precision: str, depth: str, **settings: Any) -> trueline.Run:
        """One that is trained with ``settings`` of the optimizer."""
        torch.manual_seed(0)
        out, plan = self._place / name, {"preset": "mix", "steps": [0, 1], "depth": depth}
        watch = functools.partial(trueline.watch, out=out, plan=plan)
        train_one_step(model(), precision, lambda model, optimizer: watch(model, optimizer), **settings)
        return trueline.open_run(out)


def _healthy(runs: Runs, names: list[str]) -> Iterator[tuple[list[Any], Counter[str]]]:
    for name in names:
        for precision in PRECISIONS:
            for depth in ("tensor", "stats") if precision == "float32" else ("tensor",):
                found = precheck(runs.of(name, precision, depth), device="cpu")
                counts = found.counts()
                reasons = Counter(each.why for each in found.operations if each.outcome == "not judged")
                row = [name, precision, "stored" if depth == "tensor" else "drawn", len(found.operations)]
                row += [counts[each] for each in ("within", "beyond", "cannot tell", "not judged")]
                print(row, [line for line in found.answer.says if line.startswith(("beyond", "cannot"))], flush=True)
                yield row, reasons


def _faulty(runs: Runs, names: list[str]) -> Iterator[list[Any]]:
    for what, (model, kernel, change, precisions) in FAULTS.items():
        for precision in precisions if model in names else ():
            with WrongKernel(kernel, change):
                found = precheck(runs.of(model, precision), device="cpu")
            yield _found(what, model, precision, found)
    run = runs.trained(MODELS["GPT-2"], "fused", "bfloat16", "tensor", make=torch.optim.SGD, fused=True)
    yield _found("fused SGD of torch, no override", "GPT-2", "bfloat16", precheck(run, device="cpu"))


def _found(what: str, model: str, precision: str, found: Precheck) -> list[Any]:
    names = Counter(each.api.rpartition(".")[2] for each in found.operations if each.outcome == "beyond")
    shown = ", ".join(f"`{name}` {count}" for name, count in names.items()) or "none"
    row = [what, model, precision, sum(names.values()), shown, found.counts()["cannot tell"]]
    print(row, flush=True)
    return row


if __name__ == "__main__":
    main()
