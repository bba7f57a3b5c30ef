"""Documents can be acted on: what it comes to, a command to run next, names that stay, and pages that are small."""

from __future__ import annotations

import json
import sys

import pytest
from tests.cli import in_process
from tests.synthetic_runs import write_run

from trueline.guide import AGENTS, text_of
from trueline.judge.catalogue import EXIT_CODES, STATUSES
from trueline.judge.json_schemas import NAMES, json_schema
from trueline.schema.finding import Finding
from trueline.trials.frame.trial import Arm, TrialAnswer


@pytest.fixture
def trueline(monkeypatch, capsys):
    return lambda *words: in_process.trueline(monkeypatch, capsys, *words)


def spoiled(step, rank, row):
    row["sample_digests"] = [step + 1]
    row["loss"] = float("nan") if (step, rank) == (5, 1) else row["loss"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    write_run(folder / "healthy", num_ranks=2, num_steps=12)
    write_run(folder / "faulty", num_ranks=2, num_steps=12, change=spoiled)
    write_run(folder / "short", num_ranks=1, num_steps=2)
    return folder


@pytest.mark.parametrize("verb", ["check", "diagnose"])
def test_a_fault_has_a_cause_a_place_and_a_command(trueline, runs, verb):
    code, printed, _ = trueline(verb, runs / "faulty", "--json")
    document = json.loads(printed)
    assert (code, document["exit_code"], document["status"]) == (1, 1, "fault")
    assert document["cause"] == "stream-not-split"
    command = next(action for action in document["actions"] if action["argv"])
    assert (command["argv"][0], command["runs_job"]) == ("trueline", False)
    names = [finding["id"] for finding in document["findings"]]
    assert [name for incident in document["incidents"] for name in incident["ids"]] == names[:2]
    assert document["findings"][1]["where"]["rank"] == 1


def test_a_command_of_an_action_runs_as_it_is(trueline, runs):
    for verb in ("check", "diagnose", "facts"):
        actions = json.loads(trueline(verb, runs / "faulty", "--json")[1])["actions"]
        for action in actions:
            if action["argv"] and not action["runs_job"]:
                code, printed, errors = trueline(*action["argv"][1:])
                assert (code in (0, 1), bool(printed), errors) == (True, True, "")


def test_what_silences_a_finding_is_no_command_for_a_program(trueline, tmp_path):
    question = Finding(code="update-lost", severity="confirm", claim="Weights stay.", next=("Look at the weights.",))
    write_run(tmp_path / "run", num_ranks=2, num_steps=12, findings=(question,))
    document = json.loads(trueline("check", tmp_path / "run", "--json")[1])
    assert document["status"] == "confirm"
    meant = [action for action in document["actions"] if "trueline confirm" in action["say"]]
    assert [action["argv"] for action in meant] == [None]
    assert document["actions"][0]["say"] == "Look at the weights."


@pytest.mark.parametrize(
    ("plan", "options"),
    [({}, []), ({"preset": "laws"}, ["--plan", "laws"]), ({"preset": "mix", "steps": [3, 4]}, None)],
)
def test_the_last_action_runs_the_job_again_as_it_was_watched(trueline, tmp_path, plan, options):
    run = write_run(tmp_path / "run", num_ranks=2, num_steps=12, change=spoiled)
    manifest = json.loads((run / "manifest.json").read_text())
    manifest |= {"argv": ["python", "train.py"], "plan": plan}
    del manifest["crc32"]
    (run / "manifest.json").write_text(json.dumps(manifest))
    options = ["--plan", "mix", "--set", "steps=3:4"] if options is None else options
    for verb in ("check", "diagnose"):
        action = json.loads(trueline(verb, run, "--json")[1])["actions"][-1]
        out = action["argv"].index("--out")
        assert action["argv"][:out] == ["trueline", "run", *options]
        assert action["argv"][out + 2 :] == ["--", "python", "train.py"]
        assert (action["runs_job"], action["cost"]) == (True, "the job once")


def test_what_was_not_judged_never_reads_as_fine(trueline, runs):
    healthy = json.loads(trueline("check", runs / "healthy", "--json")[1])
    assert healthy["status"] == "fine"
    assert set(healthy["not_judged"]) == {
        question["question"] for question in healthy["judged"]["questions"] if question["state"] in ("open", "partly")
    }
    assert "replicas" in healthy["not_judged"]
    code, printed, _ = trueline("check", runs / "short", "--json")
    assert (code, json.loads(printed)["status"]) == (3, "cannot-tell")
    facts = json.loads(trueline("facts", runs / "faulty", "--json")[1])
    assert (facts["status"], facts["actions"][0]["argv"][:2]) == ("not-judged", ["trueline", "check"])


def test_pages_are_as_small_as_asked_for_and_begin_with_what_is_worst(trueline, runs):
    words = ("check", runs / "faulty", "--json", "--max-bytes", "4000")
    code, printed, _ = trueline(*words)
    page = json.loads(printed)
    assert (code, page["status"], page["page"]) == (1, "fault", 1)
    assert len(printed.encode()) <= 4000
    assert [finding["code"] for finding in page["findings"]] == ["duplicate-data", "worker-nonfinite"]
    assert page["left_out"]["checks_not_run"] > 50
    second = json.loads(trueline(*words, "--page", str(page["next_page"]))[1])
    assert (second["page"], second["verdict"], second["findings"]) == (2, page["verdict"], [])


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["check", "RUN", "--max-bytes", "4000"], "--max-bytes bounds the document of --json. Pass --json too."),
        (["facts", "RUN", "--json", "--page", "2"], "--page 2 takes --max-bytes: how large are pages?"),
        (["diff", "RUN", "RUN", "--json", "--max-bytes", "10"], "A page of 10 bytes is too small. Take 2000 or more."),
        (["check", "RUN", "--json", "--max-bytes", "9000", "--page", "99"], "There is no page 99: the answer has "),
    ],
)
def test_pages_that_cannot_be_are_one_sentence(trueline, runs, words, sentence):
    run = str(runs / "healthy")
    code, printed, errors = trueline(*(run if word == "RUN" else word for word in words))
    assert (code, printed) == (2, "")
    assert f"trueline: {sentence}" in errors
    assert errors.count("\n") == 1


