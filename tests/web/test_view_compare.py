"""The screen Compare in a browser: names matched by hand, growth over steps, and what it saves."""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from tests.synthetic_runs import write_run
from tests.web.browser import NEEDS_BROWSER, BrowserPage
from tests.web.looks import CONTRAST
from tests.web.recorded_step import write_step
from tests.web.served import Served

from trueline.comparison.match.names import NameMap
from trueline.comparison.result import StepSummary
from trueline.web.views.compared import MAX_TIMES, _growth

MAP = quote('[["dec","enc"]]')


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """A Run whose modules are called otherwise in its reference, so that nothing of them can be compared."""
    mine = write_step(write_run(tmp_path / "mine", num_steps=4), num_blocks=3, nan_in=1, prefix="enc.")
    theirs = write_step(write_run(tmp_path / "theirs", num_steps=4), num_blocks=3, prefix="dec.")
    with Served([mine], ref=theirs) as page:
        yield page


def test_names_that_are_matched_by_hand_are_compared_and_listed(served: Served) -> None:
    before = served.json("/api/runs/0/comparison")
    assert "Pass --map" in before["failed"]
    assert served.ask("/api/runs/0/comparison/rows.csv").status == 404

    wrong = served.ask("/api/runs/0/renames?old=nowhere&new=enc", method="POST")
    assert wrong.status == 200
    wrong.read()
    served.runs[0].look()
    assert "matches no name of either run" in served.json("/api/runs/0/comparison")["failed"]
    assert served.ask("/api/runs/0/renames?old=dec", method="POST").status == 404
    assert served.ask("/api/runs/0/renames?old=.&new=x", method="POST").status == 404

    served.ask("/api/runs/0/renames?old=dec&new=enc", method="POST").read()
    served.runs[0].look()
    after = served.json("/api/runs/0/comparison")
    assert (after["failed"], after["renames"]) == ("", [["dec", "enc"]])
    rows = served.json("/api/runs/0/comparison/rows?search=layers.1.attn.softmax")["rows"]
    assert {(row["name"], row["ref_name"]) for row in rows} == {
        ("enc.layers.1.attn.softmax", "dec.layers.1.attn.softmax")
    }


def test_the_rows_that_the_filters_leave_are_saved_as_csv_and_workbook(served: Served) -> None:
    served.ask("/api/runs/0/renames?old=dec&new=enc", method="POST").read()
    served.runs[0].look()
    answer = served.ask("/api/runs/0/comparison/rows.csv?search=softmax&judgement=equal,propagated,beyond")
    assert answer.headers["content-disposition"] == 'attachment; filename="compared.csv"'
    rows = list(csv.DictReader(io.StringIO(answer.read().decode())))
    listed = served.json("/api/runs/0/comparison/rows?search=softmax&judgement=equal,propagated,beyond")["rows"]
    assert [row["site"] for row in rows] == [row["site"] for row in listed]
    assert len(rows) >= 5

    book = served.ask("/api/runs/0/comparison/rows.xlsx").read()
    with zipfile.ZipFile(io.BytesIO(book)) as file:
        assert "xl/worksheets/sheet2.xml" in file.namelist()
    assert served.ask("/api/runs/0/comparison/rows.exe").status == 422
    assert served.json("/api/runs/0/comparison/rows?step=2")["total"] == 0


def test_growth_is_the_largest_of_all_ranks_at_each_step() -> None:
    grown = _growth(
        [
            StepSummary(0, 0, {"beyond": 1}, largest_times=3.0, loss_rel=-0.5),
            StepSummary(0, 1, {"beyond": 2}, largest_times=7.0, loss_rel=0.25),
            StepSummary(2, 0, {}, detailed=False),
            StepSummary(1, 0, {"equal": 4}, largest_times=float("inf")),
        ]
    )
    assert [(each.step, each.times, each.loss_rel, each.beyond) for each in grown] == [
        (0, 7.0, 0.5, 3),
        (1, MAX_TIMES, None, 0),
        (2, None, None, 0),
    ]


