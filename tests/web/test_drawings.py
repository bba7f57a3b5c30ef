"""What the page draws of one Run relative to another, and of parameter groups, as the server answers it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.synthetic_runs import write_run
from tests.web.browser import NEEDS_BROWSER, BrowserPage
from tests.web.looks import middle_of
from tests.web.recorded_step import row, write_rows
from tests.web.served import Served

from trueline.schema.files.run_manifest import GroupSpec

GROUPS = [GroupSpec(name=name, params=[name]) for name in ("embed", "block", "head")]


def _grouped(step: int, rank: int, row: dict[str, Any]) -> None:
    row["loss"] = 2.0
    row["group_grad_norms"] = [1.0 + rank, 10.0 * step, math.nan if (step, rank) == (3, 1) else 0.5]
    row["group_cosine_others"] = [0.5 - rank / 10, 0.0, 1.0]


def _higher(step: int, rank: int, row: dict[str, Any]) -> None:
    row["loss"] = 3.0 if rank == 1 else 2.0


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Run 0: three parameter groups, four ranks, six steps; 1: five ranks, nine steps, rank 1 has a higher loss."""
    folder = tmp_path_factory.mktemp("drawn")
    first = write_run(folder / "a", num_steps=6, change=_grouped, env={"groups": GROUPS})
    second = write_run(folder / "b", num_steps=9, num_ranks=5, change=_higher)
    with Served([first, second]) as page:
        yield page


def cells(served: Served, query: str) -> np.ndarray:
    return np.array(served.json(f"/api/runs/{query}")["arrays"]["value"], dtype=float)


def test_a_row_each_parameter_group_has_the_worst_rank(served: Served) -> None:
    heat = served.json("/api/runs/0/heat?signal=groups/group_grad_norms")
    assert (heat["rows"], heat["ranks"], heat["worst"]) == (["embed", "block", "head"], [-1, -1, -1], "high")
    value = np.array(heat["arrays"]["value"], dtype=float)
    assert value[0].tolist() == [4.0] * 6
    assert value[1].tolist() == [0, 10, 20, 30, 40, 50]
    assert [flag & 2 for flag in heat["arrays"]["flags"][2]] == [0, 0, 0, 2, 0, 0]

    lowest = served.json("/api/runs/0/heat?signal=groups/group_cosine_others")
    assert lowest["worst"] == "low"
    np.testing.assert_allclose(np.array(lowest["arrays"]["value"], dtype=float)[0], 0.2, rtol=1e-6)


def test_parameter_groups_are_drawn_over_ranks_at_the_step_that_was_measured_nearest(served: Served) -> None:
    heat = served.json("/api/runs/0/heat?signal=groups/group_grad_norms&step=99")
    assert (heat["over"], heat["step"], heat["arrays"]["first"]) == ("rank", 5, [0, 1, 2, 3])
    assert heat["arrays"]["value"][0] == [1, 2, 3, 4]
    assert heat["arrays"]["value"][1] == [50] * 4
    third = served.json("/api/runs/0/heat?signal=groups/group_grad_norms&step=3")["arrays"]["flags"][2]
    assert [flag & 2 for flag in third] == [0, 2, 0, 0]


@pytest.mark.in_turn
@NEEDS_BROWSER
def test_a_step_that_is_clicked_shows_its_groups_over_ranks(served: Served) -> None:
    with BrowserPage(served.url("run=0&screen=trend&signal=groups/group_grad_norms"), width=400) as page:
        page.until("document.querySelector('.trend')?.textContent.includes('A row each parameter group')")
        assert not page.evaluate("document.querySelector('.lines').checkVisibility()")
        spot = middle_of(page, ".heat .over", across=0.55, down=0.2)
        page.drag(spot, spot)
        step = page.until("new URLSearchParams(location.hash.slice(1)).get('step')")
        page.evaluate("location.hash += '&over=rank'")
        page.until(f"document.querySelector('.trend').textContent.includes('a column each rank, at step {step}.')")
        page.hover(*middle_of(page, ".heat .over", across=0.99, down=0.2))
        assert page.until("document.querySelector('.readout').textContent.includes('rank 3: 4')")
        assert page.evaluate("document.documentElement.scrollWidth") <= 400
        assert page.errors == []


def test_a_run_is_drawn_relative_to_the_steps_and_ranks_that_another_has_too(served: Served) -> None:
    relative = cells(served, "1/heat?signal=loss&shown=relative&other=0")
    assert relative.shape == (5, 9)
    assert relative[1, :6].tolist() == [0.5] * 6
    assert relative[0, :6].tolist() == [0.0] * 6
    assert np.isnan(relative[4]).all()
    assert np.isnan(relative[:, 6:]).all()
    line = served.json("/api/runs/1/series?signal=loss&shown=relative&other=0")
    assert line["arrays"]["highest"][:6] == [0.5] * 6


def test_a_collective_knows_on_which_other_ranks_it_was_recorded(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", num_steps=4)
    for rank, name in ((0, "allreduce"), (1, "allreduce"), (2, "broadcast")):
        api = f"torch.distributed.{name}"
        made = [row(name, "collective", "", slot, api=api) | {"phase": "comm"} for slot in ("in0", "out0")]
        write_rows(run, [row("Model", "module", "", "in0", api="my.Model"), *made], rank=rank)
    with Served([run]) as page:
        calls = page.json("/api/runs/0/calls?step=3&rank=0")["calls"]
        (place,) = [each["place"] for each in calls if each["phase"] == "comm"]
        assert page.json(f"/api/runs/0/calls/{place}?step=3&rank=0")["ranks"] == [1]
        assert page.json("/api/runs/0/calls/0?step=3&rank=0")["ranks"] == []


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("0/heat?signal=loss&shown=relative", "Relative to which Run?"),
        ("0/heat?signal=loss&shown=relative&other=7", "There is no Run 7"),
        ("0/heat?signal=groups/loss", "cannot be drawn"),
        ("1/series?signal=job/none", "cannot be drawn"),
        ("0/series?signal=groups/group_grad_norms", "cannot be drawn"),
    ],
)
def test_what_cannot_be_drawn_is_one_sentence(served: Served, query: str, words: str) -> None:
    answer = served.ask(f"/api/runs/{query}")
    assert answer.status == 404
    assert words in answer.read().decode()
