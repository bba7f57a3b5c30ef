"""`--help` names values in capitals and no type of Python, has verbs in groups, and RUN has a default."""

import functools
import inspect
import re
import shutil

import pytest
import typer
from tests.cli import in_process
from tests.synthetic_runs import write_run

from trueline.cli import main as command_line
from trueline.cli.help_texts import GROUPS


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
    groups = re.findall(r"(?m)^([A-Z][\w' ]+):$", said)
    assert groups == ["Options", *GROUPS]
    verbs = re.findall(r"(?m)^  ([a-z]+)  ", said)
    assert (len(verbs), len(set(verbs))) == (len(command_line.app.registered_commands) + 4, len(verbs))
    assert re.findall(r"(?s)Prove a cause:\n  (\w+)", said) == ["trial"]


@pytest.mark.parametrize("path", PATHS, ids=" ".join)
def test_help_that_a_program_reads_is_neither_boxed_nor_wrapped_nor_padded(trueline, path, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    _, said, _ = trueline(*path, "--help")
    assert not re.search("[│╭╮╰╯─]", said)
    assert [line for line in said.splitlines() if line != line.rstrip()] == []
    command = functools.reduce(lambda outer, name: outer.commands[name], path, typer.main.get_command(command_line.app))
    first = " ".join(inspect.cleandoc(command.help).partition("\n\n")[0].partition("\nExample")[0].split())
    assert first in said, "a paragraph is a line"


@pytest.mark.parametrize(
    "words", [["check", "--help"], ["trial", "op", "--help"], ["check", "--no-such"], ["trial", "x"]]
)
def test_a_verb_that_is_prepared_alone_is_as_it_is_among_all(trueline, monkeypatch, words):
    alone = trueline(*words)
    verb = typer.main.get_command(command_line._of_verb(command_line.app, words))
    assert list(verb.commands) == words[:1]
    monkeypatch.setattr(command_line, "_of_verb", lambda verbs, words: verbs)
    assert trueline(*words) == alone


def test_help_on_a_terminal_is_as_wide_as_it_is(trueline, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "72")
    _, said, _ = trueline("check", "--help")
    assert max(len(re.sub(r"\x1b\[[\d;]*m", "", line)) for line in said.splitlines()) <= 72
    assert "╭" in said


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
