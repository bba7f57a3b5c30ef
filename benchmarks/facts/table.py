"""The base rates of marks among healthy trainings, and the page that says where they come from."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.facts.catalogue import Example
from benchmarks.facts.training import Training, one_of_each
from benchmarks.page import table

import trueline
from trueline.judge.facts.base_rates import MOST, TABLE
from trueline.judge.facts.fact import Mark, Subject
from trueline.judge.facts.training_facts import all_subjects
from trueline.schema.judged import FEWEST_STEPS_OF_ONE

RESULTS = Path(__file__).with_name("results")
SHIPPED = Path(trueline.__file__).parent / "judge" / "facts" / TABLE
KINDS = ("gallery", "frameworks", "examples")
_WHY = """Nobody can prove from inside a training that a frozen head was not meant. What can be measured is how many
healthy trainings show such a fact. A mark that at most 5 % of the counted trainings show is said as something to
confirm, with these numbers; one that more show is not."""
_COUNTED = """**Which are counted.** The gallery's entries that share one training function are run once: the first by
its id. Of all that were run, trainings of one shape are one: same source (gallery, framework, repository), ranks,
adapter, loader and sampler, batch sizes, number and dtypes of parameters, ties, optimizer with its settings but the
rate, whether the rate changes, clipping limits, GradScaler, autocast, evaluation mode, starts. This makes the unusual
more frequent than in practice, since the plain ones of one shape are one, and the gallery's controls were made
because they are unusual: rates err towards silence.

