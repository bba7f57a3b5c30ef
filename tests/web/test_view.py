"""The page of `trueline view` in a real browser: it fits, reads, says what is wrong first, and asks nobody else."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.synthetic_runs import write_part, write_run
from tests.web.browser import NEEDS_BROWSER, BrowserPage
from tests.web.looks import CONTRAST, middle_of
from tests.web.recorded_step import num_calls, write_step
from tests.web.served import Served

from trueline.schema.finding import Finding
from trueline.web.page_file import page_file

pytestmark = NEEDS_BROWSER

SCRIPT = "<img src=x onerror=\"window.broken='claim'\"><script>window.broken='claim'</script>"
LONG = "a-machine-" + "n" * 290
NUM_STEPS = 120
FINDINGS = (
    Finding(
        "shard-overlap",
        "error",
        f"Rank 1 consumed 71 samples that others consumed. {SCRIPT}",
        (1,),
        10,
        NUM_STEPS - 1,
        ("3.0/r0/fwd/layers.1.attn.softmax#0:out0",),
        0.1,
        0.0,
        "fraction",
        next=("Look with `trueline info RUN --sql 'select 1'` at it.",),
    ),
    Finding("worker-loss-outlier", "warning", "The loss of rank 2 is high.", (2,), 40, 60, (), 3.0, 0.0, "loss"),
)
NUM_BLOCKS = 400
LINES = "[...document.querySelectorAll('.incident')]"


def _bad(step: int, rank: int, row: dict[str, Any]) -> None:
    row["loss"] += 3.0 * (rank == 2 and 40 <= step <= 60)
    if rank == 3 and step == 77:
        row["loss"] = math.nan


def _not_a_number(step: int, rank: int, row: dict[str, Any]) -> None:
    row |= {column: math.nan for column, value in row.items() if isinstance(value, float)}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Runs: 0 bad, with names that are scripts and a recorded step; 1 empty; 2 of NaN alone; 3 of 300 ranks."""
    folder = tmp_path_factory.mktemp("view")
    bad = folder / f"bad {SCRIPT.replace('/', '')}"
    write_run(bad, num_steps=NUM_STEPS, change=_bad, findings=FINDINGS, env={"hostname": LONG})
    write_step(bad, num_blocks=NUM_BLOCKS, nan_in=1, prefix=f"{SCRIPT.replace('#', '')}.")
    paths = [
        bad,
        write_run(folder / "empty", num_steps=0),
        write_run(folder / "nan", num_steps=6, change=_not_a_number),
        write_run(folder / "wide", num_steps=0),
    ]
    for rank in range(300):
        write_part(paths[-1], rank, [{"step": step, "loss": 1.0 + step * rank} for step in range(2)])
    with Served(paths) as page:
        yield page


def opened(served: Served, state: str, ready: str, *, width: int = 1280, dark: bool = False) -> BrowserPage:
    page = BrowserPage(served.url(state), width=width, dark=dark)
    page.until(ready)
    return page


SCREENS = {
    "run=0": "document.querySelector('.incident')",
    "run=0&screen=incident&n=2": "document.querySelector('.lines canvas')",
    "run=0&screen=trend": "document.querySelector('.lines canvas')",
    "run=0&screen=step&call=0": "document.querySelector('.frames')",
    "run=0&screen=step&view=graph": "document.querySelector('.graph .node')",
    "run=0&screen=step&view=graph&unfold=1&by=rms": "document.querySelector('.graph .node')",
    "run=1": "document.querySelector('h1')?.textContent.startsWith('Cannot tell')",
    "run=1&screen=trend": "document.querySelector('.trend .nothing')?.checkVisibility()",
    "run=2": "document.querySelector('.incident')",
    "run=2&screen=trend": "document.querySelector('.lines canvas')",
    "screen=runs": "document.querySelectorAll('.runs > li').length === 4",
    "run=0&screen=settings": "document.querySelector('.settings .pairs')",
    "run=0&screen=trend&beside=2": "document.querySelectorAll('.lines canvas').length === 2",
    "run=0&screen=trend&beside=1": "document.querySelectorAll('.lines canvas').length === 2",
    "run=0&screen=trend&beside=2&shown=relative": "document.querySelector('.lines canvas')",
    "run=0&screen=trend&signal=job/loss_std&beside=3": "document.querySelectorAll('.lines canvas').length === 2",
    "run=3&screen=trend": "document.querySelector('.lines canvas')",
}