def test_jobs_that_differ_say_what_to_set(trueline, tmp_path):
    for name, rate in (("a", "1e-4"), ("b", "2e-4")):
        (tmp_path / f"{name}.yaml").write_text(f"learning_rate: {rate}\n")
    document = json.loads(trueline("diff", tmp_path / "a.yaml", tmp_path / "b.yaml", "--json")[1])
    assert (document["status"], document["exit_code"], document["cause"]) == ("different", 1, "config-differs")
    assert document["differences"][0]["id"] == "config-differs.learning-rate"
    assert document["actions"][0]["say"] == (
        "peak learning rate (a.yaml: learning_rate): set it to 0.0002, as in the reference, and run the job again."
    )
    same = json.loads(trueline("diff", tmp_path / "a.yaml", tmp_path / "a.yaml", "--json")[1])
    assert (same["status"], same["exit_code"], same["actions"]) == ("same", 0, [])


def test_a_trial_that_is_not_run_is_a_document_with_the_command_that_runs_it(trueline, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ("trial", "repeat", "--timeout", "60", "--dry-run", "--json", "--", sys.executable, "job.py", "--dry-run")
    code, printed, _ = trueline(*words)
    document = json.loads(printed)
    assert (code, document["status"]) == (0, "not-judged")
    assert document["verdict"].startswith("Nothing was run. Runs: ")
    (action,) = document["actions"]
    assert action["argv"] == ["trueline", *words[:4], "--json", *words[6:]]
    assert (action["runs_job"], [*tmp_path.iterdir()]) == (True, [])


def test_the_answer_of_a_trial_has_the_keys_of_all_documents():
    answer = TrialAnswer("vote", "?", "undecided", ("Too few.",), (Arm("base", 3, 0),))
    document = answer.to_json()
    assert (document["status"], document["exit_code"], document["cause"]) == ("undecided", 3, None)
    assert document["verdict"].startswith("Undecided: ")


def test_the_page_for_agents_is_printed_and_names_every_status(trueline):
    code, printed, _ = trueline("explain", AGENTS)
    assert (code, printed.strip()) == (0, text_of(AGENTS))
    assert len(printed) < 6000
    assert all(f"`{status}`" in printed for status in STATUSES)
    assert json.loads(trueline("explain", AGENTS, "--json")[1])["checks"][0]["manual"] == text_of(AGENTS)


def test_the_catalogue_has_codes_causes_verbs_and_exit_codes(trueline):
    catalogue = json.loads(trueline("explain", "--json")[1])
    assert [*catalogue["exit_codes"]] == [str(code) for code in EXIT_CODES]
    assert {"labels-wrong-on-rank", "stream-not-split"} <= {cause["code"] for cause in catalogue["causes"]}
    verbs = {verb["verb"]: verb for verb in catalogue["verbs"]}
    assert {"check", "trial knobs", "env collect", "wait"} <= set(verbs)
    assert "Exit code" in verbs["check"]["help"]
    assert {"--until"} <= {name for option in verbs["wait"]["options"] for name in option["names"]}
    assert catalogue["schemas"] == [*NAMES]


def test_every_status_of_a_schema_is_explained():
    statuses = {
        word
        for name in NAMES
        for place in [json_schema(name).get("properties", {}).get("status", {})]
        for word in place.get("enum", [place.get("const")])
        if word
    }
    assert statuses == set(STATUSES)
