"""Shared names of modules and parameters, whatever wrappers or frameworks call them."""

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
"""Parts of a name that DDP, torch.compile, FSDP1 and activation checkpointing insert."""


def plain_name(name: str) -> str:
    """Drop the parts that wrappers insert into ``name``; a name of such parts alone is returned unchanged."""
    return ".".join(part for part in name.split(".") if part not in WRAPPERS) or name


@dataclass(frozen=True)
class NameMap:
    """Rules that turn names of one framework into those of another; they apply to the names of both runs.

    ``source`` names the map in messages. Each of the rules ``checked`` must fit some name of either run.
    """

    renames: tuple[Rename, ...] = ()
    merges: tuple[Merge, ...] = ()
    source: str = ""
    checked: Rules = ((), ())

    @classmethod
    def load(cls, source: str | os.PathLike[str]) -> NameMap:
        """Load a map: a TOML or JSON file, the name of a built-in map, or rules as text such as ``'module.='``.

        Raises ``InputError`` for anything else, with what was expected.
        """
        with reading(f"Map '{shortened(os.fspath(source))}'", "Expected TOML, or JSON in a .json file."):
            return cls._loaded(os.fspath(source))

    @classmethod
    def _loaded(cls, text: str) -> NameMap:
        if text in BUILT_IN:
            return cls(*BUILT_IN[text], source=text)
        if "=" in text and not os.path.exists(text):
            return cls(*(rules := _parse_rules(text)), source=f"'{text}'", checked=rules)
        content = _read_map(Path(text))
        unknown = sorted(set(content) - set(_KEYS))
        if unknown:
            close = difflib.get_close_matches(unknown[0], _KEYS, n=1)
            hint = f"did you mean '{close[0]}'? " if close else ""
            raise InputError(f"Unknown key '{unknown[0]}' in map '{text}': {hint}Keys are {', '.join(_KEYS)}.")
        renames = tuple(Rename(old, new) for old, new in _rule_table(content, "rename", text).items())
        merges = tuple(_parse_merge(parts, whole, text) for parts, whole in _rule_table(content, "merge", text).items())
        built_in = content.get("built_in")
        if built_in is not None and (not isinstance(built_in, str) or built_in not in BUILT_IN):
            raise InputError(
                f"Map '{text}' asks for the built-in map {shown(built_in)}. There are {', '.join(BUILT_IN)}."
            )
        built_in_rules = BUILT_IN[built_in] if built_in is not None else ((), ())
        return cls(
            (*renames, *built_in_rules[0]),
            (*merges, *built_in_rules[1]),
            source=f"map '{text}'",
            checked=(renames, merges),
        )

    @functools.cached_property
    def plain(self) -> Callable[[str], str]:
        """Function from a name to the shared one, without merges; memoized, since a step repeats each name often."""

        @functools.cache
        def plain(name: str) -> str:
            return functools.reduce(lambda renamed, rename: rename(renamed), self.renames, plain_name(name)) or name

        return plain

    def require_use(self, names: Collection[str]) -> None:
        """Raise ``InputError`` for a rule that fits none of ``names`` (of both runs): it is probably misspelt."""
        if not names or not any(self.checked):
            return
        plain_names = [plain_name(name) for name in names]
        pieces = {piece for name in plain_names for piece in name.split(".")}
        renames, merges = self.checked
        for rename in renames:
            if not any(
                rename.fits(name) or rename.fits(raw_name) for name, raw_name in zip(plain_names, names, strict=True)
            ):
                raise InputError(_unused_rule_text(self.source, rename.old, pieces))
        for merge in merges:
            if merge.whole in pieces and not pieces & set(merge.parts):
                continue  # it was made, or ``require_parts`` has refused it
            missing = next((part for part in merge.parts if part not in pieces), None)
            if missing is not None or merge.whole not in pieces:
                raise InputError(_unused_rule_text(self.source, missing or merge.whole, pieces))

    def require_parts(self, pieces: set[str]) -> None:
        """Raise ``InputError`` for a merge, not yet made, without any part among ``pieces`` of names."""
        for merge in self.checked[1]:
            if not pieces & set(merge.parts):
                raise InputError(_unused_rule_text(self.source, merge.parts[0], pieces))


_KEYS = ("rename", "merge", "built_in")


def _parse_rules(text: str) -> tuple[tuple[Rename, ...], tuple[Merge, ...]]:
    renames: list[Rename] = []
    merges: list[Merge] = []
    for rule in filter(None, (rule.strip() for rule in text.split(";"))):
        old, equals, new = (part.strip() for part in rule.partition("="))
        if not equals:
            raise InputError(f"'{rule}' in the map '{text}' has no effect: expected OLD=NEW, such as 'module.='.")
        if "," in old and not old.startswith(REGEX):
            merges.append(_parse_merge(old, new))
        else:
            renames.append(Rename(old, new))
    return tuple(renames), tuple(merges)


def _parse_merge(parts: str, whole: str | dict[str, Any], path: str = "") -> Merge:
    """Parse a merge of comma-separated ``parts`` into ``whole``: a name, or a table of a map file."""
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


