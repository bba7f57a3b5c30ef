"""Beginning of a watch on all ranks together: the ranks that take part, their Sinks, and the facts of the job."""

from __future__ import annotations

import dataclasses
import datetime
import sys
import uuid
from collections.abc import Callable, Sequence
from typing import Protocol

import torch.distributed as dist
from torch import nn

from trueline.capture.adapters import choose_adapter
from trueline.capture.adapters.base import Adapter, uncompiled
from trueline.capture.adapters.sharded import SamePart, ShardedAdapter, StagesAdapter
from trueline.capture.child_env import command_given
from trueline.capture.declared_averages import Average
from trueline.capture.job.safe_sink import SafeSink
from trueline.capture.model.layout import watched_parameters
from trueline.capture.model.mesh import replicas
from trueline.capture.model.peers import holders
from trueline.capture.model.world import start_id, world_size
from trueline.capture.probes.standard import StandardProbes
from trueline.capture.record.make_session import require_fitting
from trueline.capture.step import shared_columns
from trueline.capture.step.exchange import COMING_S, Team, TrainedAlone, make_team
from trueline.capture.step.recorder import Recorder
from trueline.capture.step.skipping import Skipping
from trueline.capture.step.working_parts import Watching, WorkingParts
from trueline.schema.errors import InputError, TruelineError
from trueline.schema.files.run_manifest import BITS, Attempt, Manifest
from trueline.schema.files.start import Job, Start
from trueline.schema.plan import SKIP, Plan
from trueline.schema.roles import Guard, Sink
from trueline.schema.text.words import ranks_text

REDUCING = ("ddp", "deepspeed", "fsdp1", "fsdp2")
"""Adapters of frameworks whose backward pass reduces: whoever trains comes to it."""


class SinkMaker(Protocol):
    """Makes this rank's Sink in the Run that the team led by rank ``lead`` shares. ``lead`` goes first, creates it and
    decides how ``job`` begins, which is the ``start`` of its Sink; the others are given that.
    """

    def __call__(self, *, rank: int, lead: int, job: Job, start: Start | None) -> Sink:
        """The Sink of ``rank``."""
        ...


def begin(
    model: nn.Module,
    *,
    make_sink: SinkMaker,
    plan: Plan,
    process_group: dist.ProcessGroup | None,
    version: str,
    step: int | None,
    updates: int | None,
    name: str,
    make_guard: Callable[[Plan], Guard],
    averages: Sequence[Average] = (),
) -> tuple[Recorder, StandardProbes, Skipping | None]:
    """The Recorder of ``model`` on this rank, its probes, and what leaves out updates where the Plan asks for that;
    all ranks begin alike. ``updates`` is how many its
    optimizers count. Raises, on all of them, what ``trueline.watch`` does.
    """
    watched_parameters(model, patterns=plan.param_names)
    require_fitting(model, plan)
    adapter = choose_adapter(model, process_group)
    if process_group is None and isinstance(adapter, ShardedAdapter):
        adapter = _among_holders(adapter, model)
    compared = adapter.name if adapter.mesh.compares and adapter.name != "fsdp1" else ""  # its shards have other shapes
    try:
        team = make_team(adapter.mesh, model=model, adapter=compared, replicas=adapter.name in REDUCING)
    except TrainedAlone:
        adapter.detach()
        raise
    if team.unlike is None:
        adapter.detach()
        adapter = StagesAdapter(process_group)
        if process_group is None:
            adapter = _among_holders(adapter, model)
            team = make_team(adapter.mesh, model=model, adapter=adapter.name if adapter.mesh.compares else "")
    elif adapter.own:
        team.unlike = dataclasses.replace(team.unlike, shape=team.unlike.shape | adapter.own)
    adapter.notes += _notes(team)
    job = _job(model, adapter, plan, step=step, updates=updates)
    sink, start, followed = _open_together(team, make_sink, job, plan)
    if followed != plan:
        adapter.notes.append(f"rank {team.rank} was given another Plan than rank {team.ranks[0]}: that is followed.")
    plan = followed
    # After the Plan is shared: all ranks must ask for the second connection, or none.
    team.connect(side=plan.exact and adapter.mesh.compares, votes=plan.on_finding == SKIP)
    team.room = shared_columns.room(plan.max_groups) if adapter.mesh.compares else 0
    if team.index == 0:
        manifest = _manifest(adapter, team, job=job, start=start, version=version, model=name)
        start = dataclasses.replace(start, manifest=manifest)
    safe_sink = SafeSink(sink, rank=team.rank)
    parts = WorkingParts(safe_sink.degraded)
    watching = Watching(model, adapter, team, plan, start, safe_sink, parts)
    probes = StandardProbes(watching, averages)
    try:
        recorder = Recorder(watching, probes=probes.probes, contributions=probes.contributions)
    except BaseException:
        for leave in (parts.close, adapter.detach, probes.detach, safe_sink.close, team.give_back):
            leave()
        raise
    return recorder, probes, _skipping(watching, make_guard)


