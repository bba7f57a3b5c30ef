"""What a Run says about itself: the manifest (rank 0) and one environment file a rank."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, cast

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from trueline.schema.files.job_facts import JobFacts
from trueline.schema.text.secrets import redacted, redacted_notes, redacted_words, sorted_out

SCHEMA_VERSION = 1
"""Raised by one whenever a file of a Run changes meaning; `store/migrate.py` then reads the older ones."""

BITS = "bits"
"""The kind of the fingerprints of preset ``bits``: of what lies on one rank, not of the whole that it is part of."""

_COMPILED = " is compiled: what runs inside it is not seen"
_INTERVAL = "gradients are sampled every "
"""Parts of the notes of a Manifest that ``note_of_compiled`` and ``with_interval`` make; they are read here only."""


def note_of_compiled(name: str) -> str:
    """The note that the recorder could not look into a module, by its qualified name, or a function."""
    return f"{name}{_COMPILED}, only what goes in and comes out."


def with_interval(notes: Iterable[str], interval: int, *, step: int, why: str) -> list[str]:
    """The ``notes`` with the sampling interval that is followed since about ``step``, in place of an earlier one."""
    notes_kept = [note for note in notes if not note.startswith(_INTERVAL)]
    return [*notes_kept, f"{_INTERVAL}{interval} steps since about step {step}: {why}."]


def unknown_keys(model: BaseModel) -> list[str]:
    """What a file has and this version has no word for, as ``key.inner``: it was kept, and nothing else."""
    unknown = list(model.model_extra or ())
    for name, value in model:
        for inner in cast(list[Any], value) if isinstance(value, list) else [value]:
            if isinstance(inner, BaseModel):
                unknown += [f"{name}.{key}" for key in unknown_keys(inner)]
    return unknown


class PlanRevision(BaseModel):
    """A Plan that was taken up while the job ran, by all ranks before ``step`` began; ``revision`` counts from 1."""

    model_config = ConfigDict(extra="allow")

    revision: int
    step: int
    plan: dict[str, Any]


class Attempt(BaseModel):
    """A start of the job. Steps from ``step`` on are its own, as soon as it has finished one: what an earlier start
    recorded of them is left out. ``plan`` is what it was given; ``id`` is the same in the Runs of all groups of ranks.
    """

    model_config = ConfigDict(extra="allow")

    step: int = 0
    started_at: str = Field(default="", description="ISO 8601, UTC")
    updates: int | None = Field(default=None, description="updates that the optimizer's state had counted before")
    plan: dict[str, Any] = Field(default_factory=dict)
    id: str = ""


class CommandEnd(BaseModel):
    """How the command of ``trueline run`` ended. ``status`` is its exit code, or minus the number of the signal that
    ended it; ``passed_on`` is the signal to end that ``trueline run`` was sent before, 0 for none.
    """

    model_config = ConfigDict(extra="allow")

    status: int
    passed_on: int = 0


class Manifest(BaseModel):
    """`manifest.json`. `data_parallel_ranks` are the global ranks whose gradients are averaged together;
    where ranks hold one model together, the first of them stands for all.
    """

    model_config = ConfigDict(extra="allow")

    schema_version: int = SCHEMA_VERSION
    trueline_version: str = ""
    started_at: str = Field(default="", description="ISO 8601, UTC")
    world_size: int = 1
    data_parallel_ranks: list[int] = Field(default_factory=lambda: [0])
    pieces: list[list[int]] = Field(
        default_factory=list[list[int]],
        description="of these the ranks that hold the same piece of their sequences, by piece (context parallelism); "
        "empty: whole sequences",
    )
    adapter: str = Field(default="", description="ddp, fsdp1, fsdp2, sharded, manual or single")
    model: str = Field(default="", description="what the model is called; further models have Runs under models/")
    command: list[str] = Field(default_factory=list, description="the words of the process that trains: sys.argv")
    argv: list[str] = Field(
        default_factory=list,
        description="the whole command that `trueline run` was given, with its launcher; empty where there was none",
    )
    plan: dict[str, Any] = Field(default_factory=dict, description="as the job started")
    plans: list[PlanRevision] = Field(default_factory=list[PlanRevision], description="what followed it, in order")
    notes: list[str] = Field(default_factory=list, description="what could not be watched, and why; one line each")
    source: dict[str, Any] = Field(
        default_factory=dict,
        description="of an imported Run, what was read: format, path, and what the files say of themselves",
    )
    fingerprint: str = Field(
        default="trueline",
        description="how the fingerprints of records were made (trueline, bits, msprobe-crc32, msprobe-xor): those of "
        "two Runs say something about each other only where it is the same",
    )
    attempts: list[Attempt] = Field(default_factory=list[Attempt], description="the starts of the job, in order")
    job: str = Field(default="", description="the same in all files of the job, whatever disk they are on")
    ended: CommandEnd | None = Field(
        default=None,
        description="how the command of the last start ended, where no rank closed the Run and `trueline run` knows",
    )

    @property
    def compiled(self) -> frozenset[str]:
        """The modules and functions of ``note_of_compiled``."""
        return frozenset(note.partition(_COMPILED)[0] for note in self.notes if _COMPILED in note)

    _no_secrets = field_validator("source")(redacted)
    _no_secrets_said = field_validator("notes")(redacted_notes)

    @field_validator("command", "argv")
    @classmethod
    def _without_secrets(cls, command: list[str]) -> list[str]:
        """Of a Run that is written as of one that is read: older versions kept all words."""
        return redacted_words(command)

    def only_from_start(self, subject: str) -> str:
        """Why a Run has nothing of a ``subject`` that is seen only in processes that `trueline run` starts."""
        if self.argv:
            return f"{subject} was not looked at: an older version wrote this Run, or the look failed"
        return f"{subject} is seen only in jobs that `trueline run` starts"

    def plan_at(self, step: int) -> dict[str, Any]:
        """The Plan that was in force at ``step``, by which it was recorded if it was."""
        return next((entry.plan for entry in reversed(self.plans) if entry.step <= step), self.plan)


class GroupSpec(BaseModel):
    """A set of parameters that share one norm and one sketch, so that a Finding can say where."""

    model_config = ConfigDict(extra="allow")

    name: str
    params: list[str]
    numel: int = 0


class ParamState(BaseModel):
    """A parameter on one rank; ``trains`` is None where the rank does not hold it."""

    model_config = ConfigDict(extra="allow")

    name: str
    trains: bool | None = None
    dtype: str = ""
    shape: list[int] = Field(default_factory=list[int])


class ParamChange(ParamState):
    """What became of a parameter by the update of ``step``; ``replaced`` says that another object has its name now. One
    without a name says that parameters were not followed any more.
    """

    step: int
    replaced: bool = False


class ParamLists(BaseModel):
    """The parameters and groups that list columns are about, from ``step`` on (see ``RankEnv``)."""

    model_config = ConfigDict(extra="allow")

    step: int = 0
    params: list[str] = Field(default_factory=list)
    param_shapes: list[list[int]] = Field(default_factory=list[list[int]])
    param_dtypes: list[str] = Field(default_factory=list)
    requires_grad: list[bool] = Field(default_factory=list[bool])
    frozen: list[str] = Field(default_factory=list)
    whole: list[str] = Field(default_factory=list)
    groups: list[GroupSpec] = Field(default_factory=list[GroupSpec])
    sketch_length: int = 0

    def named(self) -> dict[str, Any]:
        """The fields of a ``RankEnv`` that say so."""
        return {name: getattr(self, name) for name in type(self).model_fields if name != "step"}


class HeldAlike(BaseModel):
    """Parameters that these ``ranks``, which hold one model together, have copies of."""

    model_config = ConfigDict(extra="allow")

    ranks: list[int]
    params: list[str]


class RankEnv(BaseModel):
    """`env/rank-00003.json`: what one rank is, and the names behind the list columns of its rows."""

    model_config = ConfigDict(extra="allow")

    rank: int = 0
    world_size: int = 1
    hostname: str = ""
    pid: int = 0
    job: str = Field(default="", description="that of the manifest, which may be on the disk of another machine")
    device: str = "cpu"
    replica_key: str = Field(default="all", description="ranks with equal keys hold equal parameters")
    buffer_key: str = Field(default="", description="ranks with equal keys hold equal buffers; '' as replica_key")
    params: list[str] = Field(default_factory=list)
    param_shapes: list[list[int]] = Field(default_factory=list[list[int]])
    param_dtypes: list[str] = Field(default_factory=list)
    requires_grad: list[bool] = Field(default_factory=list[bool])
    frozen: list[str] = Field(default_factory=list, description="parameters without gradient; digested after params")
    whole: list[str] = Field(
        default_factory=list, description="parameters that every rank holds whole, where others are in shards"
    )
    alike: list[HeldAlike] = Field(
        default_factory=list[HeldAlike],
        description="copies that this rank and others have, with which it holds one model together",
    )
    buffers: list[str] = Field(default_factory=list)
    call_sites: dict[str, list[str]] = Field(
        default_factory=dict[str, list[str]],
        description="file:line of the script where it calls backward, zero_grad, step, clip_grad_norm_, eval, a "
        "scheduler, or makes a DataLoader, a DistributedSampler or an optimizer",
    )
    raised: str = Field(default="", description="the exception that ended the training, and where it was raised")
    raised_ns: int = Field(default=0, description="when, in nanoseconds since 1970 by this rank's clock")
    apart: list[ParamState] = Field(
        default_factory=list[ParamState],
        description="parameters that not all ranks held alike when watching began, as they were on this one",
    )
    changes: list[ParamChange] = Field(
        default_factory=list[ParamChange], description="what became of this rank's parameters since, in order"
    )
    lists: list[ParamLists] = Field(
        default_factory=list[ParamLists],
        description="what list columns were about from which step on, where all ranks came to train others; the first "
        "is as the job started",
    )
    groups: list[GroupSpec] = Field(default_factory=list[GroupSpec])
    sketch_length: int = 0
    grad_dtype: str = "torch.float32"
    reduce_hook: str = Field(default="", description="the user's comm hook, '' for the framework's own reduction")
    reduce_known: bool = Field(default=True, description="False where user code reduces in a way we cannot know")
    reduce_lossy: bool = Field(default=False, description="the hook is known to be lossy (PowerSGD, quantisation)")
    talks_in_forward: bool = Field(
        default=False,
        description="ranks exchanged tensors within the forward pass of a model that no adapter knows: parameters may "
        "be shards",
    )
    forward_outside: bool | None = Field(
        default=None,
        description="whether a training forward pass went round DDP's wrapper, which then reduces nothing; None if "
        "unseen",
    )
    repeated: list[list[str]] = Field(
        default_factory=list[list[str]],
        description="places of a Sequential or ModuleList that hold one and the same module, where its output could be "
        "its own next input: its weights are shared",
    )
    local_updates: str = Field(
        default="",
        description="the hook or averager by which replicas update by themselves and are averaged now and then, or "
        "'the plan'; '' where they should be equal at every step",
    )
    token_source: str = ""
    zero_samples: list[int] = Field(
        default_factory=list[int], description="digests (`sample_digests`) of samples all of whose elements are zero"
    )
    arguments: list[list[str]] = Field(
        default_factory=list[list[str]],
        description="names of tensors that the model was called on, once for each way: what is read first, the labels, "
        "the others that `argument_features` are of",
    )
    loss_source: str = Field(
        default="",
        description="given (watch.loss); backward: what it was called on, added up over micro-batches; backward, per "
        "token: the mean over this rank's tokens of what it was called on a multiple of; output: the model's",
    )
    seed: int | None = Field(default=None, description="of torch's generator of the host, as watching began")
    versions: dict[str, str] = Field(default_factory=dict)
    flags: dict[str, Any] = Field(default_factory=dict)
    environ: dict[str, str] = Field(default_factory=dict, description="of the variables those that are on a list")
    environ_secret: list[str] = Field(default_factory=list, description="names of variables that look secret: left out")
    environ_others: int = Field(default=0, description="how many more variables were left out")
    optimizer: dict[str, Any] = Field(default_factory=dict)
    autocast: dict[str, Any] = Field(default_factory=dict)
    data: dict[str, Any] = Field(
        default_factory=dict,
        description="what the training DataLoader shows: dataset_type, dataset_len, rows_digest (content of in-memory "
        "rows, '' unknown), part_of and drawn (of a Subset, that of the whole, and whether rows "
        "were picked in no even order), sampler, num_replicas, sampler_rank, seed, shuffle, batch_size, batch_rows "
        "(the same, or that of a batch sampler), drop_last, num_workers, stream (an IterableDataset), shuffles "
        "(whether sampler or stream declare another order in each epoch), orders (of the first epochs, what their "
        "order is drawn from: seed and epoch of the sampler or a digest of its generator's state, '' unknown), indices "
        "(once a pass has ended: of the first passes how many indices were drawn and how many of them are different, "
        "whether it ended, and a digest of the first ones, '' of few; bits, in hex, of those of a small data set that "
        "were drawn), and of a loader with workers persistent_workers, copied_generators (that the data set holds and "
        "draws from: each worker has a copy), workers_seeded_alike (worker_init_fn seeds and does not use the "
        "worker's number), workers_draw (from what torch seeds by epoch) and worker_seeds (by epoch, in hex)",
    )
    facts: JobFacts | None = Field(
        default=None, description="what the first rank collected of the job: packages, sources, configurations, modules"
    )
    notes: list[str] = Field(default_factory=list)

    @property
    def param_sizes(self) -> dict[str, int]:
        """The number of elements of each parameter, as this rank holds it."""
        return {name: math.prod(shape) for name, shape in zip(self.params, self.param_shapes, strict=False)}

    @property
    def in_float16(self) -> bool:
        """Whether the forward pass ran under float16 autocast, which takes a gradient scaler."""
        return "torch.float16" in self.autocast.values()

    _no_secrets = field_validator("data", "optimizer", "flags")(redacted)
    _no_secrets_said = field_validator("notes")(redacted_notes)

    @model_validator(mode="before")
    @classmethod
    def _sort_out(cls, values: Any) -> Any:
        """Leave out of the environment what does not belong into a Run, written or read."""
        raw = cast(dict[str, Any], values)
        if not isinstance(values, dict) or not isinstance(raw.get("environ"), dict):
            return raw
        texts = {str(name): str(value) for name, value in raw["environ"].items()}
        recorded, secret, num_left_out = sorted_out(texts)
        secret_before: list[str] = raw.get("environ_secret") or []
        before: int = raw.get("environ_others") or 0
        return raw | {
            "environ": recorded,
            "environ_secret": [*secret_before, *secret],
            "environ_others": before + num_left_out,
        }
