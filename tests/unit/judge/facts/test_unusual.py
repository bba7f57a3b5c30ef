"""A fact that few healthy trainings have is to confirm, until somebody does."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
from tests.synthetic_runs import write_run
from torch import nn
from typer.testing import CliRunner

import trueline
from trueline.cli.main import app
from trueline.judge.facts import base_rates, fact, training_facts
from trueline.judge.facts.base_rates import BaseRate
from trueline.judge.facts.unusual import _said_by
from trueline.schema.finding import Finding
from trueline.schema.law import Code, Law
from trueline.store.plan_change import confirmed_ids

ROW = BaseRate(trainings=140, showing=3, at_most=0.054)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Half of twelve updates have the learning rate 0."""
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    out = tmp_path_factory.mktemp("unusual") / "run"
    with trueline.watch(model, optimizer, out=out, plan={"every": 1}):
        for update in range(12):
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.param_groups[0]["lr"] = 0.1 if update < 6 else 0.0
            optimizer.step()
            optimizer.zero_grad()
    return out


@pytest.fixture(autouse=True)
def unwrapped(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)


def rated(monkeypatch, rows):
    monkeypatch.setattr(fact, "base_rates", lambda: rows)


def test_what_is_rare_stands_in_the_verdict_with_its_base_rate(run, monkeypatch):
    rated(monkeypatch, {"rate-zero": ROW})
    report = trueline.check(run)
    (finding,) = report.to_confirm
    assert finding.id == "unusual.rate-zero"
    assert finding.claim.endswith(": steps 6-11. Of 140 healthy trainings 3 show this.")
    assert finding.false_alarm_rate == 0.054
    assert "; 1 thing to confirm: 6 of 12 updates had the learning rate 0 (50%): steps 6-11." in report.verdict.line
    assert report.to_json()["status"] == "confirm"
    assert report.to_json()["confirm"][0]["evidence"]["kind"] == "rate-zero"
    assert not report.has_incidents


@pytest.mark.parametrize("rows", [{}, {"rate-zero": BaseRate(140, 8, 0.1)}, {"rate-zero": BaseRate(0, 0, 1.0)}])
def test_what_is_not_measured_or_not_rare_is_a_fact_alone(run, monkeypatch, rows):
    rated(monkeypatch, rows)
    assert not trueline.check(run).to_confirm
    assert any("rate-zero" in each.marks for each in trueline.facts(run).facts)


def test_facts_name_the_base_rate_of_what_is_unusual(run, monkeypatch):
    rated(monkeypatch, {"rate-zero": ROW})
    result = CliRunner().invoke(app, ["facts", str(run)])
    assert "(50%): steps 6-11; of 140 healthy trainings 3 show this\n" in result.stdout
    (document,) = (each for each in trueline.facts(run).to_json()["facts"] if each["name"] == "rate-zero")
    assert document["unusual"] == {"rate-zero": {"trainings": 140, "showing": 3, "at_most": 0.054}}


def test_strictly_it_counts_as_found(run, monkeypatch):
    rated(monkeypatch, {"rate-zero": ROW})
    assert CliRunner().invoke(app, ["check", str(run)]).exit_code == 0
    result = CliRunner().invoke(app, ["check", str(run), "--strict", "--json"])
    assert result.exit_code == json.loads(result.stdout)["exit_code"] == 1


def test_facts_have_no_place_in_annotations(run):
    result = CliRunner().invoke(app, ["check", str(run), "--facts", "--format", "github"])
    assert "trueline facts" in str(result.exception)


def test_what_to_do_and_where_more_stands_is_said_of_each(run, monkeypatch):
    rated(monkeypatch, {"rate-zero": ROW})
    lines = CliRunner().invoke(app, ["check", str(run)]).stdout.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("  unusual.rate-zero: "))
    assert lines[at - 1].startswith("To confirm: only you know whether this is meant.")
    assert lines[at + 1].startswith("    next: Make the schedule as long as the training")
    assert lines[at + 2] == "    more: trueline explain unusual.rate-zero"
    # what may spoil the training comes before where nobody has looked yet
    assert not any(line.startswith("Not looked at") for line in lines[:at])
    explained = CliRunner().invoke(app, lines[at + 2].split("trueline ")[1].split())
    assert explained.exit_code == 0
    assert "Make the schedule as long as the training" in explained.stdout


