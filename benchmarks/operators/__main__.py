"""Call the operators of torch in bfloat16, and judge every kernel behind them; rewrite README.md beside this.

    python -m benchmarks.operators [--rows 4096] [--samples 6] [--device cuda]

It needs `expecttest`, with which torch's own table of operators can be imported; without it, sums over many rows are
tried alone. On a GPU it picks up `cuda` by itself. About ten minutes on two cores.
"""

from __future__ import annotations

import contextlib
import importlib.util
import math
import sys
import tomllib
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from benchmarks.operators.allowance import LIMIT
from benchmarks.operators.cases import KINDS, many, small
from benchmarks.operators.survey import Judged, Survey
from benchmarks.page import arguments, head, table, write
from torch.nn import functional

TITLE = "Operators in bfloat16: what is worse than its sum allows"
REPRODUCTIONS = Path(__file__).with_name("reproductions.toml")

INTRODUCTION = f"""\
Every kernel that an operator calls, forward and backward, is called again by itself with the bfloat16 numbers that it
was given, and once more with the same in float64. An element may be off by half an ulp of its dtype and by n u S: n
terms added up in float32, u = 2^-24, S the sum of their magnitudes. Both n and S are those of the element, from its
derivatives in float64. *Times* is its error in this allowance. Up to {LIMIT:g}, two roundings more on the way explain
it; a kernel beyond is **worse**. Of sums of lower precision torch's note on numerical accuracy speaks for products on
GPUs alone.

Numbers are of four kinds, {", ".join(KINDS)}: where all rows are like the first, errors of rounding have one
sign and do not average out."""

WORSE = """\
One line for each kernel and pass: its worst call. *Elements*: the share of its results that are beyond. Below, each is
shown once more by numbers of which the exact result is known without torch, or is called a suspicion."""

REPRODUCED = """\
Each starts from `import torch, torch.nn.functional as F; b16 = torch.bfloat16; torch.set_num_threads(1)`. The exact
number is counted or worked out by hand, not by torch. *Issue* is what searches of the issues and pull requests of
pytorch/pytorch for kernels and symptoms showed (2026-11-30): "none known" is no proof that there is none."""


