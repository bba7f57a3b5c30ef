"""Faults that begin at a later step of runs that were apart before: parameters that change, and calls that do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from gallery.changed_kernel import ChangedKernel
from gallery.problems import CausalLM
from gallery.reference_training import in_halves
from tests.unit.made_steps import Making, exactly
from torch import nn

import trueline
from trueline.comparison.judgement.history.parameter_continuity import Changed, changed_between_steps
from trueline.comparison.judgement.step import Step
from trueline.comparison.judgement.values import distance
from trueline.comparison.judgement.values.value_judgement import Divergence
from trueline.comparison.match.align import align
from trueline.comparison.match.names import NameMap
from trueline.comparison.result import Comparison
from trueline.judge.recorded.step_values import StepValues

WIDTH = 32
NAME = "blocks.1.mlp.0.weight"


def array(number: float) -> Any:
    return np.linspace(1, 2, 64, dtype=np.float32) * np.float32(number)


def side(step: int, begun: float, left: float, *, seen: bool = True) -> StepValues:
    """A parameter that begins a step as one array and is written to twice; the second write may be unseen."""
    param, middle, last = array(begun), array(0.9 * begun), array(left)
    making = Making("run", step).put("param", NAME, "value", param, kind="param")
    making.call("AdamW.mul_", "torch.Tensor.mul_", (param,), middle, phase="opt")
    if seen:
        making.call("AdamW.addcdiv_", "torch.Tensor.addcdiv_", (middle, array(5)), last, phase="opt")
    return making.done


def steps(mine: list[StepValues], theirs: list[StepValues]) -> list[Step]:
    steps_made: list[Step] = []
    for one, other in zip(mine, theirs, strict=True):
        alignment = align(one, other, NameMap())
        rows = Divergence(alignment, measure=exactly).rows
        steps_made.append(Step(cast(Any, SimpleNamespace(path="a")), one.step, 0, alignment, rows))
    return steps_made


SOUND = [side(0, 1.0, 1.1), side(1, 1.1, 1.2), side(2, 1.2, 1.3), side(3, 1.3, 1.4)]
OTHER = [side(0, 1.01, 1.12), side(1, 1.12, 1.25), side(2, 1.25, 1.33), side(3, 1.33, 1.4)]


def test_parameters_that_go_on_where_the_update_left_them_are_silent() -> None:
    assert changed_between_steps(steps(SOUND, OTHER)) == []


def test_a_parameter_that_changed_between_two_steps_is_told_at_the_second() -> None:
    changed = [*SOUND[:2], side(2, 1.2 * 1.001, 1.3), side(3, 1.3, 1.4)]
    (found,) = changed_between_steps(steps(changed, OTHER))
    assert (found.at, found.name, found.in_reference) == (2, NAME, False)
    assert found.rel == pytest.approx(1e-3, rel=0.01)
    (turned,) = changed_between_steps(steps(OTHER, changed))
    assert turned.in_reference


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        ([*SOUND[:2], side(2, 1.21, 1.3), *SOUND[3:]], [*OTHER[:2], side(2, 1.26, 1.33), *OTHER[3:]]),
        ([side(0, 1.0, 1.1), side(1, 1.3, 1.2), side(2, 1.4, 1.3)], OTHER[:3]),
        ([side(0, 1.0, 1.1, seen=False), side(1, 1.1, 1.2, seen=False), side(2, 1.2, 1.3, seen=False)], OTHER[:3]),
        ([SOUND[0], side(2, 1.3, 1.3), SOUND[3]], [OTHER[0], side(2, 1.12, 1.33), OTHER[3]]),
    ],
    ids=["changed in both", "changed at each step", "last operation unseen", "a step between was not recorded"],
)
def test_changes_that_may_be_meant_are_silent(mine: list[StepValues], theirs: list[StepValues]) -> None:
    assert changed_between_steps(steps(mine, theirs)) == []


def test_numbers_that_stop_being_finite_have_no_size() -> None:
    broken = side(2, 1.2, 1.3)
    first = next(value for value in broken.values if value.site.phase == "param")
    index = list(broken.values).index(first)
    assert first.stats is not None
    bad = [*broken.values]
    bad[index] = _with_inf(first)
    changed = [*SOUND[:2], StepValues("run", 2, (0,), bad), SOUND[3]]
    assert changed_between_steps(steps(changed, OTHER))[0] == Changed(2, NAME, in_reference=False, rel=None)


def _with_inf(value: Any) -> Any:
    from dataclasses import replace

    return replace(value, stats=replace(value.stats, pos_inf=1))


Fault = Callable[[nn.Module], object]


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Comparison]:
    """Compares training in which linears add up in halves, wrong from a step on, with training as it is; what has the
    name of an earlier one is not trained again.
    """
    folder = tmp_path_factory.mktemp("late")
    ref = _record(folder / "ref", halves=False)

    def run(name: str, fault: Fault = lambda model: None, *, since: int = 4, hidden: bool = False) -> Comparison:
        out = folder / name
        if not out.exists():
            _record(out, halves=True, fault=fault, since=since, hidden=hidden)
        return trueline.compare(out, ref)

    return run


def _record(
    out: Path, *, halves: bool, fault: Fault = lambda model: None, since: int = 0, hidden: bool = False
) -> Path:
    problem = CausalLM(width=WIDTH)
    model = problem.model(seed=3)
    if halves:
        in_halves(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    batches = torch.utils.data.DataLoader(problem.dataset(24, seed=3), batch_size=4)
    watch = trueline.watch(model, optimizer, out=out, plan={"preset": "mix", "depth": "stats"})
    scale = 1.25 / (WIDTH / 2) ** 0.5
    with ChangedKernel("flash_attention", first=2 * since if hidden else 10**9, scale=scale):
        for step, batch in enumerate(batches):
            if step == since:
                fault(model)
            with watch.step(batch):
                problem.loss(model, batch).backward()
                optimizer.step()
                optimizer.zero_grad()
    watch.close()
    return out


@pytest.mark.in_turn
def test_a_run_that_only_rounds_otherwise_is_silent(compared: Callable[..., Comparison]) -> None:
    healthy = compared("healthy")
    assert healthy.exit_code == 0
    assert healthy.counts["within"]


@pytest.mark.in_turn
def test_a_kernel_that_goes_wrong_late_is_named_first(
    compared: Callable[..., Comparison], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By laws of rounding where projections say how large the difference is; in Runs without any, by its own past."""
    bad = compared("hidden", hidden=True)
    assert bad.findings[0].code == "first-divergence"
    assert bad.findings[0].sites == ("4.0/r0/fwd/blocks.1.scaled_dot_product_attention#0:out0",)

    monkeypatch.setattr(distance, "_projected", lambda *_, **__: None)
    bad = compared("hidden", hidden=True)
    finding = bad.findings[0]
    assert finding.code == "first-divergence"
    assert finding.sites == ("4.0/r0/fwd/blocks.1.scaled_dot_product_attention#0:out0",)
    assert finding.false_alarm_rate is not None
    assert 0 < finding.false_alarm_rate < 0.01
    assert "departs from its own history" in finding.claim
    assert bad.first is not None
    assert (bad.first.judgement, bad.first.site) == ("beyond", finding.sites[0])
    assert bad.first.times == pytest.approx(finding.measured / finding.expected)  # type: ignore[operator]
    beyond = [step.counts.get("beyond", 0) for step in bad.steps]
    assert beyond[4] >= 1
    assert beyond[:4] == [0, 0, 0, 0]
    assert "explained-by-rounding" not in {each.code for each in bad.findings}


