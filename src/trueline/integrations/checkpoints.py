"""Checkpoints that a framework writes while a Run is judged: held back while an error is open, or marked."""

from __future__ import annotations

import contextlib
import os
from typing import Any, Literal

import trueline
from trueline.capture.child_env import RUN
from trueline.capture.model.world import as_first_rank_has
from trueline.schema.errors import InputError
from trueline.schema.text.documents import encode

Way = Literal["hold", "mark"]
MARK = "trueline.json"
"""The file of a checkpoint that says whether it is clean."""


class Checkpoints:
    """What is known of the checkpoints of a training whose Run is at ``out``, or where ``trueline run`` puts it."""

    def __init__(self, out: str, way: Way) -> None:
        if way not in ("hold", "mark"):
            raise InputError(f"checkpoints = {way!r} cannot be. Take 'hold' or 'mark', or leave it out.")
        self.holds = way == "hold"
        self._run = os.path.abspath(os.environ.get(RUN) or out)
        self._unmarked: dict[int, str] = {}

    def document(self, num_updates: int, *, last: bool = False) -> dict[str, Any]:
        """What is known of a checkpoint after so many updates; ``clean`` is None where that was not judged yet. No step
        begins with the weights of the ``last`` update, so that its own has to do.
        """
        clean = trueline.clean(self._run, judge=False)
        is_clean = clean.covers(num_updates)
        if last and is_clean is None:
            is_clean = clean.covers(num_updates - 1)
        return {**clean.to_json(), "updates": num_updates, "clean": is_clean, "says": str(clean)}

    def is_held(self) -> bool:
        """True if an error is open. All ranks ask at the same time, and act alike on what the first one reads."""
        return as_first_rank_has(trueline.clean(self._run, judge=False).is_open)

    def saved(self, num_updates: int, folder: str) -> None:
        """A checkpoint was saved."""
        self._unmarked[num_updates] = folder
        self.mark()

    def mark(self, *, last: bool = False) -> None:
        """Say in each checkpoint that was judged by now whether it is clean, and in others that it is not known yet."""
        for num_updates, folder in [*self._unmarked.items()]:
            document = self.document(num_updates, last=last)
            path = os.path.join(folder, MARK)
            if document["clean"] is not None or not os.path.isdir(folder):
                del self._unmarked[num_updates]
            if os.path.isdir(folder) and (document["clean"] is not None or not os.path.exists(path)):
                with contextlib.suppress(OSError):  # a full disk is the framework's to say
                    _replace(path, encode(document))


def _replace(path: str, data: bytes) -> None:
    with open(f"{path}.tmp", "wb") as file:
        file.write(data)
    os.replace(f"{path}.tmp", path)
