"""The report is the page as one safe file: what it holds, also of Runs with little or nothing in them, and how it
reads in a browser, with scripts and without.
"""

from __future__ import annotations

import base64
import hashlib
import html
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.made_comparison import FAULT, made_comparison
from tests.synthetic_runs import write_long_run, write_run
from tests.unit.page_words import Words
from tests.web.answers import answers_of, text_of
from tests.web.browser import NEEDS_BROWSER, BrowserPage
from tests.web.looks import CONTRAST

import trueline
from trueline.render.comparison.compare_story import story_of
from trueline.schema.errors import InputError, RunError, RunExistsError
from trueline.schema.finding import Finding
from trueline.web import page_file
from trueline.web.page_file import MAX_BYTES, comparison_file
from trueline.web.watched_run import distinct_names

HOSTILE = "</script><img src=x onerror=alert(1)>'\"&{{7*7}}\u202e"
OVERLAP = Finding(
    "shard-overlap",
    "error",
    "Rank 1 consumed 71 samples that other ranks consumed too.",
    (1,),
    10,
    39,
    ("10.0/r1/batch/input_ids#0:in0",),
    0.0886,
    0.0,
    "fraction of samples",
    3.14e-9,
    {"epoch": 0},
    ("Give every rank the same sampler seed.",),
)
LONGER = Finding("worker-grad-norm-outlier", "warning", "Rank 2 is longer.", (2,), 12, 39, next=("Look at rank 2.",))
SCALED = Finding("worker-scale", "error", "Rank 2 is scaled.", (2,), 12, 39, next=("Divide by 2.",))
UNEVEN = Finding("token-imbalance", "warning", "Uneven.", (0, 3), 20, 39, next=("Run `trueline plan RUN`, then `x.",))


def report_on(tmp_path: Path, *runs: Path) -> str:
    return trueline.report(runs, tmp_path / "report.html").read_text(encoding="utf-8")


# What the file holds.


def test_a_finding_is_in_the_verdict_and_in_its_incident_with_numbers_as_words(tmp_path: Path) -> None:
    answers = answers_of(report_on(tmp_path, write_run(tmp_path / "exp", findings=(OVERLAP,))))
    overview, incident = answers["api/runs/0/overview"], answers["api/runs/0/incidents/1"]

    assert overview["headline"] == "Fault found: rank 1, since step 10; 1 finding."
    assert overview["what"].startswith(OVERLAP.claim)
    assert overview["next"] == ["Give every rank the same sampler seed."]
    (finding,) = incident["findings"]
    assert (finding["measured"], finding["expected"], finding["unit"]) == ("0.0886", "0", "fraction of samples")
    assert (finding["steps"], finding["false_alarms"]) == ("10–39", "≤ 3.2e−9")
    assert finding["sites"] == ["10.0/r1/batch/input_ids#0:in0"]


def test_findings_of_one_fault_are_one_incident_with_its_advice_once(tmp_path: Path) -> None:
    answers = answers_of(report_on(tmp_path, write_run(tmp_path / "exp", findings=(LONGER, UNEVEN, SCALED))))

    headline = answers["api/runs/0/overview"]["headline"]
    assert headline == "Fault found: rank 2, since step 12; 3 findings in 2 incidents."
    assert [each["where"] for each in answers["api/runs/0/overview"]["incidents"]] == [
        "rank 2, since step 12",
        "ranks 0 and 3, since step 20",
    ]
    first = answers["api/runs/0/incidents/1"]
    assert [(each["code"], each["explained_by"]) for each in first["findings"]] == [
        ("worker-scale", 0),
        ("worker-grad-norm-outlier", 1),
    ]


