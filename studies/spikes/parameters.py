"""Count what is reported of single parameters in healthy trainings, and what is planted; write parameters.md.

    python -m studies.spikes.parameters [--cache DIR] [--seeds 20] [--steps 2000]

Trainings are those of `studies.judgement` with two workers, and kept: without them it takes an hour or two.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from studies.judgement.cache import DEFAULT
from studies.judgement.tables import rate
from studies.judgement.workers import train
from studies.judgement.workloads import HEALTHY, Workload
from benchmarks.page import arguments, head, records, write
from numpy.typing import NDArray
from torch import Tensor

from trueline.judge.stats.alarm_budget import AlarmBudget
from trueline.laws.jumps import grad_spike, grad_vanishes
from trueline.laws.jumps.run_series import RISE, SHARES, ParamNorms, WholeRun
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.schema.plan import FALSE_ALARMS

Floats = NDArray[np.float64]

ABOUT = """\
`grad-spike` and `grad-vanishes` judge the norm of the gradient of every parameter. Alarms are findings about parameters
alone: jumps that show in the whole gradient, or in a group, are counted in [README.md](README.md). Under the default
budget, parameters have a share of 1/16 for jumps and 1/16 for falls and zeros, and under 100 times the budget there is
more to be counted. Cells: alarms, then alarms per 10,000 steps with the exact 95 % interval of a Poisson count.

