"""What `trial repeat --in-place` concludes of counted calls that are made here."""

import json

import pytest

from trueline.trials.frame.runs import Runs
from trueline.trials.frame.same_fault import Outcome
from trueline.trials.repeat.in_place import InPlaceTrial, _merged, advice_of


def pool(
    op="aten.index_add.default", calls=40, differ=4, rel=1e-7, step=1, rank=0, unit=2**-24, form=("float32[10, 4]",)
):
    return {
        "op": op,
        "form": list(form),
        "unit": unit,
        "calls": calls,
        "differ": differ,
        "rel": rel,
        "step": step if differ else None,
        "where": "a.py:3 f",
        "rank": rank,
    }


def answer(tmp_path, *pools, head=(12, 300, 5)):
    codes = (json.dumps(head), *(json.dumps(each) for each in pools))
    runs = Runs("repeat", tmp_path / "t", lambda way, place: Outcome(bool(pools), codes=codes), {}, 1)
    return InPlaceTrial(runs, 4).answer()


def test_an_operation_is_named_with_its_rate_size_and_advice(tmp_path):
    found = answer(tmp_path, pool(), pool("mine.total.default", rel=0.5, step=0))
    assert (found.answer, found.exit_code) == ("confirmed", 0)
    assert found.credible[0] == "mine.total.default(float32[10, 4])"
    assert "more than rounding explains), first in step 0 on rank 0 at a.py:3 f" in found.says[1]
    assert "4 of 40 calls differ, so 2.8% to 23.7% do, by 1e-07 (as another order" in found.says[2]
    assert [each.severity for each in found.findings] == ["warning", "info"]
    assert {each.code for each in found.findings} == {"nondeterministic-op"}
    assert (
        found.next[1]
        == "aten.index_add.default: torch.use_deterministic_algorithms(True) has a form that repeats itself."
    )


def test_what_never_differed_has_a_bound(tmp_path):
    found = answer(tmp_path)
    assert found.answer == "excluded"
    assert "with 5 calls, the fewest, up to 45% of calls may differ" in found.says[0]  # 1 - 0.05 ** (1 / 5)
    failing = InPlaceTrial(
        Runs("repeat", tmp_path / "f", lambda way, place: Outcome(None, "it broke"), {}, 1), 4
    ).answer()
    assert (failing.exit_code, "it broke" in failing.says[0]) == (3, True)


def test_ranks_and_layers_are_pooled_and_the_earliest_place_is_told():
    (found,) = _merged([pool(differ=0), pool(differ=2, step=3, rank=1), pool(differ=1, step=2, rank=2, rel=0.1)])
    assert (found["calls"], found["differ"], found["step"], found["rank"], found["rel"]) == (120, 3, 2, 2, 0.1)
    assert len(_merged([pool(), pool(form=("float32[10, 5]",))])) == 2


@pytest.mark.parametrize(
    ("op", "told"),
    [
        ("aten._scaled_dot_product_flash_attention_backward.default", "SDPBackend.MATH"),
        ("aten.index_put_.default", "accumulate=True"),
        ("aten.convolution_backward.default", "cudnn.deterministic"),
        ("mine.total", "without atomics"),
    ],
)
def test_advice_is_of_the_operation(op, told):
    assert told in advice_of(op)