def test_an_incident_accuses_whom_its_findings_name_and_has_their_word_on_settings(tmp_path: Path) -> None:
    differs = Finding("rank-config-differs", "error", "20 modules evaluate on rank 0, 0 on 1.", (0, 1), 5, 39)
    louder = Finding("worker-grad-norm-outlier", "warning", "Its gradient is 3 times.", (0,), 5, 30)
    run = write_run(tmp_path / "exp", num_ranks=2, findings=(differs, louder))
    answers = answers_of(report_on(tmp_path, run))
    (line,) = answers["api/runs/0/overview"]["incidents"]
    assert (line["where"], line["ranks"]) == ("rank 0 (against rank 1), since step 5", "rank 0")
    assert (line["lasts"], line["until"]) == (True, "until the end")
    incident = answers["api/runs/0/incidents/1"]
    assert (incident["ranks"], incident["settings"]) == ([0], [differs.claim])
    assert answers["api/runs/0/settings"]["found"] == [differs.claim]


def test_an_incident_says_what_the_accused_and_the_others_had_at_its_first_step(tmp_path: Path) -> None:
    def slow(step: int, rank: int, row: dict[str, Any]) -> None:
        row["lr"] = [0.5 if rank == 2 else 0.25, 0.0]

    faulty = Finding("worker-loss-outlier", "warning", "Its loss is high.", (2,), 12, 30)
    answers = answers_of(report_on(tmp_path, write_run(tmp_path / "exp", findings=(faulty,), change=slow)))
    readings = answers["api/runs/0/incidents/1"]["readings"]
    assert readings[0] == {"title": "Learning rate", "accused": "rank 2: 0.5", "others_median": "0.25"}
    assert [reading["title"] for reading in readings[1:3]] == ["Loss", "Gradient norm"]


def test_a_fault_that_is_over_says_since_when(tmp_path: Path) -> None:
    short = Finding("worker-grad-norm-outlier", "warning", "Its gradient is 3 times.", (0,), 5, 30)
    answers = answers_of(report_on(tmp_path, write_run(tmp_path / "exp", findings=(short,))))
    (line,) = answers["api/runs/0/overview"]["incidents"]
    assert (line["lasts"], line["until"]) == (False, "over since step 31")


def test_a_clean_run_says_what_was_checked_and_a_short_one_that_its_workers_were_not_judged(tmp_path: Path) -> None:
    overview = answers_of(report_on(tmp_path, write_run(tmp_path / "exp")))["api/runs/0/overview"]
    assert overview["headline"].startswith("No fault found in 40 steps of 4 ranks")
    assert overview["what"] == ""  # the headline says it
    assert re.match(r"\d+ checks? over steps 0–39 on 4 ranks: .*worker-loss-outlier", overview["checked"])

    overview = answers_of(report_on(tmp_path / "b", write_run(tmp_path / "b", num_steps=4)))["api/runs/0/overview"]
    assert "None of the checks that ran judges whether one rank’s loss" in overview["what"]
    assert any("4 steps have losses to compare" in each["why"] for each in overview["unchecked"])


def test_a_run_without_rows_says_how_to_have_some(tmp_path: Path) -> None:
    overview = answers_of(report_on(tmp_path, write_run(tmp_path / "exp", num_steps=0)))["api/runs/0/overview"]
    assert overview["headline"].startswith("Cannot tell: no step was recorded")
    (advice,) = overview["next"]
    assert "trueline run -- COMMAND" in advice


def test_a_job_that_was_killed_is_not_live_and_its_death_is_said_once(tmp_path: Path) -> None:
    script = tmp_path / "killed.py"
    script.write_text(
        "import os, signal, torch\n"
        "model = torch.nn.Linear(4, 1)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for step in range(12):\n"
        "    model(torch.randn(8, 4)).square().mean().backward()\n"
        "    optimizer.step()\n"
        "    optimizer.zero_grad()\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    command = [
        sys.executable,
        "-m",
        "trueline",
        "run",
        "--out",
        str(tmp_path / "run"),
        "--",
        sys.executable,
        str(script),
    ]
    subprocess.run(command, capture_output=True, check=False, timeout=120)
    overview = answers_of(report_on(tmp_path, tmp_path / "run"))["api/runs/0/overview"]
    assert overview["headline"].startswith("Fault found: the job died")
    assert (overview["live"], overview["what"]) == (False, "")


