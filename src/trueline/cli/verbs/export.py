"""`trueline export`: what a Run holds, in files that need no server, or that other tools open."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trueline.cli.verbs import report

app = typer.Typer(
    no_args_is_help=True, help="Write what a Run holds for a browser, TensorBoard, Model Explorer or Perfetto."
)

Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what is there already.")]


@app.command("page")
def page(
    runs: Annotated[list[str], typer.Argument(help="Directories of Runs.", metavar="RUN…")],
    out: Annotated[str, typer.Option("-o", "--out", help="The HTML file to write.", metavar="FILE.html")],
    overwrite: Overwrite = False,
) -> None:
    """Write the same file as `trueline report`, and say how large it is instead of what was found."""
    target, _, megabytes, shared = report.written(runs, out, "page", overwrite=overwrite)
    print(f"Page: {target} ({megabytes:.2g} MB).{shared and f' {shared}'}")


@app.command("tensorboard")
def tensorboard(
    run: Annotated[str, typer.Argument(help="The Run's directory.", metavar="RUN")],
    folder: Annotated[str, typer.Argument(help="A directory that is not there yet.", metavar="DIR")],
) -> None:
    """Write every number that ranks measured as event files, a folder each rank."""
    from trueline.cli.waiting import waiting
    from trueline.render.export.tensorboard import write_tensorboard
    from trueline.schema.errors import InputError, RunExistsError
    from trueline.schema.text.words import counted
    from trueline.store.reader import Run

    target = Path(folder)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise RunExistsError(f"'{folder}' exists already and is not empty. Pass another directory.")
    opened = Run(run)
    try:
        with waiting("Writing event files"):
            num_ranks, num_points = write_tensorboard(opened, target)
    except OSError as error:
        raise InputError(f"'{folder}' cannot be written: {error.strerror or error}. Pass another directory.") from None
    amount = f"{counted(num_points, 'point')} of {counted(num_ranks, 'rank')}"
    print(f"{amount} in {folder}. Look: tensorboard --logdir {folder}")


@app.command("model-explorer")
def model_explorer(
    run: Annotated[str, typer.Argument(help="The Run's directory.", metavar="RUN")],
    out: Annotated[str, typer.Argument(help="The JSON file to write.", metavar="FILE.json")],
    step: Annotated[int | None, typer.Option(help="The recorded step; the first, if not given.", min=0)] = None,
    rank: Annotated[int | None, typer.Option(help="The rank; the first that recorded, if not given.", min=0)] = None,
    overwrite: Overwrite = False,
) -> None:
    """Write the calls of a recorded step, and the tensors between them, as a graph that Model Explorer opens."""
    import json

    from trueline.render.export.model_explorer import graph_of
    from trueline.render.output import save, writable_target
    from trueline.schema.errors import InputError
    from trueline.schema.text.words import counted
    from trueline.store.reader import Run

    target = writable_target(out, overwrite=overwrite, kind="graph", example="graph.json")
    opened = Run(run)
    if not opened.has_records:
        raise InputError(f"Run '{run}' has no recorded step. `trueline run --plan mix` records some.")
    step_chosen = int(opened.record_steps[0]) if step is None else step
    document = graph_of(opened, step_chosen, opened.record_ranks[0] if rank is None else rank)
    save(target, json.dumps(document, ensure_ascii=False), kind="graph")
    nodes = document["graphs"][0]["nodes"]
    print(f"Graph: {target}, {counted(len(nodes), 'call')} of {document['label']}. Look: model-explorer {target}")


@app.command("perfetto")
def perfetto(
    run: Annotated[str, typer.Argument(help="The Run's directory.", metavar="RUN")],
    file: Annotated[str, typer.Option("-o", "--out", help="The trace to write.", metavar="FILE.pftrace")],
    step: Annotated[int | None, typer.Option(help="The recorded step; the first, if not given.", min=0)] = None,
    overwrite: Overwrite = False,
) -> None:
    """Write a trace for ui.perfetto.dev: ranks, their steps, the calls of a recorded step, collectives, incidents."""
    from trueline.cli.waiting import waiting
    from trueline.judge.check_run import check
    from trueline.render.export.perfetto import Mark, write_perfetto
    from trueline.render.output import replacing, writable_target
    from trueline.schema.errors import InputError
    from trueline.store.reader import Run

    target = writable_target(file, overwrite=overwrite, kind="trace", example="run.pftrace")
    opened = Run(run)
    if step is not None and step not in opened.record_steps:
        raise InputError(f"Step {step} of Run '{run}' was not recorded. `trueline info {run}` lists what was.")
    chosen = int(opened.record_steps[0]) if step is None and opened.has_records else step
    with waiting("Judging the Run and writing the trace"):
        report = check(opened)
        whole = tuple(range(report.judged.world_size))
        marks = [
            Mark(report.began(index), () if report.accused(index) == whole else report.accused(index), incident.title)
            for index, incident in enumerate(report.incidents)
        ]
        with replacing(target, kind="trace") as temporary:
            drawn = write_perfetto(opened, temporary, marks, step=chosen)
    print(f"Trace: {target}, {drawn.text(chosen)}. Look: open it in https://ui.perfetto.dev")
