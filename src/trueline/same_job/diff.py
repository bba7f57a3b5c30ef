"""``diff``: differences between two jobs that should be the same, the most telling first."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from trueline.judge.actions import Action, actions_of
from trueline.same_job.alignment import unaligned_switches
from trueline.same_job.compare_data import DRAWN_BEFORE, compare_data, uncompared_notes
from trueline.same_job.compare_environment import compare_environment
from trueline.same_job.compare_model import compare_model, prefix_between
from trueline.same_job.compare_settings import canonical_texts, compare_settings, one_sided_terms
from trueline.same_job.curves import Curves, compare_curves
from trueline.same_job.derived import Derived, derive
from trueline.same_job.difference import TELLING, UNSET, Difference, is_divided_alike
from trueline.same_job.fact_pair import FactPair
from trueline.same_job.settings import Settings, read_settings
from trueline.same_job.vocabulary import vocabulary
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding, documents_of
from trueline.schema.judged import COMPARED
from trueline.schema.text.shown import Shown
from trueline.schema.text.words import capitalized, counted, named_some
from trueline.store.job_files.job import Job, open_job
from trueline.store.reader import Run

SCHEMA = 1
"""Version of the document of ``JobDiff.to_json``."""
_MOST_REMEDIES = 5
"""Differences of which an action says what to set: one by one, the first that helps is the last."""
_TOO_LATE_FACTOR = 0.2
"""Factor on the likelihood of a difference that takes effect only after the losses have parted."""


@dataclass(frozen=True, repr=False)
class JobDiff(Shown):
    """Differences between two jobs, the most likely to explain other numbers first.

    ``compared`` counts the facts that both have, by kind; ``curves`` compares losses and learning rates of two Runs;
    ``settings`` are both jobs' in the words of the vocabulary.
    """

    run: str
    ref: str
    differences: tuple[Difference, ...]
    compared: Mapping[str, int]
    curves: Curves
    notes: tuple[str, ...]
    settings: tuple[Mapping[str, str], Mapping[str, str]]
    facts: tuple[FactPair, ...] = ()
    """Facts of two Runs that differ, where these were asked for."""

    recorded: bool = False
    """Whether both are Runs with recorded steps, which `compare` reads."""

    @property
    def _once_recorded(self) -> str:
        return "" if self.recorded else ", once both are recorded"

    @property
    def began(self) -> str:
        """Moment at which the losses of two Runs part: "at the first loss", "later", "never", or "" where unknown."""
        return self.curves.began

    @property
    def telling(self) -> tuple[Difference, ...]:
        """Differences that are more than information."""
        return tuple(difference for difference in self.differences if difference.severity != "info")

    @property
    def exit_code(self) -> int:
        """Exit code: 0 without telling differences, 1 with some.

        3 without any where settings could not be compared, or the losses part at the first one all the same.
        """
        # Later losses may part by rounding alone, which grows.
        unexplained = self.began == "at the first loss" and not self.differences
        return 1 if self.telling else 3 if unexplained or not self.compared["settings"] else 0

    @property
    def headline(self) -> str:
        """Whole answer in a few sentences; the steps at which losses and learning rates part come first."""
        return " ".join(capitalized(f"{part}.") for part in (self.curves.line, self._differing) if part)

    @property
    def actions(self) -> tuple[Action, ...]:
        """What to set as in the reference, the most telling first, and where values of two Runs can be compared."""
        lines = [difference.remedy for difference in self.telling[:_MOST_REMEDIES]]
        if self.curves.loss is not None:
            words = f"{shlex.quote(self.run)} {shlex.quote(self.ref)}"
            lines.append(f"Where their values part{self._once_recorded}: `trueline compare {words} --json`.")
        return actions_of(lines)

    @property
    def _differing(self) -> str:
        total = sum(self.compared.values())
        if not self.differences:
            lacking = "" if self.compared["settings"] else "; settings could not be compared: pass configurations, too"
            if self.curves.loss is not None:
                how = " with `--plan mix`" if self._once_recorded else ""
                todo = f"`trueline compare` says where they part{self._once_recorded}{how}"
                return f"None of {counted(total, 'fact')} that both have explains it{lacking}: {todo}"
            return f"Nothing that can change numbers differs in {counted(total, 'fact')} that both have{lacking}"
        first = capitalized(self.differences[0].line)
        # an option that nobody knows may do nothing: it does not lead the verdict
        num_unknown = sum(difference.is_unknown for difference in self.telling)
        num_telling = len(self.telling) - num_unknown
        small = len(self.differences) - len(self.telling)
        if self.curves.as_if_same:
            says = f"The losses are the same at all {self.curves.steps:,} steps that both have"
            return f"{says}, and nothing explains other numbers up to there: {counted(small, 'difference')}. {first}"
        rest = f"; {small} more explain rounding only" if small and self.telling else ""
        if not self.telling:
            return f"Only what explains differences of the size of rounding: {counted(small, 'difference')}. {first}"
        unknown = f"{counted(num_unknown, 'option')} of unknown effect" if num_unknown else ""
        if not num_telling:
            differ = "differs" if num_unknown == 1 else "differ"
            return f"Nothing that is known to explain other numbers; {unknown} {differ}{rest}. {first}"
        others = f", and {unknown}" if unknown else ""
        return f"{counted(num_telling, 'difference')} that can explain other numbers{others}{rest}. {first}"

    def findings(self) -> list[Finding]:
        """One finding per code: its most telling difference in the claim, all of them as evidence."""
        return [_finding(code, group) for code, group in self._by_code().items()]

    def _by_code(self) -> dict[str, list[Difference]]:
        groups: dict[str, list[Difference]] = {}
        for difference in self.differences:
            groups.setdefault(difference.code, []).append(difference)
        return groups

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "run": self.run,
            "ref": self.ref,
            "status": COMPARED[self.exit_code],
            "exit_code": self.exit_code,
            "verdict": self.headline,
            "cause": next((difference.code for difference in self.telling), None),
            "actions": [action.to_json() for action in self.actions],
            "began": self.began,
            "differences": [
                {"id": f"{difference.code}.{difference.name}"} | difference.to_json() for difference in self.differences
            ],
            "findings": documents_of(self.findings()),
            "compared": dict(self.compared),
            "facts": [pair.to_json() for pair in self.facts],
            "settings": {"run": dict(self.settings[0]), "ref": dict(self.settings[1])},
            "notes": list(self.notes),
        }

    def _title(self) -> str:
        return self.headline

    def _columns_shown(self) -> Mapping[str, Sequence[Any]]:
        names = ("likely", "code", "says", "run", "ref", "run_where", "ref_where", "note")
        return {name: [getattr(difference, name) for difference in self.differences] for name in names}

    def _notes(self) -> Sequence[str]:
        return self.notes


def diff(run: str | os.PathLike[str] | Run | Job, ref: str | os.PathLike[str] | Run | Job) -> JobDiff:
    """Compare two jobs; raises ``InputError`` for a path that is no job, ``CannotTell`` without a common fact."""
    job, ref_job = (side if isinstance(side, Job) else open_job(side) for side in (run, ref))
    settings, ref_settings = read_settings(_sources(job)), read_settings(_sources(ref_job))
    differences, num_settings = compare_settings(
        settings, ref_settings, (_derive_quantities(job, settings), _derive_quantities(ref_job, ref_settings))
    )
    areas = {
        "environment": compare_environment(job, ref_job),
        "data": compare_data(job, ref_job),
        "model": compare_model(job, ref_job),
    }
    compared = {"settings": num_settings} | {name: count for name, (_, count) in areas.items()}
    if not any(compared.values()):
        raise CannotTell(
            f"'{job.name}' and '{ref_job.name}' have nothing in common that can be compared: "
            f"{_describe_facts(job, settings)}, and {_describe_facts(ref_job, ref_settings)}. "
            "Pass two of one kind: `trueline env collect OUT --config FILE` has both."
        )
    differences += [difference for area_differences, _ in areas.values() for difference in area_differences]
    curves = compare_curves(job.run, ref_job.run)
    differences += _rate_difference(curves, differences)
    return JobDiff(
        run=job.name,
        ref=ref_job.name,
        differences=tuple(
            sorted(
                (_weigh_difference(difference, curves) for difference in _without_idle_streams(differences)),
                key=_difference_order,
            )
        ),
        compared=compared,
        curves=curves,
        notes=tuple(_notes(job, ref_job, settings, ref_settings)),
        settings=(canonical_texts(settings), canonical_texts(ref_settings)),
        recorded=all(side.run is not None and side.run.has_records for side in (job, ref_job)),
    )


def _sources(job: Job) -> dict[str, Mapping[str, Any]]:
    """Configurations of a job; the options that its optimizer was made with come first, since they hold."""
    optimizer = {} if job.env is None else _optimizer_options(job.env.optimizer)
    return ({"optimizer": optimizer} if optimizer else {}) | dict(job.configs)


def _optimizer_options(optimizer: Mapping[str, Any]) -> dict[str, Any]:
    """Options shared by all parameter groups of the optimizer; rates change by schedule and are left out."""
    groups = cast(Sequence[Mapping[str, Any]], optimizer.get("groups") or [])
    if not groups:
        return {}
    first = groups[0]
    shared_options: dict[str, Any] = {k: v for k, v in first.items() if all(group.get(k) == v for group in groups)}
    betas: Any = shared_options.get("betas")
    names = ("weight_decay", "eps", "momentum", "amsgrad", "nesterov")
    options: dict[str, Any] = {name: shared_options[name] for name in names if name in shared_options}
    if isinstance(betas, list) and len(cast(list[Any], betas)) == 2:
        options |= {"betas.0": betas[0], "betas.1": betas[1]}
    if "initial_lr" in shared_options:
        options["lr"] = shared_options["initial_lr"]
    return {"optimizer": optimizer.get("class", ""), **options}


def _derive_quantities(job: Job, settings: Settings) -> Derived:
    world = job.run.world_size if job.run is not None else _environ_world_size(job.environ)
    rows = job.env.data.get("dataset_len") if job.env is not None else None
    return derive(settings, world_size=world, rows=rows if isinstance(rows, int) else None)


def _environ_world_size(environ: Mapping[str, str] | None) -> int | None:
    text = (environ or {}).get("WORLD_SIZE", "")
    return int(text) if text.isdigit() and int(text) > 0 else None


def _rate_difference(curves: Curves, differences: Sequence[Difference]) -> list[Difference]:
    """Difference of the recorded learning rates, where no other difference says so."""
    if curves.rate is None or any(
        difference.topic == "optimizer" and difference.likely >= TELLING for difference in differences
    ):
        return []
    says, values = f"learning rate of step {curves.rate.step:,}", (curves.rate.run, curves.rate.ref)
    run, ref = (f"{value:.6g}" for value in values)
    return [Difference("config-differs", "optimizer", "learning-rate-curve", says, run, ref, 70, "update")]


def _without_idle_streams(differences: Sequence[Difference]) -> list[Difference]:
    """Leave out random streams that do not move while the jobs are watched.

    They stay where weights or samples differ, which may have been drawn from them before.
    """
    drawn_differs = any(
        difference.code == "weight-differs" or difference.name in ("first-batch", "order", "labels")
        for difference in differences
    )
    return [difference for difference in differences if difference.note != DRAWN_BEFORE or drawn_differs]


def _weigh_difference(difference: Difference, curves: Curves) -> Difference:
    """Weigh a difference by the moment at which losses part.

    An update cannot change the loss before it; a cause of the first loss is unlikely where that agrees; equal losses
    need no explanation.
    """
    moment = curves.began
    if curves.as_if_same:
        return replace(
            difference, likely=min(difference.likely, TELLING - 1), note=difference.note or "the losses are the same"
        )
    if moment == "at the first loss" and difference.starts == "update":
        note = "cannot explain the first loss, which differs"
    elif moment in ("later", "never") and difference.starts == "start" and difference.likely >= TELLING:
        note = "the first loss agrees" if moment == "later" else "the losses agree"
    else:
        return difference
    likely = round(difference.likely * _TOO_LATE_FACTOR) if difference.starts == "update" else difference.likely // 2
    return replace(difference, likely=likely, note=note)


def _difference_order(difference: Difference) -> tuple[bool, int, str, str]:
    return difference.is_unknown, -difference.likely, difference.code, difference.name


def _notes(job: Job, ref_job: Job, settings: Settings, ref_settings: Settings) -> list[str]:
    sides = ((job, settings), (ref_job, ref_settings))
    notes = [f"{side_job.name}: {note}" for side_job, _ in sides for note in side_job.notes]
    notes += [f"within {side_job.name}, {note}" for side_job, side_settings in sides for note in side_settings.notes]
    unshared = one_sided_terms(settings, ref_settings)
    if unshared:
        notes.append(f"One configuration alone tells {named_some(unshared)}: not compared.")
    automatic = sorted(vocabulary().terms[slug].says for slug in settings.automatic | ref_settings.automatic)
    if automatic:
        notes.append(f"Left to `auto`, and not compared: {named_some(automatic)}.")
    unknown = (settings.unknown | ref_settings.unknown) - settings.automatic - ref_settings.automatic
    if unknown:
        texts = sorted(vocabulary().terms[slug].says for slug in unknown)
        notes.append(f"Not known without a shell or another file, and not compared: {named_some(texts)}.")
    for side_job, _ in sides:
        for where, options in side_job.configs.items():
            if absent := options.get("defaults"):
                names = named_some(cast(list[str], absent)) if isinstance(absent, list) else str(absent)
                notes.append(f"{where} inherits from {names}, which is not there: what that sets is not compared.")
    for side_job, side_settings in sides:
        if not side_settings.terms and not side_settings.other_options:
            notes.append(f"{side_job.name} has no configuration: settings were not compared.")
    if job.run is not None and ref_job.run is not None and not is_divided_alike(job.run, ref_job.run):
        notes.append(
            "The Runs divide their work between ranks or micro-batches otherwise: parameters, weights and first "
            "batches were not compared."
        )
    elif job.run is not None and ref_job.run is not None:
        notes += uncompared_notes(job.run, ref_job.run)
    if job.env is not None and ref_job.env is not None and (prefix := prefix_between(job.env, ref_job.env)):
        notes.append(f"Names of parameters are compared without '{prefix}', which stands in front of them in one job.")
    both_have_rollouts = all(
        side_job.run is not None and bool(side_job.run.kept("rollouts")) for side_job in (job, ref_job)
    )
    notes += unaligned_switches(job.configs, ref_job.configs, rollouts=both_have_rollouts)
    return list(dict.fromkeys(notes))


def _describe_facts(job: Job, settings: Settings) -> str:
    kinds = [
        *(["an environment"] if job.environ is not None else []),
        *(["settings"] if settings.terms or settings.other_options else []),
        *(["a tokenizer"] if job.tokenizer else []),
    ]
    return f"'{job.name}' has {' and '.join(kinds) or 'nothing that is known'}"


def _finding(code: str, group: Sequence[Difference]) -> Finding:
    worst = group[0]
    rest = f"; and {len(group) - 1} more" if len(group) > 1 else ""
    where = f" ({worst.run_where})" if worst.run_where else ""
    lacking = worst.ref if worst.ref != UNSET else "leave it out"
    is_set = worst.run_where or worst.ref_where
    todo = f"Set {worst.says} as in the reference ({lacking})" if is_set else f"Make both jobs agree in {worst.says}"
    if worst.topic == "random":
        todo = "Call trueline.seed_all with the same seed in both jobs, before the model is made"
    return Finding(
        code=code,
        severity="warning" if any(difference.severity == "warning" for difference in group) else "info",
        claim=f"{capitalized(worst.claim)}{where}{rest}.",
        measured=float(len(group)),
        expected=0.0,
        unit="differences",
        false_alarm_rate=0.0,
        evidence={"kind": worst.topic, "differences": [difference.to_json() for difference in group[:50]]},
        next=(f"{todo}, and run again.",) if worst.severity == "warning" else (),
    )
