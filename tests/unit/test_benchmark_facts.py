"""The trainings of benchmarks/facts and the table that is made of them."""

import re
import runpy
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import benchmarks.facts
import pytest
from benchmarks.facts import catalogue, running, table
from benchmarks.facts.training import Training, one_of_each

from trueline.judge.facts.base_rates import BaseRate
from trueline.judge.facts.fact import Mark, Subject

STAND_INS = Path(benchmarks.facts.__file__).with_name("stand_in")
PLAIN = Training(
    "plain",
    "gallery",
    "gallery",
    ranks=2,
    steps=12,
    adapter="ddp",
    facts={"rate-zero": {"updates": 0}, "optimizer": {"class": "AdamW", "groups": [{"lr": 0.1, "eps": 1e-8}]}},
    nothing=("scaler",),
    unknown={"tokens": "no tokens"},
)


def test_what_the_catalogue_names_is_there_and_says_what_is_changed():
    examples = catalogue.read()
    assert all(re.fullmatch(r"[0-9a-f]{40}", example.commit) for example in examples)
    assert {kind for example in examples for kind in example.files.values()} <= set(running.KINDS)
    assert all((STAND_INS / f"{name}.py").exists() for example in examples for name in example.stand_ins)
    assert [
        each.name for each in examples if (each.files or each.replaced or each.stand_ins) and not each.changes
    ] == []


def test_two_trainings_of_one_name_are_refused(tmp_path):
    entry = '[[example]]\nname = "a"\nrepository = "o/r"\npath = "a.py"\n'
    (tmp_path / "examples.toml").write_text(f'[commits]\n"o/r" = "{"0" * 40}"\n{entry}{entry}')
    with pytest.raises(ValueError, match="two trainings called a"):
        catalogue.read(tmp_path / "examples.toml")


@pytest.fixture(name="clone")
def fixture_clone(tmp_path):
    """A clone of o/r, whose newest commit has another script than the one before; (sources, commit before)."""
    folder = tmp_path / "sources" / "o+r"
    (folder / "jobs").mkdir(parents=True)
    (folder / "elsewhere.py").write_text("")

    def git(*words):
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        done = subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    git("init", "-q")
    for text in ("epochs = 90\n", "epochs = 9\n"):
        (folder / "jobs" / "train.py").write_text(text)
        git("add", ".")
        git("commit", "-q", "-m", "a")
    return tmp_path / "sources", git("rev-parse", "HEAD~1")


def test_the_script_of_the_commit_is_laid_out_and_changed(clone, tmp_path):
    sources, commit = clone
    example = catalogue.Example("a", "o/r", commit, "jobs/train.py", replaced=[("90", "2")])
    running.lay_out(example, sources=sources, place=tmp_path / "place")
    assert (tmp_path / "place" / "jobs" / "train.py").read_text() == "epochs = 2\n"
    assert not (tmp_path / "place" / "elsewhere.py").exists()


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"replaced": [("91", "2")]}, "train.py does not have '91'"),
        ({"commit": "0" * 40}, "o/r: "),
        ({"repository": "o/other"}, r"git clone --bare https://github.com/o/other .*o\+other"),
    ],
)
def test_what_cannot_be_laid_out_says_why(clone, tmp_path, changed, why):
    sources, commit = clone
    example = replace(catalogue.Example("a", "o/r", commit, "jobs/train.py"), **changed)
    with pytest.raises(running.NotRun, match=why):
        running.lay_out(example, sources=sources, place=tmp_path / "place")


def test_made_up_files_are_made_once(monkeypatch, tmp_path):
    made = []

    def make(folder):
        folder.mkdir()
        (folder / "a.txt").write_text("a")
        made.append(folder)

    monkeypatch.setitem(running.KINDS, "plain text", make)
    for at in range(2):
        running.copy_made("plain text", tmp_path / str(at) / "words", pool=tmp_path / "pool")
    assert len(made) == 1
    assert [(tmp_path / str(at) / "words" / "a.txt").read_text() for at in range(2)] == ["a", "a"]


def test_a_stand_in_is_put_in_place_after_the_import_that_it_is_about(monkeypatch, tmp_path):
    monkeypatch.delenv("STAND_INS", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "asked_for_a_gpu.py").write_text("count = 8\n")
    after = runpy.run_path(str(STAND_INS / "sitecustomize.py"))["_After"]
    finder = after({"asked_for_a_gpu": [lambda module: setattr(module, "count", 0)]})
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    import asked_for_a_gpu

    assert asked_for_a_gpu.count == 0
    del sys.modules["asked_for_a_gpu"]