def _read_map(path: Path) -> dict[str, Any]:
    if not os.path.isfile(path):  # pathlib raises where a text is too long for a path
        raise InputError(
            f"Map '{shortened(str(path))}' is neither a file, nor a built-in map ({', '.join(BUILT_IN)}), nor a text "
            "OLD=NEW such as 'module.='. Pass one of these."
        )
    expected = f"Expected TOML, or JSON in a .json file, with {', '.join(_KEYS)}."
    return read_table(str(path), f"Map '{path}'", expected)


def _rule_table(content: dict[str, Any], key: str, path: str) -> dict[str, Any]:
    table = content.get(key, {})
    kinds = (str, dict) if key == "merge" else (str,)
    if not isinstance(table, dict) or not all(isinstance(new, kinds) for new in cast(dict[str, Any], table).values()):
        raise InputError(f"'{key}' in map '{path}' must be a table of texts, OLD = NEW, not {shown(table)}.")
    return cast(dict[str, Any], table)


def _unused_rule_text(source: str, rule: str, pieces: set[str]) -> str:
    unknown = [piece for piece in rule.removeprefix(REGEX).split(".") if piece and piece not in pieces]
    close = difflib.get_close_matches(unknown[0] if unknown else rule, sorted(pieces), n=2)
    hint = f" Did you mean {' or '.join(repr(name) for name in close)}?" if close else ""
    return (
        f"'{rule}' in {source} matches no name of either run.{hint} Names have parts such as {_example_parts(pieces)}."
    )


def _example_parts(pieces: set[str]) -> str:
    return ", ".join(sorted(piece for piece in pieces if not piece.isdigit())[:6])


ROOT = "(model)"
"""Shared name of the model itself, which each run recorded under the name of its class."""

_DEPTH = 3
"""Most parts that a common front of all names may have."""


def shared_names(
    run: Sequence[Value], ref: Sequence[Value], names: NameMap
) -> tuple[Callable[[str], str], Callable[[str], str]]:
    """Functions that turn the names of each side into shared ones.

    The model itself has one name. A front that only one side has on most names of its modules and parameters
    (``model.``) is dropped.
    """
    run_names = _SideNames(run, names)
    ref_names = run_names if ref is run else _SideNames(ref, names)
    # Before fronts are dropped: the rules of a map are written for recorded names.
    names.require_use(run_names.recorded | ref_names.recorded)
    if not run_names.drop_front(ref_names.shared):
        ref_names.drop_front(run_names.shared)
    return run_names.plain, ref_names.plain


class _SideNames:
    """Names of one side: all as ``recorded``, and the ``shared`` ones of its modules and parameters."""

    def __init__(self, values: Sequence[Value], names: NameMap) -> None:
        self._map = names
        self._front = ""
        self._shared_by_name: dict[str, str] = {}
        sightings = set(map(_NAME_TRAITS, values))
        self.recorded = {name for name, *_ in sightings}
        self._roots = {name for name, *traits in sightings if _is_root(name, *traits)}
        self._raw_names = {name for name, kind, *_ in sightings if kind in ("module", "param")} - self._roots
        self._raw_names |= {module for _, kind, module, _, phase in sightings if kind == "op" and phase == "fwd"}
        self.shared = {self.plain(name) for name in self._raw_names} - {"", ROOT}

    def plain(self, name: str) -> str:
        """Return the shared name of ``name``."""
        shared = self._shared_by_name.get(name)
        if shared is None:
            shared = self._shared_by_name[name] = self._translated(name)
        return shared

    def drop_front(self, other_names: set[str]) -> bool:
        """Drop a common front of names if that more than doubles those in ``other_names``; returns whether it did."""
        num_shared = 2 * len(self.shared & other_names)
        if num_shared >= len(self.shared):
            return False
        for front in _fronts(self.shared):
            shortened_names = {name.removeprefix(front) for name in self.shared}
            if len(shortened_names & other_names) > num_shared:
                self._front, self._shared_by_name, self.shared = front, {}, shortened_names
                return True
        return False

    def _translated(self, name: str) -> str:
        head, _, tail = name.partition(".")
        if head in self._roots:
            return f"{ROOT}.{tail}" if tail else ROOT
        plain = self._map.plain(name)
        return plain.removeprefix(self._front)


_NAME_TRAITS = attrgetter("site.name", "kind", "module", "api", "site.phase")
"""Traits of a value that tell the owner of its name; many values share them."""


def _is_root(name: str, kind: str, module: str, api: str, *_: str) -> bool:
    """Tell whether a value is of the outermost module's call, which has the name of its class."""
    return kind == "module" and not module and api.rsplit(".", 1)[-1] == name


def _fronts(names: Collection[str]) -> Iterator[str]:
    """Fronts that at least half of the names have, those of one part first."""
    for depth in range(1, _DEPTH + 1):
        fronts = Counter(".".join(parts[:depth]) for name in names if len(parts := name.split(".")) > depth)
        front, times = next(iter(fronts.most_common(1)), ("", 0))
        if 2 * times >= len(names) and front:
            yield f"{front}."