def test_what_is_worth_knowing_stands_apart_from_incidents(tmp_path: Path) -> None:
    notice = Finding("rng-streams", "info", "Streams are equal.", (0, 1, 2, 3), 5, 9)
    overview = answers_of(report_on(tmp_path, write_run(tmp_path / "a", findings=(notice,))))["api/runs/0/overview"]

    assert overview["incidents"] == []
    assert {"code": "rng-streams", "claim": "Streams are equal."} in overview["notices"]


def test_what_is_to_confirm_and_what_the_training_did_have_their_sections(tmp_path: Path) -> None:
    unusual = Finding("unusual", "confirm", "Half of the updates had rate 0.", evidence={"kind": "rate-zero"})
    path = write_run(tmp_path / "a b", findings=(unusual,))
    overview = answers_of(report_on(tmp_path, path))["api/runs/0/overview"]

    assert overview["confirm"] == [{"code": "unusual.rate-zero", "claim": unusual.claim}]
    assert overview["confirm_commands"] == [f"trueline confirm '{tmp_path / 'a b'}' unusual.rate-zero"]
    assert unusual.claim not in [notice["claim"] for notice in overview["notices"]]
    facts = trueline.facts(path)
    assert [area["heading"] for area in overview["training"]] == [heading for heading, _ in facts.by_area()]
    assert overview["untold"] == facts.unknown_line


def test_the_dispersions_of_the_workers_are_there_with_the_band_of_chance(tmp_path: Path) -> None:
    answers = answers_of(report_on(tmp_path, write_run(tmp_path / "exp")))
    offered = [each["key"] for each in answers["api/runs/0/signals"]["signals"] if each["of"] == "job"]
    assert offered[:4] == ["job/loss_std", "job/norm_std", "job/norm_cv", "job/cosine_mean"]

    spread = answers["api/runs/0/series?signal=job/loss_std"]
    losses = trueline.open_run(tmp_path / "exp").pivot("loss")[0]
    np.testing.assert_allclose(spread["arrays"]["low"][0], losses.std(axis=1, ddof=1), rtol=1e-6)
    low, high = spread["arrays"]["lowest"], spread["arrays"]["highest"]
    assert len(set(low)) == len(set(high)) == 1
    assert 0 < low[0] < np.median(spread["arrays"]["low"]) < high[0]
    assert "about 0.4 by chance" in spread["said"]
    assert "no band" in answers["api/runs/0/series?signal=job/loss_range"]["said"]


def test_cosines_are_there_at_every_step_with_sketches_or_why_not(tmp_path: Path) -> None:
    answers = answers_of(report_on(tmp_path, write_run(tmp_path / "exp")))
    assert [path for path in answers if "cosines" in path] == [f"api/runs/0/cosines?step={step}" for step in (0, 20)]

    answers = answers_of(report_on(tmp_path / "b", write_run(tmp_path / "b", matrix_every=0)))
    (path,) = [path for path in answers if "cosines" in path]
    assert "No step has a sketch of every worker" in answers[path]["absent"]


def test_a_run_of_one_worker_has_curves_and_no_comparison(tmp_path: Path) -> None:
    answers = answers_of(report_on(tmp_path, write_run(tmp_path / "exp", num_ranks=1)))

    assert "api/runs/0/series?signal=loss" in answers
    assert not [each for each in answers["api/runs/0/signals"]["signals"] if each["of"] == "job"]
    absent = [answer["absent"] for path, answer in answers.items() if "cosines" in path]
    assert set(absent) == {"One worker: there are no two gradients to compare."}


