"""`trueline import`: what other tools wrote, as a Run."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trueline.cli.options import Json

if TYPE_CHECKING:
    from trueline.store.importers.step_rows import Measure

app = typer.Typer(
    help="Convert the files of another tool into a Run, for `trueline info` and `trueline compare`.",
    no_args_is_help=True,
    add_completion=False,
)

_Target = Annotated[str, typer.Argument(help="Where the Run goes; must not exist yet.", metavar="RUN")]
_NoTensors = Annotated[
    bool, typer.Option("--no-tensors", help="Record statistics and fingerprints without the values.")
]
_Step = Annotated[int, typer.Option(help="The optimizer step of the checkpoint.", min=0)]


@app.command("msprobe")
def msprobe(
    source: Annotated[
        str, typer.Argument(help="A dump: with step*/rank*/dump.json, or one step or rank of it.", metavar="SRC")
    ],
    run: _Target,
    model: Annotated[str, typer.Option(help="The model's class: names what runs in it and in none of its modules.")] = (
        "Model"
    ),
    optimizer: Annotated[str, typer.Option(help="The optimizer's class: names what it calls.")] = "optimizer",
    no_tensors: _NoTensors = False,
    json: Json = False,
) -> None:
    """Import a dump of msProbe (mindstudio-probe 26.2, PyTorch; levels L0, L1, mix; statistics, tensor, structure).

    Example: trueline import msprobe dump_path runs/npu --model Llama --optimizer AdamW
    """
    from trueline.store.importers.msprobe.dumps import DumpOptions, import_msprobe

    options = DumpOptions(measure=measure(), model=model, optimizer=optimizer, tensors=not no_tensors)
    with _reading(source):
        import_msprobe(source, run, options, version=_version())
    _tell(run, json=json)


@app.command("checkpoint")
def checkpoint(
    source: Annotated[
        str,
        typer.Argument(
            help="A safetensors file or a directory of them, a file of torch.save, or a distributed checkpoint (DCP).",
            metavar="SRC",
        ),
    ],
    run: _Target,
    step: _Step = 0,
    no_tensors: _NoTensors = False,
    json: Json = False,
) -> None:
    """Import the parameters and the optimizer's state of a checkpoint. Nothing that is in the file is executed.

    Example: trueline import checkpoint step-1000.pt runs/weights --step 1000
    """
    from trueline.store.importers.checkpoint import import_checkpoint
    from trueline.store.importers.checkpoint_weights import WeightOptions

    with _reading(source):
        import_checkpoint(source, run, WeightOptions(measure(), step, tensors=not no_tensors, version=_version()))
    _tell(run, json=json)


@app.command("hf")
def hf(
    source: Annotated[str, typer.Argument(help="A local model directory with config.json.", metavar="SRC")],
    run: _Target,
    step: _Step = 0,
    no_tensors: _NoTensors = False,
    json: Json = False,
) -> None:
    """Import the weights and config.json of a Hugging Face model directory. Nothing is downloaded.

    Example: trueline import hf models/Qwen2.5-0.5B runs/weights
    """
    from trueline.store.importers.checkpoint_weights import WeightOptions
    from trueline.store.importers.hf import import_hf

    with _reading(source):
        import_hf(source, run, WeightOptions(measure(), step, tensors=not no_tensors, version=_version()))
    _tell(run, json=json)


@app.command("rl")
def rl(
    source: Annotated[
        str,
        typer.Argument(
            help="A log or dump of verl, TRL, OpenRLHF, slime, NeMo-RL or AReaL (.jsonl, .json, .pt, .safetensors), or "
            "a directory of such.",
            metavar="SRC",
        ),
    ],
    run: _Target,
    sampling: Annotated[
        list[str] | None,
        typer.Option(
            help="What the log does not say of how it was sampled: temperature, top_p, top_k, lag, dtype, …; may be "
            "repeated.",
            metavar="NAME=VALUE",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Import log-probabilities of rollouts, a token or a mean each, for `trueline check`. Nothing in it is executed.

    Example: trueline import rl logs/exp_001 runs/rollouts --sampling dtype=bfloat16 --sampling temperature=0.7
    """
    from trueline.cli.json_document import print_document
    from trueline.cli.plan_keys import sampling_of
    from trueline.cli.screen import Console
    from trueline.rl.batch import rows_of
    from trueline.schema.files.run_manifest import SCHEMA_VERSION
    from trueline.schema.text.words import counted
    from trueline.store.importers.rollout_logs import import_rollouts

    declared = sampling_of(sampling or ())
    with _reading(source):
        counts = import_rollouts(source, run, partial(rows_of, declared=declared), version=_version())
    if json:
        print_document({"schema": SCHEMA_VERSION, "run": run, **counts})
        return
    text = f"Run: {run} ({counted(counts['steps'], 'step')}, {counted(counts['rows'], 'row')})"
    Console(soft_wrap=True).print(f"{text}. Next: trueline check {run}", markup=False, highlight=False)


def measure() -> Measure:
    """Measures tensors in host memory as the recorder does."""
    import numpy as np

    from trueline.schema.columns.records import STAT_NAMES
    from trueline.store.importers.step_rows import Measured
    from trueline.tensor.fingerprint import HostFingerprint
    from trueline.tensor.measure import HostMeter, num_measured, unmeasurable

    meter, fingerprint = HostMeter(), HostFingerprint()

    def measure(x: Any) -> Measured:
        reason = unmeasurable(x)
        if reason is not None:
            return Measured(note=reason)
        stats_S = np.empty(len(STAT_NAMES))
        meter.stats_into(x, stats_S)
        return Measured(num_measured(x), stats_S.tolist(), fingerprint.of(x))

    return measure


def _version() -> str:
    import trueline

    return trueline.__version__


def _reading(source: str) -> Any:
    from trueline.cli.waiting import waiting

    return waiting(f"Reading {source}")


def _tell(path: str, *, json: bool) -> None:
    from trueline.cli.json_document import print_document
    from trueline.cli.screen import Console
    from trueline.schema.files.run_manifest import SCHEMA_VERSION
    from trueline.schema.text.words import counted
    from trueline.store.reader import Run

    run = Run(path)
    steps, ranks = run.record_steps.tolist(), run.record_ranks
    num_rows = run.records(columns=["row"], resolve=False).num_rows
    if json:
        document = {"schema": SCHEMA_VERSION, "run": path, "steps": steps, "ranks": ranks, "rows": num_rows}
        print_document(document | {"notes": run.manifest.notes})
        return
    console = Console(soft_wrap=True)
    counts = (("row", num_rows), ("step", len(steps)), ("rank", len(ranks)))
    summary = ", ".join(counted(count, noun) for noun, count in counts)
    for line in (f"Run: {path} ({summary})", *run.manifest.notes):
        console.print(line, markup=False, highlight=False)