Trainings of fewer than 8 steps are not counted, as `check` does not ask them. A fact that the Run does not tell is
not among a mark's trainings; where the job has nothing of the kind (no GradScaler), it is, and does not show it.
Intervals are the exact ones of Clopper and Pearson, 95 %. The trainings are small, and no random sample of what
people train: the interval says what their number leaves open, not how they were chosen."""
_EXAMPLES = """Their code is not in this repository: `examples.toml` names repository, commit and path, with the
arguments, made-up files, stand-ins and substitutions with which each runs on a CPU. No weights and no data are
downloaded. What a training asks of a machine that is not there (CUDA, a download) is answered by `stand_in/`."""
LEAST = round(1 / MOST)
"""Of fewer trainings none can show a share as small as ``MOST``: a mark of which fewer tell gets no row."""


@dataclass(frozen=True, slots=True)
class BaseRate:
    """Of ``trainings`` that tell the fact of ``mark``, how many show it, and which."""

    mark: str
    trainings: int
    shown_by: tuple[Training, ...]

    @property
    def showing(self) -> int:
        """How many show it."""
        return len(self.shown_by)


def read_results(folder: Path = RESULTS) -> tuple[list[Training], dict[str, int]]:
    """The kept trainings, and how many of each kind were run."""
    trainings: list[Training] = []
    run: dict[str, int] = {}
    for kind in KINDS:
        file = folder / f"{kind}.json"
        kept = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {"run": 0, "trainings": []}
        run[kind] = kept["run"]
        trainings += [Training.from_json(document) for document in kept["trainings"]]
    return trainings, run


def write_results(trainings: Sequence[Training], run: Mapping[str, int], folder: Path = RESULTS) -> None:
    """A file a kind, a line a training; of ours those that are counted alone."""
    folder.mkdir(exist_ok=True)
    for kind in KINDS:
        own = [training for training in trainings if training.kind == kind]
        lines = [
            json.dumps(training.to_json(), sort_keys=True)
            for training in (own if kind == "examples" else one_of_each(own))
        ]
        text = ",\n".join(lines)
        (folder / f"{kind}.json").write_text(f'{{"run": {run[kind]}, "trainings": [\n{text}\n]}}\n', encoding="utf-8")


def counted(trainings: Iterable[Training], examples: Iterable[Example]) -> list[Training]:
    """One of each shape, of those that are healthy and have as many steps as it takes to be asked."""
    wrong = {example.name for example in examples if example.not_healthy}
    return one_of_each(
        training
        for training in trainings
        if training.steps >= FEWEST_STEPS_OF_ONE and (training.kind != "examples" or training.name not in wrong)
    )


def base_rates(trainings: Sequence[Training], asked: Iterable[Subject] | None = None) -> list[BaseRate]:
    """A rate for each mark of each subject. A training of which the fact is unknown is not among the trainings; one
    that has nothing of the kind (no GradScaler) is, and does not show it.
    """
    rates = []
    for subject in all_subjects() if asked is None else asked:
        for mark in subject.marks:
            said = [(training, _shows(training, subject.name, mark)) for training in trainings]
            telling = sum(shows is not None for _, shows in said)
            rates.append(BaseRate(mark.name, telling, tuple(training for training, shows in said if shows)))
    return rates


def _shows(training: Training, fact: str, mark: Mark) -> bool | None:
    """Whether it shows the mark; None where its Run does not tell, or was read before the fact had such numbers."""
    if fact not in training.facts:
        return False if fact in training.nothing else None
    try:
        return bool(mark.applies(training.facts[fact]))
    except (KeyError, TypeError):
        return None


def as_toml(rates: Iterable[BaseRate]) -> str:
    """The table that trueline ships: a row a mark."""
    lines = [
        "# Healthy trainings that show what of a fact may be unusual. Written by `python -m benchmarks.facts`.",
        "# trainings: that tell the fact; showing: of these; at_most: upper end of the one-sided 95 % interval.",
    ]
    for rate in sorted(rates, key=lambda rate: rate.mark):
        if rate.trainings >= LEAST:
            at_most = interval(rate.showing, rate.trainings, 0.9)[1]
            lines += ["", f'["{rate.mark}"]', f"trainings = {rate.trainings}", f"showing = {rate.showing}"]
            lines += [f"at_most = {at_most:.4f}"]
    return "\n".join(lines) + "\n"


def interval(showing: int, trainings: int, confidence: float = 0.95) -> tuple[float, float]:
    """The exact interval of a share: Clopper and Pearson, Biometrika 26(4), 1934, two-sided."""
    tail = (1 - confidence) / 2
    low = 0.0 if showing == 0 else _share(lambda share: 1 - _at_most(showing - 1, trainings, share) < tail)
    high = 1.0 if showing == trainings else _share(lambda share: _at_most(showing, trainings, share) > tail)
    return low, high


def _at_most(count: int, total: int, share: float) -> float:
    """The probability of ``count`` or fewer of ``total`` where each has the probability ``share``."""
    return sum(math.comb(total, k) * share**k * (1 - share) ** (total - k) for k in range(count + 1))


def _share(below: Any) -> float:
    """The share up to which ``below`` is true."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if below(middle) else (low, middle)
    return low


def page(
    trainings: Sequence[Training], run: Mapping[str, int], examples: Sequence[Example], origin: Mapping[str, str]
) -> str:
    """README.md."""
    chosen = counted(trainings, examples)
    parts = [
        _head(run, chosen, origin),
        _rates(chosen),
        _facts(chosen),
        _alarms(trainings, examples),
        _examples(trainings, examples, chosen),
        _ours(chosen),
    ]
    return "\n\n".join(parts) + "\n"


def _head(run: Mapping[str, int], chosen: Sequence[Training], origin: Mapping[str, str]) -> str:
    rows = [
        [title, run[kind], sum(training.kind == kind for training in chosen)]
        for kind, title in (
            ("gallery", "healthy twins and controls of the gallery"),
            ("frameworks", "healthy rows of benchmarks/frameworks"),
            ("examples", "public example trainings, which nobody of this project wrote"),
        )
    ]
    rows.append(["together", sum(run.values()), len(chosen)])
    lines = [f"command: `{origin['command']}`", f"machine: {origin['machine']}"]
    lines += [f"commit {origin['commit']}, {origin['date']}"]
    counts = table(["trainings", "were run", "are counted"], rows, right=(1, 2))
    return "\n\n".join(["# Base rates of facts", "\n".join(f"- {line}" for line in lines), _WHY, counts, _COUNTED])


