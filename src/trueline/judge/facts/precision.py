"""Facts of precision, randomness, and of how often the job was started."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from trueline.judge.compared_ranks import columns_of, data_parallel_ranks, differs
from trueline.schema.errors import CannotTell
from trueline.schema.files.run_manifest import RankEnv
from trueline.schema.text.words import counted, listed, named_some
from trueline.store.reader import Run

STREAMS = {"rng_python": "Python's", "rng_numpy": "NumPy's", "rng_torch": "torch's", "rng_device": "the device's"}
"""Columns of the states of random streams, in the order of the bits of ``rng_used``, and whose stream it is."""

SWITCHED_ON = {
    "matmul_tf32": "TF32 in matrix products",
    "cudnn_benchmark": "cuDNN chooses kernels by measuring",
    "cudnn_deterministic": "cuDNN's kernels are deterministic",
}
"""Switches that are told where they are on."""
MOST_SEED = 2**32 - 1
"""The largest seed that NumPy and Lightning take, too."""
MOST_SEEDS = 64
"""Ranks whose seeds are kept in a fact."""


def autocast(run: Run) -> tuple[str, Any]:
    """In which dtype the forward pass computes under autocast."""
    by_device = _env(run).autocast
    if not by_device:
        return "the model is called outside of autocast", {}
    words = [f"{dtype.removeprefix('torch.')} on {device}" for device, dtype in by_device.items()]
    return f"autocast to {listed(words)}", dict(by_device)


def switches(run: Run) -> tuple[str, Any]:
    """Switches of torch that decide bits: TF32, deterministic algorithms, cuDNN's choice by measuring."""
    flags = _env(run).flags
    if not flags:
        raise CannotTell("no switches of torch were recorded")
    words = ["deterministic algorithms on" if flags.get("deterministic_algorithms") else "deterministic algorithms off"]
    if "float32_matmul_precision" in flags:
        words.append(f"float32 matrix products at precision '{flags['float32_matmul_precision']}'")
    words += [text for name, text in SWITCHED_ON.items() if flags.get(name)]
    recorded = ("deterministic_algorithms", "float32_matmul_precision", "cudnn_tf32", *SWITCHED_ON)
    return ", ".join(words), {name: flags[name] for name in recorded if name in flags}


def seeds(run: Run) -> tuple[str, Any]:
    """What torch's generator of the host was seeded with as watching began, and whether ranks have one seed."""
    by_rank = {rank: env.seed for rank, env in sorted(run.env.items()) if env.seed is not None}
    if not by_rank:
        raise CannotTell("no seed was recorded")
    is_shared = len(set(by_rank.values())) == 1 if len(by_rank) > 1 else None
    # Where nobody seeds, torch draws 64 bits of the system.
    seeded = {rank: seed for rank, seed in by_rank.items() if seed <= MOST_SEED}
    first = next(iter(by_rank.values()))
    if not seeded:
        text = "torch was not seeded" + (", and yet ranks have one seed" if is_shared else "")
    elif is_shared is False:
        named = named_some([f"{seeded.get(rank, 'none')} on rank {rank}" for rank in by_rank])
        text = f"torch was seeded with different numbers: {named}"
    else:
        text = f"torch was seeded with {first}" + (" on all ranks" if is_shared else "")
    return text, {"shared": is_shared, "seeds": list(seeded.values())[:MOST_SEEDS]}


def streams(run: Run) -> tuple[str, Any]:
    """Global random streams that somebody draws from, and whether ranks are at the same place of each."""
    ranks = data_parallel_ranks(run)
    used_TN, measured_TN = run.pivot("rng_used")
    if not measured_TN.any():
        raise CannotTell("no state of a random stream was sampled")
    # A stream that nobody draws from cannot matter, whatever its state.
    bits = int(np.bitwise_or.reduce(used_TN[measured_TN].astype(np.int64)))
    shared = {column: _is_shared(run, column, ranks) for index, column in enumerate(STREAMS) if bits & 1 << index}
    positions = {True: " (all ranks at one place of it)", False: " (ranks at other places of it)", None: ""}
    words = [f"{STREAMS[column]} stream{positions[is_shared]}" for column, is_shared in shared.items()]
    # Of what is drawn between two samples only the state before and after is seen.
    return (
        f"random numbers may come from {listed(words)}" if words else "no global random stream is drawn from"
    ), shared


def starts(run: Run) -> tuple[str, Any]:
    """How often the job was started, and at which steps it went on."""
    attempts = run.manifest.attempts
    steps = [attempt.step for attempt in attempts]
    if len(steps) < 2:
        return "started once", {"starts": 1, "steps": steps}
    text = f"{counted(len(steps), 'start')}, at steps {named_some(list(map(str, steps)))}"
    return text, {"starts": len(steps), "steps": steps}


def _is_shared(run: Run, column: str, ranks: Sequence[int]) -> bool | None:
    """True if all ranks had one state at every step at which it is known; None for a single rank, or if unknown."""
    states_TN, measured_TN = run.digests(column)
    columns = columns_of(run, ranks)
    states_TN, measured_TN = states_TN[:, columns], measured_TN[:, columns]
    whole_T = measured_TN.all(axis=1)
    if len(ranks) < 2 or not whole_T.any():
        return None
    return not differs(states_TN[whole_T], measured_TN[whole_T]).any()


def _env(run: Run) -> RankEnv:
    env = next((env for _, env in sorted(run.env.items())), None)
    if env is None:
        raise CannotTell("no rank described itself")
    return env
