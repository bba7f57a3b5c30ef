"""What of a job can be made smaller from outside: steps, ranks, batches, and numbers on its command line."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trueline.schema.errors import InputError

STEPS, RANKS, BATCH = "steps", "ranks", "batch"

_RANKS = ("--nproc-per-node", "--nproc_per_node", "--num_processes")
"""Of torchrun and accelerate."""
_MODEL_PARALLEL = (
    "--tensor-model-parallel-size",
    "--pipeline-model-parallel-size",
    "--context-parallel-size",
    "--expert-model-parallel-size",
)
"""Of Megatron-LM: what holds one model together is kept, and ranks are a multiple of it."""
_LAYERS = ("--num-layers", "--num_layers", "--num_hidden_layers", "--n-layer", "--n_layer", "--layers")
_BATCHES = (
    *("--micro-batch-size", "--micro_batch_size", "--per_device_train_batch_size"),
    *("--global-batch-size", "--train_batch_size", "--batch-size", "--batch_size"),
)
_LENGTHS = ("--seq-length", "--seq_length", "--max_seq_length", "--max-seq-length", "--block_size", "--seq-len")
NUMBER_OPTIONS = (*_LAYERS, *_BATCHES, *_LENGTHS)
"""Options that are numbers to be made smaller, in this order."""

LOADER = {"name": BATCH, "how": "keyword", "where": "torch.utils.data.DataLoader", "keyword": "batch_size"}


@dataclass(frozen=True)
class Axis:
    """A number of the job: ``now`` what it is, a multiple of ``unit``."""

    name: str
    now: int
    unit: int = 1

    def smaller(self, value: int) -> int | None:
        """About half of ``value``; None where there is nothing smaller."""
        half = max(value // 2 // self.unit, 1) * self.unit
        return half if half < value else None


def axes_of(words: Sequence[str], *, steps: int, batch: int | None, users_options: Sequence[str] = ()) -> list[Axis]:
    """The axes of a job that runs ``words``, cheapest first; ``batch`` is the size of its batches where that is known,
    and ``users_options`` are options that a user names. Raises ``InputError`` for one that is no number.
    """
    axes = [Axis(STEPS, steps)] if steps > 1 else []
    for option in _RANKS:
        if (value := _number(words, option)) is not None:
            unit = math.prod(_number(words, model_option) or 1 for model_option in _MODEL_PARALLEL)
            # ranks that are no multiple of what holds one model together cannot be fewer
            axes.append(Axis(RANKS, value, unit if value % unit == 0 else value))
    for option in users_options:
        if _number(words, option) is None:
            raise InputError(f"--axis is '{option}', which is no option of the command with a whole number behind it.")
    options = [*(model_option for model_option in NUMBER_OPTIONS if model_option not in users_options), *users_options]
    axes += [Axis(option, value) for option in options if (value := _number(words, option)) is not None]
    if batch is not None and batch > 1 and not any(option in _BATCHES for option in (axis.name for axis in axes)):
        axes.append(Axis(BATCH, batch))
    return [axis for axis in axes if axis.now > axis.unit]


def ranks_started(words: Sequence[str]) -> int | None:
    """Number of processes that a launcher in ``words`` starts on this machine; None where none says so."""
    return next((value for option in _RANKS if (value := _number(words, option)) is not None), None)


def sized(words: Sequence[str], sizes: Mapping[str, int]) -> tuple[list[str], dict[str, Any]]:
    """The command line, and what is changed in its processes, with the numbers of ``sizes``; steps are not among it."""
    changed = list(words)
    for name, value in sizes.items():
        for option in _RANKS if name == RANKS else (name,):
            changed = _with_number(changed, option, value)
    switches = [{**LOADER, "off": sizes[BATCH]}] if BATCH in sizes else []
    return changed, {"switches": switches, "off": [BATCH] if switches else []}


def _position(words: Sequence[str], option: str) -> int | None:
    return next((at for at, word in enumerate(words) if word == option or word.startswith(f"{option}=")), None)


def _number(words: Sequence[str], option: str) -> int | None:
    position = _position(words, option)
    if position is None:
        return None
    _, equals, value = words[position].partition("=")
    text = value if equals else words[position + 1] if position + 1 < len(words) else ""
    return int(text) if text.isdecimal() else None


def _with_number(words: list[str], option: str, value: int) -> list[str]:
    position = _position(words, option)
    if position is None:
        return words
    if "=" in words[position]:
        return [*words[:position], f"{option}={value}", *words[position + 1 :]]
    return [*words[: position + 1], str(value), *words[position + 2 :]]
