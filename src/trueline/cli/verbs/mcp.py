"""`trueline mcp`: Runs for coding agents, by the Model Context Protocol."""

from __future__ import annotations

from typing import Annotated

import typer


def command(
    runs_dirs: Annotated[
        list[str], typer.Argument(help="Directories with Runs: nothing else is read.", metavar="RUNS_DIR...")
    ],
    allow_trials: Annotated[
        int, typer.Option(help="Let the client start trials that make at most so many runs of the job.", min=0)
    ] = 0,
) -> None:
    """Serve the Runs below directories to a coding agent over standard input and output (MCP).

    Tools: runs, verdict, incident, facts, evidence, compare, first_difference, call, diff, explain, search_calls,
    trial_plan; with --allow-trials also trial_start and trial_answer. Without it, nothing is started or written.

    Example: claude mcp add trueline -- trueline mcp runs
    """
    from trueline import __version__
    from trueline.mcp.server import require_sdk, server_of

    require_sdk()
    server, trials = server_of(runs_dirs, allowed_trials=allow_trials, version=__version__)
    try:
        server.run("stdio")
    finally:
        trials.close()
