"""``diff``: what differs between two jobs that should be the same, the most telling first."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from trueline.same_job.alignment import unaligned
from trueline.same_job.compare_data import BEFORE, compare_data, not_compared
from trueline.same_job.compare_environment import compare_environment
from trueline.same_job.compare_model import compare_model, prefix_between
from trueline.same_job.compare_settings import compare_settings, one_sided, told
from trueline.same_job.curves import Curves, curves_of
from trueline.same_job.derived import Derived, derive
from trueline.same_job.difference import TELLING, UNSET, Difference, divided_alike
from trueline.same_job.settings import Settings, settings_of
from trueline.same_job.vocabulary import vocabulary
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.schema.text.shown import Shown
from trueline.schema.text.words import capitalized, counted, named_some
from trueline.store.job_files.job import Job, open_job
from trueline.store.reader import Run

SCHEMA = 1
"""Of the document that ``JobDiff.to_json`` makes."""
_CANNOT_EXPLAIN = 0.2
"""What is left of how likely a difference explains the one at hand, where that began before it could have."""


@dataclass(frozen=True)
class JobDiff(Shown):
    """What differs between two jobs: ``differences``, the most likely to explain other numbers first. ``compared``
    counts the facts that both have, by kind; ``curves`` says where losses and learning rates of two Runs part;
    ``settings`` are both jobs' in the words of the vocabulary.
    """

    run: str
    ref: str
    differences: tuple[Difference, ...]
    compared: Mapping[str, int]
    curves: Curves
    notes: tuple[str, ...]
    settings: tuple[Mapping[str, str], Mapping[str, str]]

    @property
    def began(self) -> str:
        """When the losses of two Runs part: "at the first loss", "later", "never", or "" where that is not known."""
        return self.curves.began

    @property
    def telling(self) -> tuple[Difference, ...]:
        """Differences that are more than information."""
        return tuple(each for each in self.differences if each.severity != "info")

    @property
    def exit_code(self) -> int:
        """0 nothing that is telling, 1 something, 3 nothing, and settings could not be compared or the losses part at
        the first one all the same.
        """
        # Later losses may part by rounding alone, which grows.
        unexplained = self.began == "at the first loss" and not self.differences
        return 1 if self.telling else 3 if unexplained or not self.compared["settings"] else 0

    @property
    def headline(self) -> str:
        """All of it, where losses and learning rates part first."""
        return " ".join(capitalized(f"{part}.") for part in (self.curves.line, self._differing) if part)

    @property
    def _differing(self) -> str:
        total = sum(self.compared.values())
        if not self.differences:
            lacking = "" if self.compared["settings"] else "; settings could not be compared: pass configurations, too"
            if self.curves.loss is not None:
                todo = "`trueline compare` says where they part, once both are recorded with `--plan mix`"
                return f"None of {counted(total, 'fact')} that both have explains it{lacking}: {todo}"
            return f"Nothing that can change numbers differs in {counted(total, 'fact')} that both have{lacking}"
        first = capitalized(self.differences[0].line)
        small = len(self.differences) - len(self.telling)
        if self.curves.as_if_same:
            says = f"The losses are the same at all {self.curves.steps:,} steps that both have"
            return f"{says}, and nothing explains other numbers up to there: {counted(small, 'difference')}. {first}"
        others = f"; {small} more explain rounding only" if small and self.telling else ""
        if not self.telling:
            return f"Only what explains differences of the size of rounding: {counted(small, 'difference')}. {first}"
        return f"{counted(len(self.telling), 'difference')} that can explain other numbers{others}. {first}"

    def findings(self) -> list[Finding]:
        """One finding for each code: its most telling difference in the claim, all of them as evidence."""
        return [_finding(code, group) for code, group in self._by_code().items()]

    def _by_code(self) -> dict[str, list[Difference]]:
        groups: dict[str, list[Difference]] = {}
        for each in self.differences:
            groups.setdefault(each.code, []).append(each)
        return groups

    def to_json(self) -> dict[str, Any]:
        """The document of the outside contract."""
        return {
            "schema": SCHEMA,
            "run": self.run,
            "ref": self.ref,
            "verdict": self.headline,
            "began": self.began,
            "differences": [each.to_json() for each in self.differences],
            "findings": [each.to_json() for each in self.findings()],
            "compared": dict(self.compared),
            "settings": {"run": dict(self.settings[0]), "ref": dict(self.settings[1])},
            "notes": list(self.notes),
        }

    def _title(self) -> str:
        return self.headline

    def _columns_shown(self) -> Mapping[str, Sequence[Any]]:
        names = ("likely", "code", "says", "run", "ref", "run_where", "ref_where", "note")
        return {name: [getattr(each, name) for each in self.differences] for name in names}

    def _notes(self) -> Sequence[str]:
        return self.notes


def diff(run: str | os.PathLike[str] | Run | Job, ref: str | os.PathLike[str] | Run | Job) -> JobDiff:
    """What differs between two jobs. Raises ``InputError`` for what is no job, ``CannotTell`` where the two have
    nothing that can be compared.
    """
    one, other = (each if isinstance(each, Job) else open_job(each) for each in (run, ref))
    mine, theirs = settings_of(_sources(one)), settings_of(_sources(other))
    found, num_settings = compare_settings(mine, theirs, (_derive(one, mine), _derive(other, theirs)))
    parts = {
        "environment": compare_environment(one, other),
        "data": compare_data(one, other),
        "model": compare_model(one, other),
    }
    compared = {"settings": num_settings} | {name: count for name, (_, count) in parts.items()}
    if not any(compared.values()):
        raise CannotTell(
            f"'{one.name}' and '{other.name}' have nothing in common that can be compared: {_has(one, mine)}, and "
            f"{_has(other, theirs)}. Pass two of one kind: `trueline env collect OUT --config FILE` has both."
        )
    found += [each for part, _ in parts.values() for each in part]
    curves = curves_of(one.run, other.run)
    found += _rates(curves, found)
    return JobDiff(
        run=one.name,
        ref=other.name,
        differences=tuple(sorted((_weighed(each, curves) for each in _without_idle(found)), key=_order)),
        compared=compared,
        curves=curves,
        notes=tuple(_notes(one, other, mine, theirs)),
        settings=(told(mine), told(theirs)),
    )


def _sources(job: Job) -> dict[str, Mapping[str, Any]]:
    """The configurations of a job, and in front of them what its optimizer was made with."""
    optimizer = {} if job.env is None else _of_optimizer(job.env.optimizer)
    return ({"optimizer": optimizer} if optimizer else {}) | dict(job.configs)


def _of_optimizer(described: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that all groups of parameters of the optimizer share. Its rates change by schedule, and are left out."""
    groups = cast(Sequence[Mapping[str, Any]], described.get("groups") or [])
    if not groups:
        return {}
    first = groups[0]
    shared: dict[str, Any] = {k: v for k, v in first.items() if all(group.get(k) == v for group in groups)}
    betas: Any = shared.get("betas")
    names = ("weight_decay", "eps", "momentum", "amsgrad", "nesterov")
    taken: dict[str, Any] = {name: shared[name] for name in names if name in shared}
    if isinstance(betas, list) and len(cast(list[Any], betas)) == 2:
        taken |= {"betas.0": betas[0], "betas.1": betas[1]}
    if "initial_lr" in shared:
        taken["lr"] = shared["initial_lr"]
    return {"optimizer": described.get("class", ""), **taken}


