"""What becomes of one damaged file: what its reader makes of it, told from what it made of the whole one."""

from __future__ import annotations

import random
import shutil
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from tests.damage.mutate import Change, by_bytes, by_meaning, flipped
from tests.damage.readers import Kind

from trueline.schema.errors import TruelineError

Outcome = Literal["same", "told", "refused", "other", "silent", "traceback", "slow"]
"""``told``: something else was read, and what was damaged was named; ``other``: something else, as a file says that has
no checksum, or a right one; ``silent``: something else of a file that has one. The last three are faults.
"""

FAULTS: tuple[Outcome, ...] = ("silent", "traceback", "slow")
LONGEST_S = 60.0
LONGEST_MESSAGE = 1_500

Way = Callable[[random.Random, str, bytes], Change]


def flip_or_cut(rng: random.Random, name: str, data: bytes) -> Change:
    """One byte that is another, or the file up to a byte."""
    return name, flipped(rng, data) if rng.random() < 0.7 else data[: rng.randrange(len(data))]


def any_bytes(rng: random.Random, name: str, data: bytes) -> Change:
    """Damage of any kind to the bytes."""
    return name, by_bytes(rng, data)


WAYS: dict[str, Way] = {"flips and cuts": flip_or_cut, "other bytes": any_bytes, "other content": by_meaning}


@dataclass(frozen=True)
class Attempt:
    """What a reader made of a file; ``why`` is its sentence, or the traceback."""

    outcome: Outcome
    why: str = ""


class Damaged:
    """Files of one kind in a folder that is damaged and mended."""

    def __init__(self, kind: Kind, *, checked: bool) -> None:
        self.kind = kind
        self._checked = checked
        self._base, told = kind.read(kind.path)
        self._told = set(told)
        self._whole = {name: (kind.path / name).read_bytes() for name in kind.files}

    def attempt(self, rng: random.Random, way: Way) -> Attempt:
        """Damage one file in this way, read, and put it back as it was."""
        name = rng.choice(self.kind.files)
        new_name, data = way(rng, name, self._whole[name])
        if (new_name, data) == (name, self._whole[name]):
            return Attempt("same")
        (self.kind.path / name).unlink()
        (self.kind.path / new_name).write_bytes(data)
        try:
            return self._read(exact=way is not by_meaning)
        finally:
            (self.kind.path / new_name).unlink(missing_ok=True)
            (self.kind.path / name).write_bytes(self._whole[name])
            for left in self.kind.path.parent.glob("*.imported"):
                shutil.rmtree(left)

    def _read(self, *, exact: bool) -> Attempt:
        started = time.monotonic()
        signal.alarm(int(2 * LONGEST_S))
        try:
            found, told = self.kind.read(self.kind.path)
            if not exact:
                self.kind.judge(self.kind.path)
        except TruelineError as error:
            sentence = str(error)
            if "\n" in sentence or len(sentence) > LONGEST_MESSAGE:
                return Attempt("traceback", f"no sentence: {sentence!r}")
            return Attempt("refused", sentence)
        except BaseException:
            return Attempt("traceback", traceback.format_exc())
        finally:
            signal.alarm(0)
        if time.monotonic() - started > LONGEST_S:
            return Attempt("slow")
        if found == self._base:
            return Attempt("same")
        if set(told) - self._told:
            return Attempt("told", "; ".join(set(told) - self._told))
        return Attempt("silent" if exact and self._checked else "other")


def checked(kind: Kind) -> bool:
    """Whether Trueline wrote the files and gave them checksums."""
    return (kind.path / "manifest.json").exists() or kind.name in ("tolerance", "Run in an archive")