@NEEDS_BROWSER
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (400, True)])
def test_two_names_that_are_typed_become_a_rule_a_file_and_a_comparison(
    served: Served, tmp_path: Path, width: int, dark: bool
) -> None:
    state = "screen=compare&theirs=dec.layers.0.mlp.gelu&mine=enc.layers.0.mlp.gelu"
    with BrowserPage(served.url(state), width=width, dark=dark) as page:
        page.until("document.querySelector('.matching[open]')")
        button = "[...document.querySelectorAll('.matching button')].find((each) => each.textContent === {!r})"
        page.evaluate(f"{button.format('Match')}.click()")
        page.until("document.querySelector('.matching li code')?.textContent === 'dec'")
        assert page.evaluate("new URLSearchParams(location.hash.slice(1)).get('map')") == '[["dec","enc"]]'
        page.evaluate(
            "URL.createObjectURL = (blob) => { blob.text().then((text) => { window.saved = text; }); return '#'; }"
        )
        page.evaluate(f"{button.format('Save map.json')}.click()")
        saved = tmp_path / "map.json"
        saved.write_text(page.until("window.saved"))
        assert NameMap.load(saved).plain("dec.layers.2") == "enc.layers.2"

        page.evaluate(f"{button.format('Compare with these')}.click()")
        page.until("document.querySelector('.space .row.value')")
        page.press("j")
        page.until("document.querySelector('.detail button')")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(CONTRAST)["poor"] == []
        assert page.errors == []


@pytest.mark.in_turn
@NEEDS_BROWSER
def test_names_are_taken_from_nodes_of_both_graphs(served: Served) -> None:
    entries = served.json("/api/runs")["runs"]
    assert [(each["name"], each["is_ref"]) for each in entries] == [("mine", False), ("theirs", True)]
    node = "document.querySelectorAll('.graph .node')[2]"
    button = "[...document.querySelectorAll('.detail button')].find((each) => each.textContent.startsWith('Match'))"
    with BrowserPage(served.url("run=0&screen=step&view=graph&in=enc.layers.1"), width=1280) as page:
        page.until(node)
        page.evaluate(f"{node}.dispatchEvent(new MouseEvent('click'))")
        assert page.until(f"{button}?.textContent") == "Match this name of RUN"
        page.evaluate(f"{button}.click()")
        page.press("]")
        page.until("document.title.includes('theirs')")
        page.press("4")
        page.until("document.querySelector('.row.call')")
        page.evaluate("location.hash += '&view=graph&in=dec.layers.1'")
        page.until(f"{node}?.textContent.includes('linear') || {node}")
        page.evaluate(f"{node}.dispatchEvent(new MouseEvent('click'))")
        page.until(f"{button}?.textContent === 'Match this name of REF'")
        page.evaluate(f"{button}.click()")
        page.evaluate(
            "[...document.querySelectorAll('.detail a')].find((each) => each.textContent === 'Match names').click()"
        )
        names = page.until(
            "(inputs => inputs.length && inputs.every(each => each.value) && inputs.map(each => each.value))"
            "([...document.querySelectorAll('.matching input')])"
        )
        assert [name.partition(".")[0] for name in names] == ["enc", "dec"]
        assert names[0].partition(".")[2] == names[1].partition(".")[2]
        assert page.errors == []


@NEEDS_BROWSER
def test_a_name_is_taken_from_a_row_and_numbers_stand_for_any(served: Served) -> None:
    served.runs[0].compare_with((("dec", "enc"),))
    served.runs[0].look()
    with BrowserPage(served.url(f"screen=compare&map={MAP}&theirs=blocks.1.mlp"), width=1280) as page:
        page.until("document.querySelector('.space .row.value')")
        page.evaluate(
            "[...document.querySelectorAll('.space .row.value')].find((row) => row.title.includes('layers.1')).click()"
        )
        page.until("document.querySelector('.detail button')?.textContent === 'this name of RUN'")
        page.evaluate("document.querySelector('.detail button').click()")
        page.until("new URLSearchParams(location.hash.slice(1)).get('mine') === 'enc.layers.1'")
        page.until("[...document.querySelectorAll('.matching input')].some((each) => each.value === 'enc.layers.1')")
        page.evaluate(
            "[...document.querySelectorAll('.matching button')].find((each) => each.textContent === 'Match').click()"
        )
        page.until("new URLSearchParams(location.hash.slice(1)).get('map').includes('enc.layers.*')")
        assert page.evaluate("JSON.parse(new URLSearchParams(location.hash.slice(1)).get('map'))[1]") == [
            "blocks.*.mlp",
            "enc.layers.*",
        ]
