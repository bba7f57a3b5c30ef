"""Replicas hold different parameters or buffers.

What it finds
-------------
The first step, and the first parameter, at which two ranks that should hold equal parameters do not, and the last step
at which they still did. The same for buffers, such as the running statistics of BatchNorm.

Why it matters
--------------
Data-parallel training is right only as long as replicas are equal. Gradients computed at different weights are
averaged as if nothing had happened, the loss looks plausible, and a checkpoint of rank 0 is one of several models.
Buffers that drift make evaluation depend on the rank.

How it decides
--------------
By 64-bit digests of the bits of each parameter before the update of a step (each of the first 16, then at gaps of an
eighth of the steps so far, at last every `params_every`; more often again once all ranks know of a finding; and once
more when watching ends), between ranks with the same `replica_key` (under FSDP only the same shards of different
replicas; buffers are whole there, and are compared between all ranks, as are parameters that every rank holds whole
while others are sharded).
Replicas that apply the same update to the same weights are
bitwise equal, so there is no tolerance and no false alarm but for a collision (probability 2^-64 a pair): two
different digests are two different values.

Where sampled updates have the same elements of several ranks, it is said whether the states of the optimizer differed
while weights were still equal, so that the update did, or are equal where weights no longer are, so that something else
wrote these.

Where most replicas agree on the first parameter that differs, the others are named; where no value is in the
majority, as with two ranks, all are. Drift of buffers alone is a warning, because training may be right without them.
Parameters that differ only when watching ends are an info: the last updates may have done it, or the script itself,
which often puts averaged or merged weights into the model of one rank to save it.

A parameter that is not sharded where others are, or of a model that exchanges tensors within its forward pass and that
no adapter knows, counts as each rank's own if it was not equal on all ranks from the start and its gradient never is:
an expert among FSDP's `ignored_params`, or a shard. It is named with severity info and not compared.

Ranks that hold one model together (tensor parallelism) have copies of what is not cut, such as norms. These are
compared between them too, also where they are in other data-parallel groups and so in the Runs beside this one; a
difference is a warning, since a kernel that is not deterministic may round the gradients of two copies differently.
Where tensor parallelism is written by hand, or the framework does not say what is cut, copies are known by beginning
equal to the bit, and by staying so after an update or having gradients of one norm, while other parameters begin
apart. Where updates are sampled, it is said if the optimizers of two such ranks received one gradient times a factor,
as where one of them clips by another norm, or only some of its parameters.

Experts, as far as they are known by beginning with other values, are compared between the ranks that began with equal
ones, where there are as many of each.

Replicas that update by themselves on purpose (`local_updates`: post-local SGD, a model averager of torch, or declared
in the plan; or whose weights are seen equal again three times, in a rhythm) are not compared.

What it may miss
----------------
Drift between two measured steps that goes away again, copies on parts of one model that nobody declares and that have
parted before the first look or get other gradients from the start, parameters of ranks without a replica
(plain FSDP, pipeline stages), and state that is neither a parameter nor a registered buffer: optimizer state drifts
first and shows one update later in the parameters. It names where the difference was seen first, not its cause.

Example
-------
Rank 2 holds other values than the replicas of 4 parameters, equal before the update of step 48 and different before
that of step 52: embed.weight, head.weight, norm.bias and 1 more.

Wrong and right
---------------
Wrong:

```python
torch.manual_seed(args.seed + rank)
model = Net()  # every rank starts from weights of its own, and gradients are averaged by hand
```

Right:

```python
torch.manual_seed(args.seed + rank)
model = Net()
for tensor in model.state_dict().values():
    dist.broadcast(tensor, src=0)
```
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from trueline.judge.compared_ranks import MAX_SITES, odd_ranks, sites_of
from trueline.judge.follows import ByStep
from trueline.judge.series.local_updates import require_equal_replicas
from trueline.judge.series.parts_alike import SharedParams, groups_share_one_model, shared_params
from trueline.judge.series.whole_parameters import (
    equal_at_first,
    param_names,
    parts_of_one_model,
    replica_sets,
    unshared_params,
)
from trueline.laws.replicas.states_alike import compare_states, find_scaled_gradient, unequal_update_counts
from trueline.schema.errors import CannotTell
from trueline.schema.files.run_manifest import RankEnv
from trueline.schema.finding import Finding
from trueline.schema.text.words import capitalized, counted, listed, named_some, ranks_text
from trueline.store.reader import Run

CODE = "replica-drift"
QUESTION = "replicas"
NEEDS: tuple[str, ...] = ("param_digests", "buffer_digests", "closing_digests")
FOLLOWS = ByStep()

TensorKind = Literal["parameter", "buffer"]
_TENSOR_KINDS: tuple[TensorKind, ...] = ("parameter", "buffer")
NOT_HELD = 0
"""Digest that stands for a parameter which a rank does not hold any more (`rank-config-differs` reports that)."""

_COLUMN: dict[TensorKind, str] = {"parameter": "param_digests", "buffer": "buffer_digests"}
_PHASE: dict[TensorKind, str] = {"parameter": "param", "buffer": "buffer"}

_AT_THE_START = (
    "Start all ranks from the same weights: broadcast them from one rank (DDP does so when it is constructed; a "
    "hand-written loop must), and load the same checkpoint everywhere."
)
_LATER = (
    "Look for what changes gradients or weights on some ranks only: findings on reduction and configuration at the "
    "step before, clipping, a skipped step, a parameter replaced after wrapping, a device that computes wrongly."
)
_STATES = (
    "Give every rank the same state of the optimizer, not only the one that reads the checkpoint: load it on all of "
    "them, or broadcast it."
)
_AT_THE_END = (
    "If the script does not change the weights of single ranks after training (averaged or merged ones, to save them), "
    "look at the updates since: findings on reduction and configuration, clipping, a skipped step. Closing the watch "
    "right after the last step distinguishes the two."
)
_ON_PARTS = (
    "These ranks hold one model together, and this of it in copies. Sum the gradients of such parameters over those "
    "ranks where each computes a part of them (sequence parallelism does in its norms), and start all copies equal."
)
_CLIPPED = (
    "Clip copies on all ranks that hold them, by one norm: print on each rank the norm, and which parameters it is "
    "applied to."
)
_IF_COPIES = (
    "Where what began equal is a copy and no part, as norms are between tensor-parallel layers, its gradient has to be "
    "summed over these ranks: the input of a column-parallel layer needs an all-reduce in its backward pass."
)
_BUFFERS = (
    "Look at what writes {names}: what it is computed from (counts of tokens, a mean over the batch) must be reduced "
    "over ranks before it is used, or the buffer broadcast after each change."
)
_STATISTICS = (
    "Keep DDP's broadcast_buffers=True (FSDP2 has no such option), use SyncBatchNorm, or broadcast buffers before "
    "evaluating and saving."
)


@dataclass(frozen=True)
class _Drift:
    """First and last step at which replicas of one key differ, the odd ranks and the parameters at the first.
    ``equal_at``: the last step before at which they were equal, None where they never were. ``later``: parameters that
    differ at the last step and did not at the first.
    """

    step: int
    step_last: int
    equal_at: int | None
    ranks: tuple[int, ...]
    names: tuple[str, ...]
    blames_all: bool
    later: tuple[str, ...] = ()


def check(run: Run) -> list[Finding]:
    """A Finding for parameters and one for buffers, where they differ, and one for copies on parts of one model; raises
    ``CannotTell`` without replicas.
    """
    require_equal_replicas(run)
    shared = shared_params(run)
    if shared is None:
        return _findings_of_replicas(run)
    copies = [_Replicas(ranks, names) for ranks, names in shared.sets]
    drifts = _drifts(shared.env, "parameter", copies, shared.by_step)
    findings = [_with_gradients(shared, _finding("parameter", drifts))] if drifts else []
    try:
        return [*_findings_of_replicas(run), *findings]
    except CannotTell:
        return findings


def _with_gradients(shared: SharedParams, finding: Finding) -> Finding:
    """The finding about copies on parts of one model, with the factor between the gradients that optimizers received of
    the same elements, if there is one.
    """
    finding = replace(finding, severity="warning", next=(_ON_PARTS,))
    gradients = [
        gradient
        for ranks, _ in shared.sets
        if set(ranks) <= set(finding.ranks)
        if (gradient := find_scaled_gradient(shared.runs, ranks)) is not None
    ]
    scaled = min(gradients, key=lambda gradient: gradient.step, default=None)
    # gradients of a step after the last difference explain none
    if scaled is None or scaled.step > (finding.step_last or 0):
        return finding
    claim = (
        f"{finding.claim} At step {scaled.step} the optimizer of rank {scaled.rank} received {scaled.factor:.4g} times "
        f"the gradient that the optimizer of rank {scaled.reference_rank} did, of the same elements."
    )
    kinds = [*finding.evidence["kind"], "received-scaled"]
    evidence = {**finding.evidence, "kind": kinds, "factor": scaled.factor, "scaled_at": scaled.step}
    return replace(finding, claim=claim, evidence=evidence, next=(_CLIPPED,))


def _findings_of_replicas(run: Run) -> list[Finding]:
    """Findings on parameters and buffers of ranks that should hold equal ones; raises ``CannotTell`` without such."""
    replicas: dict[TensorKind, list[_Replicas]] = {kind: _replica_sets(run, kind) for kind in _TENSOR_KINDS}
    measured: list[TensorKind] = [
        kind for kind in _TENSOR_KINDS if _measured_together(run, _COLUMN[kind], replicas[kind])
    ]
    own_params = [_own_params_finding(run, names)] if (names := sorted(unshared_params(run))) else []
    if own_params and not measured:
        return own_params
    if not measured and not replicas["parameter"]:
        raise _without_replicas(run)
    if not measured:
        raise CannotTell("no step has digests of parameters from two replicas")
    drifts_of: dict[TensorKind, list[_Drift]] = {
        kind: _drifts(run.env, kind, replicas[kind], _digests_by_step(run, _COLUMN[kind])) for kind in measured
    }
    findings = [_with_states(run, _finding(kind, drifts)) for kind, drifts in drifts_of.items() if drifts]
    # replicas that differed in training also differ at the end: one finding says both
    if not drifts_of.get("parameter"):
        findings += _findings_at_the_end(run, replicas["parameter"])
    return findings + own_params


def _without_replicas(run: Run) -> CannotTell:
    """Reason for comparing nothing: one rank, shards, or ranks whose parameters differ without a known reason."""
    if run.world_size == 1:
        return CannotTell("it compares ranks, and there is only one worker", reason="one-worker")
    if groups_share_one_model(run):
        return CannotTell("the ranks that hold copies of its parameters are in other groups", reason="by-design")
    if run.manifest.adapter in ("deepspeed", "fsdp1", "fsdp2"):
        return CannotTell("no two ranks hold the same parameters: each has its own shard", reason="by-design")
    return CannotTell("no two ranks are known to hold the same parameters: each has its own shard, or other ones")


@dataclass(frozen=True)
class _Replicas:
    """``ranks`` that should hold equal values of the parameters of these ``names``; None: of all there are."""

    ranks: tuple[int, ...]
    names: frozenset[str] | None = None


def _replica_sets(run: Run, kind: TensorKind) -> list[_Replicas]:
    by_key: defaultdict[str, list[int]] = defaultdict(list)
    by_whole: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
    for rank in run.ranks:
        if rank in run.env:
            env = run.env[rank]
            # buffers may be shared by other ranks than parameters, as where only these are cut
            by_key[env.buffer_key or env.replica_key if kind == "buffer" else env.replica_key].append(rank)
            by_whole[tuple(env.whole)].append(rank)
    sets = [_Replicas(tuple(ranks)) for ranks in by_key.values()]
    own_params: frozenset[str] = unshared_params(run) if kind == "parameter" else frozenset()
    if own_params and len(by_key) == 1:
        sets = [replace(key, names=frozenset(param_names(run.env[key.ranks[0]])) - own_params) for key in sets]
    sets += [_Replicas(ranks, own_params) for ranks in (replica_sets(run, own_params) if own_params else ())]
    # several keys are shards: those of one key share what is cut, and all ranks what is whole
    if kind == "parameter" and len(by_key) > 1:
        sets = [replace(key, names=_sharded_names(run.env[key.ranks[0]])) for key in sets]
        sets += [
            _Replicas(tuple(ranks), frozenset(names) - own_params)
            for names, ranks in by_whole.items()
            if set(names) - own_params
        ]
    return [replicas for replicas in sets if len(replicas.ranks) > 1]


def _sharded_names(env: RankEnv) -> frozenset[str]:
    return frozenset(param_names(env)) - set(env.whole)


def _measured_together(run: Run, column: str, replicas: Sequence[_Replicas]) -> bool:
    rows = run.lists(column)
    ranks_of: defaultdict[int, set[int]] = defaultdict(set)
    for step, rank in rows:
        ranks_of[step].add(rank)
    return any(len(ranks & set(group.ranks)) > 1 for ranks in ranks_of.values() for group in replicas)


def _drifts(
    env: Mapping[int, RankEnv],
    kind: TensorKind,
    replicas: Sequence[_Replicas],
    by_step: dict[int, dict[int, NDArray[Any]]],
) -> list[_Drift]:
    return [drift for group in replicas if (drift := _drift(env, kind, group, by_step)) is not None]


def _digests_by_step(run: Run, column: str) -> dict[int, dict[int, NDArray[Any]]]:
    by_step: defaultdict[int, dict[int, NDArray[Any]]] = defaultdict(dict)
    for (step, rank), digests in run.lists(column).items():
        by_step[step][rank] = digests
    return by_step


def _drift(
    env: Mapping[int, RankEnv], kind: TensorKind, replicas: _Replicas, by_step: dict[int, dict[int, NDArray[Any]]]
) -> _Drift | None:
    first: _Drift | None = None
    last: dict[int, NDArray[Any]] = {}
    step_last = -1
    equal_ranks: dict[int, set[int]] = {}
    for step in sorted(by_step):
        digests_of = {rank: by_step[step][rank] for rank in replicas.ranks if rank in by_step[step]}
        if replicas.names is not None:
            digests_of = {rank: _mask(env[rank], replicas.names, digests) for rank, digests in digests_of.items()}
        if not _differ(list(digests_of.values())):
            equal_ranks[step] = set(digests_of)
            continue
        step_last, last = step, digests_of
        if first is None:
            odd, names = _odd_ranks_and_names(env, kind, digests_of)
            # ranks that were not measured at a step may have differed there
            equal_steps = [earlier for earlier, ranks in equal_ranks.items() if ranks >= set(digests_of)]
            equal_at = max(equal_steps, default=None)
            first = _Drift(step, step, equal_at, odd, names, blames_all=len(odd) == len(digests_of))
    if first is None:
        return None
    _, at_last = _odd_ranks_and_names(env, kind, last)
    return replace(first, step_last=step_last, later=tuple(name for name in at_last if name not in first.names))


def _mask(env: RankEnv, names: frozenset[str], digests: NDArray[Any]) -> NDArray[Any]:
    """The digests with ``NOT_HELD`` for every parameter that is none of ``names``."""
    all_names = param_names(env)
    if len(all_names) != len(digests):
        return digests
    return np.where(np.isin(all_names, sorted(names)), digests, NOT_HELD)


def _findings_at_the_end(run: Run, replicas: Sequence[_Replicas]) -> list[Finding]:
    """An info where replicas were equal at every step measured, and not when watching ended."""
    digest_steps = sorted(_digests_by_step(run, "param_digests"))
    drifts = [
        replace(drift, equal_at=max((step for step in digest_steps if step <= drift.step), default=None))
        for drift in _drifts(run.env, "parameter", replicas, _digests_by_step(run, "closing_digests"))
    ]
    if not drifts:
        return []
    return [replace(_finding("parameter", drifts, at_end=True), severity="info", next=(_AT_THE_END,))]


def _differ(digests: list[NDArray[Any]]) -> bool:
    if len(set(map(len, digests))) > 1:
        return True
    return bool(digests) and bool(_differing(np.stack(digests)).any())


def _differing(digests_NP: NDArray[Any]) -> NDArray[np.bool_]:
    """[P] parameters of which any two ranks that hold them hold different values."""
    held_NP = digests_NP != NOT_HELD
    # what a rank does not hold takes part in neither extreme
    low = np.where(held_NP, digests_NP, np.iinfo(np.uint64).max).min(axis=0)
    return np.asarray(np.where(held_NP, digests_NP, 0).max(axis=0) > low, dtype=np.bool_)


def _odd_ranks_and_names(
    env: Mapping[int, RankEnv], kind: TensorKind, digests_of: dict[int, NDArray[Any]]
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Ranks that differ in the first of the parameters that do, and the names of all that do."""
    if len({len(digests) for digests in digests_of.values()}) > 1:
        return odd_ranks({rank: len(digests) for rank, digests in digests_of.items()}), ("(their number)",)
    digests_NP = np.stack(list(digests_of.values()))
    different = np.flatnonzero(_differing(digests_NP))
    first_env = env[next(iter(digests_of))]
    names = param_names(first_env) if kind == "parameter" else first_env.buffers
    first_digests = {rank: int(digests[different[0]]) for rank, digests in digests_of.items()}
    # the first parameter that differs: later ones follow from it
    odd = odd_ranks({rank: digest for rank, digest in first_digests.items() if digest != NOT_HELD})
    return odd, tuple(names[index] if index < len(names) else f"#{index}" for index in different)


