"""One vocabulary of verbs: the command line, Python and what is prepared take the same."""

import importlib
import inspect
import sys

import pytest
import typer

import trueline
from trueline.cli.verbs.trial import app
from trueline.schema.errors import InputError
from trueline.schema.trial_verbs import SHARED, VERBS
from trueline.trials.frame.asked import Asked

COMMAND = [sys.executable, "-c", ""]
BY_THEMSELVES = {"noise", "op", "precheck"}
"""They run no job."""


def test_every_verb_of_the_command_line_can_be_asked_for_in_python():
    group = typer.main.get_command(app)
    assert set(group.commands) - BY_THEMSELVES == set(VERBS)
    usual = Asked("knobs")
    for verb, command in group.commands.items():
        if verb in VERBS:
            options = {each.name for each in command.params}
            assert options & {*SHARED} == {*SHARED} - VERBS[verb].lacks
            assert all(hasattr(usual, name) for name in SHARED)
            assert ("run" in options) == VERBS[verb].about_run


@pytest.mark.parametrize("verb", VERBS.values(), ids=list(VERBS))
def test_a_verb_takes_in_python_the_options_that_it_declares(verb):
    prepare = importlib.import_module(f"trueline.trials.{verb.module}").prepare
    asked, *options = inspect.signature(prepare).parameters.values()
    assert asked.name == "asked"
    assert [option.name for option in options] == [option.name for option in verb.options]
    for option, declared in zip(options, verb.options, strict=True):
        assert (option.default is inspect.Parameter.empty) == declared.required
        assert declared.required or (option.default or None) == (declared.default or None)


@pytest.mark.parametrize(
    ("verb", "run", "more", "told"),
    [
        ("repeat", None, {"error": 0.01}, "Trial repeat takes no error"),
        ("vote", "runs/bad", {"devices": "0-2"}, "Trial vote is about a command alone: name no Run"),
        ("knobs", None, {}, "Trial knobs is about a Run: name one"),
        ("vote", None, {}, "missing a required .*'devices'"),
        ("sync", "runs/bad", {"knob": ["A=0"]}, "unexpected keyword argument 'knob'"),
        ("noise", None, {}, "There is no trial 'noise' of a job; there are knobs"),
        ("repeat", None, {"seed": -1}, "--seed is -1"),
        ("vote", None, {"devices": "0-2", "rate": 2.0}, "--rate is 2"),
        ("batch", None, {"law": "gravity"}, "--law is 'gravity'"),
    ],
)
def test_what_a_verb_does_not_take_is_refused_before_anything_runs(verb, run, more, told):
    with pytest.raises(InputError, match=told):
        trueline.trial(verb, run, COMMAND, **more)