@pytest.mark.in_turn
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (400, True)])
@pytest.mark.parametrize("state", SCREENS)
def test_every_screen_fits_reads_and_asks_nobody_else(served: Served, state: str, width: int, dark: bool) -> None:
    with opened(served, state, SCREENS[state], width=width, dark=dark) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(CONTRAST)["poor"] == []
        assert page.errors == []
        own = f"http://{served.address.host}:{served.address.port}/"
        assert [url for url in page.requests if not url.startswith((own, "data:,"))] == []
        assert page.evaluate("window.broken ?? 'whole'") == "whole"
        assert page.evaluate("document.querySelectorAll('main img, main script, .top img').length") == 0


def test_the_verdict_and_the_gravest_incident_come_first(served: Served) -> None:
    with opened(served, "run=0", "document.querySelector('.incident')") as page:
        assert page.evaluate("document.querySelector('h1').textContent").startswith("Fault found: rank 1")
        assert page.evaluate(f"{LINES}.map((line) => line.querySelector('.who b').textContent)") == [
            "rank 1, since step 10",
            "rank 3, since step 77",
            "rank 2, since step 40",
        ]
        assert page.evaluate(f"{LINES}.map((line) => line.querySelectorAll('.sparkline .accused').length)") == [0, 1, 1]
        assert SCRIPT in page.evaluate(f"{LINES}[0].textContent")


def test_beside_the_verdict_is_the_curve_of_the_gravest_incident_that_has_one(served: Served) -> None:
    drawn = served.json("/api/runs/0/overview")["picture"]
    assert drawn["signal"] == "loss"
    assert (drawn["ranks"], drawn["onset"], drawn["incident"]) == ([3], 77, 2)
    with opened(served, "run=0", "document.querySelector('.verdict .uplot')") as page:
        assert page.evaluate("document.querySelector('.verdict .readout').textContent").startswith("step")
        page.evaluate("document.querySelector('.verdict figcaption a').click()")
        page.until("document.querySelector('h1')?.textContent.startsWith('The loss of rank 3 is not finite')")


def test_a_healthy_run_shows_its_loss_and_each_question_with_the_checks_behind_it(tmp_path: Path) -> None:
    with Served([write_run(tmp_path / "run", num_steps=NUM_STEPS)]) as page:
        first_screen = page.json("/api/runs/0/overview")
        assert (first_screen["picture"]["signal"], first_screen["picture"]["incident"]) == ("loss", None)
        with opened(page, "", "document.querySelector('.verdict .uplot')") as shown:
            assert shown.evaluate("document.querySelector('#incidents').hidden")
            signs = shown.evaluate("[...document.querySelectorAll('.questions li')].map((each) => each.textContent)")
            asked = {question["words"]: question for question in first_screen["questions"]}
            assert len(signs) == len(asked)
            assert any(sign.startswith("✓whether losses and gradients are finite: fine") for sign in signs)
            assert "worker-nonfinite" in asked["whether losses and gradients are finite"]["checks"]
            assert shown.errors == []


def test_what_the_lines_show_is_read_at_the_pointer_and_saved_as_csv(served: Served) -> None:
    with opened(served, "run=0&screen=trend", "document.querySelector('.uplot')") as page:
        x, y = middle_of(page, ".uplot .u-over", across=0.5)
        page.hover(x, y)
        page.until("document.querySelector('.lines .readout').textContent.includes('median')")
        read = page.evaluate("document.querySelector('.lines .readout').textContent")
        assert "rank 2" in read
        page.evaluate("window.saved = null; URL.createObjectURL = (blob) => { window.saved = blob; return 'data:,'; }")
        page.evaluate("document.querySelector('.lines .saves button:last-child').click()")
        head, first, *_ = page.evaluate("window.saved.text()").split("\n")
        assert head.startswith("first_step,last_step,lowest,median,highest,lower,upper,rank_0_low,rank_0_high")
        assert first.startswith("0,0,")


