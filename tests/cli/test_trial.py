"""`trueline trial noise`: exit codes, one JSON document, readable text."""

import json
import subprocess

import pytest
from tests.cli import in_process
from tests.unit.healthy_run import healthy_rows, write_run


@pytest.fixture
def noise(monkeypatch, capsys):
    """The command in this process."""

    def call(*words):
        return subprocess.CompletedProcess(
            words, *in_process.trueline(monkeypatch, capsys, "trial", "noise", "--elements", "2000", *words)
        )

    return call


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("--workers", 8, "--difference", 1e-7), 0, "is explained by reduction order"),
        (("--workers", 8, "--difference", 1e-5), 1, "is not explained by reduction order"),
        (("--workers", 2, "--difference", 1e-8), 1, "Two terms have only one order of summation."),
        (("--workers", 600, "--dtype", "bfloat16", "--cosine", 0.2, "--difference", 0.3), 3, "it cannot be decided"),
    ],
)
def test_the_exit_code_says_whether_order_explains_a_difference(noise, words, code, told):
    done = noise(*words)
    assert (done.returncode, done.stderr) == (code, "")
    assert told in done.stdout


def test_without_a_difference_it_prints_the_floor_of_each_order(noise):
    done = noise("--workers", 4, "--dtype", "float16")
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.splitlines()[2:]] == ["sequential", "ring", "tree"]


def test_json_is_one_document(noise):
    done = noise("--workers", 4, "--order", "ring", "--difference", "0.5", "--json")
    document = json.loads(done.stdout)
    assert done.returncode == 1
    assert (document["schema"], document["workers"], document["dtype"]) == (1, 4, "float32")
    assert [one["order"] for one in document["orders"]] == ["ring"]
    assert document["answer"]["explained"] is False


def test_a_run_gives_the_workers_and_their_cosine(noise, tmp_path):
    rows = healthy_rows(3, 2)
    for row in rows.values():
        row["cosine_mean"] = 0.25
    write_run(tmp_path / "run", rows)
    document = json.loads(noise("--run", tmp_path / "run", "--json").stdout)
    assert (document["workers"], document["cosine"]) == (3, 0.25)


@pytest.mark.parametrize(
    "words",
    [("--workers", 1), ("--dtype", "int8"), ("--order", "star"), ("--difference", "nan"), ("--run", "nowhere")],
)
def test_bad_options_are_exit_code_2_in_one_sentence(noise, words):
    done = noise(*words)
    assert done.returncode == 2
    assert done.stderr.startswith("trueline: ")
    assert done.stderr.count("\n") == 1


def test_a_run_that_did_not_measure_cosines_is_exit_code_3(noise, tmp_path):
    write_run(tmp_path / "run", healthy_rows(2, 2))
    done = noise("--run", tmp_path / "run")
    assert (done.returncode, "pass --cosine" in done.stderr) == (3, True)


def test_help_says_what_is_taken_where_an_option_is_not_given(noise, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    said = noise("--help").stdout
    for default in ("(8)", "(65,536; fewer for over 256 workers)", "(float32)", "(0)", "same", "all"):
        assert f"[default: {default}]" in said