def main() -> None:
    """Survey, reproduce, and write the page."""
    parser = arguments(__doc__, rows=4096, samples=6, device="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    torch.set_num_threads(1)  # how rows are parted among threads changes how often partial sums are rounded
    warnings.simplefilter("ignore")
    command = f"python -m benchmarks.operators --rows {options.rows} --samples {options.samples}"
    first = head(TITLE, command=command) + "\n- " + _paths(options.device)
    surveys: dict[str, Survey] = {}
    for name, mkldnn, cases in _parts(options):
        with torch.backends.mkldnn.flags(enabled=mkldnn):
            surveys[name] = Survey()
            surveys[name].add(cases, lambda case: print(case, file=sys.stderr, flush=True))
    reproductions = tomllib.loads(REPRODUCTIONS.read_text())
    write(
        __file__,
        first,
        INTRODUCTION,
        table(
            ("what", "operators", "kernels", "calls of them", "within", "worse"), _counts(surveys), right=range(1, 6)
        ),
        "## Worse",
        WORSE,
        table(
            ("kernel", "pass", "by operator", "shapes", "numbers", "times", "elements", "is", "exact"),
            _worse(surveys),
            right=(5, 6),
        ),
        "## In three lines",
        REPRODUCED,
        *_reproduced(reproductions, surveys, options.device),
        "## Not judged",
        _not_judged(surveys),
    )


def _parts(options: Any) -> Iterator[tuple[str, bool, Any]]:
    for mkldnn in (True, False):
        what = f"sums over {options.rows:,} rows, mkldnn {'on' if mkldnn else 'off'}"
        yield what, mkldnn, many(options.rows, options.device)
    if importlib.util.find_spec("expecttest") is not None:
        yield "torch's own table, small inputs", True, small(options.device, options.samples)


def _paths(device: str) -> str:
    """What decides which kernels are called."""
    if device != "cpu":
        return f"device: {torch.cuda.get_device_name()}"
    flags: set[str] = set()
    with contextlib.suppress(OSError):
        flags = {flag for line in Path("/proc/cpuinfo").read_text().splitlines() for flag in line.split()}
    has = ", ".join(
        f"{flag} {'yes' if flag in flags else 'no'}" for flag in ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
    )
    mkldnn = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return (
        f"CPU: {torch.backends.cpu.get_cpu_capability()} kernels, one thread; {has}; mkldnn takes bfloat16: "
        f"{'yes' if mkldnn else 'no'}. It was never run on a GPU."
    )


def _counts(surveys: Mapping[str, Survey]) -> Iterator[list[Any]]:
    for name, survey in surveys.items():
        within = survey.num_calls - survey.num_worse
        yield [name, len(survey.operators), len(survey.kernels), survey.num_calls, within, survey.num_worse]
    kernels = {kernel for survey in surveys.values() for kernel in survey.kernels}
    operators = {name for survey in surveys.values() for name in survey.operators}
    sums = [sum(getattr(survey, name) for survey in surveys.values()) for name in ("num_calls", "num_worse")]
    yield ["**all**", len(operators), len(kernels), sums[0], sums[0] - sums[1], sums[1]]


def worst_of_all(surveys: Mapping[str, Survey]) -> list[Judged]:
    """The worst call of each kernel and pass that is beyond the limit, the worst first."""
    worst: dict[tuple[str, bool], Judged] = {}
    for judged in (judged for survey in surveys.values() for judged in survey.worse()):
        key = (judged.call.name, judged.backward)
        if key not in worst or judged.worst.times > worst[key].worst.times:
            worst[key] = judged
    return sorted(worst.values(), key=lambda judged: -judged.worst.times)


def _worse(surveys: Mapping[str, Survey]) -> Iterator[list[Any]]:
    for judged in worst_of_all(surveys):
        worst = judged.worst
        times = "∞" if math.isinf(worst.times) else f"{worst.times:,.3g}"
        yield [
            f"`{judged.call.name}`", "backward" if judged.backward else "forward", judged.operator, judged.call.shapes,
            judged.kind, times, f"{worst.wrong_frac:.2g}", f"{worst.actual:.5g}", f"{worst.exact:.5g}",
        ]  # fmt: skip


def reproduced(reproduction: Mapping[str, str], device: str = "cpu") -> tuple[float, float]:
    """What torch returns on ``device``, and what is exact."""
    names: dict[str, Any] = {"torch": torch, "F": functional, "b16": torch.bfloat16}
    with torch.device(device):
        exec(reproduction["code"], names)
    return float(names["result"].detach()), float(eval(reproduction["exact"], {"math": math}))


def _reproduced(
    reproductions: Mapping[str, Mapping[str, str]], surveys: Mapping[str, Survey], device: str
) -> Iterator[str]:
    named = list(dict.fromkeys(judged.call.name for judged in worst_of_all(surveys)))
    yield from (_in_three_lines(kernel, reproductions[kernel], device) for kernel in named if kernel in reproductions)
    suspicions = [f"`{kernel}`" for kernel in named if kernel not in reproductions]
    if suspicions:
        yield f"Not reproduced by hand, and so no more than suspicions: {', '.join(suspicions)}."
    left = [kernel for kernel in reproductions if kernel not in named]
    if left:
        yield "### Worse by these numbers, and not by those above"
        yield from (_in_three_lines(kernel, reproductions[kernel], device) for kernel in left)


def _in_three_lines(kernel: str, reproduction: Mapping[str, str], device: str) -> str:
    actual, exact = reproduced(reproduction, device)
    return (
        f"`{kernel}`: {actual:g}, exact {exact:g} ({reproduction['how']}). Issue: "
        f"{reproduction.get('issue', 'none known: new')}.\n\n```python\n{reproduction['code'].strip()}\n```"
    )


def _not_judged(surveys: Mapping[str, Survey]) -> str:
    kernels = sorted({why.partition(":")[0] for survey in surveys.values() for why in survey.not_judged})
    refused = sorted({why.partition(":")[0] for survey in surveys.values() for why in survey.refused})
    return (
        "Kernels that draw random numbers, return views, or return whole numbers or truth values alone; what operators "
        "round between their kernels; sparse and nested tensors; out= and foreach forms that no operator calls.\n\n"
        f"Kernels that raised in float64, or for these arguments: {', '.join(f'`{kernel}`' for kernel in kernels)}.\n\n"
        f"Operators that raised for some of the numbers ({len(refused)}): {', '.join(refused)}."
    )


if __name__ == "__main__":
    main()
