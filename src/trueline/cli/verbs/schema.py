"""`trueline schema`: the JSON Schema of a document."""

from __future__ import annotations

from typing import Annotated

import typer


def command(
    name: Annotated[
        str,
        typer.Argument(
            help="check, diagnose, compare, diff, facts, trial (what these verbs print with --json), wait, live (a "
            "line of the sink jsonl), plan (a plan file)."
        ),
    ],
) -> None:
    """Print the JSON Schema (2020-12) of a document that Trueline prints or reads.

    Example: trueline schema check > check.schema.json
    """
    from trueline.cli.json_document import print_document
    from trueline.judge.json_schemas import json_schema

    print_document(json_schema(name))
