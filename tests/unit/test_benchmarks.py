"""`make bench` runs packages that are there, and each keeps its page."""

from importlib.util import find_spec
from pathlib import Path

import pytest
from benchmarks.__main__ import QUICK
from benchmarks.overhead import reading, steps
from torch import nn


@pytest.mark.parametrize("name", QUICK)
def test_every_quick_benchmark_is_a_package_with_a_page_that_names_its_command(name):
    spec = find_spec(f"benchmarks.{name}.__main__")
    assert spec is not None
    assert f"- command: `python -m benchmarks.{name}" in (Path(spec.origin).parent / "README.md").read_text()


def test_a_mode_is_held_against_the_bare_step_of_its_own_round():
    seconds = {"bare": [1.0, 2.0, 4.0, 1.0, 1.0], "watched": [1.1, 2.2, 4.4, 1.1, 5.0]}
    assert steps.ratio(seconds, "watched") == "1.100 | 1.100 – 3.050 | 1.533"


def test_every_round_takes_each_mode_once_and_none_has_one_neighbour_for_good():
    rounds = [steps.in_turn(number) for number in range(30)]
    assert all(sorted(taken) == sorted(steps.MODES) for taken in rounds)
    assert rounds == [steps.in_turn(number) for number in range(30)]
    before = {mode: {taken[taken.index(mode) - 1] for taken in rounds if taken[0] != mode} for mode in steps.MODES}
    assert {mode: len(found) for mode, found in before.items()} == dict.fromkeys(steps.MODES, len(steps.MODES) - 1)


def test_one_reading_is_held_against_a_dot_product(tmp_path, monkeypatch):
    monkeypatch.setattr(reading, "LanguageModel", lambda: nn.Linear(64, 64))
    monkeypatch.setattr(reading, "OTHER", 1)
    table = reading.measure(ranks=1, rounds=1, folder=tmp_path).splitlines()
    assert [line.rsplit(" | ", 1)[1] for line in table if line.startswith("| a dot product")] == ["1.00 |"]
    assert any(line.startswith("| norms and sketches |") for line in table)


def test_a_section_is_put_in_the_place_of_its_own_and_says_where_it_comes_from():
    from benchmarks.overhead.__main__ import with_sections

    page = (
        "# Costs\n\n- command: `all`\n\n## Step time\n\nold times\n\n## Memory\n\nold rows\n\n## Growth\n\nold growth\n"
    )
    origin = {"command": "one", "machine": "m", "commit": "c", "date": "d"}
    assert with_sections(page, ["## Memory\n\nnew rows"], origin) == page.replace(
        "old rows", "From `one`: m; commit c, d.\n\nnew rows"
    )
