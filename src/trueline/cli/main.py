"""The `trueline` command: one verb a file, assembled here."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from trueline.cli import plugins
from trueline.cli.help_texts import readable
from trueline.cli.log import guarded
from trueline.cli.verbs import (
    calibrate,
    check,
    collect,
    compare,
    demo,
    diagnose,
    diff,
    env,
    explain,
    export,
    gallery,
    import_,
    info,
    plan,
    report,
    run,
    schema,
    trial,
    verify,
    view,
)
from trueline.render.wording import visible
from trueline.schema.errors import CannotTell, TruelineError

app = typer.Typer(
    name="trueline",
    help="When, where and why a distributed PyTorch training run stops being numerically right.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
_WATCH, _READ, _COMPARE = "Watch a job", "Read a Run", "Compare jobs"
_PROVE, _FILES, _BUILD = "Prove a cause", "Other tools' files", "For developers"
for panel, verbs in {
    _WATCH: (demo, run, plan, collect),
    _READ: (check, diagnose, view, report, info, explain, verify),
    _COMPARE: (compare, diff, calibrate),
    _BUILD: (gallery, plugins, schema),
}.items():
    for verb in verbs:
        settings = getattr(verb, "SETTINGS", {})
        app.command(verb.__name__.rsplit(".", 1)[-1], rich_help_panel=panel, **settings)(verb.command)
app.add_typer(env.app, name="env", rich_help_panel=_COMPARE)
app.add_typer(trial.app, name="trial", rich_help_panel=_PROVE)
app.add_typer(import_.app, name="import", rich_help_panel=_FILES)
app.add_typer(export.app, name="export", rich_help_panel=_FILES)


def _version(asked: bool) -> None:
    if asked:
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


def main() -> None:
    """Run the command line; a TruelineError becomes one sentence on standard error and exit code 2 (3: cannot tell)."""
    sys.stdout, sys.stderr = guarded(sys.stdout), guarded(sys.stderr)
    try:
        readable(typer.main.get_command(app))(prog_name="trueline")
    except CannotTell as error:
        print(visible(f"trueline: {error}"), file=sys.stderr)
        sys.exit(3)
    except TruelineError as error:
        print(visible(f"trueline: {error}"), file=sys.stderr)
        sys.exit(2)
