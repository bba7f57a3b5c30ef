"""`trueline env`: what a machine and a job are, in one file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from pathlib import Path

app = typer.Typer(
    help="What this machine and a job are, in one file that `trueline diff` compares.", no_args_is_help=True
)


@app.callback()
def env() -> None:
    """What this machine and a job are, in one file that `trueline diff` compares."""


@app.command()
def collect(
    out: Annotated[str, typer.Argument(help="The JSON file to write.", metavar="OUT")],
    command: Annotated[
        list[str] | None, typer.Argument(help="The command of the job, after --; it is not run.", metavar="COMMAND")
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option("--config", help="A configuration of the job; may be given again.", metavar="FILE"),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file that is there already.")] = False,
) -> None:
    """Write what this machine and a job are: variables, packages, sources, devices, switches of torch, configurations.

    Nothing that looks secret is written. Exit code 0: written; 2: it cannot be.
    """
    from trueline.capture.job.job_facts import env_here
    from trueline.render.output import writable_target
    from trueline.schema.text.documents import encode
    from trueline.schema.text.words import counted

    target = writable_target(out, overwrite=overwrite, kind="file", example="env.json")
    env = env_here(command or [], _readable(config or []))
    _save(target, encode(env.model_dump(mode="json")))
    facts = env.facts
    assert facts is not None
    print(
        f"{target}: {counted(len(env.environ), 'variable')}, {counted(len(facts.packages), 'package')}, "
        f"{counted(len(facts.files), 'configuration')}. "
        f"Next: trueline diff {target} OTHER"
    )
    for line in facts.left_out:
        print(f"left out: {line}")


def _readable(configs: list[str]) -> list[Path]:
    """The configurations as paths. Raises ``InputError`` for one that is not there, or cannot be read."""
    from pathlib import Path

    from trueline.schema.errors import InputError
    from trueline.store.job_files.config_files import read_config

    paths = [Path(config) for config in configs]
    for path in paths:
        if not path.is_file():
            raise InputError(f"There is no configuration '{path}'. Pass a file with --config.")
        read_config(path)
    return paths


def _save(target: Path, data: bytes) -> None:
    from trueline.render.output import replacing

    with replacing(target, kind="file") as temporary:
        temporary.write_bytes(data)
