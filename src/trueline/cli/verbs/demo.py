"""`trueline demo`: six ways of training, some with faults, and what Trueline reports of each."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trueline.cli.options import Json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trueline.judge.results import RunResults


def command(
    workers: Annotated[int, typer.Option(help="Worker processes; the paper's own size is 8.")] = 4,
    steps: Annotated[int, typer.Option(help="Optimizer steps of each setting.")] = 80,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Alpaca-format JSON or JSONL to train on.", show_default="text of the Python standard library"
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Directory for the six Runs and report.html.")] = Path("trueline-demo"),
    model: Annotated[
        str | None, typer.Option(help="Causal LM, a folder or hub name.", show_default="a small Llama, random weights")
    ] = None,
    max_length: Annotated[int, typer.Option(help="Longest sample, in tokens.")] = 1024,
    batch_size: Annotated[int, typer.Option(help="Samples a worker and step.")] = 8,
    bf16: Annotated[bool, typer.Option("--bf16", help="Train under bf16 autocast.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the output of an earlier demo.")] = False,
    json: Json = False,
) -> None:
    """Fine-tune a small language model on local ranks in six settings, check each, and show which are faulty and why.

    Three settings are those of the source paper (who shares a sampler seed with whom), three are faults of real life:
    no DistributedSampler, one rank's loss doubled, one rank's labels shuffled. Takes a few minutes on two cores.

    Exits with 0 when the demo ran, whatever it found, and with 2 where an input cannot be used or a worker died.
    """
    from trueline.cli.json_document import print_document
    from trueline.cli.lines import screen
    from trueline.cli.screen import Console
    from trueline.demo.fine_tune import Options
    from trueline.demo.run import run
    from trueline.demo.screen import progress_bars, summary

    options = Options(
        out=out, workers=workers, steps=steps, batch_size=batch_size, max_length=max_length, data=data, model=model,
        bf16=bf16, overwrite=overwrite,
    )  # fmt: skip
    console = Console(stderr=True)
    try:
        with progress_bars(console) as progress:
            outcome = run(options, progress, judge=_read_and_report)
    except KeyboardInterrupt:
        where = f"What was recorded so far is in {out}."
        console.print(f"Interrupted; all workers were stopped. {where}", markup=False, soft_wrap=True)
        raise typer.Exit(130) from None
    if json:
        print_document(outcome.document)
    else:
        screen().print(summary(outcome.settings, out=out, page=Path(outcome.document["report"])))


def _read_and_report(runs: Sequence[Path], page: Path) -> Sequence[RunResults]:
    from trueline.render.output import save
    from trueline.web.page_file import page_file
    from trueline.web.watched_run import judged_runs

    watched = judged_runs(runs)
    save(page, page_file(watched)[0])
    return [watched_run.require_results() for watched_run in watched]
