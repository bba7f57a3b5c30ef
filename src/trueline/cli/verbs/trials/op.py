"""`trueline trial op`: one recorded operation by itself, as a proof that needs torch alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from trueline.cli.options import Bounds, Json, MaxBytes, Page, bounds_of

if TYPE_CHECKING:
    from trueline.trials.op.precheck import Precheck
    from trueline.trials.op.stand_alone import OpAnswer

Recorded = Annotated[str, typer.Argument(metavar="RUN", help="A Run with recorded operations (presets ops and mix).")]
Device = Annotated[
    str, typer.Option(help="Where operations are called.", show_default="the accelerator, else cpu", metavar="DEVICE")
]
Modules = Annotated[
    list[str] | None,
    typer.Option("--import", help="Import this first: it defines operations; may be given again.", metavar="MODULE"),
]


def command(
    run: Recorded,
    site: Annotated[
        str,
        typer.Argument(
            metavar="SITE",
            help="A call or value, as `compare` prints it (120.0/r3/fwd/layers.7.mlp.gelu#0:out0); the name of "
            "a call, parameter or module; or a line (model.py:41).",
        ),
    ],
    out: Annotated[Path, typer.Option(help="The folder to write.", metavar="DIR")] = Path("trial-op"),
    device: Device = "",
    modules: Modules = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what is in DIR already.")] = False,
    devices: Annotated[
        str | None,
        typer.Option(help="Call it on each of these by itself, as 0-7, and vote on the bits.", metavar="NAME,…"),
    ] = None,
    variable: Annotated[
        str | None,
        typer.Option(
            help="The variable of the environment that tells a process its device.",
            metavar="NAME",
            show_default="CUDA_VISIBLE_DEVICES and its like",
        ),
    ] = None,
    again: Annotated[
        int | None,
        typer.Option(help="How often, with --devices, each of them is asked.", metavar="N", show_default="1000"),
    ] = None,
    json: Json = False,
    max_bytes: MaxBytes = None,
    page: Page = 1,
) -> None:
    """Call one recorded operation again with the inputs that it had, judge its error against float64, and write a
    folder that proves it with torch alone: op.py, expected.json, inputs.safetensors.

    confirmed: the error is more than rounding explains; excluded: it is not. With --devices: confirmed: one of them
    returns other bits than most; excluded: none did. Exit code 0: one of these; 3: undecided.

    Example: trueline trial op runs/exp1 0.0/r0/opt/SGD.fused_sgd_#0 --out proof && python proof/op.py
    """
    from trueline.schema.errors import InputError
    from trueline.store.reader import Run
    from trueline.trials.op.devices import import_all, require_device
    from trueline.trials.op.stand_alone import prove_op
    from trueline.trials.op.stress import Stress, stressed

    for name, value in (("--again", again), ("--variable", variable)):
        if value is not None and devices is None:
            raise InputError(f"{name} says how --devices are asked, and none are named. Name them, or leave it out.")

    bounds = bounds_of(max_bytes, page, json=json)
    import_all(modules or ())
    target, means = require_device(device), _MEANS
    stress = (
        None
        if devices is None
        else Stress.from_text(devices, times=1000 if again is None else again, variable=variable)
    )
    proof = prove_op(Run(run), site, device=target, folder=out, overwrite=overwrite, modules=modules or ())
    if stress is not None and proof.written:
        answer = stressed(out, stress, device=target, modules=modules or ())
        proof, means = replace(proof, answer=answer), _MEANS_DEVICES
    end(proof, means, json=json, bounds=bounds, written=proof.written)


_MEANS = {
    "confirmed": "the error of the operation is more than rounding explains",
    "excluded": "rounding explains the error of the operation",
    "undecided": "whether rounding explains the error cannot be told",
}


_MEANS_DEVICES = {
    "confirmed": "a device returns other bits than most",
    "excluded": "no device returned other bits than the others",
    "undecided": "whether a device returns something else cannot be told",
}


def end(
    result: OpAnswer | Precheck, means: Mapping[str, str], *, json: bool, bounds: Bounds, written: Sequence[str]
) -> NoReturn:
    """Print the answer of a trial that runs no job, and what was ``written``, and leave with its exit code."""
    from rich.text import Text

    from trueline.cli.json_document import print_bounded
    from trueline.cli.screen import Console

    answer = result.answer
    if json:
        document = result.to_json() | {"verdict": f"{answer.answer.capitalize()}: {means[answer.answer]}."}
        print_bounded(document, "trial", bounds)
        raise typer.Exit(answer.exit_code)
    console = Console(soft_wrap=True)
    console.print(f"{answer.answer.capitalize()}: {means[answer.answer]}.", style="bold", highlight=False)
    for line in answer.says:
        console.print(Text(f"  {line}"))
    for line in answer.next:
        console.print(Text.assemble("  ", ("next: ", "green"), line))
    for path in written:
        print(f"  written: {path}")
    raise typer.Exit(answer.exit_code)
