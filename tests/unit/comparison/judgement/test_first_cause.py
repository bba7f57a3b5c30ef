"""Which finding is made of judged steps, and which value is to blame."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.unit.made_steps import Making, Off, by_statistics, chain, exactly

from trueline.comparison.judgement.first_cause import conclude
from trueline.comparison.judgement.step import Step
from trueline.comparison.judgement.values.compared import Compared
from trueline.comparison.judgement.values.value_judgement import Divergence
from trueline.comparison.match.align import align
from trueline.comparison.match.names import NameMap
from trueline.judge.recorded.step_values import StepValues


class MadeRun(SimpleNamespace):
    """What can be referred to weakly, as a Run."""

    __hash__ = object.__hash__


def run_of(*, rates: Sequence[float] = (), **optimizer: Any) -> Any:
    """A Run whose optimizer is set so, with the learning ``rates`` of its steps."""
    of_class = {"class": optimizer.pop("class")} if "class" in optimizer else {}
    env = {0: SimpleNamespace(optimizer={**of_class, "groups": [optimizer]})} if optimizer or of_class else {}
    lists = {(step, 0): np.array([rate]) for step, rate in enumerate(rates)}
    recorded = {"ranks": [0], "steps": range(len(rates)), "lists": lambda *_, **__: lists, "texts": lambda _: {}}
    return MadeRun(path="runs/a", env=env, record_ranks=(), has_records=False, **recorded)


def step_of(step_values: StepValues, ref_values: StepValues, *, before: Step | None = None, **settings: Any) -> Step:
    alignment = align(step_values, ref_values, NameMap())
    divergence = Divergence(alignment, **{"measure": exactly, **settings})
    return Step(run_of(), step_values.step, 0, alignment, divergence.rows, before)


def chains(off: Off, *, step: int = 0, backward: bool = False, **settings: Any) -> Step:
    making, ref_making = chain("run", off, step=step, backward=backward), chain("ref", step=step, backward=backward)
    return step_of(making.done, ref_making.done, **settings)


def findings_of(*steps: Step, run: Any = None, ref: Any = None) -> tuple[dict[str, Any], str]:
    """Findings by code, and the site of the first difference."""
    conclusion = conclude(run or run_of(), ref or run_of(), steps)
    site = "" if conclusion.first is None else str(conclusion.first.site)
    return {finding.code: finding for finding in conclusion.findings}, site


WRONG = {"z": 0.1, "t": 0.1}


def test_only_the_first_step_that_differs_is_blamed() -> None:
    late = {"y": 0.5, "z": 0.5, "t": 0.5}
    findings, site = findings_of(chains({}), chains(WRONG, step=1), chains(late, step=2))
    assert site == "1.0/r0/fwd/m.sub.gelu#0:out0"
    assert findings["first-divergence"].sites == (site,)
    assert (findings["first-divergence"].step_first, findings["first-divergence"].step_last) == (1, 1)
    assert findings["first-divergence"].evidence["beyond"] == 2  # as gelu returns it, and as add takes it


def test_differences_that_rounding_explains_are_one_piece_of_information() -> None:
    findings, site = findings_of(chains({"y": 1e-7, "z": 1e-7, "t": 1e-7}))
    assert (list(findings), site) == (["explained-by-rounding"], "")


def test_an_update_of_equal_parameters_by_equal_gradients_is_blamed_and_not_the_calls_after_it() -> None:
    before = chains({}, backward=True)
    assert before.equal_before_update
    after = chains({"w": 1e-4, "y": 1e-4}, step=1, moved=1e-3, same_update=True, before=before)
    findings, site = findings_of(before, after)
    assert set(findings) == {"optimizer-differs"}
    assert "update at step 0" in findings["optimizer-differs"].claim
    assert "m.sub.weight" in findings["optimizer-differs"].claim
    assert site == "1.0/r0/fwd/m.sub.linear#0:in1"


def test_other_gradients_are_no_equal_start_of_an_update() -> None:
    assert not chains({"gw": 1e-7}, backward=True).equal_before_update
    assert not chains({}).equal_before_update


def test_gradients_that_come_out_apart_are_a_difference_whatever_their_calls_took() -> None:
    step = chains({"gt": 0.5, "gz": 0.5, "gw": 0.5}, backward=True)
    rows = [unlike(row) if row.judgement in ("beyond", "propagated") else row for row in step.rows]
    findings, site = findings_of(replace(step, rows=rows))
    assert set(findings) == {"structure-differs"}
    assert site == "0.0/r0/bwd/m.sub.add#0:out0"


def unlike(row: Compared) -> Compared:
    return replace(row, judgement="not-comparable", rewired=True)


def test_other_wiring_that_ends_alike_is_no_difference() -> None:
    step = chains({"z": 0.5})
    rows = [unlike(row) if row.judgement == "beyond" else row for row in step.rows]
    rows_alike = [
        replace(row, judgement="within") if "add#" in str(row.run_value and row.run_value.site) else row for row in rows
    ]
    findings, _ = findings_of(replace(step, rows=rows_alike))
    assert set(findings) == {"explained-by-rounding"}


@pytest.mark.parametrize(("kind", "severity"), [("param", "warning"), ("op", "info")])
def test_a_parameter_that_only_one_has_is_a_warning(kind: str, severity: str) -> None:
    making = chain("run")
    phase, name = ("param", "m.sub.bias") if kind == "param" else ("fwd", "m.sub.sin")
    making.put(phase, name, "out0", np.ones(3, np.float32), api="torch.sin", kind=kind)
    findings, _ = findings_of(step_of(making.done, chain("ref").done))
    assert findings["site-missing"].severity == severity
    assert findings["site-missing"].claim.startswith("1 value of one run has no twin")
    assert ("m.sub.bias" in findings["site-missing"].claim) == (kind == "param")


def test_what_was_stored_need_not_be_recorded_in_full() -> None:
    def advice(stored: bool) -> str:
        making, ref_making = chain("run", WRONG), chain("ref")
        step = step_of(making.done, ref_making.done, measure=exactly if stored else by_statistics)
        rows = step.rows if stored else [_bare(row) for row in step.rows]
        return " ".join(findings_of(replace(step, rows=rows))[0]["first-divergence"].next)

    assert "depth" in advice(stored=False)
    assert "depth" not in advice(stored=True)


def _bare(row: Compared) -> Compared:
    mine, theirs = (None if value is None else replace(value, load=None) for value in (row.run_value, row.ref_value))
    return replace(row, run_value=mine, ref_value=theirs)


def test_settings_of_the_optimizers_are_told_but_not_the_choice_of_kernels() -> None:
    steps_alike = chains({})
    findings, _ = findings_of(steps_alike, run=run_of(lr=1e-3, foreach=True), ref=run_of(lr=1e-3, foreach=False))
    assert "optimizer-differs" not in findings
    findings, _ = findings_of(steps_alike, run=run_of(weight_decay=0.1), ref=run_of(weight_decay=0.0))
    assert "weight_decay is 0.1 and not 0.0" in findings["optimizer-differs"].claim


def headline(*steps: Step, run: Any, ref: Any) -> Any:
    return conclude(run, ref, steps).findings[0]


def update_step(off: Off) -> Step:
    """A step that ends in one call of AdamW, and what it returns differs by ``off``; so do its arguments."""
    sides = []
    for name, own, value in (("run", off, 0.001), ("ref", {}, 0.05)):
        side = chain(name)
        state = np.arange(1, 9, dtype=np.float32)
        call = "AdamW.addcmul_"
        args = f'{{"args":[{{"in":"in0"}}],"kwargs":{{"value":{value}}}}}'
        side.put("opt", call, "in0", state, api="torch.Tensor.addcmul_", args=args)
        side.put("opt", call, "out0", state * (1 + own.get("state", 0.0)), api="torch.Tensor.addcmul_")
        sides.append(side.done)
    return step_of(*sides)


def test_a_setting_leads_only_where_it_may_have_caused_the_first_difference() -> None:
    run, ref = run_of(weight_decay=0.1), run_of(weight_decay=0.0)
    before = headline(chains(WRONG), run=run, ref=ref)
    assert (before.code, before.severity) == ("first-divergence", "error")
    findings, _ = findings_of(chains(WRONG), run=run, ref=ref)
    assert findings["optimizer-differs"].severity == "warning"
    assert "cannot have caused the first difference" in findings["optimizer-differs"].claim
    after = headline(chains({}), chains(WRONG, step=1), run=run, ref=ref)
    assert (after.code, after.severity, after.step_first) == ("optimizer-differs", "error", 0)


def test_a_setting_is_named_also_where_numbers_of_the_update_differ() -> None:
    step = update_step({"state": 0.5})
    run, ref = run_of(betas=[0.9, 0.999], lr=1e-3), run_of(betas=[0.9, 0.95], lr=1e-3)
    finding = headline(step, run=run, ref=ref)
    assert "set differently: betas[1] (beta2) is 0.999 and not 0.95." in finding.claim
    assert finding.sites == ("0.0/r0/opt/AdamW.addcmul_#0:out0",)
    assert finding.evidence["settings"] == {"groups.0.betas.1": ["0.999", "0.95"]}


def test_an_argument_of_the_update_is_traced_to_its_setting() -> None:
    finding = headline(update_step({"state": 0.5}), run=run_of(), ref=run_of())
    assert "the setting betas[1] (beta2), which is 0.999 and not 0.95 (the argument is 1 - beta2)" in finding.claim


def test_a_learning_rate_that_parts_later_is_named_with_its_step() -> None:
    run, ref = run_of(rates=(1e-3, 1e-3, 5e-4), lr=9.0), run_of(rates=(1e-3, 1e-3, 2e-4), lr=1e-3)
    finding = headline(chains({}), chains({}, step=1), chains(WRONG, step=2), run=run, ref=ref)
    assert finding.code == "first-divergence"  # of the forward pass of step 2, before its update
    findings, _ = findings_of(chains({}), run=run, ref=ref)
    assert "lr is 0.0005 and not 0.0002 from step 2 on" in findings["optimizer-differs"].claim


def test_a_learning_rate_in_float32_is_the_same() -> None:
    rate = float(np.float32(1e-3))
    findings, _ = findings_of(chains({}), run=run_of(rates=(rate,), eps=1e-8), ref=run_of(rates=(1e-3,), eps=1e-8))
    assert "optimizer-differs" not in findings


def test_another_class_whose_updates_agree_is_no_error() -> None:
    run, ref = run_of(**{"class": "MyAdamW", "lr": 1e-3}), run_of(**{"class": "AdamW", "lr": 1e-3})
    assert headline(chains({}), run=run, ref=ref).severity == "info"
    finding = headline(update_step({"state": 0.5}), run=run, ref=ref)
    assert (finding.severity, "class is" in finding.claim) == ("error", True)


def test_weights_that_differ_precede_the_calls_that_use_them() -> None:
    step = chains({"w": 0.1, "y": 0.1, "z": 0.1})
    assert [finding.code for finding in conclude(run_of(), run_of(), [step]).findings][:2] == [
        "weight-differs",
        "first-divergence",
    ]


def normalized(label: str, *, momentum: float = 0.1, buffer: float = 1.0, x: float = 1.0) -> Any:
    """A model ``Net`` whose module ``bn`` normalises and has buffers."""
    making, draw = Making(label), np.random.default_rng(0)
    given, mean = (draw.standard_normal(size).astype(np.float32) for size in ((8, 4), (4,)))
    data, running = given * np.float32(x), mean * np.float32(buffer)
    args = f'{{"args":[{{"in":"in0"}},{{"in":"in1"}}],"kwargs":{{"momentum":{momentum}}}}}'
    making.put("fwd", "Net", "in0", data, api="Net", kind="module", module="")
    making.put("fwd", "bn.batch_norm", "in0", data, api="torch.nn.functional.batch_norm", args=args, module="bn")
    making.put("fwd", "bn.batch_norm", "in1", running, api="torch.nn.functional.batch_norm", module="bn")
    making.put("fwd", "bn.batch_norm", "out0", data - mean, api="torch.nn.functional.batch_norm", module="bn")
    return making.done


def test_a_buffer_is_no_data() -> None:
    finding = headline(step_of(normalized("run", buffer=1.5), normalized("ref")), run=run_of(), ref=run_of())
    assert finding.code == "weight-differs"
    assert "The buffer bn.running_mean, taken by 0.0/r0/fwd/bn.batch_norm#0:in1" in finding.claim
    assert "checkpoint" in finding.next[0]
    data = headline(step_of(normalized("run", x=1.5), normalized("ref")), run=run_of(), ref=run_of())
    assert (data.code, data.next[0][:22]) == ("input-differs", "Compare the data first")


def test_another_momentum_of_buffers_is_no_rounding() -> None:
    finding = headline(step_of(normalized("run", momentum=0.01), normalized("ref")), run=run_of(), ref=run_of())
    assert (finding.code, finding.severity) == ("structure-differs", "error")
    assert "momentum is 0.01 and not 0.1" in finding.claim


def test_the_same_numbers_in_another_order_are_said_to_be_that() -> None:
    step = chains(WRONG)
    rows = [
        replace(row, distance=replace(row.distance, reordered=True)) if row.judgement == "beyond" else row
        for row in step.rows
        if row.distance is not None
    ]
    finding = headline(replace(step, rows=rows), run=run_of(), ref=run_of())
    assert "in the order of its numbers, which are the same as far as statistics show" in finding.claim


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_how_a_setting_works_is_no_difference_where_it_is_zero(decay: float) -> None:
    run, ref = (run_of(weight_decay=decay, decoupled_weight_decay=each) for each in (True, False))
    findings, _ = findings_of(chains({}), run=run, ref=ref)
    assert ("optimizer-differs" in findings) == (decay > 0)