def test_trainings_of_one_shape_are_one_whatever_their_rate():
    faster = replace(
        PLAIN, name="b", facts=PLAIN.facts | {"optimizer": {"class": "AdamW", "groups": [{"lr": 9.0, "eps": 1e-8}]}}
    )
    other = replace(PLAIN, name="c", facts=PLAIN.facts | {"optimizer": {"class": "SGD", "groups": [{"lr": 0.1}]}})
    elsewhere = replace(PLAIN, name="d", origin="accelerate")
    assert [training.name for training in one_of_each([PLAIN, faster, other, elsewhere])] == ["plain", "c", "d"]


def test_an_example_that_is_not_healthy_is_not_counted():
    example = catalogue.Example("plain", "o/r", "0" * 40, "a.py", not_healthy="it learns nothing")
    public = replace(PLAIN, kind="examples")
    assert table.counted([PLAIN, public], [example]) == [PLAIN]
    assert table.counted([PLAIN, public], [replace(example, not_healthy="")]) == [PLAIN, public]
    assert table.counted([replace(PLAIN, steps=7)], []) == []


def test_the_page_says_what_is_wrong_with_an_example_and_what_check_says_of_it():
    example = catalogue.Example("plain", "o/r", "0" * 40, "a.py", not_healthy="it learns nothing")
    finding = {"code": "param-frozen", "severity": "warning", "ranks": [0], "claim": "Nothing | moves."}
    public = replace(PLAIN, kind="examples", findings=(finding,))
    origin = dict.fromkeys(("command", "machine", "commit", "date"), "x")
    text = table.page([public], dict.fromkeys(table.KINDS, 1), [example], origin)
    assert "Nothing in 0 of 1, but" in text
    assert "- plain: it learns nothing.\n" in text
    assert "| plain | no | `param-frozen` | warning | Nothing \\| moves. |" in text
    assert "| plain | [o/r: a.py](https://github.com/o/r/blob/" in text


def test_a_training_is_kept_as_it_was(tmp_path):
    table.write_results([PLAIN], dict.fromkeys(table.KINDS, 4), tmp_path)
    assert table.read_results(tmp_path) == ([PLAIN], {"gallery": 4, "frameworks": 4, "examples": 4})


def _asked(name, *marks):
    return Subject(name, "update", name, lambda run: None, marks)


def test_a_mark_is_counted_among_those_that_tell_the_fact():
    shows = replace(PLAIN, name="shows", facts={"rate-zero": {"updates": 3}})
    silent = replace(PLAIN, name="silent", facts={}, unknown={"rate-zero": "no rate"})
    has_none = replace(PLAIN, name="none", facts={}, nothing=("rate-zero",))
    later = _asked("later", Mark("later", bool))  # a fact that was not asked when the Runs were read
    older = replace(PLAIN, name="older", facts={"rate-zero": {}})
    rate_zero = _asked("rate-zero", Mark("zeros", lambda value: value["updates"] > 1))
    rates = table.base_rates([PLAIN, shows, silent, has_none, older], [rate_zero, later])
    assert [(rate.mark, rate.trainings, rate.showing) for rate in rates] == [("zeros", 3, 1), ("later", 0, 0)]


def test_the_table_is_what_trueline_reads():
    rates = [table.BaseRate("some", 140, (PLAIN,) * 3), table.BaseRate("few", table.LEAST - 1, ())]
    rows = tomllib.loads(table.as_toml(rates))
    assert list(rows) == ["some"]
    assert BaseRate(**rows["some"]) == BaseRate(140, 3, pytest.approx(0.0544, abs=1e-4))  # scipy.stats.beta


@pytest.mark.parametrize(
    ("showing", "trainings", "low", "high"),
    [(3, 140, 0.004441, 0.061345), (0, 20, 0.0, 0.168433), (7, 7, 0.590384, 1.0)],  # scipy.stats.beta.ppf
)
def test_intervals_are_those_of_the_beta_distribution(showing, trainings, low, high):
    assert table.interval(showing, trainings) == pytest.approx((low, high), abs=1e-5)


def test_the_shipped_table_is_that_of_the_kept_results():
    shipped = tomllib.loads(table.SHIPPED.read_text())
    rates = table.base_rates(table.counted(table.read_results()[0], catalogue.read()))
    made = tomllib.loads(table.as_toml(rate for rate in rates if rate.mark in shipped))
    assert shipped == made, "run python -m benchmarks.facts --table"
