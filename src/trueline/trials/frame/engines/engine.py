"""What starts a run of a job and can end it: the role, and the engine that a user names."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from trueline.schema.errors import InputError

ENGINES = ("local", "torchrun", "ray", "slurm")


class Started(Protocol):
    """A run that was started."""

    def wait(self, timeout_s: float) -> int | None:
        """The exit status of the command; None: it has not ended ``timeout_s`` after it began, a queue not counted."""
        ...

    def end(self) -> None:
        """End whatever is left of it; nothing, where nothing is."""
        ...


class Engine(Protocol):
    """Starts runs."""

    def start(self, words: Sequence[str], environ: Mapping[str, str], *, printed: Path, folder: Path) -> Started:
        """Start the command in ``folder``, with nothing to read and what it prints in the file ``printed``. Raises
        ``OSError`` where it cannot be started, ``InputError`` where what the user asked of the engine cannot be.
        """
        ...


def engine_named(text: str) -> Engine:
    """The engine of ``--engine``: ``local`` or ``torchrun`` (which starts words of its own, ``launched``), ``ray`` or
    ``slurm``, with options behind a colon. Raises ``InputError``.
    """
    name, _, options = text.partition(":")
    if name in ("local", "torchrun") and (name == "torchrun" or not options):
        from trueline.trials.frame.engines.local import Local

        return Local()
    if name == "ray":
        from trueline.trials.frame.engines.ray import Ray

        return Ray.from_options(_words(options))
    if name == "slurm":
        from trueline.trials.frame.engines.slurm import Slurm

        return Slurm.from_options(_words(options))
    raise InputError(
        f"--engine is '{text}'; give one of {', '.join(ENGINES)}, with options behind a colon, as "
        "torchrun:--nproc-per-node=2, ray:num_gpus=1 or 'slurm:-p gpu -N 2'."
    )


def launched(text: str, words: Sequence[str]) -> tuple[str, ...]:
    """``words``, with torchrun in front where that is the engine: on a port of its own, so that runs do not meet.
    Raises ``InputError`` for a command that starts ranks itself.
    """
    name, _, options = text.partition(":")
    if name != "torchrun" or not words:
        return tuple(words)
    if Path(words[0]).name in ("torchrun", "accelerate", "deepspeed", "srun", "mpirun"):
        raise InputError(
            f"--engine torchrun starts ranks itself, and so does the command: '{words[0]}'. Leave out --engine, or "
            f"give {Path(words[0]).name}'s options to it, as torchrun:--nproc-per-node=2, and the script behind --."
        )
    return ("torchrun", "--standalone", *_words(options), "--no-python", *words)


def _words(options: str) -> list[str]:
    try:
        return shlex.split(options)
    except ValueError as error:
        raise InputError(f"The options '{options}' of --engine cannot be read: {error}.") from None
