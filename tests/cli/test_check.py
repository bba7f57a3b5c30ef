"""`trueline check`: exit codes, one JSON document, readable text."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from sarif_pydantic import Sarif
from tests.cli import in_process
from tests.simulated_epochs import Size, same_batches
from tests.unit.healthy_run import healthy_rows, sample_rows, write_run

import trueline as public
from trueline.judge.check_run import CheckReport
from trueline.judge.registry import installed_checks
from trueline.render.ci import junit
from trueline.render.ci.sarif import sarif
from trueline.schema.finding import Finding, Where
from trueline.schema.judged import Judged
from trueline.schema.site import SITE_FORM

NUM_CHECKS = len(installed_checks())


@pytest.fixture
def trueline(monkeypatch, capsys):
    """The command in this process."""

    def call(*words):
        return subprocess.CompletedProcess(words, *in_process.trueline(monkeypatch, capsys, *words))

    return call


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    rows = healthy_rows(2, 10)
    write_run(folder / "healthy", rows)
    for key, row in sample_rows(same_batches(Size(512, 2, 4, 1), np.random.default_rng(0)), 4, num_steps=10).items():
        rows[key] |= row
    rows[3, 1]["loss"] = float("inf")
    write_run(folder / "faulty", rows)
    write_run(folder / "empty", {})
    return folder


def test_nothing_found_is_exit_code_0(runs):
    code = "from trueline.cli.main import main; main()"
    command = [sys.executable, "-c", code, "check", str(runs / "healthy")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("No fault found in 10 steps of 2 ranks. ")
    assert "Partly: " in done.stdout.splitlines()[0]


def test_what_a_program_reads_is_neither_wrapped_nor_padded(trueline, runs, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    lines = trueline("check", runs / "faulty", "--all").stdout.splitlines()
    assert all(line == line.rstrip() for line in lines)
    assert max(map(len, lines)) > 200
    assert any(re.match(r"  [a-z-]+(?:, [a-z-]+)*: ", line) for line in lines)
    monkeypatch.setenv("COLUMNS", "70")  # somebody says how wide
    lines = trueline("check", runs / "faulty", "--all").stdout.splitlines()
    assert all(line == line.rstrip() and len(line) <= 70 for line in lines[1:])


def test_a_program_gets_the_status_the_actions_and_names_of_findings(trueline, runs):
    first, again = (json.loads(trueline("check", runs / "faulty", "--json").stdout) for _ in range(2))
    assert (first["status"], first["exit_code"]) == ("fault", 1)
    ids = [finding["id"] for finding in first["findings"]]
    assert len(set(ids)) == len(ids)
    assert ids == [finding["id"] for finding in again["findings"]]
    (record,) = [action for action in first["actions"] if "Record step 3" in action["say"]]
    assert "`trueline run --plan mix --set steps=3:4 -- COMMAND`" in record["say"]
    assert record["argv"] is None  # the Run does not have the command
    healthy = json.loads(trueline("check", runs / "healthy", "--json").stdout)
    assert (healthy["status"], healthy["exit_code"], healthy["cause"]) == ("fine", 0, None)
    assert healthy["confirm"] == []
    assert [fact["name"] for fact in healthy["facts"]][:2] == ["parameters", "without-gradient"]


def test_github_gets_one_annotation_a_finding_and_one_of_the_verdict(trueline, runs):
    document = json.loads(trueline("check", runs / "faulty", "--json").stdout)
    done = trueline("check", runs / "faulty", "--format", "github")
    assert done.returncode == 1
    first, *lines = done.stdout.splitlines()
    assert first.startswith("::error title=trueline check ")
    assert first.endswith(f"::{document['verdict']}")
    kinds = {"error": "error", "warning": "warning", "info": "notice"}
    assert [line.split()[0] for line in lines] == [f"::{kinds[each['severity']]}" for each in document["findings"]]
    for line, finding in zip(lines, document["findings"], strict=True):
        title, text = line.removeprefix("::").split("::", 1)
        assert "," not in title, "GitHub would end the title there"
        read = text.replace("%0A", "\n").replace("%0D", "\r").replace("%25", "%")
        assert read == "\n".join([finding["claim"], *finding["next"]])
    assert trueline("check", runs / "healthy", "--format", "github").stdout.startswith("::notice title=trueline check ")
    assert trueline("check", runs / "empty", "--format", "github").stdout.startswith("::warning title=trueline check ")


@pytest.mark.parametrize(("name", "code"), [("healthy", 0), ("faulty", 1), ("empty", 3)])
def test_junit_is_xml_with_a_case_for_each_check(trueline, runs, name, code):
    document = json.loads(trueline("check", runs / name, "--json").stdout)
    done = trueline("check", runs / name, "--format", "junit")
    assert done.returncode == code
    suite = ElementTree.fromstring(done.stdout)
    cases = {case.get("name"): {part.tag for part in case} for case in suite.findall("testcase")}
    assert len(cases) == len(suite.findall("testcase")) == int(suite.get("tests"))
    grave = {each["code"] for each in document["findings"] if each["severity"] != "info"}
    assert {name for name, parts in cases.items() if "failure" in parts} == grave
    assert {name for name, parts in cases.items() if "skipped" in parts} == {
        each["check"] for each in document["checks_not_run"]
    }
    assert set(cases) >= {*document["checks_run"], "enough was judged"}
    assert cases["enough was judged"] == ({"error"} if code == 3 else set()), "what cannot be told is not green"
    counts = [sum(tag in parts for parts in cases.values()) for tag in ("failure", "error", "skipped")]
    assert counts == [int(suite.get(name)) for name in ("failures", "errors", "skipped")]


def test_characters_that_no_xml_may_hold_are_replaced():
    assert junit._clean("a\x00\x1b[1m\ud800b\n<&>") == "a\ufffd\ufffd[1m\ufffdb\n<&>"


@pytest.mark.parametrize(("name", "code"), [("healthy", 0), ("faulty", 1), ("empty", 3)])
def test_sarif_has_a_result_for_each_finding_and_is_not_green_where_nothing_can_be_told(trueline, runs, name, code):
    document = json.loads(trueline("check", runs / name, "--json").stdout)
    done = trueline("check", runs / name, "--format", "sarif")
    assert done.returncode == code
    Sarif.model_validate_json(done.stdout)
    (run,) = json.loads(done.stdout)["runs"]
    levels = {"error": "error", "warning": "warning", "confirm": "note", "info": "note"}
    results = [(result["ruleId"], result["level"]) for result in run["results"]]
    unjudged = [("cannot-tell", "error")] if code == 3 else []
    assert results == [*unjudged, *((finding["code"], levels[finding["severity"]]) for finding in document["findings"])]
    assert {rule["id"] for rule in run["tool"]["driver"]["rules"]} == {rule for rule, _ in results}
    assert run["invocations"] == [{"executionSuccessful": code != 3, "exitCode": code}]
    assert run["properties"]["verdict"] == document["verdict"]


def test_sarif_points_at_the_line_within_the_repository_or_at_the_script(tmp_path):
    drift = Finding("replica-drift", "error", "Rank 1 drifts.", ranks=(1,))
    places = (Where(), Where(file=str(tmp_path / "my train.py"), line=24), Where(file="/usr/lib/x.py", line=2))
    report = CheckReport(
        "run",
        tuple(replace(drift, where=where, step_first=step) for step, where in enumerate(places)),
        Judged(()),
        job=("torchrun", "jobs/train.py"),
    )
    results = json.loads(sarif(report, tmp_path))["runs"][0]["results"]
    locations = [result["locations"][0]["physicalLocation"] for result in results]
    assert [place["artifactLocation"] for place in locations] == [
        {"uri": "jobs/train.py", "uriBaseId": "%SRCROOT%"},
        {"uri": "my%20train.py", "uriBaseId": "%SRCROOT%"},
        {"uri": "file:///usr/lib/x.py"},
    ]
    assert [place["region"]["startLine"] for place in locations] == [1, 24, 2]
    assert results[1]["message"]["text"] == "rank 1, since step 1: Rank 1 drifts."
    fingerprints = [result["partialFingerprints"]["trueline/v1"] for result in results]
    assert fingerprints == [finding.id for finding in report.findings]


def test_format_and_json_contradict_each_other(trueline, runs):
    done = trueline("check", runs / "healthy", "--json", "--format", "junit")
    assert done.returncode == 2
    assert "--json and --format junit contradict each other" in done.stderr


def test_checks_that_could_not_run_for_one_reason_share_a_line(trueline, runs):
    text = trueline("check", runs / "healthy", "--all").stdout
    told = " ".join(text[text.index("Not checked:") :].split())
    names = json.loads(trueline("check", runs / "healthy", "--json").stdout)["checks_not_run"]
    for why in {entry["why"] for entry in names}:
        together = ", ".join(entry["check"] for entry in names if entry["why"] == why)
        assert told.count(f"{together}: {why}") == 1


def test_checks_that_do_not_apply_are_one_line_unless_they_are_asked_for(trueline, runs):
    text = " ".join(trueline("check", runs / "healthy").stdout.split())
    left_out = json.loads(trueline("check", runs / "healthy", "--json").stdout)["checks_not_run"]
    silent = [entry for entry in left_out if entry["reason"] in ("by-design", "not-recorded")]
    lacking = len(left_out) - len(silent)
    told = text[text.index("Not checked: ") :]
    assert told.endswith(f"Why: `trueline check {runs / 'healthy'} --all`")
    assert sum(map(int, re.findall(r"\((\d+) checks?\)", told))) == lacking
    assert f"{len(silent)} checks do not apply here" in told
    assert not any(entry["why"] in told for entry in left_out)


def test_findings_are_exit_code_1_and_say_where(trueline, runs):
    done = trueline("check", runs / "faulty")
    text = " ".join(done.stdout.split())

    assert done.returncode == 1
    assert "error duplicate-data ranks 0 and 1 steps 0-9" in text
    assert "Ranks 0 and 1 consumed the same samples at steps 0-9." in text
    assert "next:" in text
    assert text.startswith("Fault found: ranks 0 and 1, since step 0; 2 findings in 2 incidents.")
    assert text.endswith(f"Sites: {SITE_FORM}")


def test_json_is_one_document_of_the_contract(trueline, runs):
    done = trueline("check", runs / "faulty", "--json")
    document = json.loads(done.stdout)

    assert done.returncode == 1
    assert document["schema"] == 1
    assert document["verdict"] == "Fault found: ranks 0 and 1, since step 0; 2 findings in 2 incidents."
    assert document["judged"]["enough"]
    assert [incident["findings"] for incident in document["incidents"]] == [[0], [1]]
    assert set(document["incidents"][0]) == {"ranks", "step_first", "severity", "findings", "title", "ids"}
    assert [finding["code"] for finding in document["findings"]][:2] == ["duplicate-data", "worker-nonfinite"]
    assert set(document["findings"][0]) == {
        "id",
        "where",
        "code",
        "severity",
        "claim",
        "ranks",
        "step_first",
        "step_last",
        "sites",
        "measured",
        "expected",
        "unit",
        "false_alarm_rate",
        "evidence",
        "next",
    }
    assert len(document["checks_run"]) + len(document["checks_not_run"]) == NUM_CHECKS


def test_an_empty_run_is_exit_code_3(trueline, runs):
    done = trueline("check", runs / "empty")
    assert done.returncode == 3
    assert done.stdout.startswith("Cannot tell: no step was recorded.\n")


def test_what_is_no_run_is_exit_code_2_in_one_sentence(trueline, runs):
    for path in (runs, runs / "nothing"):
        done = trueline("check", path)
        assert done.returncode == 2
        assert done.stderr.startswith("trueline: ")
        assert "Traceback" not in done.stderr
        assert done.stderr.count("\n") == 1


def test_a_reference_adds_what_compare_finds(trueline, recorded):
    done = trueline("check", recorded / "changed", "--ref", recorded / "reference", "--json")
    document = json.loads(done.stdout)
    assert done.returncode == 1
    assert "first-divergence" in {finding["code"] for finding in document["findings"]}
    assert "first-divergence" in document["checks_run"]


def test_a_reference_without_records_is_said_and_the_other_checks_run(trueline, recorded, runs):
    done = trueline("check", recorded / "changed", "--ref", runs / "healthy", "--json")
    document = json.loads(done.stdout)
    why = {entry["check"]: entry["why"] for entry in document["checks_not_run"]}
    assert "No step was recorded" in why["first-divergence"]
    assert "overflow-origin" in document["checks_run"]


def test_a_reference_that_is_no_run_is_exit_code_2(trueline, recorded, tmp_path):
    done = trueline("check", recorded / "changed", "--ref", tmp_path / "gone")
    assert done.returncode == 2
    assert "gone" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recorded")
    for name, slope in (("reference", 0.01), ("changed", 0.2)):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LeakyReLU(slope))
        watch = public.watch(model, torch.optim.SGD(model.parameters()), out=folder / name, plan={"preset": "mix"})
        with watch.step():
            model(torch.linspace(-1, 1, 8).view(2, 4)).square().sum().backward()
        watch.close()
    return folder