def _derive(job: Job, settings: Settings) -> Derived:
    world = job.run.world_size if job.run is not None else _world_of(job.environ)
    rows = job.env.data.get("dataset_len") if job.env is not None else None
    return derive(settings, world_size=world, rows=rows if isinstance(rows, int) else None)


def _world_of(environ: Mapping[str, str] | None) -> int | None:
    given = (environ or {}).get("WORLD_SIZE", "")
    return int(given) if given.isdigit() and int(given) > 0 else None


def _rates(curves: Curves, found: Sequence[Difference]) -> list[Difference]:
    """That the learning rates that were recorded part, where nothing else that differs says so."""
    if curves.rate is None or any(each.topic == "optimizer" and each.likely >= TELLING for each in found):
        return []
    says, values = f"learning rate of step {curves.rate.step:,}", (curves.rate.run, curves.rate.ref)
    run, ref = (f"{value:.6g}" for value in values)
    return [Difference("config-differs", "optimizer", "learning-rate-curve", says, run, ref, 70, "update")]


def _without_idle(found: Sequence[Difference]) -> list[Difference]:
    """Without random streams that do not move while the jobs are watched, but where something differs that may have
    been drawn from them before.
    """
    drawn = any(each.code == "weight-differs" or each.name in ("first-batch", "order", "labels") for each in found)
    return [each for each in found if each.note != BEFORE or drawn]