@pytest.mark.parametrize(("along", "title"), [("seconds", "seconds"), ("tokens", "tokens")])
def test_lines_are_drawn_over_time_and_tokens_smoothed_and_logarithmic(served: Served, along: str, title: str) -> None:
    state = f"run=0&screen=trend&along={along}&smooth=5&log=1"
    with opened(served, state, "document.querySelector('.uplot')") as page:
        assert page.evaluate("document.querySelector('select[aria-label=along]').value") == along
        assert page.evaluate("document.querySelector('select[aria-label=smooth]').value") == "5"
        assert page.errors == []


def test_runs_are_sorted_searched_and_drawn_over_each_other(served: Served) -> None:
    names = "[...document.querySelectorAll('.runs > li .status a')].map((each) => each.textContent)"
    with opened(served, "screen=runs&sort=name", "document.querySelectorAll('.runs > li').length === 4") as page:
        assert page.evaluate(names) == sorted(page.evaluate(names))
        page.evaluate("document.querySelectorAll('.runs input')[0].click()")
        page.until("new URLSearchParams(location.hash.slice(1)).get('over') === '0'")
        page.evaluate("document.querySelectorAll('.runs input')[3].click()")
        page.until("document.querySelectorAll('.runs-screen .lines .key').length === 2")
        assert page.errors == []
    with opened(served, "screen=runs&find=wide", "document.querySelectorAll('.runs > li').length === 1") as page:
        assert page.evaluate(names) == ["wide"]


def test_the_keyboard_alone_leads_to_an_incident_and_back(served: Served) -> None:
    with opened(served, "run=0", "document.querySelector('.incident')") as page:
        page.press("j")
        page.press("j")
        page.until("document.querySelectorAll('.incident')[1].classList.contains('selected')")
        page.press("k")
        page.until("document.querySelectorAll('.incident')[0].classList.contains('selected')")
        page.press("j")
        page.press("Enter")
        page.until("document.querySelector('h1')?.textContent.startsWith('The loss of rank 3 is not finite')")
        assert page.evaluate("new URLSearchParams(location.hash.slice(1)).get('n')") == "2"
        page.press("k")
        page.until("document.querySelector('h1')?.textContent.startsWith('Rank 1 consumed')")
        page.press("Escape")
        page.until("document.querySelector('.incident')")
        page.press("/")
        assert page.evaluate("document.activeElement.type") == "search"


def test_incidents_are_muted_and_filtered_by_the_url_alone(served: Served) -> None:
    with opened(served, "run=0&mute=shard-overlap.1", "document.querySelector('.incident')") as page:
        assert page.evaluate(f"{LINES}.length") == 2
        assert "1 incident hidden" in page.evaluate("document.querySelector('.incidents').textContent")
    with opened(served, "run=0&show=ongoing", "document.querySelector('.incident')") as page:
        assert page.evaluate(f"{LINES}.map((line) => line.querySelector('code').textContent)") == ["shard-overlap"]


def test_an_incident_gives_its_command_to_copy_and_leads_to_the_recorded_call(served: Served) -> None:
    with opened(served, "run=0&screen=incident&n=1", "document.querySelector('.settles')") as page:
        commands = page.evaluate("[...document.querySelectorAll('.command code')].map((each) => each.textContent)")
        (reads,) = [each for each in commands if each.endswith("--sql 'select 1'")]
        assert Path(shlex.split(reads)[2]).is_dir()
        assert page.evaluate("document.querySelectorAll('.command .copy').length") == len(commands)
        page.evaluate("document.querySelector('main a[href*=\"screen=step\"]').click()")
        page.until("document.querySelector('.row.call')")
        assert page.evaluate("new URLSearchParams(location.hash.slice(1)).get('at')") == "fwd/layers.1.attn.softmax#0"


