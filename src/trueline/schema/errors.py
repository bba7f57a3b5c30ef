"""Every error Trueline raises on purpose. A message says what happened, what was expected, what to do next."""

from __future__ import annotations

import re

from trueline.schema.judged import Reason

_LONG_WORD = re.compile(r"\S{400,}")


class TruelineError(Exception):
    """Root of the tree; the CLI prints its message as one sentence and exits with 2. A name in it that has thousands of
    characters, as of a damaged file, is shortened.
    """

    def __str__(self) -> str:
        return _LONG_WORD.sub(lambda match: f"{match[0][:150]}...{match[0][-50:]}", super().__str__())


class InputError(TruelineError):
    """Something the user gave (path, flag, file, script) cannot be used."""


class PlanError(InputError):
    """A Plan has an unknown key, a value out of range, or a name that matches nothing."""


class RunError(InputError):
    """A directory is not a Run, or not one that this version can read."""


class NoRunYet(RunError):
    """Nothing is there, or what a job writes before it has described itself: a Run may come."""


class RunExistsError(InputError):
    """An output path already holds something and overwriting was not asked for."""


class ResumeError(InputError):
    """This job cannot resume a Run: it belongs to another job, or cannot be read."""


class SiteError(InputError):
    """A text is not a Site."""


class CaptureError(TruelineError):
    """A model, optimizer or process group cannot be watched the way it was asked for."""


class TrainingStopped(TruelineError):
    """Every rank of a training raises it at the same step, as its Plan asks (``on_finding = "raise"``, ``stop``)."""


class CannotTell(TruelineError):
    """The question is sound but the data needed to answer it is missing; the CLI exits with 3. ``reason`` says why in
    one word that programs may branch on, the message in a sentence that they may not.
    """

    def __init__(self, message: str, *, reason: Reason = "no-data") -> None:
        super().__init__(message)
        self.reason: Reason = reason


class AlignmentError(InputError):
    """Nothing of two Runs belongs together."""