def test_what_is_confirmed_stays_silent(run, monkeypatch):
    rated(monkeypatch, {"rate-zero": ROW})
    unknown = CliRunner().invoke(app, ["confirm", str(run), "rate-zero"])
    assert str(unknown.exception).endswith("is called 'rate-zero'. It has unusual.rate-zero.")
    result = CliRunner().invoke(app, ["confirm", str(run), "unusual.rate-zero"])
    assert result.exit_code == 0
    assert "trueline run --set every=1 --set confirmed=unusual.rate-zero -- COMMAND" in result.stdout
    report = trueline.check(run)
    assert not report.to_confirm
    assert not any(finding.code == "unusual" for finding in report.worth_knowing)
    assert report.to_json()["status"] != "confirm"
    assert CliRunner().invoke(app, ["confirm", str(run), "unusual.rate-zero"]).exit_code == 0  # once more is no mistake


def test_the_rarest_come_first_and_five_are_shown(run, monkeypatch, capsys):
    from trueline.cli.lines import screen
    from trueline.cli.verbs.check import print_to_confirm
    from trueline.judge.check_run import CheckReport
    from trueline.judge.facts.unusual import unusual_findings
    from trueline.schema.finding import Finding
    from trueline.schema.judged import Judged

    rated(monkeypatch, {"rate-zero": ROW})
    (rare,) = unusual_findings(trueline.facts(run))
    findings = [replace(rare, expected=0.01 * num, evidence={"kind": f"{num}"}) for num in (3, 1, 2, 5, 4)]
    law = Finding("grad-accumulates", "confirm", "A gradient changed.")
    report = CheckReport(str(run), (*findings, law), Judged())
    assert [finding.id for finding in report.to_confirm] == ["grad-accumulates", *(f"unusual.{n}" for n in range(1, 6))]
    print_to_confirm(screen(), report)
    head, *lines = capsys.readouterr().out.splitlines()
    assert head == "To confirm: only you know whether these are meant. What is not may have spoilt the training."
    assert [line.partition(":")[0].strip() for line in lines if line.startswith("  ") and line[2] != " "][:5] == [
        "grad-accumulates",
        *(f"unusual.{n}" for n in range(1, 5)),
    ]
    assert lines[-3].startswith("  and 1 more")
    assert lines[-2] == f"  Meant? `trueline confirm {run} grad-accumulates`"


def test_every_mark_has_its_advice_and_is_explained():
    from trueline.judge.facts.unusual import all_marks, manuals_of_marks

    manuals = manuals_of_marks()
    for name, (_, mark) in all_marks().items():
        assert mark.advice.endswith("."), name
        assert mark.advice in manuals[f"unusual.{name}"]
        assert name in manuals["unusual"]


@pytest.mark.parametrize(("severity", "is_said"), [("error", True), ("confirm", True), ("info", False)])
def test_what_a_law_says_is_not_to_be_confirmed_twice(run, monkeypatch, severity, is_said):
    from trueline.judge.facts.unusual import unusual_findings
    from trueline.schema.finding import Finding

    rated(monkeypatch, {"rate-zero": ROW})
    says = {"a-law": Code(says=("rate-zero",))}
    monkeypatch.setattr("trueline.judge.facts.unusual.facts_of", lambda code: says.get(code, Code()))
    facts = trueline.facts(run)
    assert len(unusual_findings(facts, [Finding("of-something-else", severity, "Something else.")])) == 1
    assert len(unusual_findings(facts, [Finding("a-law", severity, "The rate is 0.")])) == (not is_said)


def test_every_mark_that_something_says_is_declared():
    from trueline.schema.law import codes

    marks = [mark for subject in training_facts.all_subjects() for mark in subject.marks]
    of_codes = {name.rpartition("/")[-1] for code in codes().values() for name in code.says}
    said = of_codes | {by for mark in marks for by in mark.said_by}
    assert said <= {mark.name for mark in marks}


def marked(monkeypatch, text, names, **settings):
    """Facts of a training of which one sentence has unusual marks of these names and shares."""
    rated(monkeypatch, {name: BaseRate(100, showing, 0.1) for name, showing in names.items()})
    marks = tuple(fact.Mark(name, bool, **settings) for name in names)
    subject = training_facts.Subject("rate", "update", "the rate", lambda run: (text, 1), marks)
    monkeypatch.setattr("trueline.judge.facts.unusual.all_subjects", lambda: (subject,))
    return training_facts.TrainingFacts("run", (fact.Fact("rate", "update", text, 1, dict.fromkeys(names, text)),), {})