def test_an_incident_draws_how_its_evidence_grew_up_to_the_line(tmp_path: Path) -> None:
    def high(step: int, rank: int, row: dict[str, Any]) -> None:
        row["loss"] += 3.0 * (rank == 2 and step >= 40)

    with Served([write_run(tmp_path / "run", num_steps=NUM_STEPS, change=high)]) as page:
        growth = page.json("/api/runs/0/incidents/1")["growth"]
        assert growth["code"] == "worker-loss-outlier"
        assert 40 <= growth["crossed"] <= 60
        assert max(height for _, height in growth["points"]) > growth["threshold"]
        with opened(page, "screen=incident&n=1", "document.querySelector('.growth polyline')") as shown:
            text = shown.evaluate("document.querySelector('.growth figcaption').textContent")
            assert f"from step {growth['crossed']} on" in text
            assert shown.errors == []


def test_an_incident_lists_the_samples_of_its_first_step_and_who_else_has_them(tmp_path: Path) -> None:
    def high(step: int, rank: int, row: dict[str, Any]) -> None:
        row["loss"] += 3.0 * (rank == 2 and step >= 40)
        row["sample_digests"] = [4 * step + rank + 1, 255]
        row["part_losses"] = [1.25, row["loss"]]

    with Served([write_run(tmp_path / "run", num_steps=NUM_STEPS, change=high)]) as page:
        overview = page.json("/api/runs/0/overview")["incidents"]
        (number,) = [each["number"] for each in overview if each["code"] == "worker-loss-outlier"]
        incident = page.json(f"/api/runs/0/incidents/{number}")
        (own,) = incident["samples"]
        assert (own["rank"], own["num"]) == (2, 2)
        assert own["samples"][0] == [f"{4 * incident['step_first'] + 3:016x}", "1.25", ""]
        assert own["samples"][1][0::2] == ["00000000000000ff", "ranks 0, 1 and 3"]
        with opened(page, f"screen=incident&n={number}", "document.querySelector('.incident-screen')") as shown:
            shown.until("document.querySelector('.incident-screen').textContent.includes('Rank 2: 2 samples, some of')")
            assert shown.errors == []


def test_pointing_at_a_cell_says_rank_step_and_value_and_dragging_zooms(served: Served) -> None:
    with opened(served, "run=0&screen=trend", "document.querySelector('.lines canvas')") as page:
        readout = "document.querySelector('.readout').textContent"
        page.hover(*middle_of(page, ".heat .over", across=0.66, down=0.7))
        assert page.until(readout).startswith("r3, step 77: NaN")
        left = middle_of(page, ".heat .over", across=0.3, down=0.3)
        page.drag(left, middle_of(page, ".heat .over", across=0.6, down=0.3))
        page.until("new URLSearchParams(location.hash.slice(1)).get('first')")
        first, last = page.evaluate(
            "['first', 'last'].map((key) => +new URLSearchParams(location.hash.slice(1)).get(key))"
        )
        assert 25 <= first < last <= 75


def test_clicking_a_cell_pins_its_rank_and_more_ranks_than_are_drawn_are_said(served: Served) -> None:
    with opened(served, "run=3&screen=trend", "document.querySelector('.lines canvas')") as page:
        assert "Hidden: 200." in page.evaluate("document.querySelector('.trend').textContent")
        spot = middle_of(page, ".heat .over", across=0.5, down=0.4)
        page.drag(spot, spot)
        page.until("document.querySelector('.pin')")
        rank = int(page.evaluate("document.querySelector('.pin').textContent").split()[1])
        assert 108 <= rank <= 130  # of 300, at 0.4 of the height with the letters below


