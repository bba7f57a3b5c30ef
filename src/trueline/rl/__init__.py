"""Rollouts of reinforcement learning: what the engine sampled and what the trainer thinks of it, kept in a Run.

``trueline check`` says whether the two agree to within rounding and lag, ``trueline diagnose`` why not.
"""

from __future__ import annotations

import importlib
import itertools
import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from trueline.rl.logits import TokenStatistics
    from trueline.rl.logits_hook import ReadLogits
    from trueline.rl.syncs import WeightDigest
    from trueline.rl.where import Destination

__all__ = ["close", "digests", "follow", "follow_trl", "of_logits", "read_logits", "record", "record_sync"]

RUN = "runs/rollouts"
"""Path of the Run for rollouts that are recorded while no model is watched."""

_destinations: dict[str, Destination] = {}


def record(
    step: int,
    prompt_ids: Any = None,
    response_ids: Any = None,
    mask: Any = None,
    logp_rollout: Any = None,
    logp_train: Any = None,
    *,
    entropy: Any = None,
    varentropy: Any = None,
    versions: tuple[Any, Any] | None = None,
    sampling: Mapping[str, Any] | None = None,
    out: str = RUN,
    **more: Any,
) -> bool:
    """Keep one batch of rollouts of ``step``: into the Run of the model that is watched, else into one at ``out``.

    Of tokens [B, L] tensors, arrays or B lists of their own lengths; ``mask`` is 1 where the engine sampled the token.
    ``logp_rollout`` is what the engine recorded, ``logp_train`` what the trainer computes for the same tokens at the
    weights of the rollout; ``entropy`` and ``varentropy`` are of the trainer's distribution (``of_logits`` makes them).
    ``versions`` are those of the weights of engine and trainer, of each sequence or of all. ``sampling`` is what was
    declared: ``temperature``, ``top_p``, ``top_k``, ``lag`` (versions that rollouts may be behind), ``dtype`` (the
    coarser of both sides), ``engine``. ``more`` are further columns of the table: ``logp_update``, ``odds_rollout`` and
    ``odds_train``, ``mass_above``, ``words_above``, ``top_train`` and ``logp_top`` (the likeliest token, and its
    log-probability), ``train_prompt_ids``, ``train_response_ids``, ``reward``, ``reward_again``, ``advantage``,
    ``group``, and of a mixture of experts ``experts_rollout`` and ``experts_train``, the experts
    [B, L, layers, slots] that were chosen at the position from which the token is predicted, ``expert_weights_rollout``
    and ``expert_weights_train`` their weights, of which numbers of layers that differ are kept.

    Returns whether the rows were kept. It never raises: what does not fit is left out with a note, and a warning says
    once what could not be written.
    """

    def rows() -> Any:
        batch = importlib.import_module("trueline.rl.batch")
        errors = importlib.import_module("trueline.schema.errors")
        columns = {*batch.TOKEN_COLUMNS, *batch.RESPONSE_IDS, *batch.ID_COLUMNS, *batch.SCALAR_COLUMNS}
        columns = (columns | {*batch.ROUTING_ARGUMENTS}) - {*batch.ROUTING_COLUMNS}
        unknown = sorted(set(more) - columns)
        if unknown:
            raise errors.InputError(
                f"rl.record has no argument {unknown[0]!r}. There are {', '.join(sorted(columns))}."
            )
        batch_columns = {
            "prompt_ids": prompt_ids,
            "response_ids": response_ids,
            "mask": mask,
            "logp_rollout": logp_rollout,
        }
        batch_columns |= {"logp_train": logp_train, "entropy": entropy, "varentropy": varentropy, **more}
        if versions is not None:
            batch_columns["version_rollout"], batch_columns["version_train"] = versions
        return batch.rows_of(step, batch_columns, sampling)

    return _destination(out).write(rows, out)


def record_sync(
    step: int,
    train: Mapping[str, Any] | Iterable[tuple[str, Any]],
    rollout: Mapping[str, Any] | Iterable[tuple[str, Any]],
    *,
    version: int | None = None,
    out: str = RUN,
) -> bool:
    """Keep digests of every parameter on both sides after weights were handed to the engine, named as
    ``named_parameters()`` names them; of an engine in another process pass what ``digests`` returned there.

    The trainer's are merged (q, k, v; gate, up) and cast as the engine has them first. Returns and raises as
    ``record``.
    """
    syncs = importlib.import_module("trueline.rl.syncs")
    return _destination(out).write(lambda: syncs.rows_of(step, train, rollout, version), out)


def of_logits(
    logits: torch.Tensor, ids: torch.Tensor, *, temperature: float = 1.0, pair: torch.Tensor | None = None
) -> TokenStatistics:
    """Log-probability, entropy, varentropy, mass above, log-odds of tokens ``ids`` [...] under ``logits`` [..., V], and
    the likeliest token, in float32 and without gradient: see ``trueline.rl.logits``.
    """
    return importlib.import_module("trueline.rl.logits").of_logits(logits, ids, temperature=temperature, pair=pair)


