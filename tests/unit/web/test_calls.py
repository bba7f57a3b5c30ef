"""A recorded step as an outline: order, depth, numbers, search and details of its calls."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.synthetic_runs import write_run
from tests.web.recorded_step import OPS, num_calls, write_step

from trueline.schema.errors import InputError
from trueline.store.reader import Run
from trueline.web.views.calls import Outline, calls_of

NUM_BLOCKS = 3


@pytest.fixture(scope="module")
def outline(tmp_path_factory: pytest.TempPathFactory) -> Outline:
    path = write_run(tmp_path_factory.mktemp("step") / "run", num_steps=4)
    return Outline(Run(str(write_step(path, num_blocks=NUM_BLOCKS, nan_in=1))), 3, 0)


def page(outline: Outline, **asked: object):
    return calls_of(outline, **{"offset": 0, "limit": 100, "search": "", "phase": "", "statistic": "largest", **asked})


def test_calls_are_in_the_order_of_execution_and_as_deep_as_their_modules(outline: Outline) -> None:
    found = page(outline)

    assert found.total == found.num_calls == num_calls(NUM_BLOCKS)
    assert [(call.name, call.depth) for call in found.calls[:3]] == [
        ("Model", 0),
        ("layers.0", 1),
        (f"layers.0.{OPS[0]}", 2),
    ]
    assert [call.place for call in found.calls] == list(range(found.total))


def test_a_call_has_the_worst_of_its_values_and_the_line_that_is_no_librarys(outline: Outline) -> None:
    softmax = 2 + len(OPS) + 1 + OPS.index("attn.softmax")
    call = page(outline).calls[softmax]

    assert (call.name, call.not_finite) == ("layers.1.attn.softmax", 4)
    assert call.source == "train.py:34 Block.forward"
    assert (call.shape, call.dtype) == ("2x8", "float32")
    assert call.zeros == 2 / 16
    found = page(outline)
    assert (found.num_not_finite, found.first_not_finite) == (2, softmax)  # the call after it takes them


def test_a_search_leaves_what_matches_and_says_how_many(outline: Outline) -> None:
    found = page(outline, search="LAYERS.2", offset=1, limit=2)

    assert (found.total, found.offset) == (1 + len(OPS), 1)
    assert [call.name for call in found.calls] == [f"layers.2.{op}" for op in OPS[:2]]
    assert found.first_not_finite is None, "the call with NaN is not among those that were found"
    assert page(outline, search="torch.gelu").total == NUM_BLOCKS
    assert page(outline, phase="bwd").total == 0


def test_a_place_of_a_finding_is_found(outline: Outline) -> None:
    at = page(outline, at="fwd/layers.1.attn.softmax#0").found_at

    assert outline.call(at).name == "layers.1.attn.softmax"
    assert page(outline, at="fwd/nowhere#0").found_at is None
    assert page(outline, at="nonsense").found_at is None


def test_details_have_values_arguments_and_frames(outline: Outline) -> None:
    found = outline.details(2)

    assert [value.slot for value in found.values] == ["in0", "out0"]
    assert dict(found.values[0].numbers)["rms"] == 1.0
    assert found.values[0].site == f"3.0/r0/fwd/layers.0.{OPS[0]}#0:in0"
    assert dict(found.arguments) == {"0": "in0", "dim": "-1"}
    assert found.frames[1] == "train.py:34 Block.forward"


def test_what_is_not_there_is_refused_in_a_sentence(outline: Outline, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="There is no call 99"):
        outline.details(99)
    with pytest.raises(InputError, match="Ask for 1 to 1000"):
        page(outline, limit=5000)
    with pytest.raises(InputError, match="was not recorded"):
        Outline(Run(str(write_run(tmp_path / "run", num_steps=1))), 0, 0)