def test_a_step_is_an_outline_of_which_only_what_is_seen_is_there(served: Served) -> None:
    with opened(served, "run=0&screen=step&closed=none", "document.querySelector('.space .row.call')") as page:
        assert page.evaluate("document.querySelector('.rows').getAttribute('aria-rowcount')") == str(
            num_calls(NUM_BLOCKS)
        )
        assert page.evaluate("document.querySelectorAll('.space .row').length") < 100
        page.press("End")
        page.until("document.querySelector('.row[aria-selected=true]')?.title.includes('mlp.gelu')")
        page.press("n")
        page.until("document.querySelector('.row[aria-selected=true]')?.textContent.includes('4 not finite')")
        assert "train.py:34" in page.until("document.querySelector('.frames')?.textContent")


def test_equal_layers_are_folded_and_opened_by_the_sign_or_the_keys(served: Served) -> None:
    rows = "Number(document.querySelector('.rows').getAttribute('aria-rowcount'))"
    with opened(served, "run=0&screen=step", "document.querySelector('.space .row.call')") as page:
        folded = page.evaluate(rows)
        assert folded < num_calls(NUM_BLOCKS) / 4
        whole = served.json("/api/runs/0/calls?step=3&rank=0&closed=equal")
        assert any(name.endswith("layers.3") for name in whole["closed"])
        assert not any(name.endswith(("layers.0", "layers.1")) for name in whole["closed"])  # the first; that with NaN
        page.evaluate("document.querySelector('.row .fold[aria-expanded=false]').click()")
        page.until(f"{rows} > {folded}")
        opened_rows = page.evaluate(rows)
        page.evaluate("document.querySelector('.rows').focus()")
        page.evaluate("document.querySelector('.row .fold[aria-expanded=true]').closest('.row').click()")
        page.until("document.querySelector('.row[aria-selected=true]')")
        page.press("ArrowLeft")
        page.until(f"{rows} < {opened_rows}")
        assert page.errors == []


def test_arcs_lead_from_the_selected_call_to_what_it_takes_from_and_gives_to(served: Served) -> None:
    links = "[...document.querySelectorAll('.links{} button')].map((each) => each.textContent.split('layers.')[1])"
    with opened(served, "run=0&screen=step&call=9", "document.querySelector('.links.gives')") as page:
        assert page.evaluate(links.format(".takes")) == ["1.norm.rms_norm"]
        assert page.evaluate(links.format(".gives")) == ["1.attn.softmax"]
        page.until("document.querySelectorAll('.arcs path').length === 2")
        assert page.evaluate("document.querySelector('.space .row.takes').dataset.at") == "8"
        page.evaluate("document.querySelector('.links.gives button').click()")
        page.until("document.querySelector('.row[aria-selected=true]')?.dataset.at === '10'")
        page.until(
            "document.querySelector('.detail').textContent.includes('makes values that are not finite of finite')"
        )
        assert page.errors == []


def test_a_link_to_a_call_selects_its_row(served: Served) -> None:
    with opened(served, "run=0&screen=step&call=900", "document.querySelector('.frames')") as page:
        page.until("document.querySelector('.row[aria-selected=true]')?.dataset.at === '900'")
        page.press("k")
        page.until("document.querySelector('.row[aria-selected=true]')?.dataset.at === '899'")
        assert page.evaluate("document.querySelectorAll('.row[aria-selected=true]').length") == 1


def test_a_run_without_numbers_offers_nothing_to_choose_and_is_not_called_healthy(served: Served) -> None:
    with opened(served, "run=1&screen=trend", "document.querySelector('.trend .nothing')?.checkVisibility()") as page:
        page.until("!document.querySelector('.trend .filter').checkVisibility()")
    with opened(served, "run=1", "document.querySelector('h1')?.textContent.startsWith('Cannot tell')") as page:
        said = page.evaluate("document.querySelector('.questions').textContent")
        assert "whether losses and gradients are finite: not looked at" in said
        assert "whether losses and gradients are finite: fine" not in said


