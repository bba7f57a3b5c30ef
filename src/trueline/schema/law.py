"""What a law of training declares of itself, and the laws that are installed."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Literal, get_args

from trueline.schema.column import Column, column_fault
from trueline.schema.columns.workers import SHARED_COLUMNS
from trueline.schema.errors import InputError
from trueline.schema.plugins import entry_points
from trueline.schema.text.reading import why

GROUP = "trueline.laws"
"""Entry points of other packages: the module that has the ``LAW``, ``my_package.my_law.declared`` say."""
LAWS, COMPARISON, SAME_JOB, TRIALS = "trueline.laws", "trueline.comparison", "trueline.same_job", "trueline.trials"
BESIDE = (COMPARISON, SAME_JOB, TRIALS)
"""The package of our own laws, and those whose commands have findings of their own."""
DECLARED = "declared"
LiveSign = Literal["nonfinite", "mismatch", "unreduced", "jump"]
"""What all ranks learn of while they train, from the sums that they exchange: a loss or gradient that is not finite,
a reduction that gave no mean, gradients that were not reduced, a norm that jumps.
"""
LIVE_SIGNS: tuple[LiveSign, ...] = get_args(LiveSign)
"""In the order of their bits in the sums."""


@dataclass(frozen=True, slots=True)
class Code:
    """What is true of all findings of one code.

    ``explains`` are the codes of findings that such a fault brings with it: a rank that was not reduced drifts; ``*``
    before a name stands for all codes of this ``group``. Codes of one ``root`` are moved by one statistic and count as
    one sign of a cause. ``signal`` is the column of the workers table that the page draws beside it. ``dated`` findings
    are seen exactly: the first step of the evidence is the first step of the fault. Of ``names_both`` a job of two
    ranks has both named, as neither is the right one. ``of_jobs`` are differences between two jobs, which are no fault
    by themselves, so that what they explain may be graver. Findings tell of one fault with those of ``same_fault``, and
    with those of ``same_fault_on_ranks`` where they name the same ranks. ``judge_workers`` is true of checks that judge
    whether the loss, norm or direction of one worker is unusual; one rank of which the evidence has the kind
    ``right_alone`` may be the only one that is right. A Plan may name the code to start a recording: what ranks see of
    it while they train is ``live``, and all know of it ``sums_late`` sums after the first. Causes ask of a check by the
    name ``asked_as`` whether it was run: ``reduction:judged`` or ``reduction:open``. After the first step of findings
    that ``end_comparison`` steps of one number are not one iteration on all ranks. A finding has said what the marks
    of facts ``says`` would ask to confirm, ``KIND/MARK`` where it is of that kind. ``manual`` says what a finding is
    that no check has; of those ``seen_in_values`` the comparison of recorded values says more than that of settings.
    """

    explains: tuple[str, ...] = ()
    group: str = ""
    root: str = ""
    signal: str = ""
    dated: bool = False
    names_both: bool = False
    of_jobs: bool = False
    same_fault: tuple[str, ...] = ()
    same_fault_on_ranks: tuple[str, ...] = ()
    judge_workers: bool = False
    right_alone: str = ""
    live: LiveSign | None = None
    sums_late: int = 0
    asked_as: str = ""
    end_comparison: bool = False
    says: tuple[str, ...] = ()
    manual: str = ""
    seen_in_values: bool = False


@dataclass(frozen=True, slots=True)
class Law:
    """One law of training, as its folder declares it in ``declared.py``: ``LAW = Law(…)``.

    ``checks`` are those of one Run, by code: ``loss-spike`` is the module ``loss_spike`` of the folder. ``findings``
    are codes that a ``command`` of its own finds, as a comparison. ``columns`` are of the workers table, those that its
    probes measure or that it alone reads; where the law is not installed, a Run is read without them. ``probes`` are
    modules of the folder, each with a function ``make_probe(parts)``: they alone may import torch, and are imported in
    the training process alone. ``causes.toml`` of the folder, where there is one, has what may be behind a finding.
    Findings ``of_updates`` are about the update itself: holding it still, as trials of phases do, would make them.
    ``answers`` are functions of the folder (``module.function``) by what they are asked: ``left_out`` of a Run, in
    sentences what of it the law could not judge; ``unlooked`` of a Run and the checks that have no answer, where to
    look if nothing was found; ``facts`` is a tuple of ``judge.facts.fact.Subject``, what a Run tells of the training;
    ``reference`` of a Run and its reference, the findings and sentences that the comparison of values does not have;
    ``fault_path`` of a recorded step, the values on the way of a fault and in words from where to where, or None.
    ``package`` is the folder, as Python imports it.
    """

    checks: Mapping[str, Code] = field(default_factory=dict[str, Code])
    findings: Mapping[str, Code] = field(default_factory=dict[str, Code])
    command: str = ""
    columns: Sequence[Column] = ()
    probes: tuple[str, ...] = ()
    of_updates: bool = False
    answers: Mapping[str, str] = field(default_factory=dict[str, str])
    package: str = ""

    @property
    def codes(self) -> Mapping[str, Code]:
        """All codes of the law."""
        return {**self.checks, **self.findings}

    def module_of(self, code: str) -> str:
        """The module of the check ``code``."""
        return f"{self.package}.{code.replace('-', '_')}"


@dataclass(frozen=True, slots=True)
class BrokenLaw:
    """A folder that cannot be used: its name and why, in a sentence."""

    name: str
    reason: str


@cache
def installed_laws() -> tuple[Law, ...]:
    """Every law that can be used: our own by name, then those of other packages."""
    return tuple(law for law in _declarations() if isinstance(law, Law))


@cache
def broken_laws() -> tuple[BrokenLaw, ...]:
    """The laws that cannot be used; the others are not lost with them."""
    return tuple(law for law in _declarations() if isinstance(law, BrokenLaw))


@cache
def codes() -> Mapping[str, Code]:
    """What is true of the findings of each declared code, groups written out."""
    declared = {code: facts for law in installed_laws() for code, facts in law.codes.items()}
    groups: dict[str, list[str]] = {}
    for code, facts in declared.items():
        groups.setdefault(f"*{facts.group}", []).append(code)
    return {
        code: replace(facts, explains=tuple(effect for name in facts.explains for effect in groups.get(name, [name])))
        for code, facts in declared.items()
    }


def findings_of(*packages: str) -> Mapping[str, Code]:
    """The ``findings`` of the laws of these ``packages``."""
    laws = (law for law in installed_laws() if law.package in packages)
    return {code: facts for law in laws for code, facts in law.findings.items()}


def codes_of_group(group: str) -> tuple[str, ...]:
    """The codes of ``group``, in the order in which they are declared."""
    return tuple(code for code, facts in codes().items() if facts.group == group)


@cache
def live_codes() -> Mapping[LiveSign, str]:
    """The code of what ranks see while they train, by its sign."""
    declared = {facts.live: code for code, facts in codes().items() if facts.live}
    return {sign: declared[sign] for sign in LIVE_SIGNS if sign in declared}


def is_of_update(code: str) -> bool:
    """True if the law of a finding of ``code`` is about the update itself."""
    return any(law.of_updates and code in law.codes for law in installed_laws())


def facts_of(code: str) -> Code:
    """What is true of findings of ``code``; of one that nobody declared nothing is."""
    return codes().get(code, Code())


@cache
def _declarations() -> tuple[Law | BrokenLaw, ...]:
    """All declarations, each code and each column in the first law that names it."""
    owners: dict[str, str] = {}
    owners_of_columns = {column.name: "" for column in SHARED_COLUMNS}
    laws: list[Law | BrokenLaw] = []
    for name, module in _modules():
        law = _declared(name, module)
        if isinstance(law, Law):
            reason = _code_fault(law, owners) or _columns_fault(law, owners_of_columns)
            if reason:
                law = BrokenLaw(name, reason)
            else:
                owners |= dict.fromkeys(law.codes, name)
                owners_of_columns |= {column.name: name for column in law.columns}
        laws.append(law)
    return tuple(laws)


def _code_fault(law: Law, owners: Mapping[str, str]) -> str:
    """A sentence on a code that another law has; empty without one."""
    twice = next((code for code in law.codes if code in owners), None)
    return f"It names the code '{twice}', which the law '{owners[twice]}' has. Give it another code." if twice else ""


def _columns_fault(law: Law, owners: Mapping[str, str]) -> str:
    """A sentence on a column that the table cannot have; empty without one. ``owners`` are laws by column, empty text
    for what every Run has.
    """
    columns: object = law.columns
    if not isinstance(columns, tuple | list):
        return f"Its columns are {columns!r}. Write a tuple: columns=(Column(name, type, unit, meaning),)."
    names: set[str] = set()
    for column in law.columns:
        if fault := column_fault(column):
            return fault
        if column.name in owners:
            owner = f"the law '{owners[column.name]}' has" if owners[column.name] else "is Trueline's own"
            return f"It declares the column '{column.name}', which {owner}. Give it another name."
        if column.name in names:
            return f"It declares the column '{column.name}' twice. Give one of them another name."
        names.add(column.name)
    return ""


def not_loaded(module: str, error: BaseException) -> str:
    """What to say and do about a module that raised as it was imported."""
    return (
        f"It cannot be loaded from '{module}': {type(error).__name__}: {why(error)}. Reinstall or remove the package "
        "that registers it."
    )


def _modules() -> Iterator[tuple[str, str]]:
    """Name and module of each declaration."""
    home = importlib.import_module(LAWS)
    for folder in pkgutil.iter_modules(home.__path__):
        yield folder.name, f"{LAWS}.{folder.name}.{DECLARED}"
    for package in BESIDE:
        yield package.rpartition(".")[2], f"{package}.{DECLARED}"
    for entry in entry_points(group=GROUP):
        yield entry.name, entry.value


def _declared(name: str, module: str) -> Law | BrokenLaw:
    try:
        law: Any = getattr(importlib.import_module(module), "LAW", None)
    except InputError as error:
        return BrokenLaw(name, str(error))
    except (Exception, SystemExit) as error:  # whatever the module of another package does when it is imported
        return BrokenLaw(name, not_loaded(module, error))
    if not isinstance(law, Law):
        return BrokenLaw(name, f"'{module}' has no LAW. Declare one: LAW = Law(checks={{…}}).")
    return replace(law, package=module.rpartition(".")[0])