def test_an_argument_that_changes_late_is_told(compared: Callable[..., Comparison]) -> None:
    def widen(model: nn.Module) -> None:
        model.get_submodule("blocks.1.norm_attn").eps = 1e-2  # type: ignore[assignment]

    bad = compared("eps", widen)
    assert bad.first is not None
    assert str(bad.first.site).startswith("4.0/r0/fwd/blocks.1.norm_attn")
    assert "0.01 and not 1e-05" in bad.findings[0].claim


def test_a_weight_that_changes_between_steps_is_told_however_little(compared: Callable[..., Comparison]) -> None:
    bad = compared("weight", lambda model: model.get_parameter(NAME).data.mul_(1.00001), since=3)
    finding = bad.findings[0]
    assert (finding.code, finding.step_first, finding.false_alarm_rate) == ("weight-differs", 3, 0.0)
    assert f"between the update of step 2 and step 3 in the run and not in the reference: {NAME}" in finding.claim
    assert bad.exit_code == 1


def test_a_weight_that_becomes_infinite_late_is_told(compared: Callable[..., Comparison]) -> None:
    def break_it(model: nn.Module) -> None:
        model.get_parameter(NAME).data[3, 5] = float("inf")

    finding = compared("inf", break_it, since=3).findings[0]
    assert (finding.code, finding.step_first) == ("weight-differs", 3)
    assert "NaN or infinities came or went" in finding.claim
