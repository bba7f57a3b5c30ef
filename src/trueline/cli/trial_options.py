"""Commands of the verbs of `trueline trial` that run a job again, made of their declarations."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from trueline.cli.options import Json, MaxBytes, Page, bounds_of
from trueline.schema.trial_verbs import SHARED, Option, Verb

_RUN = Annotated[
    str, typer.Argument(help="A Run in which `trueline check` finds what the trial is about.", metavar="RUN")
]
_WORDS = Annotated[list[str] | None, typer.Argument(metavar="-- COMMAND...", help="The training command.")]
_DRY_RUN = Option("dry_run", bool, "Print what would be run and what it costs, and run nothing.", default=False)


def command_of(verb: Verb) -> Callable[..., None]:
    """The command of ``verb``, with its signature as typer reads it."""
    options = (*verb.options, *verb.shared, _DRY_RUN)

    def command(
        *,
        dry_run: bool,
        json: bool,
        max_bytes: int | None,
        page: int,
        words: list[str] | None = None,
        run: str = "",
        **values: Any,
    ) -> None:
        from trueline.cli.trial_screen import run_and_print
        from trueline.trials.frame.asked import Asked
        from trueline.trials.start import prepared

        bounds = bounds_of(max_bytes, page, json=json)
        shared = {name: values.pop(name) for name in SHARED if name in values}
        request = Asked(verb.name, tuple(words or ()), run, **shared)
        option_values = {option.name: values[option.name] for option in verb.options}
        # typer has None for a list that was not given, Python an empty one
        option_values |= {option.name: option_values[option.name] or () for option in verb.options if option.repeated}
        run_and_print(request, prepared(request, **option_values), dry_run=dry_run, json=json, bounds=bounds)

    parameters = [
        *([_parameter("run", _RUN, inspect.Parameter.empty)] if verb.about_run else []),
        _parameter("words", _WORDS, None),
        *(_parameter(option.name, _annotation(option), _default(option)) for option in options),
        _parameter("json", Json, False),
        _parameter("max_bytes", MaxBytes, None),
        _parameter("page", Page, 1),
    ]
    command.__doc__ = verb.help
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return command


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _default(option: Option) -> Any:
    return inspect.Parameter.empty if option.required else option.default


def _annotation(option: Option) -> Any:
    """Its type, with what typer is told of it."""
    # without a name of its own, typer gives a flag a second one, --no-…
    names = (f"--{option.name.replace('_', '-')}",) if option.kind is bool else ()
    show_default = True if option.default_text is None else option.default_text
    of_typer = typer.Option(
        *names, help=option.help, metavar=option.metavar, show_default=show_default, min=option.least
    )
    kind: Any = list[option.kind] if option.repeated else option.kind
    return Annotated[kind if option.required or option.default is not None else kind | None, of_typer]