def test_an_empty_run_is_not_called_clean(tmp_path: Path) -> None:
    document = report_on(tmp_path, write_run(tmp_path / "exp", num_steps=0))
    overview = answers_of(document)["api/runs/0/overview"]

    assert overview["headline"] == "Cannot tell: no step was recorded."
    assert overview["what"].startswith("This Run holds no rows")
    assert "no fault" not in Words(document).text.lower()


def test_settings_list_common_facts_once_and_name_who_differs(tmp_path: Path) -> None:
    settings = answers_of(report_on(tmp_path, write_run(tmp_path / "exp")))["api/runs/0/settings"]

    assert [fact for section in settings["common"] for fact in section["facts"] if fact[1] == "2.13.0"] == [
        ["torch", "2.13.0"]
    ]
    assert [each["key"] for each in settings["by_nature"]] == ["pid", "environ.RANK"]


def test_damage_is_listed(tmp_path: Path) -> None:
    path = write_run(tmp_path / "exp")
    (path / "env" / "rank-00003.json").write_text("{")
    overview = answers_of(report_on(tmp_path, path))["api/runs/0/overview"]

    assert any("env/rank-00003.json: it is damaged" in note for note in overview["notes"])


def test_nan_everywhere_is_shown_and_no_error(tmp_path: Path) -> None:
    def spoil(step: int, rank: int, row: dict[str, Any]) -> None:
        for column, value in row.items():
            if isinstance(value, float):
                row[column] = math.nan
            elif isinstance(value, list) and value and isinstance(value[0], float):
                row[column] = [math.nan] * len(value)

    answers = answers_of(report_on(tmp_path, write_run(tmp_path / "exp", change=spoil)))

    assert answers["api/runs/0/overview"]["status"] == "out"
    assert (answers["api/runs/0/heat?signal=loss"]["arrays"]["flags"] & 2).all()


@pytest.mark.in_turn
def test_a_long_run_of_64_ranks_stays_small_and_keeps_the_spike(tmp_path: Path) -> None:
    path = write_long_run(tmp_path / "exp", num_ranks=64, num_steps=2_000, spike=(864, 37))
    document = report_on(tmp_path, path)
    series = answers_of(document)["api/runs/0/series?signal=loss"]

    assert len(document) < MAX_BYTES
    assert 37 in series["ranks"]
    assert np.nanmax(series["arrays"]["high"][series["ranks"].index(37)]) == 99.0


def test_runs_of_one_name_are_told_apart() -> None:
    assert distinct_names(["x/a", "y/a", "x/b"]) == ["x/a", "y/a", "b"]
    assert distinct_names(["x/a", "x/a", "b/"]) == ["a (1)", "a (2)", "b"]


# That it is safe.


def test_everything_from_a_run_is_text(tmp_path: Path) -> None:
    finding = Finding(
        HOSTILE, "error", HOSTILE, (0,), 1, 2, (HOSTILE,), 1.0, 0.0, HOSTILE, 0.0, {HOSTILE: HOSTILE}, (HOSTILE,)
    )
    fields = {"hostname": HOSTILE, "versions": {HOSTILE: HOSTILE}, "environ": {HOSTILE: HOSTILE}, "notes": [HOSTILE]}
    path = write_run(tmp_path / HOSTILE.replace("/", "_"), env=fields, findings=(finding,), notes=(HOSTILE,))
    document = trueline.report([path], tmp_path / "hostile.html").read_text(encoding="utf-8")
    page = Words(document)

    assert "img" not in page.tags
    assert page.tags.count("script") == 2
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert "\u202e" not in document + text_of(document)
    assert "onerror=alert(1)" in page.text


def test_the_page_loads_nothing_and_its_policy_allows_only_its_own_style_and_script(tmp_path: Path) -> None:
    document = report_on(tmp_path, write_run(tmp_path / "exp"))
    policy = html.unescape(re.search(r'Content-Security-Policy" content="([^"]*)"', document)[1])
    style = re.search(r"<style>(.*?)</style>", document, re.DOTALL)[1]
    script = re.search(r"<script>(.*?)</script>", document, re.DOTALL)[1]

    def digest(content: str) -> str:
        return "'sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode() + "'"

    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert f"style-src {digest(style)};" in policy
    assert f"script-src {digest(script)};" in policy
    links = [value for name, value in Words(document).attributes if name in ("href", "src")]
    assert links == ["data:,"]
    assert "@import" not in style
    assert "url(" not in style


