"""Differences between the models of two jobs: tree of modules, parameters, buffers, tying, and the first weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from trueline.same_job.difference import AS_IN_REF, NO_PART, Difference, has_other_dtypes, is_divided_alike
from trueline.schema.errors import RunError
from trueline.schema.files.job_facts import JobFacts
from trueline.schema.files.run_manifest import RankEnv
from trueline.schema.text.words import counted, named_some, numberless
from trueline.store.job_files.job import Job
from trueline.store.reader import Run

_MAX_NAMED = 3


def compare_model(job: Job, ref_job: Job) -> tuple[list[Difference], int]:
    """Differences in structure and first weights, and the number of facts that both jobs have.

    Parameters are compared by name where the jobs share most names; models of two frameworks take ``trueline compare``
    with a map. So do models that are divided between ranks otherwise, of which a rank holds other shapes.
    """
    if job.env is None or ref_job.env is None or not job.env.params or not ref_job.env.params:
        return [], 0
    if job.run is not None and ref_job.run is not None and not is_divided_alike(job.run, ref_job.run):
        return [], 0
    prefix = prefix_between(job.env, ref_job.env)
    envs = _without_prefix(job.env, prefix), _without_prefix(ref_job.env, prefix)
    run_shapes, ref_shapes = (_parameter_shapes(env) for env in envs)
    shared = set(run_shapes) & set(ref_shapes)
    if 2 * len(shared) < min(len(run_shapes), len(ref_shapes)):
        unshared = [[name for name in side if name not in shared] for side in (run_shapes, ref_shapes)]
        says = f"names of parameters ({len(shared)} of {len(run_shapes):,} and {len(ref_shapes):,} in common)"
        return [
            Difference(
                "structure-differs",
                "model",
                "parameters",
                says,
                named_some(unshared[0]),
                named_some(unshared[1]),
                60,
                "start",
            )
        ], 1
    differences = [
        *_name_differences(run_shapes, ref_shapes),
        *_state_differences(*envs, shared),
        *_tree_differences(*envs),
    ]
    compared = len(shared)
    if job.run is not None and ref_job.run is not None:
        weights = _weight_differences((job.run, ref_job.run), prefix)
        compared += weights is not None
        differences += weights or []
    return differences, compared


def prefix_between(run: RankEnv, ref: RankEnv) -> str:
    """Prefix of the parameter names of one model that the other lacks; "" for none.

    There is one where a job watches a model and the other its backbone.
    """
    sides = [(*env.params, *env.frozen) for env in (run, ref)]
    if set(sides[0]) & set(sides[1]):
        return ""
    for long, short in (sides, sides[::-1]):
        fronts = Counter(name.removesuffix(suffix) for suffix in short for name in long if name.endswith(f".{suffix}"))
        front, times = next(iter(fronts.most_common(1)), ("", 0))
        if 2 * times > len(short):  # one accidental suffix is no prefix
            return front
    return ""


def _without_prefix(env: RankEnv, prefix: str) -> RankEnv:
    """Environment whose parameters and buffers are named without ``prefix``."""
    if not prefix:
        return env
    names = {
        field: [name.removeprefix(prefix) for name in getattr(env, field)] for field in ("params", "frozen", "buffers")
    }
    facts = env.facts and env.facts.model_copy(update={"modules": [], "tied": []})  # of other roots: not comparable
    return env.model_copy(update={**names, "facts": facts})


def _parameter_shapes(env: RankEnv) -> dict[str, tuple[int, ...]]:
    shapes = {name: tuple(shape) for name, shape in zip(env.params, env.param_shapes, strict=False)}
    # Shapes of frozen parameters are not recorded.
    return shapes | dict.fromkeys(env.frozen, ())


def _name_differences(
    run_shapes: Mapping[str, tuple[int, ...]], ref_shapes: Mapping[str, tuple[int, ...]]
) -> Iterator[Difference]:
    for holder, lacker, run_has in ((run_shapes, ref_shapes, True), (ref_shapes, run_shapes, False)):
        unshared = list(dict.fromkeys(numberless(name) for name in holder if name not in lacker))
        if unshared:
            texts = (named_some(unshared), NO_PART) if run_has else (NO_PART, named_some(unshared))
            says = "parameters that one model has alone"
            yield Difference("structure-differs", "model", "parameters", says, *texts, 92, "start")
    differing = [
        name
        for name in run_shapes
        if name in ref_shapes and run_shapes[name] and ref_shapes[name] and run_shapes[name] != ref_shapes[name]
    ]
    for name in differing[:_MAX_NAMED]:
        texts = (str(list(run_shapes[name])), str(list(ref_shapes[name])))
        rest = f"and {len(differing) - 1} more parameters" if len(differing) > 1 else ""
        yield Difference("structure-differs", "model", "shapes", f"shape of {name}", *texts, 92, "start", note=rest)


def _state_differences(run: RankEnv, ref: RankEnv, shared: set[str]) -> Iterator[Difference]:
    """Differences in the parameters that train, their dtypes, and the buffers."""
    for column, says, likely in (("requires_grad", "trains", 84), ("param_dtypes", "dtype of", 78)):
        run_states, ref_states = (dict(zip(env.params, getattr(env, column), strict=False)) for env in (run, ref))
        differing = [
            name
            for name in run_states
            if name in shared and name in ref_states and run_states[name] != ref_states[name]
        ]
        if differing:
            name = differing[0]
            rest = f"and {len(differing) - 1} more parameters" if len(differing) > 1 else ""
            subject = f"{name} {says}" if says == "trains" else f"{says} {name}"
            texts = (str(run_states[name]), str(ref_states[name]))
            yield Difference("structure-differs", "model", column, subject, *texts, likely, "start", note=rest)
    frozen = [sorted(set(env.frozen) & shared) for env in (run, ref)]
    if frozen[0] != frozen[1]:
        texts = (_unshared_names(frozen[0], frozen[1]), _unshared_names(frozen[1], frozen[0]))
        yield Difference("structure-differs", "model", "frozen", "frozen in one model alone", *texts, 84, "update")
    if set(run.buffers) != set(ref.buffers):
        texts = (_unshared_names(run.buffers, ref.buffers), _unshared_names(ref.buffers, run.buffers))
        yield Difference(
            "structure-differs", "model", "buffers", "buffers that one model has alone", *texts, 50, "start"
        )


def _unshared_names(names: Sequence[str], other_names: Sequence[str]) -> str:
    """Text of the names that only ``names`` has."""
    return named_some(sorted(set(names) - set(other_names))) or NO_PART


def _tree_differences(run: RankEnv, ref: RankEnv) -> Iterator[Difference]:
    """Differences in modules, their order (normalisation before a layer or behind it), and tied parameters."""
    if run.facts is None or ref.facts is None:
        return
    run_modules, ref_modules = (_module_kinds(env.facts) for env in (run, ref) if env.facts)
    shared = run_modules.keys() & ref_modules.keys()
    for name in run_modules:
        if name in shared and run_modules[name] != ref_modules[name]:
            kinds = _first_differing_kinds(run_modules[name], ref_modules[name])
            says = f"class of {name or 'the model'}"
            yield Difference("structure-differs", "model", "modules", says, *kinds, 82, "start")
            break
    orders = [[name for name in side if name in shared] for side in (run_modules, ref_modules)]
    if orders[0] != orders[1]:
        index = next(position for position, (a, b) in enumerate(zip(*orders, strict=True)) if a != b)
        says = f"module that follows {orders[0][index - 1] if index else 'the start'}"
        yield Difference(
            "structure-differs", "model", "module-order", says, orders[0][index], orders[1][index], 56, "start"
        )
    tied = [sorted(map(tuple, facts.tied)) for facts in (run.facts, ref.facts)]
    if tied[0] != tied[1]:
        texts = (_tied_text(tied[0]), _tied_text(tied[1]))
        yield Difference("structure-differs", "model", "tied", "tied parameters", *texts, 88, "start")


def _first_differing_kinds(run_kinds: Sequence[str], ref_kinds: Sequence[str]) -> tuple[str, str]:
    """Classes of the first module that differs, of modules that share a name; or the numbers of modules."""
    for run_kind, ref_kind in zip(run_kinds, ref_kinds, strict=False):
        if run_kind != ref_kind:
            return run_kind, ref_kind
    return counted(len(run_kinds), "module"), counted(len(ref_kinds), "module")


def _module_kinds(facts: JobFacts) -> dict[str, list[str]]:
    """Classes of modules, in the order of the model, by the name without numbers, which several may share."""
    kinds: dict[str, list[str]] = {}
    for module in facts.modules:
        kinds.setdefault(module.name, []).append(module.kind)
    return kinds


def _tied_text(groups: Sequence[Sequence[str]]) -> str:
    return "; ".join(" = ".join(names) for names in groups) or NO_PART


def _weight_differences(runs: tuple[Run, Run], prefix: str) -> list[Difference] | None:
    """Difference of parameters before the first update, by their digests and by names without ``prefix``.

    Returns None where the Runs lack digests of one step, or shard them otherwise.
    """
    digests_by_name: list[dict[str, int]] = []
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
        digests_by_name.append(dict(zip(names, map(int, digests[first]), strict=False)))
    shapes = [_parameter_shapes(_without_prefix(run.env[min(run.env)], prefix)) for run in runs]
    shared = [
        name for name in digests_by_name[0] if name in digests_by_name[1] and shapes[0].get(name) == shapes[1].get(name)
    ]
    if steps[0] != steps[1] or not shared or has_other_dtypes(*runs):
        return None
    differing = [name for name in shared if digests_by_name[0][name] != digests_by_name[1][name]]
    if not differing:
        return []
    texts = (f"other values in {len(differing)} of {counted(len(shared), 'parameter')}", AS_IN_REF)
    says = f"weights before the update of step {steps[0]}"
    note = named_some(differing)
    return [Difference("weight-differs", "model", "first-weights", says, *texts, 95, "start", note=note)]
