"""The `trueline` command: one verb a file, assembled here."""

from __future__ import annotations

import copy
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from trueline.cli import plugins
from trueline.cli.help_texts import GROUPS, Verbs, readable, unboxed
from trueline.cli.log import guarded
from trueline.cli.verbs import (
    calibrate,
    check,
    collect,
    compare,
    confirm,
    demo,
    diagnose,
    diff,
    env,
    explain,
    export,
    facts,
    gallery,
    import_,
    info,
    mcp,
    plan,
    report,
    run,
    schema,
    trial,
    verify,
    view,
    wait,
)
from trueline.render.wording import visible
from trueline.schema.errors import CannotTell, TruelineError

app = typer.Typer(
    name="trueline",
    cls=Verbs,
    help="When, where and why a distributed PyTorch training run stops being numerically right.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for panel, verbs in zip(
    GROUPS,
    (
        (demo, run, plan, collect),
        (check, wait, confirm, diagnose, facts, view, report, info, explain, verify, mcp),
        (compare, diff, calibrate, env),
        (trial,),
        (import_, export),
        (gallery, plugins, schema),
    ),
    strict=True,
):
    for verb in verbs:
        name = verb.__name__.rsplit(".", 1)[-1].rstrip("_")
        if hasattr(verb, "app"):
            app.add_typer(verb.app, name=name, rich_help_panel=panel)
        else:
            app.command(name, rich_help_panel=panel, **getattr(verb, "SETTINGS", {}))(verb.command)


def _version(is_asked: bool) -> None:
    if is_asked:
        from trueline import __version__

        print(f"trueline {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """When, where and why a distributed PyTorch training run stops being numerically right."""


_NO_TORCH = (
    "trueline: This needs torch, which Python at '{python}' does not have. Run it where the training runs, or install "
    "torch there: pip install torch. What only reads Runs (check, facts, diagnose, compare, view) works without."
)


def main() -> None:
    """Run the command line; a TruelineError becomes one sentence on standard error and exit code 2 (3: cannot tell)."""
    sys.stdout, sys.stderr = guarded(sys.stdout), guarded(sys.stderr)
    try:
        command = readable(typer.main.get_command(_of_verb(app, sys.argv[1:])))
        (command if sys.stdout.isatty() else unboxed(command))(prog_name="trueline")
    except CannotTell as error:
        print(visible(f"trueline: {error}"), file=sys.stderr)
        sys.exit(3)
    except TruelineError as error:
        print(visible(f"trueline: {error}"), file=sys.stderr)
        sys.exit(2)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "torch":
            raise
        # Trueline takes the torch that is there and brings none: see docs/decisions/0027-torch-is-the-users.md
        print(visible(_NO_TORCH.format(python=sys.executable)), file=sys.stderr)
        sys.exit(2)


def _of_verb(verbs: typer.Typer, words: Sequence[str]) -> typer.Typer:
    """The ``verbs`` without those that ``words`` do not name, or all of them where they begin with none: to prepare all
    takes longer than most verbs.
    """
    commands = [command for command in verbs.registered_commands if command.name in words[:1]]
    groups = [copy.copy(group) for group in verbs.registered_groups if group.name in words[:1]]
    if not commands and not groups:
        return verbs
    for group in groups:
        group.typer_instance = group.typer_instance and _of_verb(group.typer_instance, words[1:])
    of_verb = copy.copy(verbs)
    of_verb.registered_commands, of_verb.registered_groups = commands, groups
    return of_verb