# Files.


def test_an_existing_file_is_left_alone_unless_overwriting(tmp_path: Path) -> None:
    run, out = write_run(tmp_path / "exp"), tmp_path / "report.html"
    out.write_text("mine")

    with pytest.raises(RunExistsError, match="exists already"):
        trueline.report(run, out)
    assert out.read_text() == "mine"

    assert trueline.report(str(run), out, overwrite=True) == out
    assert out.read_text(encoding="utf-8").startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("place", "words"),
    [("", "that is a directory"), ("missing/report.html", "is no directory"), ("f/r.html", "is no directory")],
)
def test_a_place_that_cannot_be_written_is_one_sentence(tmp_path: Path, place: str, words: str) -> None:
    run = write_run(tmp_path / "exp")
    (tmp_path / "f").write_text("")

    with pytest.raises(InputError, match=words):
        trueline.report(run, tmp_path / place)


def test_a_full_disk_leaves_the_old_report_and_no_litter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, out = write_run(tmp_path / "exp"), tmp_path / "report.html"
    out.write_text("old")

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)

    with pytest.raises(InputError, match="No space left on device"):
        trueline.report(run, out, overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["exp", "report.html"]
    assert out.read_text() == "old"


def test_a_path_that_is_no_run_and_no_path_at_all_write_nothing(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="nothing is there"):
        trueline.report([tmp_path / "nowhere"], tmp_path / "report.html")
    with pytest.raises(InputError, match="at least one Run"):
        trueline.report([], tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


# In a browser.


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """``report``: a clean Run, one with a finding, one of 20 ranks, one of one worker; ``compared``: a comparison."""
    folder = tmp_path_factory.mktemp("report")
    runs = [
        write_run(folder / "clean"),
        write_run(folder / "overlap", findings=(OVERLAP,), seed=1),
        write_run(folder / "wide", num_ranks=20, seed=2),
        write_run(folder / "a-single-worker-with-a-rather-long-name_without_any_space_in_it", num_ranks=1),
    ]
    comparison = made_comparison()
    (folder / "compared.html").write_text(comparison_file(comparison, story_of(comparison)), encoding="utf-8")
    return {"report": trueline.report(runs, folder / "report.html"), "compared": folder / "compared.html"}


SCREENS = {
    "report": "document.querySelectorAll('.runs > li').length === 4",
    "report#run=1": "document.querySelector('.incident')",
    "report#run=2&screen=trend": "document.querySelector('.lines canvas')",
    "report#run=2&screen=trend&shown=apart&rows=worst": "document.querySelector('.lines canvas')",
    "report#run=0&screen=trend&signal=job/cosine_mean": "document.querySelector('.lines canvas')",
    "report#run=1&screen=settings": "document.querySelector('.settings .pairs')",
    "compared": "document.querySelector('.space .row.value')",
}


@pytest.mark.in_turn
@NEEDS_BROWSER
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (400, True)])
@pytest.mark.parametrize("state", SCREENS)
def test_every_screen_fits_reads_and_asks_nobody(files: dict[str, Path], state: str, width: int, dark: bool) -> None:
    name, _, place = state.partition("#")
    with BrowserPage(f"{files[name].as_uri()}#{place}", width=width, dark=dark) as page:
        page.until(SCREENS[state])
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(CONTRAST)["poor"] == []
        assert page.errors == []
        assert [url for url in page.requests if not url.startswith((files[name].as_uri(), "data:,"))] == []


