"""`--help` names values in capitals and no type of Python, has verbs in groups, and RUN has a default."""

import re
import shutil

import pytest
import typer
from tests.cli import in_process
from tests.synthetic_runs import write_run

from trueline.cli import main as command_line


def _paths(command, path=()):
    yield path
    for name, inner in getattr(command, "commands", {}).items():
        yield from _paths(inner, (*path, name))


PATHS = [*_paths(typer.main.get_command(command_line.app))]


@pytest.fixture
def trueline(monkeypatch, capsys):
    return lambda *words: in_process.trueline(monkeypatch, capsys, *words)


@pytest.mark.parametrize("path", PATHS, ids=" ".join)
def test_no_help_shows_a_type_of_python_or_a_name_in_small_letters(trueline, path):
    _, said, _ = trueline(*path, "--help")
    assert not re.findall(r"<(?:bool|str|int|float|list\[\w+\]|path)[^>]*>", said)
    usage = said.partition("Usage:")[2].partition("\n \n")[0].splitlines()[0]
    named = re.findall(r"[\[{]([a-z]\w*)[\]}]", usage)
    assert not named, usage


def test_verbs_are_in_groups_each_once(trueline):
    _, said, _ = trueline("--help")
    groups = re.findall(r"─ ([A-Z][\w' ]+) ─", said)
    assert {"Watch a job", "Read a Run", "Compare jobs", "Prove a cause", "For developers"} <= set(groups)
    assert "Commands" not in groups


def test_the_latest_run_is_read_where_none_is_named(trueline, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, errors = trueline("check")
    assert (code, "runs/latest" in errors) == (2, True)
    write_run(tmp_path / "runs" / "latest", num_steps=12)
    for words in (["check"], ["diagnose"], ["info"]):
        code, said, errors = trueline(*words)
        assert (code, errors) == (0, ""), words
        assert "12" in said
    assert trueline("report", "-o", "page.html")[0] == 0
    shutil.rmtree(tmp_path / "runs")
