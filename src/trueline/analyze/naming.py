"""One name for one thing, whatever wrappers or frameworks call it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from trueline.analyze.values import Value

WRAPPERS = frozenset({"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
"""Parts of a name that DDP, torch.compile, FSDP1 and activation checkpointing put in."""


def plain_name(name: str) -> str:
    """``name`` without what wrappers put into it; itself where nothing else would be left."""
    return ".".join(part for part in name.split(".") if part not in WRAPPERS) or name


@dataclass(frozen=True)
class NameMap:
    """What one framework calls what another calls otherwise. Applied to the names of both runs alike."""

    def plain(self, name: str) -> str:
        """``name`` as both runs are to call it."""
        return plain_name(name)


ROOT = "(model)"
"""What both runs call the model itself, which each recorded under the name of its class."""

_DEPTH = 3
"""Parts of a name in front of all others that are looked for."""


def vocabularies(
    mine: Sequence[Value], theirs: Sequence[Value], names: NameMap
) -> tuple[Callable[[str], str], Callable[[str], str]]:
    """What turns the names of each side into those that both share: the model itself has one name, and what only one
    side has in front of the names of most of its modules and parameters (``model.``) goes away.
    """
    one, other = _Names(mine, names), _Names(theirs, names)
    for _ in range(_DEPTH):
        if not (one.drop_front(other.own) or other.drop_front(one.own)):
            break
    return one.plain, other.plain


class _Names:
    """The names of one side. ``own`` are those of modules and parameters, as ``plain`` gives them."""

    def __init__(self, values: Sequence[Value], names: NameMap) -> None:
        self._map = names
        self._roots = {value.site.name for value in values if _is_root(value)}
        self._front = ""
        self._known: dict[str, str] = {}
        places = {value.site.name for value in values if value.kind in ("module", "param")} - self._roots
        self._places = places | {value.module for value in values if value.kind == "op" and value.site.phase == "fwd"}
        self.own = self._plain_places()

    def plain(self, name: str) -> str:
        """``name`` in the words of both sides."""
        known = self._known.get(name)
        if known is None:
            known = self._known[name] = self._translated(name)
        return known

    def drop_front(self, theirs: set[str]) -> bool:
        """Whether the first part of most names was dropped, as more of them are then among ``theirs``."""
        common, times = next(iter(_first_parts(self.own).most_common(1)), ("", 0))
        if not common or 2 * times < len(self.own):
            return False
        shared = len(self.own & theirs)
        before = self._front
        self._front, self._known = f"{before}{common}.", {}
        found = self._plain_places()
        if len(found & theirs) <= 2 * shared:
            self._front, self._known = before, {}
            return False
        self.own = found
        return True

    def _plain_places(self) -> set[str]:
        return {self.plain(name) for name in self._places} - {"", ROOT}

    def _translated(self, name: str) -> str:
        head, _, tail = name.partition(".")
        if head in self._roots:
            return f"{ROOT}.{tail}" if tail else ROOT
        plain = self._map.plain(name)
        return plain.removeprefix(self._front)


def _is_root(value: Value) -> bool:
    """Whether a value is one of the outermost module's call, which is named as its class is."""
    name = value.site.name
    return value.kind == "module" and not value.module and value.api.rsplit(".", 1)[-1] == name


def _first_parts(names: Iterable[str]) -> Counter[str]:
    return Counter(name.split(".", 1)[0] for name in names if "." in name)
