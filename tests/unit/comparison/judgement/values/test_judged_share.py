"""How much of two runs was judged, and which calls only one of them makes."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from tests.unit.made_steps import Making, chain, exactly

from trueline.comparison.judgement.step import Step
from trueline.comparison.judgement.values.judged_share import COARSE, judged_share, one_sided_calls
from trueline.comparison.judgement.values.value_judgement import LEFT_BY_UPDATE, Divergence
from trueline.comparison.match.align import align
from trueline.comparison.match.names import NameMap
from trueline.comparison.result import Judged


def judged_step(making: Making, ref_making: Making, **settings: Any) -> Step:
    alignment = align(making.done, ref_making.done, NameMap())
    rows = Divergence(alignment, measure=exactly, **settings).rows
    return Step(cast(Any, SimpleNamespace(path="run", record_ranks=())), making.done.step, 0, alignment, rows)


def shares(*steps: Step) -> dict[str, tuple[int, int, dict[str, int]]]:
    return {each.name: (each.judged, each.values, dict(each.not_judged)) for each in judged_share(steps).passes}


def test_equal_values_are_judged() -> None:
    shares_of_pass = shares(judged_step(chain("run", backward=True), chain("ref", backward=True)))
    assert {name: judged == values for name, (judged, values, _) in shares_of_pass.items()} == {
        "forward": True,
        "backward": True,
        "update": True,
    }


def test_what_only_one_run_has_is_not_judged_and_its_call_is_named() -> None:
    mine, theirs = chain("run"), chain("ref")
    mine.call("m.sub.sin", "torch.sin", [np.ones(3, np.float32)], np.ones(4, np.float32))
    mine.put("fwd", "m.sub.sin", "out0", np.ones(4, np.float32), api="torch.sin")
    step = judged_step(mine, theirs)
    judged, values, why = shares(step)["forward"]
    assert (values - judged, sum(why.values())) == (3, 3)
    assert all("only in RUN" in reason for reason in why)
    (call,) = one_sided_calls([step], [])
    assert (call.in_reference, call.name, call.site, call.num) == (False, "m.sub.sin", "0.0/r0/fwd/m.sub.sin#0:in0", 1)
    assert judged_share([step]).passes[0].calls_in_run_only == 1
    mine.put("bwd", "m.sub.sin", "in0", np.ones(4, np.float32), api="torch.sin")
    assert Judged.sums(judged_share([judged_step(mine, theirs)]).passes)["calls_in_one_run"] == 1
    (other,) = one_sided_calls([judged_step(theirs, mine)] * 2, [])
    assert (other.in_reference, other.num) == (True, 2)


def test_calls_of_each_run_alone_have_their_own_line_where_both_have_one_site() -> None:
    one, other = chain("run"), chain("ref")
    one.call("m.sub.sin", "torch.sin", [np.ones(3, np.float32)], np.ones(4, np.float32))
    other.call("m.sub.sin", "torch.sin", [np.ones((5, 7), np.float32)], np.ones((5, 7), np.float32))
    site = "0.0/r0/fwd/m.sub.sin#0:in0"
    rows: Any = [
        SimpleNamespace(site=site, ref_site=None, where="run.py:1"),
        SimpleNamespace(site=None, ref_site=site, where="ref.py:2"),
    ]
    step = judged_step(one, other)
    lone = [(call, None) for call in step.alignment.mine.calls() if call.op == "sin"]
    lone += [(None, call) for call in step.alignment.theirs.calls() if call.op == "sin"]
    found = one_sided_calls([cast(Any, SimpleNamespace(alignment=SimpleNamespace(calls=lone)))], rows)
    assert [(call.in_reference, call.where) for call in found] == [(False, "run.py:1"), (True, "ref.py:2")]


def coarse(step: Step, num: int, *, off: float = 1e-2) -> Step:
    """Of the gradients ``num`` differ by ``off``, and rounding may explain as much as the whole value."""
    rows = list(step.rows)
    at = [
        place
        for place, row in enumerate(rows)
        if row.run_value is not None and row.run_value.site.phase in ("bwd", "grad")
    ]
    for place in at[:num]:
        known, distance = rows[place].expectation, rows[place].distance
        assert known is not None
        assert distance is not None
        rows[place] = replace(
            rows[place], judgement="within", expectation=replace(known, rel=0.31), distance=replace(distance, rel=off)
        )
    return replace(step, rows=rows)


def test_gradients_of_which_rounding_explains_too_much_are_not_judged() -> None:
    step = judged_step(chain("run", backward=True), chain("ref", backward=True))
    few, most = judged_share([coarse(step, 2)]), judged_share([coarse(step, 3)])
    assert [dict(each.not_judged) for each in few.passes if each.name == "backward"] == [{COARSE: 2}]
    assert few.lacking == ""
    assert most.lacking.startswith("the backward pass could not be judged. At step 0, 1 of 4 values could; 3 could not")
    assert most.to_json()["enough"] is False
    assert few.to_json()["enough"] is True
    assert judged_share([coarse(step, 3, off=1e-6)]).lacking == ""


def test_the_first_step_decides_and_parameters_after_an_update_are_not_judged() -> None:
    first = judged_step(chain("run", backward=True), chain("ref", backward=True))
    later = coarse(judged_step(chain("run", {"w": 1e-4}, step=1), chain("ref", step=1), moved=1e-3), 4)
    share = judged_share([first, later])
    assert [(each.values, each.judged) for each in share.passes if each.name == "update"] == [(2, 1)]
    assert {why for each in share.passes for why in each.not_judged} == {LEFT_BY_UPDATE}
    assert (share.lacking, share.first_step, share.num_steps) == ("", 0, 2)
    assert share.to_json()["first_step"]["judged"] == share.to_json()["first_step"]["values"]


def test_calls_between_backward_and_the_optimizer_are_no_part_of_the_backward_pass() -> None:
    """Two ways to clip: what each computes is not compared, and the gradients are."""
    mine, theirs = chain("run", backward=True), chain("ref", backward=True)
    for each, num in ((mine, 9), (theirs, 7)):
        each.call("foreach_norm", "torch._foreach_norm", [np.ones(num, np.float32)] * num, np.ones(num), phase="grad")
    share = judged_share([judged_step(mine, theirs)])
    backward = next(each for each in share.passes if each.name == "backward")
    assert (backward.judged, backward.values, share.lacking) == (4, 4, "")