@NEEDS_BROWSER
@pytest.mark.parametrize("state", ["", "#screen=incident&n=1"])
def test_the_words_stand_where_the_file_has_no_room_for_the_curve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    monkeypatch.setattr(page_file, "_WAYS", ((1024, 1, 100),))  # of all signals the loss alone
    long = Finding("worker-grad-norm-outlier", "warning", "Its gradient is 3 times.", (0,), 5, 39)
    report = tmp_path / "report.html"
    report.write_text(report_on(tmp_path, write_run(tmp_path / "exp", findings=(long,))), encoding="utf-8")
    with BrowserPage(f"{report.as_uri()}{state}", width=1280) as page:
        page.until("document.querySelector('.incident, .incident-screen h1')?.textContent.includes('3 times')")
        assert page.evaluate("document.querySelector('main > .refused')") is None
        assert page.errors == []


@NEEDS_BROWSER
def test_of_several_runs_the_gravest_is_named_first_and_the_keyboard_leads_on(files: dict[str, Path]) -> None:
    with BrowserPage(files["report"].as_uri(), width=1280) as page:
        title = page.until("document.querySelector('h1')?.textContent")
        assert title.startswith("Fault found: overlap; ")
        page.press("j")
        page.press("j")
        page.until("document.querySelectorAll('.runs > li')[1].classList.contains('selected')")
        page.press("Enter")
        page.until("document.querySelector('h1')?.textContent.startsWith('Fault found: rank 1')")
        page.press("]")
        page.until("document.title.includes('wide')")
        page.press("1")
        page.until("document.querySelectorAll('.runs > li').length === 4")


@NEEDS_BROWSER
def test_a_step_of_the_file_has_the_cosines_nearest_to_it(files: dict[str, Path]) -> None:
    with BrowserPage(f"{files['report'].as_uri()}#run=0&screen=trend&step=3", width=1280) as page:
        page.until("document.querySelector('.matrix h2')?.textContent === 'Cosines between ranks at step 0'")
        page.evaluate("location.hash = 'run=0&screen=trend&step=31'")
        page.until("document.querySelector('.matrix h2')?.textContent === 'Cosines between ranks at step 20'")


@NEEDS_BROWSER
def test_a_comparison_in_a_file_leads_to_the_first_difference_and_is_filtered(files: dict[str, Path]) -> None:
    with BrowserPage(files["compared"].as_uri(), width=1280) as page:
        page.until("document.querySelector('.space .row.value')")
        assert page.evaluate("document.querySelector('h1').textContent").startswith("Different: At step 1")
        assert page.evaluate("document.querySelectorAll('.growth .j-beyond').length") == 1
        page.evaluate("document.querySelector('.growth .j-beyond').dispatchEvent(new MouseEvent('click'))")
        assert FAULT in page.until("document.querySelector('.row[aria-selected=true]')?.textContent")
        page.until("document.querySelector('.detail h2')?.textContent.includes('beyond rounding')")
        page.evaluate("location.hash = 'judged=within&find=ADAMW'")
        page.until("document.querySelectorAll('.space .row.value').length === 6")
        assert "6 of 109 values" in page.evaluate("document.querySelector('.compare').textContent")
        assert not page.evaluate("document.querySelector('.matching')?.checkVisibility() ?? false")
        assert page.errors == []


@NEEDS_BROWSER
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("report", ["Fault found: overlap", "Rank 1 consumed 71 samples", "shard-overlap", "Give every rank the same"]),
        ("compared", ["Different: At step 1", FAULT, "only in RUN: REF has no dropout"]),
    ],
)
def test_the_verdict_is_there_without_scripts(files: dict[str, Path], name: str, words: list[str]) -> None:
    with BrowserPage(files[name].as_uri(), width=400, scripts=False) as page:
        page.call("Emulation.setScriptExecutionDisabled", value=False)
        text = page.evaluate("document.body.innerText")

        assert [each for each in words if each not in text] == []
        assert page.evaluate("document.documentElement.scrollWidth") <= 400