def _rates(chosen: Sequence[Training]) -> str:
    rows = []
    rates = base_rates(chosen)
    for rate in rates:
        low, high = interval(rate.showing, rate.trainings) if rate.trainings else (0.0, 1.0)
        share = rate.showing / rate.trainings if rate.trainings else 0.0
        by_kind = [sum(training.kind == kind for training in rate.shown_by) for kind in KINDS]
        said = "yes" if _is_said(rate) else "no"
        which = ", ".join(training.name for training in rate.shown_by[:6]) + (", …" if rate.showing > 6 else "")
        rows.append(
            [
                f"`{rate.mark}`",
                rate.trainings,
                rate.showing,
                f"{share:.1%}",
                f"{low:.1%} – {high:.1%}",
                *by_kind,
                said,
                which,
            ]
        )
    header = ["mark", "trainings", "showing", "share", "95 %", *KINDS, "said", "shown by"]
    marked = Counter(name for rate in rates if _is_said(rate) for name in {training.name for training in rate.shown_by})
    counts = Counter(marked.values())
    text = (
        f"Of the {len(chosen)} counted trainings {len(chosen) - len(marked)} show none of the marks that are said, "
        f"{counts[1]} show one, and {len(marked) - counts[1]} more. They are the same trainings that the rates are of."
    )
    return f"## Marks\n\n{text}\n\n{table(header, rows, right=range(1, 8))}"


def _is_said(rate: BaseRate) -> bool:
    """Whether ``check`` says it."""
    return rate.trainings >= LEAST and rate.showing <= MOST * rate.trainings


def _facts(chosen: Sequence[Training]) -> str:
    rows = []
    for subject in all_subjects():
        known = [training for training in chosen if training.tells(subject.name)]
        has = [training for training in known if subject.name in training.facts]
        rows.append([f"`{subject.name}`", subject.words, len(chosen), len(known), len(has)])
    header = ["fact", "about", "trainings", "tell it", "have something of the kind"]
    return "## Facts\n\n" + table(header, rows, right=range(2, 5))


def _alarms(trainings: Sequence[Training], examples: Sequence[Example]) -> str:
    public = [training for training in trainings if training.kind == "examples"]
    wrong = {example.name: example.not_healthy for example in examples if example.not_healthy}
    reasons = [f"- {training.name}: {wrong[training.name]}." for training in public if training.name in wrong]
    silent = sum(not training.findings for training in public)
    rows = [
        [
            training.name,
            "no" if training.name in wrong else "yes",
            f"`{finding['code']}`",
            finding["severity"],
            finding["claim"].replace("|", "\\|"),
        ]
        for training in public
        for finding in training.findings
    ]
    text = f"Nothing in {silent} of {len(public)}, but for the marks above; of our own trainings their pages say it."
    if reasons:
        text += " As their authors have them, these are not healthy, and not counted:\n\n" + "\n".join(reasons)
    if rows:
        text += "\n\n" + table(["training", "healthy", "code", "severity", "claim"], rows)
    return f"## What `check` says of the public examples\n\n{text}"


def _examples(trainings: Sequence[Training], examples: Sequence[Example], chosen: Sequence[Training]) -> str:
    by_name = {training.name: training for training in trainings if training.kind == "examples"}
    names = {training.name for training in chosen if training.kind == "examples"}
    rows = []
    for example in examples:
        training = by_name.get(example.name)
        if training is None:
            continue
        link = f"https://github.com/{example.repository}/blob/{example.commit}/{example.path}"
        source = f"[{example.repository}: {example.path}]({link})"
        is_counted = "yes" if example.name in names else "no"
        rows.append([example.name, source, training.ranks, training.steps, is_counted, example.changes or "nothing"])
    header = ["name", "source", "ranks", "steps", "counted", "changed"]
    return f"## Public examples\n\n{_EXAMPLES}\n\n{table(header, rows, right=(2, 3))}"


def _ours(chosen: Sequence[Training]) -> str:
    lines = []
    for kind in KINDS[:2]:
        own = [training.name for training in chosen if training.kind == kind]
        lines.append(f"- {kind}: {', '.join(own)}")
    return "## Counted of our own\n\n" + "\n".join(lines)
