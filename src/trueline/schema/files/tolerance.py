"""Rounding floors measured on Runs that should agree: a file that ``trueline calibrate`` writes and ``compare`` reads.

A floor is a relative L2 difference (0 equal, 1 as large as the value itself). Letters: S steps.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from trueline.schema.errors import InputError
from trueline.schema.text.documents import decode, if_edited, sealed
from trueline.schema.text.reading import shortened, shown

TOLERANCE_SCHEMA = 2
"""Version of the file; raised when a field is added or changes meaning. Files of version 1, without losses, are read.
"""

QUANTILE = 0.99
"""Fraction of the sites of a kind whose floor is at most ``KindFloor.high``."""

Floors = tuple[float | None, ...]
"""[S] one floor a step; None where nothing was measured."""


class KindFloor(BaseModel):
    """The sites of one kind, at each of the S steps: their number, and the median, ``QUANTILE`` and largest floor."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    count: tuple[int, ...]
    median: Floors
    high: Floors
    largest: Floors


class Tolerance(BaseModel):
    """Floors by site and by kind of site, at each of the S ``steps``, ascending.

    A site is ``micro/phase/name#call:slot`` with the name that ``compare`` aligns by, so without wrappers, steps and
    ranks; its floor is the largest difference that any pair of the Runs had there. A kind is ``phase/op/dtype``.
    ``how`` differences were measured: a floor from statistics is a lower estimate, and does not apply to stored values.
    ``spread``: the largest ratio of a Run's differences to the floor of the other Runs, each Run left out in turn; None
    where it is not known (fewer than three Runs, or others that agree bit for bit where it does not). ``losses`` of
    each of the Runs, in their order, at each of ``loss_steps``, ascending; None where one has none.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    format_version: Literal[1, 2] = Field(default=TOLERANCE_SCHEMA, alias="schema")
    runs: tuple[str, ...] = Field(min_length=2)
    pairs: int = Field(ge=1)
    how: Literal["tensor", "statistics"]
    steps: tuple[int, ...] = Field(min_length=1)
    spread: float | None = None
    kinds: dict[str, KindFloor]
    sites: dict[str, Floors]
    loss_steps: tuple[int, ...] = ()
    losses: tuple[Floors, ...] = ()
    notes: tuple[str, ...] = ()

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Tolerance:
        """The Tolerance in a file. Raises ``InputError`` where there is none, or none that this version can read."""
        name, todo = shortened(os.fspath(path)), "Pass a file that `trueline calibrate` wrote."
        if os.path.isdir(path):
            raise InputError(f"The tolerance '{name}' is a directory. {todo}")
        try:
            with open(path, "rb") as file:
                content, _ = decode(file.read())
        except OSError as error:
            raise InputError(f"The tolerance '{name}' cannot be read: {error.strerror or error}. {todo}") from None
        except ValueError as error:
            raise InputError(f"The tolerance '{name}' is damaged: {error}. {todo}{if_edited(error)}") from None
        if "schema" not in content:
            raise InputError(f"'{name}' is no tolerance: it has no key 'schema'. {todo}")
        version = content["schema"]
        if version not in range(1, TOLERANCE_SCHEMA + 1):
            raise InputError(
                f"The tolerance '{name}' has schema {shown(version)}, and this version of Trueline reads "
                f"1 to {TOLERANCE_SCHEMA}. Calibrate again, or update Trueline."
            )
        try:
            return cls.model_validate(content)
        except RecursionError:
            raise InputError(f"The tolerance '{name}' is nested too deeply. {todo}") from None
        except ValidationError as error:
            first = error.errors()[0]
            where = shortened(".".join(map(str, first["loc"]))) or "the file"
            raise InputError(f"The tolerance '{name}' is damaged at {where}: {first['msg']}. {todo}") from None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file at ``path``, whole or not at all, over what is there. Raises ``InputError``."""
        name = os.fspath(path)
        temporary = os.path.join(os.path.dirname(name), f".{os.path.basename(name)}.{os.getpid()}.tmp")
        try:
            try:
                with open(temporary, "wb") as file:
                    file.write(sealed(self.to_text()))
                os.replace(temporary, name)
            finally:
                if os.path.exists(temporary):
                    os.remove(temporary)
        except OSError as error:
            reason = error.strerror or error
            raise InputError(f"The tolerance cannot be written to '{name}': {reason}. Pass another place.") from None

    def to_text(self) -> str:
        """The content of the file: one site or kind a line, numbers in full precision."""
        content = self.model_dump(mode="json", by_alias=True)
        head = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in content.items() if key not in _TABLES]
        tables = [f"{json.dumps(key)}: {_table(content[key])}" for key in _TABLES]
        return "{\n" + ",\n".join(head + tables) + "\n}\n"

    def expected(self, kind: str, site: str | None = None, *, step: int | None = None) -> float | None:
        """The difference to expect at ``site``, or at a site of ``kind`` that was not calibrated; None for neither.

        A site is expected to differ by its own floor, but by no less than the median of its kind: one site may agree by
        chance. A site that was not calibrated is expected to differ by the ``QUANTILE`` of its kind; so is any site
        where floors are from statistics, which may miss the difference of a site altogether. Differences grow from step
        to step: ``step`` is judged by the first calibrated step from it on, or by the last; None takes the largest of
        all.
        """
        of_kind = self.kinds.get(kind)
        floor = None if site is None else self._at(self.sites.get(site, ()), step)
        if floor is None:
            return None if of_kind is None else self._at(of_kind.high, step)
        usual = None if of_kind is None else self._at(of_kind.median if self.how == "tensor" else of_kind.high, step)
        return max(floor, usual or 0.0)

    @property
    def exceeded(self) -> float:
        """The probability (0-1) that two further Runs differ by more than the floor at a site with only rounding.

        Of Runs that are exchangeable, every second one pairs up with the next: n pairs that share no Run, and one more
        pair is the most different of n + 1 with a probability of 1 / (n + 1). The floor is the largest of these and
        others.
        """
        return 1 / (len(self.runs) // 2 + 1)

    @property
    def exceeded_by_one(self) -> float:
        """The same for one further Run compared with one of the calibrated: of R exchangeable partners of that one, it
        differs most with a probability of 1 / R.
        """
        return 1 / len(self.runs)

    def _at(self, floors: Floors, step: int | None) -> float | None:
        if step is None:
            return max((floor for floor in floors if floor is not None), default=None)
        measured = [(at, floor) for at, floor in zip(self.steps, floors, strict=False) if floor is not None]
        return next((floor for at, floor in measured if at >= step), measured[-1][1] if measured else None)

    @model_validator(mode="after")
    def _fits(self) -> Tolerance:
        if list(self.steps) != sorted(set(self.steps)):
            raise ValueError(f"steps {list(self.steps)} do not ascend")
        columns = [("site", name, floors) for name, floors in self.sites.items()]
        columns += [
            ("kind", name, floors)
            for name, kind in self.kinds.items()
            for floors in (kind.median, kind.high, kind.largest)
        ]
        for kind_of_name, name, floors in columns:
            if len(floors) != len(self.steps):
                raise ValueError(f"{kind_of_name} '{name}' has {len(floors)} floors for {len(self.steps)} steps")
            if any(floor is not None and not (floor >= 0 and math.isfinite(floor)) for floor in floors):
                raise ValueError(f"{kind_of_name} '{name}' has a floor that is no number of at least 0")
        if self.losses and len(self.losses) != len(self.runs):
            raise ValueError(f"{len(self.losses)} Runs have losses, of {len(self.runs)}")
        if any(len(losses) != len(self.loss_steps) for losses in self.losses):
            raise ValueError(f"a Run has losses at other than {len(self.loss_steps)} steps")
        return self


_TABLES = ("kinds", "sites")


def _table(rows: Mapping[str, Any]) -> str:
    return "{" + ",".join(f"\n{json.dumps(name)}: {json.dumps(value)}" for name, value in rows.items()) + "\n}"