def test_a_graph_has_shapes_on_its_lines_and_is_made_larger(served: Served) -> None:
    with opened(served, "run=0&screen=step&view=graph", "document.querySelector('.graph .node')") as page:
        assert page.evaluate("document.querySelectorAll('.graph text.shape').length") > 0
        before = page.evaluate("document.querySelector('.graph svg').getBoundingClientRect().width")
        page.press("+")
        assert page.evaluate("document.querySelector('.graph svg').getBoundingClientRect().width") > 1.2 * before
        page.evaluate("document.querySelector('[aria-label=\"As large as it fits\"]').click()")
        assert page.evaluate("document.querySelector('.graph svg').getBoundingClientRect().width") == before


def test_searching_calls_leaves_those_that_match(served: Served) -> None:
    with opened(served, "run=0&screen=step&find=LAYERS.7.attn", "document.querySelector('.space .row.call')") as page:
        found = page.until("[...document.querySelectorAll('.space .row .name')].map((each) => each.textContent)")
        assert [name.rpartition("layers.")[2] for name in found] == ["7.attn.linear", "7.attn.softmax"]
        assert "2 of 2,401 calls" in page.evaluate("document.querySelector('.step').textContent")


def test_a_module_is_opened_as_a_graph_with_equal_layers_folded_and_the_worst_alone(served: Served) -> None:
    state = "run=0&screen=step&view=graph"
    with opened(served, state, "document.querySelectorAll('.graph .node').length === 5") as page:
        texts = page.evaluate("[...document.querySelectorAll('.graph .node')].map((each) => each.textContent)")
        assert [text.endswith("equal") for text in texts] == [False, False, False, True, False]
        assert "layers.1Block, 4 not finite" in texts[2].rpartition(".")[0] + texts[2]
        tops = page.evaluate(
            "[...document.querySelectorAll('.graph .node .box')].map((each) => each.getBoundingClientRect().top)"
        )
        assert tops == sorted(set(tops))
        assert page.evaluate("document.querySelectorAll('.graph .edge').length") == 4
        assert page.evaluate("new Set(performance.getEntriesByType('resource').map((each) => each.name)).size") < 12


def test_the_keyboard_opens_modules_of_the_graph_and_leaves_them(served: Served) -> None:
    with opened(served, "run=0&screen=step", "document.querySelector('.space .row.call')") as page:
        page.press("g")
        page.until("document.querySelectorAll('.graph .node').length === 5")
        for key in "jjj":
            page.press(key)
        page.until("document.querySelectorAll('.graph .node')[2].classList.contains('selected')")
        assert "my.Block" in page.until("document.querySelector('.detail .pairs')?.textContent")
        page.press("Enter")
        page.until("document.querySelectorAll('.graph .node').length === 7")
        assert page.evaluate("document.querySelector('.crumb b').textContent").endswith("layers.1")
        page.press("u")
        page.until("document.querySelectorAll('.graph .node').length === 5")
        page.press("n")
        page.until("document.querySelector('.step').textContent.includes('reaches a loss')")
        page.press("g")
        page.until("document.querySelector('.space .row.call')?.checkVisibility()")


@pytest.mark.in_turn
def test_the_exported_file_shows_the_same_from_disk_alone(served: Served, tmp_path: Path) -> None:
    document, _ = page_file(served.runs[:2])
    (tmp_path / "page.html").write_text(document, encoding="utf-8")
    address = (tmp_path / "page.html").as_uri()
    for state, ready in SCREENS.items():
        if state.startswith(("run=0", "run=1")) and "step" not in state and "beside" not in state:
            with BrowserPage(f"{address}#{state}", width=1280) as page:
                page.until(ready)
                assert page.errors == []
                assert [url for url in page.requests if not url.startswith((address, "data:,"))] == []
                assert page.evaluate("window.broken ?? 'whole'") == "whole"


def test_what_is_not_there_is_said_on_the_page(served: Served) -> None:
    with opened(served, "run=0&screen=incident&n=9", "document.querySelector('.refused')") as page:
        assert "There is no incident 9" in page.evaluate("document.querySelector('.refused').textContent")
