"""Differences between the models of two jobs: tree of modules, parameters, buffers, tying, and the first weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from trueline.same_job.difference import AS_IN_REF, NONE, Difference, cast_otherwise, divided_alike
from trueline.schema.errors import RunError
from trueline.schema.files.job_facts import JobFacts
from trueline.schema.files.run_manifest import RankEnv
from trueline.schema.text.words import counted, named_some, numberless
from trueline.store.job_files.job import Job
from trueline.store.reader import Run

_MAX_NAMED = 3


def compare_model(one: Job, other: Job) -> tuple[list[Difference], int]:
    """What differs in structure and first weights, and how many facts both jobs have. Names are compared where the two
    share most of them: models of two frameworks take ``trueline compare`` with a map. So does what is divided between
    ranks otherwise, of which a rank holds other shapes.
    """
    if one.env is None or other.env is None or not one.env.params or not other.env.params:
        return [], 0
    if one.run is not None and other.run is not None and not divided_alike(one.run, other.run):
        return [], 0
    prefix = prefix_between(one.env, other.env)
    envs = _without_prefix(one.env, prefix), _without_prefix(other.env, prefix)
    mine, theirs = (_shapes(env) for env in envs)
    shared = set(mine) & set(theirs)
    if 2 * len(shared) < min(len(mine), len(theirs)):
        alone = [[name for name in side if name not in shared] for side in (mine, theirs)]
        says = f"names of parameters ({len(shared)} of {len(mine):,} and {len(theirs):,} in common)"
        return [
            Difference(
                "structure-differs",
                "model",
                "parameters",
                says,
                named_some(alone[0]),
                named_some(alone[1]),
                60,
                "start",
            )
        ], 1
    found = [*_names(mine, theirs), *_states(*envs, shared), *_tree(*envs)]
    compared = len(shared)
    if one.run is not None and other.run is not None:
        weights = _first_weights((one.run, other.run), prefix)
        compared += weights is not None
        found += weights or []
    return found, compared


def prefix_between(one: RankEnv, other: RankEnv) -> str:
    """What stands in front of the names of parameters of one model, or of a part of it, and not of the other, as where
    one job watches a model and one its backbone: "" for nothing.
    """
    sides = [(*env.params, *env.frozen) for env in (one, other)]
    if set(sides[0]) & set(sides[1]):
        return ""
    for long, short in (sides, sides[::-1]):
        fronts = Counter(name.removesuffix(each) for each in short for name in long if name.endswith(f".{each}"))
        front, times = next(iter(fronts.most_common(1)), ("", 0))
        if 2 * times > len(short):
            return front
    return ""


def _without_prefix(env: RankEnv, prefix: str) -> RankEnv:
    """The environment with names of parameters and buffers as a model has them that is watched without ``prefix``."""
    if not prefix:
        return env
    names = {
        field: [name.removeprefix(prefix) for name in getattr(env, field)] for field in ("params", "frozen", "buffers")
    }
    facts = env.facts and env.facts.model_copy(update={"modules": [], "tied": []})  # of other roots: not comparable
    return env.model_copy(update={**names, "facts": facts})


def _shapes(env: RankEnv) -> dict[str, tuple[int, ...]]:
    shapes = {name: tuple(shape) for name, shape in zip(env.params, env.param_shapes, strict=False)}
    return shapes | dict.fromkeys(env.frozen, ())


def _names(mine: Mapping[str, tuple[int, ...]], theirs: Mapping[str, tuple[int, ...]]) -> Iterator[Difference]:
    for has, lacks, run_has in ((mine, theirs, True), (theirs, mine, False)):
        alone = list(dict.fromkeys(numberless(name) for name in has if name not in lacks))
        if alone:
            texts = (named_some(alone), NONE) if run_has else (NONE, named_some(alone))
            says = "parameters that one model has alone"
            yield Difference("structure-differs", "model", "parameters", says, *texts, 92, "start")
    differing = [name for name in mine if name in theirs and mine[name] and theirs[name] and mine[name] != theirs[name]]
    for name in differing[:_MAX_NAMED]:
        texts = (str(list(mine[name])), str(list(theirs[name])))
        more = f"and {len(differing) - 1} more parameters" if len(differing) > 1 else ""
        yield Difference("structure-differs", "model", "shapes", f"shape of {name}", *texts, 92, "start", note=more)


def _states(one: RankEnv, other: RankEnv, shared: set[str]) -> Iterator[Difference]:
    """Which parameters train, in which dtype, which buffers there are."""
    for what, says, likely in (("requires_grad", "trains", 84), ("param_dtypes", "dtype of", 78)):
        a, b = (dict(zip(env.params, getattr(env, what), strict=False)) for env in (one, other))
        differing = [name for name in a if name in shared and name in b and a[name] != b[name]]
        if differing:
            name = differing[0]
            more = f"and {len(differing) - 1} more parameters" if len(differing) > 1 else ""
            shown = f"{name} {says}" if says == "trains" else f"{says} {name}"
            texts = (str(a[name]), str(b[name]))
            yield Difference("structure-differs", "model", what, shown, *texts, likely, "start", note=more)
    frozen = [sorted(set(env.frozen) & shared) for env in (one, other)]
    if frozen[0] != frozen[1]:
        texts = (_alone(frozen[0], frozen[1]), _alone(frozen[1], frozen[0]))
        yield Difference("structure-differs", "model", "frozen", "frozen in one model alone", *texts, 84, "update")
    if set(one.buffers) != set(other.buffers):
        texts = (_alone(one.buffers, other.buffers), _alone(other.buffers, one.buffers))
        yield Difference(
            "structure-differs", "model", "buffers", "buffers that one model has alone", *texts, 50, "start"
        )


def _alone(mine: Sequence[str], theirs: Sequence[str]) -> str:
    """The names that only the first has."""
    return named_some(sorted(set(mine) - set(theirs))) or NONE


def _tree(one: RankEnv, other: RankEnv) -> Iterator[Difference]:
    """The modules in their order, so that a normalisation in front of a layer is not one behind it; and tied names."""
    if one.facts is None or other.facts is None:
        return
    mine, theirs = (_kinds(env.facts) for env in (one, other) if env.facts)
    shared = mine.keys() & theirs.keys()
    for name in mine:
        if name in shared and mine[name] != theirs[name]:
            says, run, ref = f"class of {name or 'the model'}", *_first_kinds(mine[name], theirs[name])
            yield Difference("structure-differs", "model", "modules", says, run, ref, 82, "start")
            break
    orders = [[name for name in side if name in shared] for side in (mine, theirs)]
    if orders[0] != orders[1]:
        at = next(place for place, (a, b) in enumerate(zip(*orders, strict=True)) if a != b)
        says = f"module that follows {orders[0][at - 1] if at else 'the start'}"
        yield Difference("structure-differs", "model", "module-order", says, orders[0][at], orders[1][at], 56, "start")
    tied = [sorted(map(tuple, facts.tied)) for facts in (one.facts, other.facts)]
    if tied[0] != tied[1]:
        texts = (_tied(tied[0]), _tied(tied[1]))
        yield Difference("structure-differs", "model", "tied", "tied parameters", *texts, 88, "start")


def _first_kinds(mine: Sequence[str], theirs: Sequence[str]) -> tuple[str, str]:
    """Of the classes of modules of one name those of the first that differs; or, of more of one, how many."""
    for a, b in zip(mine, theirs, strict=False):
        if a != b:
            return a, b
    return counted(len(mine), "module"), counted(len(theirs), "module")


def _kinds(facts: JobFacts) -> dict[str, list[str]]:
    """The classes of modules by their names without numbers, which several may share, in the order of the model."""
    found: dict[str, list[str]] = {}
    for each in facts.modules:
        found.setdefault(each.name, []).append(each.kind)
    return found


def _tied(groups: Sequence[Sequence[str]]) -> str:
    return "; ".join(" = ".join(names) for names in groups) or NONE


def _first_weights(runs: tuple[Run, Run], prefix: str) -> list[Difference] | None:
    """Whether parameters were equal before the first update, by their digests; None where the Runs do not have these
    of one step, or shard them otherwise. Names are compared without ``prefix``.
    """
    sides: list[dict[str, int]] = []
    steps: list[int] = []
    for run in runs:
        rank = min(run.env)
        names = [name.removeprefix(prefix) for name in (*run.env[rank].params, *run.env[rank].frozen)]
        try:
            digests = run.lists("param_digests", steps=[int(step) for step in run.steps[:1]], ranks=[rank])
        except RunError:
            return None
        first = min(digests, default=None)
        if first is None:
            return None
        steps.append(first[0])
        sides.append(dict(zip(names, map(int, digests[first]), strict=False)))
    shapes = [_shapes(_without_prefix(run.env[min(run.env)], prefix)) for run in runs]
    shared = [name for name in sides[0] if name in sides[1] and shapes[0].get(name) == shapes[1].get(name)]
    if steps[0] != steps[1] or not shared or cast_otherwise(*runs):
        return None
    differing = [name for name in shared if sides[0][name] != sides[1][name]]
    if not differing:
        return []
    texts = (f"other values in {len(differing)} of {counted(len(shared), 'parameter')}", AS_IN_REF)
    says = f"weights before the update of step {steps[0]}"
    note = named_some(differing)
    return [Difference("weight-differs", "model", "first-weights", says, *texts, 95, "start", note=note)]
