"""What shares of a batch count each by itself is not compared; the truth is the same computation on the whole batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.unit.made_steps import Making

from trueline.comparison.judgement.values.measured_distance import measure_with
from trueline.comparison.merge.positions import OF_SHARES, UNORDERED, without_positions
from trueline.judge.recorded.step_values import StepValues, Value

Arrays = dict[str, Any]
WIDTH = 3


def routed(x: Any, expert: Any) -> Arrays:
    """What a layer of experts computes of its tokens ``x`` [T, D]: in order of their experts, then put back."""
    order = np.argsort(expert, kind="stable")
    token = order // 2
    counted = np.arange(len(order))
    inverse = np.empty_like(order)
    inverse[order] = counted
    picked = x[token]
    made = np.tanh(picked)
    return {
        "x": x, "expert": expert, "ranked": np.sort(expert, kind="stable"), "order": order, "token": token,
        "picked": picked, "made": made, "counted": counted, "memory": np.zeros_like(order), "inverse": inverse,
        "back": made[inverse], "hits": np.flatnonzero(expert == 1), "best": np.argsort(x, axis=1),
    }  # fmt: skip


CALLS = (
    ("sort", "torch.sort", ("expert",), ("ranked", "order")),
    ("floordiv", "torch.Tensor.__floordiv__", ("order",), ("token",)),
    ("getitem", "torch.Tensor.__getitem__", ("x", "token"), ("picked",)),
    ("tanh", "torch.tanh", ("picked",), ("made",)),
    ("empty_like", "torch.empty_like", ("order",), ("memory",)),
    ("arange", "torch.arange", (), ("counted",)),
    ("setitem", "torch.Tensor.__setitem__", ("memory", "order", "counted"), ()),
    ("again", "torch.Tensor.__getitem__", ("made", "inverse"), ("back",)),
    ("nonzero", "torch.nonzero", ("expert",), ("hits",)),
    ("argsort", "torch.argsort", ("x",), ("best",)),
)


def step_of(arrays: Arrays) -> StepValues:
    """The calls with what they took and gave; then a gradient of what was picked."""
    making = Making()
    for name, api, ins, outs in CALLS:
        for place, each in enumerate(ins):
            making.put("fwd", f"m.sub.{name}", f"in{place}", arrays[each], api=api)
        for place, each in enumerate(outs):
            making.put("fwd", f"m.sub.{name}", f"out{place}", arrays[each], api=api)
    making.put("bwd", "m.sub.tanh", "in0", arrays["picked"] * 2, api="torch.tanh")
    return making.done


@pytest.fixture
def both() -> tuple[Arrays, Arrays]:
    """The whole batch, and what two shares of it have, side by side."""
    draw = np.random.default_rng(0)
    x, expert = draw.normal(size=(8, WIDTH)).astype(np.float32), draw.integers(0, 4, 16)
    shares = [routed(x[:4], expert[:8]), routed(x[4:], expert[8:])]
    return routed(x, expert), {name: np.concatenate([share[name] for share in shares]) for name in shares[0]}


def told(arrays: Arrays) -> dict[str, Value]:
    """Each array as it is told, by name, where it is seen first."""
    step = step_of(arrays)
    done = without_positions(step, {value.index: 0 for value in step.values})
    names = {id(array): name for name, array in arrays.items()}
    seen: dict[str, Value] = {}
    for before, after in zip(step.values, done.values, strict=True):
        assert before.load is not None
        seen.setdefault(names.get(id(before.load()), "gradient"), after)
    return seen


def test_what_put_together_is_not_that_of_the_whole_is_not_compared(both: tuple[Arrays, Arrays]) -> None:
    whole, parts = both
    apart = {name for name in parts if not np.array_equal(np.sort(parts[name].ravel()), np.sort(whole[name].ravel()))}
    assert apart >= {"order", "token", "counted", "inverse", "hits"}
    seen = told(parts)
    assert {name for name, value in seen.items() if value.note == OF_SHARES} == apart | {"memory"}
    assert all(seen[name].stats is None and seen[name].load is None for name in apart)


def test_what_is_in_another_order_is_compared_without_one(both: tuple[Arrays, Arrays]) -> None:
    whole, parts = both
    seen = told(parts)
    compared = [name for name, value in seen.items() if value.note != OF_SHARES and name != "gradient"]
    turned = {name for name in compared if not np.array_equal(parts[name], whole[name])}
    flagged = {name for name in compared if UNORDERED in seen[name].flags}
    assert turned == {"ranked", "picked", "made"}
    # That the tokens are back in their order afterwards cannot be known.
    assert flagged == turned | {"back"}
    assert UNORDERED in seen["gradient"].flags
    measure = measure_with(2**20)
    for name in flagged:
        twin = next(value for value in step_of(whole).values if value.load is not None and value.load() is whole[name])
        assert measure(seen[name], twin).rel == pytest.approx(0.0, abs=1e-7), name


def test_positions_in_a_dim_that_every_share_has_whole_are_compared(both: tuple[Arrays, Arrays]) -> None:
    best = told(both[1])["best"]
    assert (best.note, best.flags) == ("", frozenset())
    assert np.array_equal(both[0]["best"], both[1]["best"])
