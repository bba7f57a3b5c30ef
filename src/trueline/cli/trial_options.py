"""The options that all verbs of `trueline trial` share which run a job again, added to those that a verb has itself."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

import typer

from trueline.cli.options import Json
from trueline.schema.trial_verbs import SHARED, VERBS

_RUN = Annotated[
    str, typer.Argument(help="A Run in which `trueline check` finds what the trial is about.", metavar="RUN")
]
_WORDS = Annotated[list[str] | None, typer.Argument(metavar="-- COMMAND...", help="The training command.")]


def verb(
    name: str, means: Mapping[Literal["confirmed", "excluded", "undecided"], str]
) -> Callable[[Callable[..., Mapping[str, Any]]], Callable[..., None]]:
    """Makes the command of the verb ``name`` of a function that takes its own options and returns them as
    ``trueline.trial`` takes them; ``means`` are its answers in words.
    """

    def make(own: Callable[..., Mapping[str, Any]]) -> Callable[..., None]:
        def command(*, dry_run: bool, json: bool, words: list[str] | None = None, run: str = "", **given: Any) -> None:
            from trueline.cli.trial_screen import run_and_print
            from trueline.trials.frame.asked import Asked
            from trueline.trials.start import prepared

            shared = {each: given.pop(each) for each in SHARED if each in given}
            asked = Asked(name, tuple(words or ()), run, **shared)
            run_and_print(asked, prepared(asked, **own(**given)), means=means, dry_run=dry_run, json=json)

        parts = {
            **({"run": (_RUN, inspect.Parameter.empty)} if VERBS[name].about_run else {}),
            "words": (_WORDS, None),
            **{each.name: (each.annotation, each.default) for each in _parameters(own)},
            **{each: kind for each, kind in _shared(name).items() if each not in VERBS[name].lacks},
        }
        command.__doc__ = own.__doc__
        command.__annotations__ = {each: kind for each, (kind, _) in parts.items()}
        command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [
                inspect.Parameter(each, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
                for each, (kind, default) in parts.items()
            ]
        )
        return command

    return make


def _parameters(own: Callable[..., Any]) -> list[inspect.Parameter]:
    return list(inspect.signature(own, eval_str=True).parameters.values())


def _shared(name: str) -> dict[str, tuple[Any, Any]]:
    """Of each shared option the type, with its help, and the default."""
    verb = VERBS[name]
    steps = "as many as RUN has" if verb.steps is None else str(verb.steps)

    def option(kind: Any, help: str, *names: str, **more: Any) -> Any:
        return Annotated[kind, typer.Option(*names, help=help, **more)]

    code = "The finding that the trial is about."
    error = "Probability of a wrong answer that is allowed, over all decisions."
    timeout = "Seconds after which a run of the command is stopped."
    out = "Folder of the trial; one that was begun with the same command goes on."
    engine = "Where runs take place: local, torchrun, ray or slurm, with options of these behind a colon."
    dry_run = "Print what would be run and what it costs, and run nothing."
    return {
        "code": (option(str | None, code, show_default="of the first incident", metavar="CODE"), None),
        "error": (option(float, error), 0.05),
        "runs": (option(int | None, "Runs after which it is undecided.", show_default=str(verb.most), min=1), None),
        "steps": (option(int | None, "Steps of each run.", show_default=steps, min=1, metavar="N"), None),
        "timeout": (option(float, timeout), 3600.0),
        "out": (option(str, out, show_default=f"trials/{name}"), ""),
        "seed": (option(int, "Random seed of the order of the runs, and of a job that sets none."), 0),
        "keep": (option(bool, "Keep what every run left, not one of runs alike.", "--keep"), False),
        "engine": (option(str, engine, metavar="ENGINE[:OPTIONS]"), "local"),
        "dry_run": (option(bool, dry_run, "--dry-run"), False),
        "json": (Json, False),
    }
