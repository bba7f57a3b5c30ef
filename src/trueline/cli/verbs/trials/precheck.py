"""`trueline trial precheck`: every recorded operation on this device, against float64."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trueline.cli.options import Json, MaxBytes, Page, bounds_of
from trueline.cli.verbs.trials.op import Device, Modules, Recorded, end

if TYPE_CHECKING:
    from trueline.store.reader import Run
    from trueline.trials.op.precheck import Precheck


def command(
    run: Recorded,
    site: Annotated[
        str, typer.Option(help="Only the operations behind this site, as `trueline trial op` takes it.", metavar="SITE")
    ] = "",
    device: Device = "",
    benchmark: Annotated[
        Path | None,
        typer.Option(
            "--with", help="Results of another machine; written where nothing is there yet.", metavar="RESULTS.json"
        ),
    ] = None,
    step: Annotated[int | None, typer.Option(help="The recorded step.", show_default="the first", min=0)] = None,
    rank: Annotated[int | None, typer.Option(help="The rank.", show_default="the lowest that recorded", min=0)] = None,
    modules: Modules = None,
    json: Json = False,
    max_bytes: MaxBytes = None,
    page: Page = 1,
) -> None:
    """Call the operations that a Run recorded on this device, twice each, and judge their errors against float64.

    confirmed: an operation is inaccurate; excluded: rounding explains them all. Exit code 0: one of these; 3:
    undecided.

    Example: trueline trial precheck runs/exp1 --device cuda --with results-cpu.json
    """
    from trueline.store.reader import Run
    from trueline.trials.op.devices import import_all, require_device
    from trueline.trials.op.precheck import read_benchmark

    bounds = bounds_of(max_bytes, page, json=json)
    import_all(modules or ())
    has_benchmark = benchmark is not None and benchmark.exists()
    recorded = read_benchmark(benchmark) if has_benchmark and benchmark is not None else {}
    result = _checked(
        Run(run),
        device=require_device(device),
        step=step,
        rank=rank,
        site=site,
        benchmark=recorded,
        modules=modules or (),
    )
    written: list[str] = []
    if benchmark is not None and not has_benchmark:
        _write(result, benchmark)
        written = [f"{benchmark}, which --with reads on another machine"]
    end(result, _MEANS, json=json, bounds=bounds, written=written)


_MEANS = {
    "confirmed": "an operation is inaccurate on this device",
    "excluded": "rounding explains the errors of all operations that were judged",
    "undecided": "whether rounding explains the errors of operations cannot be told",
}


def _checked(run: Run, **options: object) -> Precheck:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from trueline.cli.screen import Console
    from trueline.cli.waiting import on_terminal
    from trueline.trials.op.precheck import precheck

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not on_terminal()) as progress:
        task = progress.add_task("Calling operations")
        return precheck(
            run,
            progress=lambda api, num_done, num: progress.update(task, description=api, completed=num_done, total=num),
            **options,  # type: ignore[arg-type]
        )


def _write(result: Precheck, path: Path) -> None:
    import json

    from trueline.schema.errors import InputError

    try:
        path.write_text(json.dumps(result.to_json(), indent=1) + "\n")
    except OSError as error:
        raise InputError(f"'{path}' cannot be written to: {error}. Pass another path to --with.") from None
