"""How small a fault shows in the updates of AdamW (foreach), by what it is and by dtype."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from benchmarks.page import table
from tests.optimizer_settings import Setting, train

from trueline.judge.series.update_rules import TOLERANCE

AT, MORE, LR, DECAY = 30, 10, 1e-3, 0.1
"""The first update that is faulty, and how many follow."""

Fault = Callable[[Any, dict[str, Any], dict[str, Any]], object]
"""Makes the update of a parameter wrong, from its state after and what was held before."""


def _faster(times: float) -> Fault:
    """The rate in the kernel is another than that of the group; weight decay is as declared."""

    def change(param: Any, state: dict[str, Any], held: dict[str, Any]) -> None:
        before = held["param"].double() * (1 - LR * DECAY)
        param.copy_(before + times * (_declared(state, held) - before))

    return change


def _declared(state: dict[str, Any], held: dict[str, Any], *, late: int = 0) -> Any:
    """The parameter after the update, float64, by AdamW's rule with a count that is ``late`` too high."""
    count = float(state["step"]) + late
    root = (state["exp_avg_sq"].double() / (1 - 0.999**count)).sqrt() + 1e-8
    return held["param"].double() * (1 - LR * DECAY) - LR / (1 - 0.9**count) * state["exp_avg"].double() / root


def _undecayed(param: Any, state: dict[str, Any], held: dict[str, Any]) -> None:
    param.copy_(_declared(state, held) + held["param"].double() * LR * DECAY)


def _miscounted(param: Any, state: dict[str, Any], held: dict[str, Any]) -> None:
    param.copy_(_declared(state, held, late=1))


def _still(param: Any, state: dict[str, Any], held: dict[str, Any]) -> None:
    param.copy_(held["param"])


def _stale(param: Any, state: dict[str, Any], held: dict[str, Any]) -> None:
    state["exp_avg"].copy_(held["exp_avg"])


def _scaled(param: Any, state: dict[str, Any], held: dict[str, Any]) -> None:
    """The gradient is 1.001 times as large in the kernel as it was before."""
    new, old = state["exp_avg"].double(), held["exp_avg"].double()
    state["exp_avg"].copy_(new + 0.001 * (new - 0.9 * old))


def _one_element(param: Any, state: dict[str, Any], held: dict[str, Any]) -> None:
    one = param.detach().view(-1)[7:8]
    for _ in range(4):
        one.copy_(torch.nextafter(one.float(), torch.tensor(9.0)))


FAULTS: dict[str, tuple[Fault, int]] = {
    "rate × 1.01 in the kernel": (_faster(1.01), AT),
    "rate × 1.001": (_faster(1.001), AT),
    "rate × 1.0001": (_faster(1.0001), AT),
    "count of updates one too high, from the first": (_miscounted, 0),
    "weight decay left out": (_undecayed, AT),
    "not updated": (_still, AT),
    "first moment stays": (_stale, AT),
    "gradient × 1.001 in the kernel": (_scaled, AT),
    "4 units in the last place of one element": (_one_element, AT),
}


def measure() -> str:
    """A table: the largest error in the units of the tolerance, and after how many sampled updates it was above it."""
    rows: list[list[str]] = []
    for name, (fault, first) in FAULTS.items():
        cells = [_shown(Setting("AdamW", "foreach", dtype), fault, first) for dtype in (torch.float32, torch.bfloat16)]
        rows.append([name, *cells])
    return table(["fault", "float32", "bfloat16"], rows)


def _shown(setting: Setting, fault: Fault, first: int) -> str:
    largest, found = 0.0, None

    def tamper(step: int, optimizer: Any, held: dict[str, Any]) -> None:
        if step >= first:
            (param,) = optimizer.param_groups[0]["params"]
            fault(param, optimizer.state[param], held)

    for step, judged in train(setting, steps=first + MORE, tamper=tamper):
        worst = max(judged.worst_error(each) for each in judged.excess)
        if step >= first and worst > TOLERANCE and found is None:
            found = step - first
        largest = max(largest, worst if step >= first else 0.0)
    return (
        f"{largest:,.0f} u, at once"
        if found == 0
        else f"{largest:,.1f} u, " + ("not seen" if found is None else f"after {found}")
    )