def _finding(kind: TensorKind, drifts: list[_Drift], *, at_end: bool = False) -> Finding:
    """``at_end``: the difference was seen only when watching ended, after the step of ``drifts``."""
    step = min(drift.step for drift in drifts)
    earliest = [drift for drift in drifts if drift.step == step]
    ranks = tuple(sorted({rank for drift in earliest for rank in drift.ranks}))
    names = tuple(dict.fromkeys(name for drift in earliest for name in drift.names))
    equal_steps = [drift.equal_at for drift in earliest if drift.equal_at is not None]
    # the interval has to hold for all groups that differ
    equal_at = min(equal_steps) if len(equal_steps) == len(earliest) else None
    moment = f"before the update of step {step}" if equal_at is None else f"before that of step {step}"
    if at_end:
        moment = f"when watching ended, after step {step}"
    if equal_at is None:
        when = f"different at the first comparison, {moment}"
    else:
        when = f"equal before the update of step {equal_at} and different {moment}"
    later = tuple(dict.fromkeys(name for drift in earliest for name in drift.later if name not in names))
    step_last = max(drift.step_last for drift in drifts)
    later_clause = f"; of {len(later)} more by step {step_last}: {named_some(later)}" if later else ""
    return Finding(
        code=CODE,
        severity="error" if kind == "parameter" else "warning",
        claim=f"{_subject(earliest)} of {counted(len(names), kind)}, {when}: {named_some(names)}{later_clause}.",
        ranks=ranks,
        step_first=step,
        step_last=step_last,
        sites=sites_of(step, ranks[:2], phase=_PHASE[kind], names=names[: MAX_SITES // 2]),
        measured=float(len(names)),
        expected=0.0,
        unit=f"{kind}s that differ between replicas",
        false_alarm_rate=0.0,
        evidence={
            "kind": _kinds(kind, equal_at, names),
            "names": list(names[:100]),
            "last_equal": equal_at,
            "first_different": step,
            **({} if equal_at is None or at_end else {"onset_interval": [equal_at + 1, step]}),
        },
        next=(_advice(kind, names, step),),
    )


def _with_states(run: Run, finding: Finding) -> Finding:
    """The finding with the relation of optimizer states of the parameters that drifted since a known step."""
    kinds, equal_at = finding.evidence["kind"], finding.evidence["last_equal"]
    if "from-the-start" in kinds:
        return _with_counts(run, finding)
    if "later" not in kinds or finding.step_first is None:
        return finding
    comparison = compare_states(run, finding.evidence["names"], equal_at, finding.step_first)
    if comparison is None:
        return finding
    relation, step = comparison
    sentence = {
        "states-equal": f"Sampled states of the optimizer are equal between ranks at step {step}.",
        "states-apart": f"States of the optimizer differed already before the update of step {step}.",
    }[relation]
    evidence = {**finding.evidence, "kind": [*kinds, relation], "states_at": step}
    advice = (*((_STATES,) if relation == "states-apart" else ()), *finding.next)
    return replace(finding, claim=f"{finding.claim} {sentence}", evidence=evidence, next=advice)


def _with_counts(run: Run, finding: Finding) -> Finding:
    """The finding of a difference at the first comparison, if updates had been made before: it need not be the start
    that differs, and says so; with the numbers of updates that optimizers had counted by then, if these differ.
    """
    attempts = run.manifest.attempts
    if not (attempts and attempts[0].updates):
        return finding
    kinds = ["begun-before" if kind == "from-the-start" else kind for kind in finding.evidence["kind"]]
    claim, counted_by = f"{finding.claim} Updates had been made before that.", {}
    if (counts := unequal_update_counts(run, finding.evidence["names"])) is not None:
        by_rank, step = counts
        kinds.append("counts-apart")
        counted_by = {"counts": {str(rank): count for rank, count in by_rank.items()}, "counts_at": step}
        counts_text = listed(
            [
                f"{count} on {ranks_text(r for r, c in by_rank.items() if c == count)}"
                for count in sorted(set(by_rank.values()), reverse=True)
            ]
        )
        claim = f"{finding.claim} Before the update of step {step} optimizers had counted {counts_text}."
    return replace(finding, claim=claim, next=(_LATER,), evidence={**finding.evidence, "kind": kinds, **counted_by})


def _kinds(kind: TensorKind, equal_at: int | None, names: Sequence[str]) -> list[str]:
    """Kinds of the drift: its tensors, its beginning, and whether it is of one tensor alone."""
    onset = ["from-the-start" if equal_at is None else "later"]
    if kind == "buffer":
        return ["buffers", *dict.fromkeys("statistics" if _is_statistic(name) else "by-code" for name in names)]
    return onset + (["one"] if len(names) == 1 else ["several"])


def _advice(kind: TensorKind, names: Sequence[str], step: int) -> str:
    if kind == "buffer":
        by_code = [name for name in names if not _is_statistic(name)]
        return _BUFFERS.format(names=named_some(by_code)) if by_code else _STATISTICS
    return _AT_THE_START if step == 0 else _LATER


def _is_statistic(name: str) -> bool:
    """True for a buffer of batch normalisation, which SyncBatchNorm keeps equal."""
    return name.rpartition(".")[2] in ("running_mean", "running_var", "num_batches_tracked")


def _own_params_finding(run: Run, names: list[str]) -> Finding:
    ranks = tuple(rank for rank, env in sorted(run.env.items()) if env.whole or env.talks_in_forward)
    step, equal = int(run.steps[0]), equal_at_first(run, names)
    began = f" Of these {named_some(equal)} began equal on all of them." if equal else ""
    copies = (_IF_COPIES,) if equal and parts_of_one_model(run) else ()
    return Finding(
        code=CODE,
        severity="info",
        claim=f"{capitalized(ranks_text(ranks))} each hold values of their own of {counted(len(names), 'parameter')} "
        f"since the first step, and never all had the same gradient of them: {named_some(names)}.{began}",
        ranks=ranks,
        step_first=step,
        step_last=int(run.steps[-1]),
        sites=sites_of(step, ranks[:2], phase="param", names=names[: MAX_SITES // 2]),
        measured=float(len(names)),
        expected=None,
        unit="parameters that are each rank's own",
        false_alarm_rate=0.0,
        evidence={"names": names[:100], "equal_at_first": equal[:100]},
        next=(
            "If these are shards or experts, that is as it should be: ranks that began with equal values are compared "
            "with each other. If not, broadcast them and reduce their gradients.",
            *copies,
        ),
    )


def _subject(drifts: list[_Drift]) -> str:
    ranks_clause = capitalized(listed([ranks_text(drift.ranks) for drift in drifts]))
    if all(drift.blames_all for drift in drifts):
        return f"{ranks_clause} hold different values"
    verb = "holds" if sum(len(drift.ranks) for drift in drifts) == 1 else "hold"
    return f"{ranks_clause} {verb} other values than the replicas"
