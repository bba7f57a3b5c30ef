"""The floor that Runs of one job give: against what NumPy says of their stored values."""

from __future__ import annotations

import functools
import itertools
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import trueline
from trueline.comparison.calibrate import calibrate
from trueline.schema.errors import AlignmentError, CannotTell, InputError, RunError
from trueline.schema.files.tolerance import Tolerance
from trueline.store.reader import Run

NUDGE = 1e-6
OUT = "0/fwd/1.relu#0:out0"


def record(
    out: Path,
    *,
    nudge: float = 0.0,
    seed: int = 0,
    depth: str = "tensor",
    width: int = 6,
    steps: int = 2,
    poison: bool = False,
    tokens: int = 0,
) -> Path:
    """A Run of a small classifier of token ids; weights are drawn from ``seed`` and nudged by so much, relative."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Embedding(16, width), nn.ReLU(), nn.Linear(width, 4))
    with torch.no_grad():
        for param in model.parameters():
            param.mul_(1 + nudge * torch.randn(param.shape))
        if poison:
            model[2].bias[1] = torch.nan
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = trueline.watch(model, optimizer, out=out, plan={"preset": "mix", "depth": depth})
    for step in range(steps):
        ids = (torch.arange(8) + step + tokens) % 16
        with watch.step(ids):
            functional.cross_entropy(model(ids), ids % 4).backward()
            optimizer.step()
            optimizer.zero_grad()
    watch.close()
    return out


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three Runs that differ by a rounding."""
    folder = tmp_path_factory.mktemp("calibrate")
    return [record(folder / f"run{number}", nudge=NUDGE * number) for number in range(3)]


@functools.cache
def stored(run: Path, site: str, step: int) -> np.ndarray:
    micro, rest = site.split("/", 1)
    return opened(run).tensor(f"{step}.{micro}/r0/{rest}").data.astype(np.float64)


@functools.cache
def opened(run: Path) -> Run:
    return Run(str(run))


def largest(runs: list[Path], site: str, step: int) -> float:
    """|x - y| / |y| of the pair that is furthest apart, by NumPy."""
    values = [stored(run, site, step) for run in runs]
    return max(float(np.linalg.norm(x - y) / np.linalg.norm(y)) for x, y in itertools.combinations(values, 2))


@pytest.fixture(scope="module")
def floors(runs: list[Path]) -> Tolerance:
    return calibrate(runs)


def test_the_floor_of_a_site_is_the_largest_distance_of_any_pair(runs: list[Path], floors: Tolerance) -> None:
    checked = [site for site in floors.sites if site.split("/")[1] in ("fwd", "param", "grad") and "in0" not in site]
    assert len(checked) > 8
    for site, step in itertools.product(checked, (0, 1)):
        assert floors.sites[site][step] == pytest.approx(largest(runs, site, step), rel=1e-9, abs=0), site
    assert (floors.how, floors.pairs, floors.steps) == ("tensor", 3, (0, 1))
    assert floors.runs == tuple(map(str, runs))


def test_a_kind_has_the_median_and_the_largest_of_its_sites(runs: list[Path], floors: Tolerance) -> None:
    sites = [site for site in floors.sites if site.startswith("0/param/")]
    expected = [largest(runs, site, 1) for site in sites]
    kind = floors.kinds["param/param/float32"]
    assert kind.count == (3, 3)
    assert kind.median[1] == pytest.approx(np.median(expected))
    assert kind.largest[1] == pytest.approx(max(expected))
    assert kind.high[1] == kind.largest[1]


def test_a_value_seen_at_several_sites_has_a_floor_at_each(floors: Tolerance) -> None:
    assert floors.sites["0/fwd/2#0:in0"] == floors.sites[OUT] == floors.sites["0/fwd/1#0:out0"]


def test_runs_that_agree_bit_for_bit_have_a_floor_of_zero(runs: list[Path], tmp_path: Path) -> None:
    found = calibrate([runs[0], record(tmp_path / "again")])
    assert {floor for floors in found.sites.values() for floor in floors} == {0.0}
    assert "All Runs agree in all that was measured" in found.notes[0]


def test_statistics_give_floors_too_and_it_is_said(tmp_path: Path) -> None:
    found = calibrate([record(tmp_path / str(nudge), nudge=nudge, depth="stats") for nudge in (0, 1e-3)])
    assert found.how == "statistics"
    assert 1e-5 < (found.sites[OUT][0] or 0) < 1e-2


def test_a_run_that_lost_stored_values_gives_floors_from_statistics_and_it_is_said(
    runs: list[Path], tmp_path: Path
) -> None:
    shutil.copytree(runs[0], tmp_path / "run")
    lost = sorted((tmp_path / "run" / "tensors").rglob("*.safetensors"))[0]
    lost.unlink()
    found = calibrate([tmp_path / "run", runs[1]])
    assert found.how == "statistics"
    assert [note for note in found.notes if lost.name in note and str(tmp_path) in note]


