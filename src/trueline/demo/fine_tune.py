"""Six settings one after the other on the same workers: from what the user asked for to the Runs on disk."""

from __future__ import annotations

import contextlib
import multiprocessing
import re
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import forkserver
from pathlib import Path
from typing import TYPE_CHECKING

from trueline.demo.corpus import Triple, library_triples, load_triples
from trueline.demo.model import ModelSpec, load_pretrained
from trueline.demo.ranks import PRELOADED, RankError, Ranks
from trueline.demo.settings import SETTINGS, Setting
from trueline.demo.tokens import MIN_LENGTH, Sample, Tokenizer, encode_triple, train_tokenizer
from trueline.schema.errors import InputError, TruelineError

if TYPE_CHECKING:
    from trueline.demo.worker_training import Job, Learned, PackedSamples

BATCH_SIZE = 8
POLL_S = 0.2
MAX_REASON_CHARS = 300
PATIENCE_S = 86400.0
"""How long a setting may take before its workers count as hung; a big model on a small machine is no fault."""

_ENDED = "the process ended"
_BROKEN_CONNECTION = re.compile("connection|peer|socket", re.IGNORECASE)


class DemoError(TruelineError):
    """A worker of the demo died or raised; all workers have been stopped."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the user asked for. ``data`` and ``model`` are None for the standard library and the small Llama."""

    out: Path
    workers: int = 4
    steps: int = 80
    batch_size: int = BATCH_SIZE
    max_length: int = 1024
    data: Path | None = None
    model: str | None = None
    bf16: bool = False
    seed: int = 0
    overwrite: bool = False


@dataclass(frozen=True, slots=True)
class Trained:
    """One setting after training: its Run, and the mean loss over workers at the first and at the last step."""

    setting: Setting
    run: Path
    loss_first: float
    loss_last: float


@dataclass(frozen=True, slots=True)
class Material:
    """What the workers train on: the samples, the token that pads them, the model."""

    samples: list[Sample]
    pad_id: int
    model: ModelSpec


Progress = Callable[[str, int, int, str], None]
"""Reports progress: a stage, how much of it is done, of how much, and a note. Called from several threads."""


def require_sound(options: Options) -> None:
    """Raise ``InputError`` for a number that no demo can run with."""
    if options.workers < 2:
        raise InputError(f"--workers is {options.workers}; comparing workers needs at least 2.")
    for flag, value in (("--steps", options.steps), ("--batch-size", options.batch_size)):
        if value < 1:
            raise InputError(f"{flag} is {value}; expected at least 1.")
    if options.max_length < MIN_LENGTH:
        raise InputError(
            f"--max-length is {options.max_length} tokens; a prompt and a response need at least {MIN_LENGTH}."
        )