def _weighed(each: Difference, curves: Curves) -> Difference:
    """The difference with how likely it explains what is at hand: an update cannot change the loss before it, what
    changes the first loss is unlikely where that agrees, and equal losses take no explanation.
    """
    began = curves.began
    if curves.as_if_same:
        return replace(each, likely=min(each.likely, TELLING - 1), note=each.note or "the losses are the same")
    if began == "at the first loss" and each.starts == "update":
        note = "cannot explain the first loss, which differs"
    elif began in ("later", "never") and each.starts == "start" and each.likely >= TELLING:
        note = "the first loss agrees" if began == "later" else "the losses agree"
    else:
        return each
    return replace(
        each, likely=round(each.likely * _CANNOT_EXPLAIN) if each.starts == "update" else each.likely // 2, note=note
    )


def _order(each: Difference) -> tuple[int, str, str]:
    return -each.likely, each.code, each.name


def _notes(one: Job, other: Job, mine: Settings, theirs: Settings) -> list[str]:
    notes = [f"{job.name}: {note}" for job in (one, other) for note in job.notes]
    notes += [f"within {job.name}, {note}" for job, each in ((one, mine), (other, theirs)) for note in each.notes]
    alone = one_sided(mine, theirs)
    if alone:
        notes.append(f"One configuration alone tells {named_some(alone)}: not compared.")
    automatic = sorted(vocabulary().terms[slug].says for slug in mine.automatic | theirs.automatic)
    if automatic:
        notes.append(f"Left to `auto`, and not compared: {named_some(automatic)}.")
    for job, each in ((one, mine), (other, theirs)):
        if not each.terms and not each.others:
            notes.append(f"{job.name} has no configuration: settings were not compared.")
    if one.run is not None and other.run is not None and not divided_alike(one.run, other.run):
        notes.append(
            "The Runs divide their work between ranks or micro-batches otherwise: parameters, weights and first "
            "batches were not compared."
        )
    elif one.run is not None and other.run is not None:
        notes += not_compared(one.run, other.run)
    if one.env is not None and other.env is not None and (prefix := prefix_between(one.env, other.env)):
        notes.append(f"Names of parameters are compared without '{prefix}', which stands in front of them in one job.")
    recorded = all(job.run is not None and bool(job.run.kept("rollouts")) for job in (one, other))
    notes += unaligned(one.configs, other.configs, rollouts=recorded)
    return list(dict.fromkeys(notes))


def _has(job: Job, settings: Settings) -> str:
    kinds = [
        *(["an environment"] if job.environ is not None else []),
        *(["settings"] if settings.terms or settings.others else []),
        *(["a tokenizer"] if job.tokenizer else []),
    ]
    return f"'{job.name}' has {' and '.join(kinds) or 'nothing that is known'}"


def _finding(code: str, group: Sequence[Difference]) -> Finding:
    worst = group[0]
    more = f"; and {len(group) - 1} more" if len(group) > 1 else ""
    where = f" ({worst.run_where})" if worst.run_where else ""
    lacking = worst.ref if worst.ref != UNSET else "leave it out"
    is_set = worst.run_where or worst.ref_where
    todo = f"Set {worst.says} as in the reference ({lacking})" if is_set else f"Make both jobs agree in {worst.says}"
    if worst.topic == "random":
        todo = "Call trueline.seed_all with the same seed in both jobs, before the model is made"
    return Finding(
        code=code,
        severity="warning" if any(each.severity == "warning" for each in group) else "info",
        claim=f"{capitalized(worst.claim)}{where}{more}.",
        measured=float(len(group)),
        expected=0.0,
        unit="differences",
        false_alarm_rate=0.0,
        evidence={"kind": worst.topic, "differences": [each.to_json() for each in group[:50]]},
        next=(f"{todo}, and run again.",) if worst.severity == "warning" else (),
    )