def test_each_run_left_out_is_held_against_the_others(runs: list[Path]) -> None:
    """With three Runs the others are one pair: the spread is the largest quotient of two floors of pairs."""
    pairs = {pair: calibrate([runs[i] for i in pair]) for pair in itertools.combinations(range(3), 2)}
    quotients: list[float] = []
    for left_out in range(3):
        own = [each for pair, each in pairs.items() if left_out in pair]
        (others,) = (each for pair, each in pairs.items() if left_out not in pair)
        for kind, site, step in itertools.product(others.kinds, others.sites, (0, 1)):
            if kind == "fwd/relu/float32" and site.startswith("0/fwd/1.relu"):
                expected = others.expected(kind, site, step=step)
                quotients += [(each.sites[site][step] or 0) / expected for each in own if expected]
    spread = calibrate(runs).spread
    assert spread is not None
    assert spread >= max(quotients) * (1 - 1e-9)
    assert max(quotients) > 1
    assert calibrate(runs[:2]).spread is None
    assert calibrate([runs[2], runs[0], runs[1]]).spread == pytest.approx(spread, rel=1e-3)


def test_a_site_with_nan_on_one_side_has_no_floor(runs: list[Path], tmp_path: Path) -> None:
    found = calibrate([runs[0], record(tmp_path / "poison", poison=True)])
    assert "0/fwd/2.linear#0:out0" not in found.sites
    assert found.sites[OUT] == (0.0, None)  # a step later all weights are NaN
    (note,) = found.notes
    assert "first at 0.0/r0/param/2.bias#0:" in note or "first at 0.0/r0/fwd/2.linear#0:" in note


def test_a_site_where_one_of_several_runs_has_nan_has_no_floor(runs: list[Path], tmp_path: Path) -> None:
    found = calibrate([*runs[:2], record(tmp_path / "poison", poison=True)])
    assert "0/fwd/2.linear#0:out0" not in found.sites
    assert found.sites[OUT][0] == pytest.approx(calibrate(runs[:2]).sites[OUT][0], rel=1e-3)


def test_steps_and_ranks_choose(runs: list[Path]) -> None:
    assert calibrate(runs[:2], steps=[1]).steps == (1,)
    with pytest.raises(CannotTell, match="were asked for"):
        calibrate(runs[:2], steps=[7])


def test_progress_is_told_and_ends_before_the_number_of_steps(runs: list[Path]) -> None:
    told: list[tuple[int, int]] = []
    calibrate(runs, progress=lambda done, total: told.append((done, total)))
    assert told == [(done, 6) for done in range(6)]


Refused = Callable[[Path, Path], list[Path]]
REFUSED: dict[str, tuple[Refused, type[Exception], str]] = {
    "one": (lambda run, _: [run], InputError, "takes two or more Runs that should agree, and 1 was given"),
    "none": (lambda _, __: [], InputError, "more Runs that should agree, and 0 were given"),
    "twice the same": (lambda run, _: [run, run.parent / "." / run.name], InputError, "are the same Run"),
    "no Run": (lambda run, out: [run, out / "nothing"], RunError, "There is no Run"),
    "another seed": (
        lambda run, out: [run, record(out / "seed", seed=1)],
        InputError,
        "begin with different weights: '0.weight' differs by 1",
    ),
    "other samples": (
        lambda run, out: [run, record(out / "ids", tokens=3)],
        InputError,
        "were given different samples",
    ),
    "no numbers": (
        lambda _, out: [record(out / name, depth="structure") for name in "ab"],
        CannotTell,
        "have no numbers in common",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_runs_that_cannot_give_a_floor_are_refused_in_a_sentence(name: str, runs: list[Path], tmp_path: Path) -> None:
    given, error, says = REFUSED[name]
    with pytest.raises(error, match=says):
        calibrate(given(runs[0], tmp_path))


def test_runs_of_different_models_are_refused(runs: list[Path], tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Conv1d(1, 2, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = trueline.watch(model, optimizer, out=tmp_path / "conv", plan={"preset": "mix", "depth": "tensor"})
    with watch.step(torch.ones(1)):
        model(torch.ones(1, 1, 5)).sum().backward()
        optimizer.step()
    watch.close()
    with pytest.raises(
        InputError, match=r"values in common: they are of different models|(sites|parameters) of .* exist in"
    ) as caught:
        calibrate([runs[0], tmp_path / "conv"])
    assert isinstance(caught.value, InputError | AlignmentError)