def read_logits(
    module: Any, response_ids: torch.Tensor, *, temperature: float = 1.0, pair: torch.Tensor | None = None
) -> ReadLogits:
    """What ``of_logits`` says of tokens ``response_ids`` [B, L], read by a hook on the module that makes logits
    (``model.lm_head``) as it is called, for a trainer that keeps no logits::

        with trueline.rl.read_logits(model.lm_head, response_ids) as told:
            loss = ...  # the forward pass of the trainer
        trueline.rl.record(..., logp_train=told.logp, entropy=told.entropy, varentropy=told.varentropy)

    Logits are [B, K, V] of any floating dtype: K > L where they are those of a prompt with its response behind it
    (whose last L positions but one are read), K = L where they are those before each token of the response. Several
    calls are the micro-batches, in the order of ``response_ids``; a recomputation in backward is none. The vocabulary
    has to be whole. Where the model changes logits after this layer (soft-capping, scaling), pass the model, whose
    output has ``logits``. ``temperature`` divides them; ``pair`` [B, L, 2] as of ``of_logits``.

    ``logp``, ``entropy``, ``varentropy``, ``mass_above``, ``words_above``, ``odds``, ``logp_top`` [B, L] float32,
    ``top_train`` [B, L] and ``top`` [B, L, 2] int64 are there when the block ends, None where not all logits were seen,
    which a warning says. At most 1,024 distributions are held beside the logits; neither these nor gradients change.
    Raises ``InputError`` for what is no module, or ids of another shape; never in the forward pass.
    """
    reading = importlib.import_module("trueline.rl.logits_hook")
    return reading.ReadLogits(module, response_ids, temperature=temperature, pair_BL2=pair)


def digests(
    weights: Mapping[str, Any] | Iterable[tuple[str, Any]], *, dtype: torch.dtype | None = None
) -> dict[str, WeightDigest]:
    """The digest of each parameter, by name, for ``record_sync`` in another process."""
    return importlib.import_module("trueline.rl.syncs").digests(weights, dtype=dtype)


def follow(*frameworks: str) -> None:
    """Record the rollouts of TRL, verl, slime, OpenRLHF, NeMo-RL and AReaL from now on, as ``record`` would, in each
    process that imports one of them: below ``trueline run`` that happens by itself, and of TRL with
    ``TruelineCallback``. Otherwise call it before training begins; ``frameworks`` names some ("verl") where not all
    are meant.

    Of each step come ids, masks, what the engine recorded, what the trainer computes at the weights that sampled, and
    what else the framework has of entropy, rewards, advantages, groups, versions and experts; of large batches, whole
    groups, others each time. Training does not change, and what fails is said once.
    """
    importlib.import_module("trueline.rl.frameworks").follow(record, frameworks)


def follow_trl() -> None:
    """Record the rollouts of TRL's ``GRPOTrainer`` and ``RLOOTrainer``: ``follow("trl")``."""
    follow("trl")


def close() -> None:
    """Seal the Runs that ``record`` began; at exit that happens by itself."""
    for destination in _destinations.values():
        destination.close()
    _destinations.clear()


# Submodules are imported when they are called: they import torch, which a script may not have imported yet.
def _destination(path: str) -> Destination:
    if path not in _destinations:
        where = importlib.import_module("trueline.rl.where")
        # where a path was given it is meant for these rows, whatever else is watched later
        _destinations[path] = where.Destination(_open_run, waits=path == RUN)
    return _destinations[path]


def _open_run(path: str, rank: int) -> Any:
    """A Run for rollouts alone; another rank than 0 has its own."""
    import trueline

    writer = importlib.import_module("trueline.store.writer")
    manifests = importlib.import_module("trueline.schema.files.run_manifest")
    path = _free_beside(path if rank == 0 else f"{path}.rank-{rank}")
    if os.path.isdir(path) and os.listdir(path):
        errors = importlib.import_module("trueline.schema.errors")
        raise errors.InputError(f"'{path}' is not empty. Pass another out to trueline.rl.record, or remove it first.")
    sink = writer.RunWriter(path, rank=rank, creates=True)
    env = manifests.RankEnv(rank=rank, world_size=1, device="", grad_dtype="")
    sink.describe(
        manifests.Manifest(trueline_version=trueline.__version__, adapter="", data_parallel_ranks=[rank]), env
    )
    return sink


def _free_beside(path: str) -> str:
    """``path``, or where it is that of a job's rollouts and an earlier process of the job has it, one beside it."""
    child_env = importlib.import_module("trueline.capture.child_env")
    if path != child_env.path_of_rollouts(os.environ.get(child_env.RUN, "")):
        return path
    paths = (path if number == 0 else child_env.path_of_restart(path, str(number)) for number in itertools.count())
    return next(candidate for candidate in paths if not os.path.isdir(candidate) or not os.listdir(candidate))
