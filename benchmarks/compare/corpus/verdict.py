"""What compare says of a pair, and whether that is the truth."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.compare.corpus.kit import Truth
from torch import nn

from trueline.comparison.compare import compare
from trueline.comparison.match.names import NameMap
from trueline.comparison.result import Comparison
from trueline.render.comparison.compare_story import story_of
from trueline.schema.errors import CannotTell

SILENT, UNDECIDED, EXACT, MODULE = "silent", "cannot tell", "first site", "its module"
ELSEWHERE, NOWHERE, CRASH = "other place", "no site", "crash"
VERDICTS = (EXACT, MODULE, ELSEWHERE, NOWHERE, UNDECIDED, SILENT, CRASH)


def said(run: Path, ref: Path, names: str = "") -> dict[str, Any]:
    """Exit code, headline, and code, sites and claim of the leading finding; and the share (0-1) of the values of the
    run that has fewer that were judged at the first step, as the exit code counts it.
    """
    try:
        comparison = compare(run, ref, names=NameMap.load(names) if names else None)
    except CannotTell as error:
        return {"exit": 3, "headline": str(error), "code": "", "sites": [], "claim": "", "counts": {}}
    leading = next((each for each in comparison.findings if each.is_grave), None)
    return {
        "exit": comparison.exit_code,
        "headline": story_of(comparison).headline.replace(str(run), "RUN").replace(str(ref), "REF"),
        "code": "" if leading is None else leading.code,
        "sites": [] if leading is None else list(_sites(comparison, leading)),
        "claim": "" if leading is None else f"{leading.claim} {leading.evidence}",
        "counts": dict(comparison.counts),
        "judged": {
            each.name: each.judged / max(min(each.values_of_run, each.values_of_ref), 1)
            for each in comparison.judged.at_first_step
            if each.name in ("forward", "backward")
        },
    }


def _sites(comparison: Comparison, leading: Any) -> Iterator[str]:
    """The one site that is named, first as the run has it, then as the reference does."""
    first = comparison.first
    pair = () if first is None else tuple(filter(None, (first.site, first.ref_site)))
    if leading.sites and str(leading.sites[0]) not in map(str, pair):
        yield str(leading.sites[0])
    else:
        yield from map(str, pair)


@dataclass(frozen=True)
class Names:
    """What modules are called: ``root`` is the class of the model, by which its own calls go; ``leaves`` are modules
    of torch that make one call, which both the call and the module name.
    """

    root: str
    modules: frozenset[str]
    leaves: frozenset[str]

    @classmethod
    def of(cls, model: nn.Module) -> Names:
        """Those of ``model``."""
        modules = dict(model.named_modules())
        leaves = {
            name
            for name, module in modules.items()
            if type(module).__module__.startswith("torch.nn.modules") and not list(module.children())
        }
        return cls(type(model).__name__, frozenset(modules), frozenset(leaves))

    def to_json(self) -> list[Any]:
        """As lists."""
        return [self.root, sorted(self.modules), sorted(self.leaves)]

    @classmethod
    def from_json(cls, names: list[Any]) -> Names:
        """The reverse."""
        return cls(names[0], frozenset(names[1]), frozenset(names[2]))


def judged(said: dict[str, Any], truth: Truth, plan: str, names: Names) -> str:
    """One of ``VERDICTS``. ``plan`` is ``mix``, ``modules``, or ``compiled`` where only a model as a whole is seen."""
    if said["exit"] == 0:
        return SILENT
    if said["exit"] == 3:
        return UNDECIDED
    right_code = said["code"] in truth.codes
    if truth.word and right_code and re.search(rf"\b({truth.word})\b", said["claim"]):
        return EXACT
    if not said["sites"]:
        return NOWHERE if right_code else ELSEWHERE
    places = [_Place(text, plan, names) for text in truth.at]
    named = [name for phase, name in map(_parts, said["sites"]) if phase in truth.phases]
    if any(place.is_called(name) for place in places for name in named):
        return EXACT
    if truth.word and right_code:
        return NOWHERE
    return MODULE if any(place.is_in(name) for place in places for name in named) else ELSEWHERE


def _parts(site: str) -> tuple[str, str]:
    """Phase and name of ``0.0/r0/fwd/blocks.1.mlp.0.linear#0:out0``."""
    _, _, phase, rest = site.split("/", 3)
    return phase, rest.rpartition("#")[0]


class _Place:
    """One of the names of where a fault is."""

    def __init__(self, text: str, plan: str, names: Names) -> None:
        module, _, ops = text.partition(":")
        self._names, self._ops = names, [op for op in ops.split("|") if op]
        self._module = {"@": names.root, "~": ""}.get(module, module)
        self._whole = not self._ops or plan == "modules" or module in names.leaves
        self._seam = plan == "compiled"

    def is_called(self, name: str) -> bool:
        """Whether ``name``, of a site, is this place."""
        if self._seam and name == self._names.root:
            return True
        if name == self._module:
            return self._whole
        if not self._module and name in self._ops:
            return True  # a call outside of the model may be named as one of its modules is
        module, op = self._split(name)
        return module == self._module and (op in self._ops or not self._ops)

    def is_in(self, name: str) -> bool:
        """Whether ``name`` is the innermost module around this place, or another call that it makes itself. What is
        outside of the model has the model.
        """
        around = (self._module if self._ops else self._module.rpartition(".")[0]) or self._names.root
        return around in (name, self._split(name)[0])

    def _split(self, name: str) -> tuple[str, str]:
        """The module and the op of a call; what is a module itself has no op."""
        return (name, "") if name in self._names.modules else (name.rpartition(".")[0], name.rpartition(".")[2])