def test_of_marks_with_one_sentence_the_rarest_is_said(monkeypatch):
    from trueline.judge.facts.unusual import unusual_findings
    from trueline.schema.finding import Finding

    facts = marked(monkeypatch, "rate 1e-07 at 0 → 1e-06 at 11", {"rate-tiny": 3, "rate-still-rises": 2})
    assert [finding.id for finding in unusual_findings(facts)] == ["unusual.rate-still-rises"]
    assert facts.facts[0].line == "rate 1e-07 at 0 → 1e-06 at 11; of 100 healthy trainings 2 show this"
    # who says the sentence of one mark has said that of both
    assert not unusual_findings(facts, [Finding("rate-not-in-force", "warning", "No update has the rate.")])


def test_what_another_mark_says_is_not_to_be_confirmed_twice(monkeypatch):
    from trueline.judge.facts.unusual import unusual_findings

    facts = marked(monkeypatch, "states are bfloat16", {"states-in-16-bits": 2}, said_by=("weights-in-16-bits",))
    weights = fact.Fact("dtypes", "precision", "weights are bfloat16", 1, {"weights-in-16-bits": "they are bfloat16"})
    both = replace(facts, facts=(weights, *facts.facts))
    assert [finding.id for finding in unusual_findings(both)] == ["unusual.states-in-16-bits"]
    rated(monkeypatch, dict.fromkeys(("states-in-16-bits", "weights-in-16-bits"), ROW))
    assert [finding.id for finding in unusual_findings(both)] == ["unusual.weights-in-16-bits"]


def test_every_row_of_the_table_is_of_a_mark():
    from trueline.judge.facts.training_facts import all_subjects

    marks = {mark.name for subject in all_subjects() for mark in subject.marks}
    assert set(base_rates.base_rates()) <= marks


def test_every_fact_that_a_cause_states_is_a_mark():
    from trueline.judge.causes.library import known_causes
    from trueline.judge.facts.training_facts import all_subjects

    marks = {f"fact:{mark.name}" for subject in all_subjects() for mark in subject.marks}
    assert {sign for cause in known_causes() for sign in cause.shows if sign.startswith("fact:")} <= marks


def test_a_training_that_has_just_begun_is_asked_nothing(tmp_path, monkeypatch):
    rated(monkeypatch, {"loss-flat": ROW})
    marks = (fact.Mark("loss-flat", lambda value: True),)
    subjects = tuple(
        replace(each, marks=marks if each.name == "loss" else ()) for each in training_facts.all_subjects()
    )
    monkeypatch.setattr(training_facts, "all_subjects", lambda: subjects)
    begun = write_run(tmp_path / "begun", num_ranks=2, num_steps=7)
    going = write_run(tmp_path / "going", num_ranks=2, num_steps=8)
    assert not trueline.check(begun).to_confirm
    assert [finding.id for finding in trueline.check(going).to_confirm] == ["unusual.loss-flat"]


def test_facts_of_a_law_that_cannot_be_loaded_leave_the_others(monkeypatch, caplog):
    broken = Law(package="trueline.laws.clipping", answers={"facts": "gone.SUBJECTS"})
    monkeypatch.setattr(training_facts, "installed_laws", lambda: (broken,))
    assert training_facts.all_subjects.__wrapped__() == training_facts.SUBJECTS
    assert "cannot be loaded from 'trueline.laws.clipping.gone': ModuleNotFoundError" in caplog.text


@pytest.mark.parametrize("text", ['{"confirmed": null}', '{"confirmed": 3}', '{"confirmed": [["a"], 1]}', "{", "[]"])
def test_a_plan_file_that_cannot_be_read_confirms_nothing_and_the_run_is_judged(run, tmp_path, monkeypatch, text):
    rated(monkeypatch, {"rate-zero": ROW})
    copy = shutil.copytree(run, tmp_path / "run")
    (copy / "plan.json").write_text(text)
    assert [finding.id for finding in trueline.check(copy).to_confirm] == ["unusual.rate-zero"]


def test_a_plan_of_another_version_does_not_stand_in_the_way_of_judging(run, monkeypatch):
    opened = trueline.open_run(run)
    monkeypatch.setattr(opened.manifest, "plan", {"preset": "of tomorrow", "confirmed": ["unusual.rate-zero"]})
    monkeypatch.setattr(opened.manifest, "plans", [])
    assert confirmed_ids(opened) == {"unusual.rate-zero"}


@pytest.mark.parametrize(("kind", "said"), [("mode", True), ("rate", False), (["rate", "mode"], True)])
def test_a_finding_says_a_mark_where_it_is_of_that_kind(kind, said):
    finding = Finding("rank-config-differs", "error", "Rank 1 evaluates.", (1,), evidence={"kind": kind})
    assert (list(_said_by(finding)) == ["modules-in-evaluation-mode"]) == said
