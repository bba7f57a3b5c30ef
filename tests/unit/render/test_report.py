"""The report is one safe, self-contained file that says what was found, also of Runs with little or nothing in them."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from tests.synthetic_runs import write_long_run, write_run
from tests.unit.page_words import Words

import trueline
from trueline.render.evidence_words import evidence_words
from trueline.render.report.run_reading import distinct_names
from trueline.schema.errors import InputError, RunError, RunExistsError
from trueline.schema.finding import Finding

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


def report_on(tmp_path: Path, *runs: Path) -> str:
    return trueline.report(runs, tmp_path / "report.html").read_text(encoding="utf-8")


def numbers_of(document: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="numbers">(.*?)</script>', document, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def test_finding_is_told_in_the_verdict_the_table_and_the_charts(tmp_path: Path) -> None:
    document = report_on(tmp_path, write_run(tmp_path / "exp", findings=(OVERLAP,)))
    text = Words(document).text

    for words in (
        "Fault found: rank 1, since step 10; 1 finding.",
        "Rank 1 consumed 71 samples that other ranks consumed too.",
        "shard-overlap",
        "10–39",
        "0.0886 expected 0 fraction of samples",
        "≤ 3.2e−9",
        "Give every rank the same sampler seed.",
        "10.0/r1/batch/input_ids#0:in0",
    ):
        assert words in text
    assert document.count('<line class="mark error"') == 9


def test_clean_run_says_so_and_that_its_workers_were_judged(tmp_path: Path) -> None:
    text = Words(report_on(tmp_path, write_run(tmp_path / "exp"))).text

    assert "The checks that ran found no fault." in text
    assert "None of them judges" not in text
    assert re.search(r"Checked\. \d+ checks? over steps 0–39 on 4 ranks: .*worker-loss-outlier", text)
    assert "judged by the order and the distances of the workers over all steps" in text


def test_clean_run_that_is_too_short_says_that_its_workers_were_not_judged(tmp_path: Path) -> None:
    text = Words(report_on(tmp_path, write_run(tmp_path / "exp", num_steps=4))).text

    assert "None of them judges whether one rank’s loss" in text
    assert "No check that judges whether one rank’s loss" in text
    assert "4 steps have losses to compare" in text


SCALED = Finding("worker-scale", "error", "Rank 2 is scaled.", (2,), 12, 39, next=("Divide by 2.",))
LONGER = Finding("worker-grad-norm-outlier", "warning", "Rank 2 is longer.", (2,), 12, 39, next=("Look at rank 2.",))
UNEVEN = Finding("token-imbalance", "warning", "Uneven.", (0, 3), 20, 39, next=("Run `trueline plan RUN`, then `x.",))


def test_findings_of_one_fault_stand_together_with_its_advice_once(tmp_path: Path) -> None:
    text = Words(report_on(tmp_path, write_run(tmp_path / "exp", findings=(LONGER, UNEVEN, SCALED)))).text

    assert "Fault found: rank 2, since step 12; 3 findings in 2 incidents." in text
    assert text.index("Incident 1: rank 2, since step 12") < text.index("Incident 2: ranks 0 and 3, since step 20")
    assert text.count("Divide by 2.") == 2  # at the top and in the table
    assert "Look at rank 2." not in text
    assert "That of finding 1 , which brings this with it." in text


def test_numbers_codes_and_words_lead_to_what_they_name(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / "a"), write_run(tmp_path / "b", findings=(LONGER, UNEVEN, SCALED))]
    page = Words(report_on(tmp_path, *runs))
    ids = [value for name, value in page.attributes if name == "id"]
    targets = [value.removeprefix("#") for name, value in page.attributes if name == "href" and value.startswith("#")]

    assert len(ids) == len(set(ids))
    assert set(targets) <= set(ids)
    assert {"finding-1", "finding-2", "finding-3", "check-worker-scale", "findings", "not-run"} <= set(targets)
    assert targets.count("finding-1") == 6  # its number, an effect, what was checked, and a mark on three charts


def test_slider_opens_at_the_first_faulty_step(tmp_path: Path) -> None:
    page = Words(report_on(tmp_path, write_run(tmp_path / "exp", findings=(UNEVEN, SCALED))))
    (slider,) = [attrs for _, attrs in page.elements if attrs.get("id") == "step"]
    assert slider["value"] == "12"

    far = Finding("replica-drift", "error", "Far.", (1,), 900)
    page = Words(report_on(tmp_path / "far", write_run(tmp_path / "far", findings=(far,))))
    (slider,) = [attrs for _, attrs in page.elements if attrs.get("id") == "step"]
    assert slider["value"] == "39"


def test_errors_come_first_in_what_was_checked(tmp_path: Path) -> None:
    text = Words(report_on(tmp_path, write_run(tmp_path / "exp", findings=(UNEVEN, SCALED)))).text
    table = text[text.index("What was checked") :]
    words = ["worker-scale 1 error", "token-imbalance 1 warning", "duplicate-data clean", "overflow-origin not run"]
    assert [table.index(each) for each in words] == sorted(table.index(each) for each in words)


def test_commands_can_be_copied(tmp_path: Path) -> None:
    document = report_on(tmp_path, write_run(tmp_path / "exp", findings=(UNEVEN,)))
    assert '<code class="command">trueline plan RUN</code><button type="button" class="copy"' in document
    assert "then `x." in Words(document).text


def test_charts_name_their_metric_to_those_who_do_not_see_them(tmp_path: Path) -> None:
    labels = dict.fromkeys(
        value
        for name, value in Words(report_on(tmp_path, write_run(tmp_path / "exp"))).attributes
        if name == "aria-label" and "step 39" in value
    )
    assert any(label.startswith("Loss, exp, step 39: r0 ") for label in labels)
    assert any(label.startswith("Gradient norm: range, exp, step 39: ") for label in labels)


def test_evidence_is_labelled_rounded_and_leaves_out_what_is_empty() -> None:
    evidence = {
        "log_height": 26.71234567,
        "threshold": 19,
        "decided_by": "",
        "undecided": False,
        "interval": None,
        "shares": {"0": 0.123456789, "3": 0.5},
        "names": ["a", "b"],
        "num_steps": 1200,
        "layers": [{"x": None}],
        "made_up": True,
        "nothing": [],
        "zero": 0,
    }
    assert evidence_words(evidence) == (
        ("odds against chance, reached (natural log)", "26.71"),
        ("odds against chance, needed (natural log)", "19"),
        ("share of each rank", "0: 0.1235, 3: 0.5"),
        ("names", "a, b"),
        ("steps", "1,200"),
        ("made up", "yes"),
        ("zero", "0"),
    )


def test_finding_tells_when_its_evidence_was_beyond_chance_and_how_sure_its_size_is(tmp_path: Path) -> None:
    evidence = {"crossed_step": 17, "interval": [1.08, 1.1234]}
    scaled = Finding("worker-scale", "error", "Scaled.", (1,), 10, 39, (), 1.1, 1.0, "times", 1e-9, evidence)
    turned = {"crossed_step": 10, "interval": [-0.2, -0.1], "interval_of": "the difference in cosine"}
    cosine = Finding("worker-direction-outlier", "warning", "Turned.", (2,), 10, 39, evidence=turned)
    odd = Finding("worker-loss-outlier", "warning", "Odd.", (2,), evidence={"crossed_step": None, "interval": ["a"]})
    text = Words(report_on(tmp_path, write_run(tmp_path / "exp", findings=(scaled, cosine, odd)))).text

    assert "10–39 beyond chance at step 17" in text
    assert text.count("beyond chance at") == 1
    assert "1.1 expected 1 95 %: 1.08 to 1.12 times" in text
    assert "95 % of the difference in cosine: −0.2 to −0.1" in text


def test_runs_stand_side_by_side_under_their_names(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / "a", seed=1), write_run(tmp_path / "b", seed=2, findings=(OVERLAP,))]
    document = report_on(tmp_path, *runs)

    assert "Fault found: b; no fault found: a." in Words(document).text
    assert {"loss-0", "loss-1", "cosine_mean-0", "cosine_mean-1"} <= set(numbers_of(document)["charts"])


def test_what_is_worth_knowing_stands_apart_once_and_is_not_marked(tmp_path: Path) -> None:
    notice = Finding("rng-streams", "info", "Streams are equal.", (0, 1, 2, 3), 5, 9)
    runs = [write_run(tmp_path / name, findings=(notice,)) for name in ("a", "b")]
    document = report_on(tmp_path, *runs)
    text = Words(document).text

    assert text.count("Streams are equal.") == 1
    assert "Worth knowing" in text
    assert "No check found a fault." in text
    assert 'class="mark info"' not in document


def test_runs_of_one_name_are_told_apart() -> None:
    assert distinct_names(["x/a", "y/a", "x/b"]) == ["x/a", "y/a", "b"]
    assert distinct_names(["x/a", "x/a", "b/"]) == ["a (1)", "a (2)", "b"]


def test_everything_from_a_run_is_escaped(tmp_path: Path) -> None:
    finding = Finding(
        HOSTILE, "error", HOSTILE, (0,), 1, 2, (HOSTILE,), 1.0, 0.0, HOSTILE, 0.0, {HOSTILE: HOSTILE}, (HOSTILE,)
    )
    fields = {
        "hostname": HOSTILE,
        "device": HOSTILE,
        "versions": {HOSTILE: HOSTILE},
        "environ": {HOSTILE: HOSTILE},
        "optimizer": {"type": HOSTILE},
        "notes": [HOSTILE],
    }
    path = write_run(tmp_path / HOSTILE.replace("/", "_"), env=fields, findings=(finding,), notes=(HOSTILE,))
    plain = Words(report_on(tmp_path, write_run(tmp_path / "plain", findings=(OVERLAP,), notes=("note",))))
    document = trueline.report([path], tmp_path / "hostile.html").read_text(encoding="utf-8")
    page = Words(document)

    assert "img" not in page.tags
    assert page.tags.count("script") == plain.tags.count("script") == 2
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert "{{7*7}}" in page.text
    assert "\u202e" not in document
    assert "onerror=alert(1)" in page.text


def test_page_loads_nothing_and_its_policy_allows_only_its_own_style_and_script(tmp_path: Path) -> None:
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
    assert all(value.startswith("#") or value == "data:," for value in links)
    assert not re.search(r"https?:|@import|url\(", document)
    assert "style" not in [name for name, _ in Words(document).attributes]


def test_links_on_the_page_lead_somewhere(tmp_path: Path) -> None:
    page = Words(report_on(tmp_path, write_run(tmp_path / "exp", findings=(OVERLAP,), notes=("note",))))
    names = [value for name, value in page.attributes if name == "id"]

    assert len(names) == len(set(names))
    assert {value[1:] for name, value in page.attributes if name == "href" and value[0] == "#"} <= set(names)


def test_empty_run_is_not_called_clean(tmp_path: Path) -> None:
    text = Words(report_on(tmp_path, write_run(tmp_path / "exp", num_steps=0))).text

    assert "Cannot tell" in text
    assert "This Run holds no rows" in text
    assert "No step was recorded, so there is nothing to draw." in text
    assert "no fault" not in text.lower()


def test_single_worker_has_curves_and_no_comparison(tmp_path: Path) -> None:
    document = report_on(tmp_path, write_run(tmp_path / "exp", num_ranks=1))
    text = Words(document).text

    assert "loss-0" in numbers_of(document)["charts"]
    assert "cosine_others-0" not in numbers_of(document)["charts"]
    assert "One worker: there are no two gradients to compare." in text
    assert "One worker: there is no other to compare its gradient with." in text


def test_run_without_sketches_says_why_it_has_no_matrix(tmp_path: Path) -> None:
    document = report_on(tmp_path, write_run(tmp_path / "exp", matrix_every=0))

    assert "No step has a sketch of every worker" in Words(document).text
    assert numbers_of(document)["matrices"] == {}


def test_matrix_is_there_for_every_step_with_sketches(tmp_path: Path) -> None:
    matrices = numbers_of(report_on(tmp_path, write_run(tmp_path / "exp")))["matrices"]

    assert [each["step"] for each in matrices["0"]["steps"]] == [0, 20]
    assert all(len(each["cells"]) == 6 for each in matrices["0"]["steps"])


def test_nan_everywhere_is_said(tmp_path: Path) -> None:
    def spoil(step: int, rank: int, row: dict[str, Any]) -> None:
        for column in ("loss", "grad_norm", "cosine_others", "cosine_pairs", "cosine_mean"):
            row[column] = math.nan
        if "sketch" in row:
            row["sketch"] = [math.nan] * len(row["sketch"])

    document = report_on(tmp_path, write_run(tmp_path / "exp", change=spoil))

    assert "Not finite (NaN or inf) at every one of 40 measured steps." in Words(document).text
    assert "NaN" in Words(document).text


def test_missing_rank_and_damage_are_listed(tmp_path: Path) -> None:
    path = write_run(tmp_path / "exp")
    (path / "env" / "rank-00003.json").write_text("{")
    text = Words(report_on(tmp_path, path)).text

    assert "Damaged or missing" in text
    assert "env/rank-00003.json: it is damaged" in text


def test_environment_lists_common_values_once_and_names_who_differs(tmp_path: Path) -> None:
    text = Words(report_on(tmp_path, write_run(tmp_path / "exp"))).text

    assert text.count("2.13.0") == 1
    assert "Different by nature: pid, environ.RANK" in text


def test_long_run_of_64_ranks_stays_small_and_keeps_the_spike(tmp_path: Path) -> None:
    """From 480 steps on there are no more bins: the page of 2,000 steps is as large as that of 10,000, 0.19 MB, while
    every step by itself would make 0.7 and 3.4 MB.
    """
    path = write_long_run(tmp_path / "exp", num_ranks=64, num_steps=2_000, spike=(864, 37))
    document = report_on(tmp_path, path)
    loss = numbers_of(document)["charts"]["loss-0"]

    assert len(document) < 400_000
    assert max(value for series in loss["series"] for value in series.get("hi", series["lo"])) == 99.0
    assert "r37" in [series["name"] for series in loss["series"]]


def test_existing_file_is_left_alone_unless_overwriting(tmp_path: Path) -> None:
    run, out = write_run(tmp_path / "exp"), tmp_path / "report.html"
    out.write_text("mine")

    with pytest.raises(RunExistsError, match="exists already"):
        trueline.report(run, out)
    assert out.read_text() == "mine"

    trueline.report(run, out, overwrite=True)
    assert out.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_the_public_function_overwrites_only_when_told(tmp_path: Path) -> None:
    run, out = write_run(tmp_path / "exp"), tmp_path / "report.html"
    assert trueline.report([run], out) == out
    with pytest.raises(RunExistsError):
        trueline.report(str(run), out)
    assert trueline.report(str(run), out, overwrite=True) == out


@pytest.mark.parametrize(
    ("place", "words"),
    [("", "that is a directory"), ("missing/report.html", "is no directory"), ("f/r.html", "is no directory")],
)
def test_place_that_cannot_be_written_is_one_sentence(tmp_path: Path, place: str, words: str) -> None:
    run = write_run(tmp_path / "exp")
    (tmp_path / "f").write_text("")

    with pytest.raises(InputError, match=words):
        trueline.report(run, tmp_path / place)


def test_full_disk_leaves_the_old_report_and_no_litter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, out = write_run(tmp_path / "exp"), tmp_path / "report.html"
    out.write_text("old")

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)

    with pytest.raises(InputError, match="No space left on device"):
        trueline.report(run, out, overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["exp", "report.html"]
    assert out.read_text() == "old"


def test_path_that_is_no_run_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="nothing is there"):
        trueline.report([tmp_path / "nowhere"], tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def test_report_on_nothing_asks_for_a_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="at least one Run"):
        trueline.report([], tmp_path / "report.html")