def _skipping(watching: Watching, make_guard: Callable[[Plan], Guard]) -> Skipping | None:
    """What leaves out updates, where the Plan asks for it."""
    plan = watching.plan
    return Skipping(watching, make_guard(plan)) if plan.on_finding == SKIP else None


def _among_holders(adapter: Adapter, model: nn.Module) -> Adapter:
    """The adapter of the ranks that hold the same part of ``model`` as this one; ``adapter``, of all that hold one
    together, where no other rank does.
    """
    ranks = holders(model, adapter.mesh.members, patience_s=COMING_S)
    return SamePart(uncompiled(model), replicas(ranks)) if len(ranks) > 1 else adapter


def _job(model: nn.Module, adapter: Adapter, plan: Plan, *, step: int | None, updates: int | None) -> Job:
    return Job(
        world_size=world_size(),
        adapter=adapter.name,
        params=tuple(name for name, _ in watched_parameters(model, patterns=plan.param_names)),
        plan=plan.kept(),
        step=step,
        updates=updates,
    )


def _notes(team: Team) -> list[str]:
    """Notes on the ranks that met."""
    notes: list[str] = []
    if team.missing:
        notes.append(
            f"rank{'s' if len(team.missing) > 1 else ''} {', '.join(map(str, team.missing))} did not come to train "
            f"this model in time: only {', '.join(map(str, team.ranks))} of its ranks are in this Run."
        )
    if team.pieces and team.unlike is not None:
        alike = "; ".join(ranks_text(ranks) for ranks in team.pieces)
        notes.append(
            f"Ranks hold pieces of the same sequences (context parallelism): losses and gradients are compared among "
            f"those with the same piece ({alike})."
        )
    if team.unlike:
        names = sorted(team.unlike.shape | team.unlike.frozen)
        if names:
            notes.append(
                f"Parameters are not the same on all ranks ({len(names)}, {names[0]} for one): their gradients are not "
                "compared, all others are."
            )
    return notes


def _open_together(team: Team, make_sink: SinkMaker, job: Job, plan: Plan) -> tuple[Sink, Start, Plan]:
    """Every rank's Sink, the first rank's first, how the job begins, and the first rank's Plan, which all follow; where
    that fails all ranks raise, so that none waits for the others.
    """
    failure: TruelineError | None = None
    sink: Sink | None = None
    start = Start(step=job.step or 0)
    if team.index == 0:
        try:
            sink = make_sink(rank=team.rank, lead=team.ranks[0], job=job, start=None)
            start = getattr(sink, "start", start)
            before = "" if start.manifest is None else start.manifest.job
            start = dataclasses.replace(start, job=before or uuid.uuid4().hex)
        except TruelineError as error:
            failure = error
        except OSError as error:
            failure = InputError(str(error))
    failure, shared, plan = team.share((failure, dataclasses.replace(start, manifest=None), plan))
    if failure is not None:
        team.give_back()
        raise failure
    start = start if team.index == 0 else shared
    if sink is None:
        sink = make_sink(rank=team.rank, lead=team.ranks[0], job=job, start=start)
    return sink, start, plan


def _manifest(adapter: Adapter, team: Team, *, job: Job, start: Start, version: str, model: str) -> Manifest:
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    manifest = Manifest(
        trueline_version=version,
        started_at=now,
        world_size=job.world_size,
        data_parallel_ranks=list(team.ranks) if adapter.mesh.compares else [team.ranks[0]],
        pieces=[list(ranks) for ranks in team.pieces if adapter.mesh.compares],
        adapter=adapter.name,
        model=model,
        command=list(sys.argv),
        argv=command_given(),
        plan=job.plan,
        fingerprint=BITS if Plan.load(job.plan).bits_alone else "trueline",
        attempts=[Attempt(step=start.step, started_at=now, updates=job.updates, plan=job.plan, id=start_id())],
        notes=list(adapter.notes),
        job=start.job,
    )
    earlier = start.manifest
    if earlier is None:
        return manifest
    return manifest.model_copy(
        update={
            "started_at": earlier.started_at or now,
            "plan": earlier.plan or job.plan,
            "plans": earlier.plans,
            "attempts": earlier.attempts,
            "notes": list(dict.fromkeys([*earlier.notes, *adapter.notes])),
        }
    )
