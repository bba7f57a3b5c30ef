"""The tasks: Runs that nobody has seen, what a log of the same job shows, and the truth about each."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import io
import json
import pkgutil
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.compare.corpus import families, faults
from benchmarks.compare.corpus.cases import Case, all_cases
from benchmarks.compare.corpus.healthy import register
from benchmarks.compare.corpus.kit import FAMILIES, nothing
from benchmarks.compare.corpus.recording import Setting, record
from benchmarks.compare.corpus.verdict import Names
from gallery.entry import Fault, all_entries, train_on_rank

from trueline.demo.ranks import Ranks
from trueline.judge.causes.library import known_causes
from trueline.store.reader import Run

HEALTHY, CANNOT_TELL = "healthy", "cannot-tell"
"""Answers beside the causes of the catalogue."""

SETTING = Setting("stats", "mix", "fp32")

Chosen = TypeVar("Chosen")


@dataclass(frozen=True)
class Task:
    """What is asked, and what is right.

    ``kind`` is ``job``: what is wrong with one job? Any of ``causes`` is right, and ``ranks`` are to blame, where some
    are. Or it is ``pair``: where do two jobs part first? ``names`` are what its modules are called. ``healthy``: the
    right answer is that nothing is wrong, or that both agree. ``entry`` is the id in the gallery, or in the corpus.
    """

    name: str
    kind: str
    healthy: bool
    entry: str
    causes: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    names: tuple[Any, ...] = ()


def chosen(entries: Iterable[Chosen], key: Callable[[Chosen], str], count: int) -> list[Chosen]:
    """``count`` of them, by a digest of their keys: nobody has picked them."""
    return sorted(entries, key=lambda entry: hashlib.blake2s(key(entry).encode()).hexdigest())[:count]


def job_entries(num_faults: int, num_healthy: int) -> tuple[list[Fault], list[Fault]]:
    """Faults of the gallery, one a family and no variant of another, and such whose healthy twin is taken."""
    faulty = [
        entry
        for entry in all_entries()
        if isinstance(entry, Fault) and entry.reference is None and entry.causes and not entry.variant_of
    ]
    faulty = chosen(faulty, lambda entry: entry.id, len(faulty))
    by_family = {entry.family: entry for entry in reversed(faulty)}
    one_each = chosen(by_family.values(), lambda entry: entry.family, num_faults + num_healthy)
    return one_each[:num_faults], one_each[num_faults:]


def register_all() -> None:
    """Have the corpus know its cases."""
    for package in (families, faults):
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    register()


def pair_cases(num_faults: int, num_healthy: int) -> tuple[list[Case], list[Case]]:
    """Cases of the corpus: faults that have a place, and pairs that compute the same in two ways."""
    register_all()
    cases = all_cases(SETTING)
    placed = [case for case in cases if case.fault is not None and not case.fault.truth.word]
    by_kind = {case.kind: case for case in reversed(chosen(placed, lambda case: case.key, len(placed)))}
    equal = [case for case in cases if case.healthy is not None and not case.healthy.undecided]
    equal = [case for case in equal if not case.healthy.names]
    faulty = chosen(by_kind.values(), lambda case: case.key, num_faults)
    if len(faulty) < num_faults:
        further = [case for case in placed if case not in faulty]
        faulty += chosen(further, lambda case: case.key, num_faults - len(faulty))
    return faulty, chosen(equal, lambda case: case.key, num_healthy)


def make(folder: Path, *, num_jobs: tuple[int, int], num_pairs: tuple[int, int], say: Callable[[str], object]) -> None:
    """Train all tasks below ``folder``: ``tasks/NAME`` has ``run`` (and ``ref``) and ``log.txt``; ``causes.txt`` has
    what an answer may name, and ``truth.json`` is for the scorer. In what order they stand says nothing.
    """
    faulty, twins = job_entries(*num_jobs)
    cases, equal = pair_cases(*num_pairs)
    makers = [
        *(("job", entry.id, entry, False) for entry in faulty),
        *(("job", f"{entry.id} healthy", entry, True) for entry in twins),
        *(("pair", case.key, case, False) for case in cases),
        *(("pair", case.key, case, True) for case in equal),
    ]
    folder.mkdir(parents=True, exist_ok=True)
    causes = "\n".join(f"{cause.slug}: {cause.says}" for cause in known_causes())
    (folder / "causes.txt").write_text(causes + "\n")
    tasks = []
    for number, (kind, key, entry, healthy) in enumerate(chosen(makers, lambda maker: maker[1], len(makers)), start=1):
        name = f"{number:02}"
        place = folder / "tasks" / name
        place.mkdir(parents=True)
        say(f"{name}: {key}")
        tasks.append(_job(place, name, entry, healthy) if kind == "job" else _pair(place, name, entry, healthy))
        (folder / "truth.json").write_text(json.dumps([asdict(task) for task in tasks], indent=1))


def _job(place: Path, name: str, entry: Fault, healthy: bool) -> Task:
    with Ranks(entry.world_size) as ranks:
        ranks.run(train_on_rank, entry.id, "healthy" if healthy else "faulty", str(place / "run"))
    (place / "log.txt").write_text(log_of(Run(place / "run")))
    accused = () if healthy or entry.ranks is None else entry.ranks
    return Task(name, "job", healthy, entry.id, () if healthy else entry.causes, accused)


def _pair(place: Path, name: str, case: Case, healthy: bool) -> Task:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        trained = record(place / "run", FAMILIES[case.family], case.change, SETTING)
        record(place / "ref", FAMILIES[case.family], nothing, SETTING)
    logs = [f"== {side}\n{log_of(Run(place / side))}" for side in ("run", "ref")]
    (place / "log.txt").write_text("\n".join((*logs, "== the model\n" + str(trained.model))))
    return Task(name, "pair", healthy, case.key, names=tuple(Names.of(trained.model).to_json()))


def log_of(run: Run) -> str:
    """What rank 0 of an ordinary script prints: its loss, the norm of its gradient and the rates of each step."""
    lines = [f"training on {run.world_size} process{'es' if run.world_size > 1 else ''}"]
    table = run.table().to_pylist()
    for row in sorted((row for row in table if row["rank"] == 0), key=lambda row: row["step"]):
        words = [f"step {row['step']}"]
        for word, column in (("loss", "loss"), ("grad_norm", "grad_norm")):
            if row.get(column) is not None:
                words.append(f"{word} {row[column]:.6g}")
        if row.get("lr"):
            words.append("lr " + ",".join(f"{rate:.4g}" for rate in row["lr"]))
        lines.append("  ".join(words))
    return "\n".join(lines)
