"""What an entry of the gallery is: a fault with its healthy twin, or a control that is healthy alone.

Where an entry has a reference, both of its runs are compared with that run instead of being checked by themselves.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any, Literal

from torch import nn

from gallery import comparison, controls, laws
from gallery.entry_context import EntryContext
from gallery.witness import Witness, testify
from trueline.demo.ranks import seed_generators
from trueline.schema.errors import InputError

Shows = Callable[[Sequence[Witness], Sequence[Witness]], bool]
"""Of the witnesses of the faulty run and of the twin, by rank: whether the fault really took effect."""


@dataclass(frozen=True, slots=True)
class Reference:
    """The run that the others of an entry are compared with, and on how many ranks it trains."""

    train: Callable[[EntryContext], nn.Module]
    world_size: int = 1


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault planted the way people had it, and what must be said about it.

    Every code in ``must_find`` has to be found; ``a|b`` asks for either. ``may_find`` are true consequences.
    The first of ``must_find`` is the one that is localised: its Finding must name exactly ``ranks`` and ``site``
    (a part of one of its sites), where they are given, and start at ``step`` or at most ``within`` steps later
    (``within`` None: the first evidence depends on the data, so only its delay is reported). ``truth`` is the size of
    what was planted: the 95 % interval that the Finding states must cover it when doubled, for in a gallery of many
    entries some plain one misses by chance.

    ``family`` is that of the mistake, ``variant_of`` the id of the fault that is the same mistake on another rank, in
    another wrapper, at another time or of another size (empty: it is independent of all others). ``causes`` are slugs
    of which any is right for a diagnosis; where no cause has the slug, only to leave it open is right.
    """

    id: str
    name: str
    train: Callable[[EntryContext, bool], nn.Module]
    must_find: tuple[str, ...]
    shows: Shows
    may_find: tuple[str, ...] = ()
    ranks: tuple[int, ...] | None = None
    step: int = 0
    within: int | None = 0
    site: str = ""
    truth: float | None = None
    world_size: int = 2
    reference: Reference | None = None
    family: str = ""
    variant_of: str = ""
    causes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Control:
    """A healthy run that looks unusual and must stay silent."""

    id: str
    name: str
    train: Callable[[EntryContext], nn.Module]
    world_size: int = 2
    reference: Reference | None = None


def variants(id: str, must_find: tuple[str, ...], shows: Shows, **common: Any) -> Callable[..., Fault]:
    """A maker of the variants of fault ``id``, which have ``must_find``, ``shows`` and the ``common`` fields.

    It takes the name of the variant (empty: the plain one), what it says, how it trains, and fields of its own.
    """

    def variant(suffix: str, name: str, train: Callable[[EntryContext, bool], nn.Module], **own: Any) -> Fault:
        fields = {"must_find": must_find, "shows": shows, **common, **own}
        return Fault(f"{id}.{suffix}" if suffix else id, name, train, **fields)

    return variant


Entry = Fault | Control
Variant = Literal["faulty", "healthy", "reference"]


def num_ranks(entry: Entry, variant: Variant) -> int:
    """On how many ranks one run of ``entry`` trains."""
    if variant == "reference" and entry.reference is not None:
        return entry.reference.world_size
    return entry.world_size


def train_on_rank(
    rank: int, world_size: int, entry_id: str, variant: Variant, out: str | None = None, explicit: bool = True
) -> Witness:
    """The Witness of this rank of entry ``entry_id``, trained as ``variant``; watched into ``out`` unless that is None.

    The global generators start from one seed, equal on all ranks, so that a run does not depend on the one before.
    """
    seed_generators()
    entry = next(entry for entry in all_entries() if entry.id == entry_id)
    ctx = EntryContext(rank, world_size, out, explicit)
    if variant == "reference" and entry.reference is not None:
        model = entry.reference.train(ctx)
    else:
        model = entry.train(ctx, variant == "faulty") if isinstance(entry, Fault) else entry.train(ctx)
    return testify(rank, model, ctx.losses, ctx.samples)


@cache  # each rank asks before each training: 6 ms to walk through all modules
def all_entries() -> tuple[Entry, ...]:
    """Every fault, then every control, in the order of their ids; each module of these packages has ``ENTRIES``."""
    return (*_entries_in(laws, comparison), *_entries_in(controls))


def chosen_entries(only: Sequence[str]) -> tuple[Entry, ...]:
    """The entries that ``only`` names: an id, or the part of ids before a dot; all of them where it is empty.

    Raises ``InputError`` for a name that matches nothing.
    """
    entries = all_entries()
    for name in only:
        if not any(_named(entry, name) for entry in entries):
            families = sorted({entry.id.split(".")[0] for entry in entries}, key=_natural)
            raise InputError(
                f"No entry of the gallery is called '{name}'. There are {', '.join(families)}, "
                "and their variants such as " + entries[1].id + "."
            )
    return tuple(entry for entry in entries if not only or any(_named(entry, name) for name in only))


def _named(entry: Entry, name: str) -> bool:
    return entry.id == name or entry.id.startswith(name + ".")


def modules_in(*packages: ModuleType) -> list[ModuleType]:
    """The modules of ``packages``, each of which has ``ENTRIES``."""
    infos = [info for package in packages for info in pkgutil.walk_packages(package.__path__, package.__name__ + ".")]
    return [importlib.import_module(info.name) for info in infos if not info.ispkg]


def _entries_in(*packages: ModuleType) -> list[Entry]:
    entries = (entry for module in modules_in(*packages) for entry in module.ENTRIES)
    return sorted(entries, key=lambda entry: _natural(entry.id))


def _natural(text: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", text)]