The last two columns are a rule that people use, in the words of msProbe's monitor (`AnomalyTurbulence`, threshold 0.5):
a norm above 1.5 times its own running mean (weight 0.99 on the past). Alarms at all steps, and the largest number of
them in any 13 steps in a row of one training."""

ABOUT_PLANTED = """\
In each of these trainings something is planted at one step: fraction of trainings in which exactly one finding tells of
it, at that step, with the parameter, or the module where it was planted, named first. The parameter is drawn.
`all behind` plants it in the parameter and in those that backward reaches after it."""

AT = (100, 300, 1000)


def main() -> None:
    """Measure and write the page."""
    parser = arguments(__doc__, seeds=20, steps=2000)
    parser.add_argument("--cache", type=Path, default=DEFAULT, help="where trainings are kept")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    command = f"python -m studies.spikes.parameters --seeds {chosen.seeds} --steps {chosen.steps}"
    title = head("Jumps and falls of single parameters", command=command)
    runs = list(trainings(chosen.cache, chosen.seeds, chosen.steps))
    write(
        __file__, title, ABOUT, healthy(runs), "## What is planted", ABOUT_PLANTED, planted(runs), name="parameters.md"
    )


Training = tuple[str, WholeRun, ParamNorms]


def trainings(folder: Path, seeds: int, steps: int) -> Iterator[Training]:
    """Each kind of healthy training with each seed: its name and series."""
    for seed in range(seeds):
        for kind, workload in enumerate(HEALTHY):
            path = folder / f"parameters-{kind:02d}-{seed}-{steps}.npz"
            if not path.exists():
                _train(workload, 5000 + 100 * kind + seed, steps, path)
            with np.load(path) as file:
                yield workload.name, *_series(file["squared"], tuple(file["names"].tolist()), file["loss"], workload)


def _train(workload: Workload, seed: int, steps: int, path: Path) -> None:
    squared: list[Floats] = []

    def seen(grads: Mapping[str, Tensor]) -> None:
        squared.append(np.array([grad.flatten(1).double().square().sum(1).numpy() for grad in grads.values()]))

    recorded = train(workload, workers=2, seed=seed, steps=steps, seen=seen)
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, squared=np.array(squared), names=np.array([*workload.model.weights(seed)]), loss=recorded.loss)


def _series(
    squared_TPN: Floats, names: tuple[str, ...], loss_TN: Floats, workload: Workload
) -> tuple[WholeRun, ParamNorms]:
    squared_TP = squared_TPN.mean(axis=2)
    rates = np.array([workload.rate(step) for step in range(len(squared_TP))])
    return (
        _whole(squared_TP, loss_TN.mean(axis=1), (1 + np.flatnonzero(rates[1:] > RISE * rates[:-1])).tolist()),
        ParamNorms(names, ("",) * len(names), np.arange(len(squared_TP)), squared_TP),
    )


def _whole(squared_TP: Floats, loss_T: Floats, starts: list[int]) -> WholeRun:
    norm_T, steps = np.sqrt(squared_TP.sum(axis=1)), np.arange(len(squared_TP))
    return WholeRun(steps, (0, 1), loss_T, norm_T, (), np.zeros((len(steps), 0)), tuple(starts), of_mean=False)


def judged(series: WholeRun, params: ParamNorms, false_alarms: float = FALSE_ALARMS) -> list[Finding]:
    """What both checks say of it."""
    found: list[Finding] = []
    for check in (grad_spike, grad_vanishes):
        with contextlib.suppress(CannotTell):
            found += check.judge(series, AlarmBudget(false_alarms), params)
    return found


def _of_params(findings: list[Finding]) -> int:
    """Findings that tell of parameters and not of the whole gradient."""
    return sum(not each.claim.startswith("The norm of the gradient jumped") for each in findings)


def healthy(runs: list[Training]) -> str:
    """The table of alarms, one line a kind of training."""
    rows: dict[str, Counter[str]] = {}
    most: dict[str, int] = {}
    for name, series, params in runs:
        row = rows.setdefault(name, Counter())
        row.update(runs=1, steps=len(series.steps), norms=params.squared.size)
        row["default"] += _of_params(judged(series, params))
        row["loose"] += _of_params(judged(series, params, 100 * FALSE_ALARMS))
        rule_T = _turbulent(np.sqrt(params.squared)).sum(axis=1)
        row["rule"] += int(rule_T.sum())
        most[name] = max(most.get(name, 0), int(np.convolve(rule_T, np.ones(13), "valid").max()))
    rows["all"] = sum(rows.values(), Counter())
    most["all"] = max(most.values())
    share = SHARES["params"] + SHARES["falls"] + SHARES["zeros"]
    return records(
        {
            "training": name,
            "runs": row["runs"],
            "steps": f"{row['steps']:,}",
            "norms": f"{row['norms']:,}",
            f"default budget ({share * FALSE_ALARMS:g})": f"{row['default']}: {rate(row['default'], row['steps'])}",
            f"100 times ({share * 100 * FALSE_ALARMS:g})": f"{row['loose']}: {rate(row['loose'], row['steps'])}",
            "1.5 × running mean": f"{row['rule']:,}",
            "most in 13 steps": most[name],
        }
        for name, row in rows.items()
    )


def _turbulent(norm_TP: Floats, *, beta: float = 0.99, threshold: float = 0.5) -> NDArray[np.bool_]:
    """[T, P] where a norm is above its running mean times 1 + threshold."""
    mean_P, above_TP = norm_TP[0].copy(), np.zeros(norm_TP.shape, dtype=np.bool_)
    for t, norm_P in enumerate(norm_TP):
        above_TP[t] = norm_P > mean_P * (1 + threshold)
        mean_P = beta * mean_P + (1 - beta) * norm_P
    return above_TP


def planted(runs: list[Training]) -> str:
    """The table of what is planted."""
    rng = np.random.default_rng(0)
    calm = [run for run in runs if "memorises" not in run[0] and "spike" not in run[0]][:120]
    kinds: dict[str, tuple[float, int, bool]] = {
        "one parameter, one step, × 100": (100.0, 1, False),
        "all behind, one step, × 100": (100.0, 1, True),
        "one parameter, one step, × 100, ten steps after a NaN": (-100.0, 1, False),
        "one parameter, from then on, / 100": (0.01, 10**9, False),
        "all behind, from then on, / 100": (0.01, 10**9, True),
        "one parameter, from then on, zero": (0.0, 10**9, False),
    }
    rows: list[dict[str, Any]] = []
    for what, (factor, length, behind) in kinds.items():
        row: dict[str, Any] = {"planted": what, "trainings": len(calm)}
        for at in AT:
            told = [_told(rng, run, at, factor, length, behind=behind) for run in calm]
            row[f"step {at}"] = f"{np.mean(told):.2f}"
        rows.append(row)
    return records(rows)


def _told(rng: np.random.Generator, run: Training, at: int, factor: float, length: int, *, behind: bool) -> bool:
    _, series, params = run
    squared_TP = params.squared.copy()
    chosen = int(rng.integers(squared_TP.shape[1]))
    order = params.backward_order(range(squared_TP.shape[1]))
    modules = [name.rpartition(".")[0] for name in order]
    behind_it = order[modules.index(params.names[chosen].rpartition(".")[0]) :]
    which = [params.names.index(name) for name in behind_it] if behind else [chosen]
    squared_TP[at : at + length, which] *= factor**2
    if factor < 0:
        squared_TP[at - 10] = np.nan
    new = ParamNorms(params.names, params.groups, params.indices, squared_TP)
    whole = _whole(squared_TP, series.loss, list(series.starts))
    found = [each for each in judged(whole, new) if abs((each.step_first or 0) - at) <= 0]
    module = params.names[chosen].rpartition(".")[0]
    return len(found) == 1 and found[0].evidence["params"][0].rpartition(".")[0] == module


if __name__ == "__main__":
    main()
