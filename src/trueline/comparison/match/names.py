"""One name for each module and parameter, whatever wrappers or frameworks call it."""

from __future__ import annotations

import difflib
import functools
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, cast

from trueline.comparison.match.name_maps import BUILT_IN, REGEX, Merge, Rename, Rules
from trueline.judge.recorded.step_values import Value
from trueline.schema.errors import InputError
from trueline.schema.text.reading import read_table, reading, shortened, shown

WRAPPERS = frozenset({"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
"""Parts of a name that DDP, torch.compile, FSDP1 and activation checkpointing put in."""


def plain_name(name: str) -> str:
    """``name`` without what wrappers put into it; itself where nothing else would be left."""
    return ".".join(part for part in name.split(".") if part not in WRAPPERS) or name


@dataclass(frozen=True)
class NameMap:
    """How names of one framework become those of another. Applied to the names of both runs.

    ``given`` says in messages where it comes from. Each of the rules ``checked`` must fit some name of either run.
    """

    renames: tuple[Rename, ...] = ()
    merges: tuple[Merge, ...] = ()
    given: str = ""
    checked: Rules = ((), ())

    @classmethod
    def load(cls, given: str | os.PathLike[str]) -> NameMap:
        """The map in a TOML or JSON file, a built-in map by its name, or the rules of a text such as ``'module.='``.

        Raises ``InputError``, which says what was expected, for anything else.
        """
        with reading(f"Map '{shortened(os.fspath(given))}'", "Expected TOML, or JSON in a .json file."):
            return cls._loaded(os.fspath(given))

    @classmethod
    def _loaded(cls, text: str) -> NameMap:
        if text in BUILT_IN:
            return cls(*BUILT_IN[text], given=text)
        if "=" in text and not os.path.exists(text):
            return cls(*(rules := _of_text(text)), given=f"'{text}'", checked=rules)
        content = _read(Path(text))
        unknown = sorted(set(content) - set(_KEYS))
        if unknown:
            near = difflib.get_close_matches(unknown[0], _KEYS, n=1)
            hint = f"did you mean '{near[0]}'? " if near else ""
            raise InputError(f"Unknown key '{unknown[0]}' in map '{text}': {hint}Keys are {', '.join(_KEYS)}.")
        renames = tuple(Rename(old, new) for old, new in _table(content, "rename", text).items())
        merges = tuple(_merge(parts, whole, text) for parts, whole in _table(content, "merge", text).items())
        built_in = content.get("built_in")
        if built_in is not None and (not isinstance(built_in, str) or built_in not in BUILT_IN):
            raise InputError(
                f"Map '{text}' asks for the built-in map {shown(built_in)}. There are {', '.join(BUILT_IN)}."
            )
        more = BUILT_IN[built_in] if built_in is not None else ((), ())
        return cls((*renames, *more[0]), (*merges, *more[1]), given=f"map '{text}'", checked=(renames, merges))

    @functools.cached_property
    def plain(self) -> Callable[[str], str]:
        """Gives the name that a name has in both runs, merges left aside; memoized, as a step has each many times."""

        @functools.cache
        def plain(name: str) -> str:
            return functools.reduce(lambda done, rename: rename(done), self.renames, plain_name(name)) or name

        return plain

    def require_use(self, names: Collection[str]) -> None:
        """Raise ``InputError`` for a rule that fits none of ``names``, those of both runs: it is probably misspelt."""
        if not names or not any(self.checked):
            return
        plain = [plain_name(name) for name in names]
        pieces = {piece for name in plain for piece in name.split(".")}
        renames, merges = self.checked
        for rename in renames:
            if not any(rename.fits(name) or rename.fits(whole) for name, whole in zip(plain, names, strict=True)):
                raise InputError(_unused(self.given, rename.old, pieces))
        for merge in merges:
            if merge.whole in pieces and not pieces & set(merge.parts):
                continue  # it was made, or ``require_parts`` has refused it
            missing = next((part for part in merge.parts if part not in pieces), None)
            if missing is not None or merge.whole not in pieces:
                raise InputError(_unused(self.given, missing or merge.whole, pieces))

    def require_parts(self, pieces: set[str]) -> None:
        """Raise ``InputError`` for a merge none of whose parts are among ``pieces`` of names, before it is made."""
        for merge in self.checked[1]:
            if not pieces & set(merge.parts):
                raise InputError(_unused(self.given, merge.parts[0], pieces))


_KEYS = ("rename", "merge", "built_in")


def _of_text(text: str) -> tuple[tuple[Rename, ...], tuple[Merge, ...]]:
    renames: list[Rename] = []
    merges: list[Merge] = []
    for rule in filter(None, (rule.strip() for rule in text.split(";"))):
        old, equals, new = (part.strip() for part in rule.partition("="))
        if not equals:
            raise InputError(f"'{rule}' in the map '{text}' has no effect: expected OLD=NEW, such as 'module.='.")
        if "," in old and not old.startswith(REGEX):
            merges.append(_merge(old, new))
        else:
            renames.append(Rename(old, new))
    return tuple(renames), tuple(merges)


def _merge(parts: str, whole: str | dict[str, Any], path: str = "") -> Merge:
    """The merge of comma-separated ``parts`` into ``whole``: a name, or a table of a map file."""
    names = tuple(part.strip() for part in parts.split(","))
    if isinstance(whole, str):
        return Merge(names, whole.strip())
    into, head_size = whole.get("into"), whole.get("head_size")
    if set(whole) != {"into", "head_size"} or not isinstance(into, str) or type(head_size) is not int or head_size < 1:
        raise InputError(
            f"The merge of '{parts}' in map '{path}' is {shown(whole)}. Expected a name, or for rows that are grouped "
            'by head {into = "linear_qkv", head_size = 64}.'
        )
    return Merge(names, into.strip(), grouped=True, head_size=head_size)


def _read(path: Path) -> dict[str, Any]:
    if not os.path.isfile(path):  # pathlib raises where a text is too long for a path
        raise InputError(
            f"Map '{shortened(str(path))}' is neither a file, nor a built-in map ({', '.join(BUILT_IN)}), nor a text "
            "OLD=NEW such as 'module.='. Pass one of these."
        )
    expected = f"Expected TOML, or JSON in a .json file, with {', '.join(_KEYS)}."
    return read_table(str(path), f"Map '{path}'", expected)


def _table(content: dict[str, Any], key: str, path: str) -> dict[str, Any]:
    table = content.get(key, {})
    kinds = (str, dict) if key == "merge" else (str,)
    if not isinstance(table, dict) or not all(isinstance(new, kinds) for new in cast(dict[str, Any], table).values()):
        raise InputError(f"'{key}' in map '{path}' must be a table of texts, OLD = NEW, not {shown(table)}.")
    return cast(dict[str, Any], table)


def _unused(given: str, rule: str, pieces: set[str]) -> str:
    wrong = [piece for piece in rule.removeprefix(REGEX).split(".") if piece and piece not in pieces]
    near = difflib.get_close_matches(wrong[0] if wrong else rule, sorted(pieces), n=2)
    hint = f" Did you mean {' or '.join(repr(name) for name in near)}?" if near else ""
    return f"'{rule}' in {given} matches no name of either run.{hint} Names have parts such as {_some(pieces)}."


def _some(pieces: set[str]) -> str:
    return ", ".join(sorted(piece for piece in pieces if not piece.isdigit())[:6])


ROOT = "(model)"
"""What both runs call the model itself, which each recorded under the name of its class."""

_DEPTH = 3
"""Parts of a name, at most, that a common front of all names may have."""


def shared_names(
    mine: Sequence[Value], theirs: Sequence[Value], names: NameMap
) -> tuple[Callable[[str], str], Callable[[str], str]]:
    """Functions that turn the names of each side into shared ones: the model itself has one name, and a front that only
    one side has on most names of its modules and parameters (``model.``) is dropped.
    """
    one = _Names(mine, names)
    other = one if theirs is mine else _Names(theirs, names)
    names.require_use(one.all | other.all)
    if not one.drop_front(other.own):
        other.drop_front(one.own)
    return one.plain, other.plain


class _Names:
    """The names of one side: ``all`` as recorded, ``own`` those of modules and parameters, as ``plain`` has them."""

    def __init__(self, values: Sequence[Value], names: NameMap) -> None:
        self._map = names
        self._front = ""
        self._known: dict[str, str] = {}
        named = set(map(_NAMED, values))
        self.all = {name for name, *_ in named}
        self._roots = {name for name, *rest in named if _is_root(name, *rest)}
        self._places = {name for name, kind, *_ in named if kind in ("module", "param")} - self._roots
        self._places |= {module for _, kind, module, _, phase in named if kind == "op" and phase == "fwd"}
        self.own = self._plain_places()

    def plain(self, name: str) -> str:
        """The shared name of ``name``."""
        known = self._known.get(name)
        if known is None:
            known = self._known[name] = self._translated(name)
        return known

    def drop_front(self, theirs: set[str]) -> bool:
        """Whether the common front of names was dropped, as more than twice as many names are then among ``theirs``."""
        shared = 2 * len(self.own & theirs)
        if shared >= len(self.own):
            return False
        for front in _fronts(self.own):
            found = {name.removeprefix(front) for name in self.own}
            if len(found & theirs) > shared:
                self._front, self._known, self.own = front, {}, found
                return True
        return False

    def _plain_places(self) -> set[str]:
        return {self.plain(name) for name in self._places} - {"", ROOT}

    def _translated(self, name: str) -> str:
        head, _, tail = name.partition(".")
        if head in self._roots:
            return f"{ROOT}.{tail}" if tail else ROOT
        plain = self._map.plain(name)
        return plain.removeprefix(self._front)


_NAMED = attrgetter("site.name", "kind", "module", "api", "site.phase")
"""What of a value says what its name belongs to; many values share it."""


def _is_root(name: str, kind: str, module: str, api: str, *_: str) -> bool:
    """Whether a value is one of the outermost module's call, which is named as its class is."""
    return kind == "module" and not module and api.rsplit(".", 1)[-1] == name


def _fronts(names: Collection[str]) -> Iterator[str]:
    """Fronts that at least half of the names have, of one part, then of more."""
    for depth in range(1, _DEPTH + 1):
        fronts = Counter(".".join(parts[:depth]) for name in names if len(parts := name.split(".")) > depth)
        front, times = next(iter(fronts.most_common(1)), ("", 0))
        if 2 * times >= len(names) and front:
            yield f"{front}."
