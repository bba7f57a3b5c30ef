"""Proof that nothing has jumped along time so far, by what the next step is compared with.

A step is compared with at most the last ``HISTORY_STEPS`` since the last start (``peaks_over_threshold.Past``), so that
is all that is carried; where a jump is found, the whole Run tells which ones. That holds where no step can have too few
tokens to be judged, whatever their median, and where every step tells its learning rates, or none.

Letters: T steps, G parameter groups, P parameters, S steps with norms of parameters.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from trueline.judge.compared_ranks import Floats, columns_of, data_parallel_ranks, numbers
from trueline.judge.follows import Stretch
from trueline.judge.stats.alarm_budget import AlarmBudget, alarm_budget_of
from trueline.judge.stats.peaks_over_threshold import STEPS_BEFORE, SpikePast, extend_past
from trueline.laws.jumps.run_series import (
    FEW_TOKENS,
    MAX_PARAM_VALUES,
    USUAL_STEPS,
    ParamNorms,
    WholeRun,
    has_loss,
    log_level,
    logs,
    param_norms,
    whole_run,
)
from trueline.schema.errors import RunError
from trueline.schema.finding import Finding
from trueline.store.reader import Run

Arrays = Mapping[str, NDArray[Any]]

_UNKNOWN = -1.0


@dataclass(frozen=True)
class Steady:
    """The past of the loss, of gradient norms, or (``falls``) of norms that fall or are zero, without a jump; it is
    carried as arrays by name. A jump is to ``least`` times the level or more.
    """

    quantity: Literal["loss", "norms", "falls"]
    least: float

    @property
    def name(self) -> str:
        return f"steady {self.quantity}"

    def advance(self, stretch: Stretch, carried: Arrays) -> Arrays | None:
        """The arrays that are carried past the steps of ``stretch``; None where something jumps, or may."""
        facts = _facts_after(stretch, carried.get("facts", np.array([np.inf, -np.inf, _UNKNOWN, _UNKNOWN])))
        if facts is None:
            return None
        series = _part_series(stretch)
        state: dict[str, NDArray[Any]] = {"facts": facts}
        params = None if self.quantity == "loss" else param_norms(stretch.part)
        if params is not None:
            state["params"] = np.array(len(params.indices) + int(carried.get("params", np.array(0))))
            if int(state["params"]) * len(params.names) > MAX_PARAM_VALUES:
                return None  # of so long a Run the checks leave out the first steps
        if self.quantity == "falls" and params is not None:
            before_T = carried.get("losses", np.zeros(0))
            loss_T = np.concatenate([before_T, series.loss])
            learns_S1 = has_loss(loss_T)[len(before_T) :][params.indices][:, None]
            zeros = _zeros_after(series, params, np.where(learns_S1, params.squared, np.nan), carried)
            if zeros is None:
                return None
            state |= {"losses": loss_T[-USUAL_STEPS:], **zeros}
            logs_by_name = {"falls": np.where(learns_S1, -params.logs(series), np.nan)}
        elif params is not None:
            measured_G = np.isfinite(series.group_norm).any(axis=0)
            state["measured"] = measured_G | carried.get("measured", np.zeros_like(measured_G))
            groups = {f"group {g}": logs(series.group_norm[:, [g]]) for g in range(len(series.group_names))}
            logs_by_name = {"norm": logs(series.norm)[:, None], **groups, "params": params.logs(series)}
        else:
            logs_by_name = {"loss": logs(series.loss)[:, None]}
        judged = bool(carried.get("judged", np.array(False)))
        for name, log_TP in logs_by_name.items():
            of_params = name in ("params", "falls")
            starts = params.starts(series) if of_params and params is not None else series.starts
            level = _log_level(alarm_budget_of(stretch.run), name, int(np.count_nonzero(state.get("measured", 0))))
            past = _carried_past(carried, name, log_TP.shape[1])
            for begin, end, anew in _stretches(len(log_TP), starts):
                past = extend_past(
                    SpikePast.empty(log_TP.shape[1]) if anew else past,
                    log_TP[begin:end],
                    log_level=level,
                    least=math.log(self.least),
                    single=not of_params,
                )
                if past is None:
                    return None
                judged |= name in ("loss", "norm", "falls") and past.num_steps > STEPS_BEFORE
            state |= {
                f"values {name}": past.values,
                f"scores {name}": past.scores,
                f"count {name}": np.array(past.num_steps),
            }
        return {**state, "judged": np.array(judged)}

    def conclude(self, run: Run, carried: Arrays) -> list[Finding] | None:
        """No findings, where a step had enough others before it to be judged: none has jumped."""
        return [] if bool(carried["judged"]) else None


def _log_level(budget: AlarmBudget, name: str, measured: int) -> float:
    """The level that the checks use; among as many groups as had a norm so far: of more each would be given less."""
    kind = "groups" if name.startswith("group ") else name
    return log_level(budget, kind, among=measured if kind == "groups" else 1)


def _carried_past(carried: Arrays, name: str, num_series: int) -> SpikePast:
    if f"count {name}" not in carried:
        return SpikePast.empty(num_series)
    return SpikePast(carried[f"values {name}"], carried[f"scores {name}"], int(carried[f"count {name}"]))


def _stretches(num_steps: int, starts: Sequence[int]) -> Iterator[tuple[int, int, bool]]:
    """The stretches between ``starts``, and whether the past is forgotten where each begins; one may begin at the end,
    of which the first step is still to come.
    """
    for begin, end in pairwise(sorted({0, *starts, num_steps})):
        yield begin, end, begin in starts
    if num_steps in starts:
        yield num_steps, num_steps, True


def _part_series(stretch: Stretch) -> WholeRun:
    """The series of the steps of the stretch, where what is usual is known from those around them."""
    around_series = whole_run(stretch.around)
    begin = int(np.searchsorted(around_series.steps, int(stretch.part.steps[0])))
    rows = slice(begin, begin + len(stretch.part.steps))
    starts: tuple[int, ...] = tuple(start - begin for start in around_series.starts if rows.start <= start < rows.stop)
    return replace(
        around_series,
        steps=around_series.steps[rows],
        loss=around_series.loss[rows],
        norm=around_series.norm[rows],
        group_norm=around_series.group_norm[rows],
        starts=starts,
    )


def _facts_after(stretch: Stretch, facts: Floats) -> Floats | None:
    """[4] the fewest and the most tokens of a step so far, 1 where norms are of the mean gradient, else 0, and the
    number of learning rates of a step; None where they may not be those of the whole Run.
    """
    ranks = data_parallel_ranks(stretch.run)
    if not ranks:
        return None
    tokens_T = numbers(stretch.around, "tokens", ranks)[0].sum(axis=1)
    tokens = tokens_T[np.isfinite(tokens_T) & (tokens_T > 0)]
    low, high = tokens.min(initial=float(facts[0])), tokens.max(initial=float(facts[1]))
    reduced, local = (
        int(np.isfinite(numbers(stretch.part, column, ranks)[0]).any(axis=1).sum())
        for column in ("reduced_norm", "grad_norm")
    )
    of_mean = facts[2] if not reduced and not local else float(reduced >= local)
    rates = _num_rates(stretch.around, ranks)
    is_consistent = _UNKNOWN in (facts[2], of_mean) or of_mean == facts[2]
    if not is_consistent or rates is None or (facts[3] not in (_UNKNOWN, rates)) or FEW_TOKENS * high > low:
        return None
    # The series around is judged by its own rows: it may say otherwise than the whole Run.
    if (reduced or local) and whole_run(stretch.around).of_mean != of_mean:
        return None
    return np.array([low, high, of_mean, rates])


def _num_rates(run: Run, ranks: list[int]) -> float | None:
    """The number of learning rates of the first worker at every step, 0 where no worker has any; None where they come
    now and then.
    """
    try:
        rates_T1G, measured_T1 = run.stack("lr", ranks=ranks[:1])
    except RunError:
        return None
    if measured_T1.all():
        return float(rates_T1G.shape[2])
    return None if run.measured("lr")[:, columns_of(run, ranks)].any() else 0.0


def _zeros_after(
    series: WholeRun, params: ParamNorms, squared_SP: Floats, carried: Arrays
) -> dict[str, NDArray[Any]] | None:
    """Numbers of steps since the last start at which each parameter had a norm, and a mask of those that had a zero;
    None where a zero is so late that it may tell something.
    """
    num_params = len(params.names)
    seen_P: NDArray[np.int64] = carried.get("seen", np.zeros(num_params, dtype=np.int64))
    zero_P: NDArray[Any] = carried.get("zero", np.zeros(num_params, dtype=np.bool_))
    for begin, end, anew in _stretches(len(squared_SP), params.starts(series)):
        if anew:
            seen_P, zero_P = np.zeros_like(seen_P), np.zeros_like(zero_P)
        part_SP = squared_SP[begin:end]
        is_zero_SP, before_SP = part_SP == 0, seen_P + np.cumsum(np.isfinite(part_SP), axis=0) - 1
        for p in np.flatnonzero(is_zero_SP.any(axis=0) & ~zero_P).tolist():
            # Earlier zeros are no finding, however many follow (``grad_vanishes``).
            if before_SP[int(np.argmax(is_zero_SP[:, p])), p] >= STEPS_BEFORE:
                return None
        seen_P, zero_P = seen_P + np.count_nonzero(np.isfinite(part_SP), axis=0), zero_P | is_zero_SP.any(axis=0)
    return {"seen": seen_P, "zero": zero_P}
