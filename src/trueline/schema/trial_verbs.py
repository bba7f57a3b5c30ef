"""The verbs of ``trueline trial`` that run a job again: what each is about, and which shared options it takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

SHARED = ("code", "error", "runs", "steps", "timeout", "out", "seed", "keep", "engine")
"""Options of every verb that does not lack them."""


@dataclass(frozen=True)
class Verb:
    """A verb: whether it is ``about_run``, a Run with a finding, or takes the command alone; the shared options that it
    ``lacks``; its ``steps`` (None: as many as that Run has) and ``most`` runs, where none are given.

    ``usual`` is the number of runs that it takes where each shows the finding (``benchmarks/trials``, and the rules of
    the verbs), and ``answers`` how many it may give, each as likely by a cause that is silent on them: of knobs the
    settings that a job usually has on, of the others the kinds of their tables. 0: it tells no cause from another.
    ``also`` is what its command must have besides.
    """

    about_run: bool = True
    lacks: frozenset[str] = frozenset()
    steps: int | None = None
    most: int = 200
    usual: int = 0
    answers: int = 0
    also: str = ""

    def command(self, verb: str, run: str) -> str:
        """Its command line, about ``run``."""
        words = ["trueline trial", verb, *([run] if self.about_run else []), *filter(None, [self.also])]
        return " ".join([*words, "-- COMMAND"])


VERBS: Mapping[str, Verb] = {
    "knobs": Verb(usual=12, answers=20),
    "sync": Verb(usual=12, answers=4),
    "rl": Verb(usual=12, answers=6),
    "phases": Verb(),
    "bisect": Verb(also="--good REV"),
    "shrink": Verb(most=40),
    "remedy": Verb(lacks=frozenset({"code"}), also="--remedy REMEDY"),
    "vote": Verb(False, frozenset({"code"}), steps=20, usual=27, answers=4, also="--devices NAME,…"),
    "repeat": Verb(False, frozenset({"code", "error", "runs"}), steps=2, usual=4, answers=3),
    "modules": Verb(False, frozenset({"code", "error", "runs", "steps"}), most=2, also="--ref REF"),
    "batch": Verb(False, frozenset({"code", "error", "runs", "steps", "out", "keep"})),
}