def warm_up() -> None:
    """Let the process that workers are forked from import torch and transformers now, while this one continues."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*PRELOADED, "transformers.models.llama.modeling_llama"])
    forkserver.ensure_running()


def prepare(options: Options, progress: Progress) -> Material:
    """Read the triples, train or load the tokenizer, encode. Raises ``InputError`` for data or a model of no use."""
    progress("Reading", 0, 3, "text" if options.model is None else f"model {options.model}")
    pretrained = None if options.model is None else load_pretrained(options.model, max_length=options.max_length)
    triples = library_triples() if options.data is None else load_triples(options.data)
    source = "the Python standard library" if options.data is None else f"'{options.data}'"
    _require_enough(triples, options, source)
    progress("Reading", 1, 3, f"{len(triples)} triples; now their tokens")
    spec, tokenizer = pretrained or _small_model(triples, max_length=options.max_length)
    progress("Reading", 2, 3, f"{tokenizer.vocab_size} tokens; now encoding")
    samples = [encode_triple(triple, tokenizer, max_length=options.max_length) for triple in triples]
    mean_tokens = sum(len(sample.input_ids) for sample in samples) / len(samples)
    progress("Reading", 3, 3, f"{len(samples)} triples of {source}, {mean_tokens:.0f} tokens each on average")
    return Material(samples=samples, pad_id=tokenizer.pad_id, model=spec)


def train_settings(options: Options, material: Material, progress: Progress) -> list[Trained]:
    """Train every setting on one pool of workers; each writes its Run to ``options.out``.

    Raises ``DemoError``, one sentence, where a worker dies; no worker is left running then, nor after an interrupt.
    """
    from trueline.demo.worker_training import PackedSamples

    samples = PackedSamples(material.samples)
    trained: list[Trained] = []
    with (
        tempfile.TemporaryDirectory(prefix="trueline-demo-") as folder,
        Ranks(options.workers, timeout_s=PATIENCE_S) as ranks,
    ):
        for setting in SETTINGS:
            job = _job(setting, options, material, samples, Path(folder))
            learned = _run(ranks, job, progress)
            first, last = (sum(outcome.losses[step] for outcome in learned) / len(learned) for step in (0, -1))
            trained.append(Trained(setting=setting, run=job.run, loss_first=first, loss_last=last))
    return trained


def failure_sentence(error: RankError, job: Job) -> str:
    """Which worker failed, when and why, in one sentence.

    One that died or raised takes the others along (their connections break), so the first cause is what is looked for:
    a process that ended, else an exception that is not about a connection.
    """
    reasons = [(rank, _reason(text)) for rank, text in error.failures.items()]
    if not reasons:
        return f"The workers of setting {job.setting.name} failed: {str(error).splitlines()[0]}"
    first_causes = [failure for failure in reasons if _ENDED in failure[1]] or [
        failure for failure in reasons if not _BROKEN_CONNECTION.search(failure[1])
    ]
    rank, reason = (first_causes or reasons)[0]
    steps = _steps_done(job)
    advice = "; if memory ran short, try fewer --workers or a smaller --batch-size" if _ENDED in reason else ""
    return (
        f"The worker of rank {rank} failed in setting {job.setting.name} after {steps} of {job.steps} steps "
        f"({reason}), so all workers were stopped{advice}."
    )


def _require_enough(triples: list[Triple], options: Options, source: str) -> None:
    num_needed = options.workers * options.batch_size
    if len(triples) < num_needed:
        raise InputError(
            f"{source[:1].upper()}{source[1:]} has {len(triples)} triples, but one step of {options.workers} "
            f"workers takes {num_needed}; pass more data, or fewer --workers."
        )


def _small_model(triples: list[Triple], *, max_length: int) -> tuple[ModelSpec, Tokenizer]:
    tokenizer = train_tokenizer(triples)
    return ModelSpec(name=None, vocab_size=tokenizer.vocab_size, max_length=max_length), tokenizer


def _job(setting: Setting, options: Options, material: Material, samples: PackedSamples, folder: Path) -> Job:
    from trueline.demo.worker_training import Job

    return Job(
        setting=setting,
        samples=samples,
        pad_id=material.pad_id,
        model=material.model,
        run=options.out.absolute() / setting.name,
        progress=folder / setting.name,
        steps=options.steps,
        batch_size=options.batch_size,
        seed=options.seed,
        bf16=options.bf16,
    )


def _run(ranks: Ranks, job: Job, progress: Progress) -> list[Learned]:
    from trueline.demo.worker_training import train

    progress(job.setting.name, 0, job.steps, "starting")
    try:
        with _followed(job, progress):
            learned = ranks.run(train, job)
    except RankError as error:
        raise DemoError(failure_sentence(error, job)) from None
    progress(job.setting.name, job.steps, job.steps, "done")
    return learned


@contextlib.contextmanager
def _followed(job: Job, progress: Progress) -> Iterator[None]:
    """Report the progress that rank 0 writes down for as long as the block runs."""
    ended = threading.Event()

    def follow() -> None:
        while not ended.wait(POLL_S):
            with contextlib.suppress(OSError, ValueError):
                step, loss = job.progress.read_text().split()
                progress(job.setting.name, int(step), job.steps, f"loss of rank 0: {float(loss):.3f}")

    follower = threading.Thread(target=follow, name="demo-progress", daemon=True)
    follower.start()
    try:
        yield
    finally:
        ended.set()
        follower.join()


def _reason(text: str) -> str:
    """The line of a rank's failure that says why: of a traceback the one after its frames, which are indented."""
    lines = text.splitlines()
    frames = [index for index, line in enumerate(lines[:-1]) if line.startswith(" ")]
    line = lines[frames[-1] + 1 if frames else 0]
    return line.replace("exit code -9", "signal 9, as a system out of memory sends it")[:MAX_REASON_CHARS]


def _steps_done(job: Job) -> int:
    try:
        return int(job.progress.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 0
