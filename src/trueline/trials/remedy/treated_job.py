"""A job with a remedy, with its sham, or as it is, from one of several seeds; and what is wrong with each run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trueline.schema.errors import InputError, RunError
from trueline.store.reader import Run
from trueline.trials.frame.runs import Way
from trueline.trials.frame.same_fault import Outcome
from trueline.trials.frame.trial import Job
from trueline.trials.frame.watched_job import AFTER, run_watched
from trueline.trials.knobs.catalogue import IN_PROCESS, Switch, switch_named, with_off

BASE, REMEDY, SHAM = "base", "remedy", "sham"
MODULE_KINDS = ("fp32", "cpu", "clip")
UNFUSED = (
    *("fused-optimizer", "foreach-optimizer", "torch-compile"),
    *("flash-attention", "memory-efficient-attention", "cudnn-attention"),
)
SEED = "{seed}"
"""In the command: the seed of the pair."""
NOT_FINITE = 1e30
"""For what is wrong with a run whose loss is not finite: more than any loss, and a number in JSON."""

PLAN = {"preset": "workers", "every": 1, "budget": 1.0}


@dataclass(frozen=True)
class Treatment:
    """What is done: to the ``module`` in a process (``kind``, see ``capture.trial.remedies``), or ``switches`` off."""

    name: str
    kind: str = ""
    module: str = ""
    norm: float = 1.0
    switches: tuple[Switch, ...] = ()
    deterministic: bool = False

    @classmethod
    def from_text(cls, text: str) -> Treatment:
        """``fp32:MODULE``, ``cpu:MODULE``, ``clip:MODULE=NORM``, ``unfused``, ``deterministic``, or a setting as of
        `trial knobs`. Raises ``InputError`` for what is none of these.
        """
        kind, colon, module = text.partition(":")
        if kind in MODULE_KINDS and colon:
            module, _, number = module.partition("=")
            if not module or bool(number) != (kind == "clip") or (number and not _is_positive(number)):
                raise InputError(
                    f"--remedy is '{text}'; give {kind}:MODULE{'=NORM, a number above 0' if kind == 'clip' else ''}, "
                    "where MODULE is a name or glob as in model.named_modules()."
                )
            return cls(text, kind, module, float(number or 1.0))
        if text == "unfused":
            return cls(text, switches=tuple(switch_named(name) for name in UNFUSED))
        if text == "deterministic":
            return cls(text, deterministic=True)
        try:
            return cls(text, switches=(switch_named(text),))
        except InputError:
            raise InputError(
                f"--remedy is '{text}'; give fp32:MODULE, cpu:MODULE, clip:MODULE=NORM, unfused, deterministic, the "
                "name of a setting of `trueline trial knobs`, NAME=VALUE, --flag or --option=VALUE."
            ) from None

    def changes(self, arm: str) -> dict[str, Any]:
        """Changes of processes in an arm."""
        if arm == BASE:
            return {}
        if self.kind:
            change = {"kind": self.kind, "module": self.module, "sham": arm == SHAM, "norm": self.norm}
            return {"remedy": change}
        switches = [switch.to_process() for switch in self.switches if switch.how in IN_PROCESS]
        names_off = [off_switch["name"] for off_switch in switches] if arm == REMEDY else []
        return {"switches": switches, "off": names_off, "deterministic": self.deterministic and arm == REMEDY}


@dataclass(frozen=True)
class Measure:
    """What is wrong with a run over steps ``first`` to ``last``: how far its loss is above ``good``; or, where that is
    None, the share of steps at which a loss or gradient is not finite or an update is left out.

    A loss counts as ``scale`` * asinh((loss - good) / ``scale``): the difference itself up to about ``scale``, the
    size of the good run's loss, and its logarithm beyond. A loss that explodes would else be all that a mean and its
    interval hold, and losses of 10^4 and 10^16 are as wrong as each other.
    """

    first: int
    last: int
    good: float | None
    scale: float = 1.0

    def __str__(self) -> str:
        """In words."""
        nonfinite = "share of steps with a loss or gradient that is not finite, or without an update"
        above = f"loss above that of the good run (logarithmic beyond {self.scale:.3g})"
        return f"{nonfinite if self.good is None else above}, steps {self.first} to {self.last}"

    def value_of(self, run: Run) -> float:
        """Raises ``RunError`` where the run does not have these steps."""
        loss_TN, is_known_TN = self._losses(run)
        bad_TN = is_known_TN & ~np.isfinite(loss_TN)
        if self.good is None:
            for column in ("grad_nonfinite", "update_left_out"):
                values_TN, _ = run.pivot(column)
                bad_TN |= values_TN[self._in_range(run)] > 0
            return float(bad_TN.any(1).mean())
        if bad_TN.any():
            return NOT_FINITE
        return self.above(loss_TN[is_known_TN])

    def above(self, losses: NDArray[np.float64]) -> float:
        """The distance of finite losses above the good run's, as a mean over them; ``good`` is not None."""
        return float((self.scale * np.arcsinh((losses - (self.good or 0.0)) / self.scale)).mean())

    @classmethod
    def between(cls, run: Run, ref: Run | None, steps: int | None) -> Measure:
        """The measure by which ``run`` is bad; the second half of its steps. Raises ``InputError`` where it is not."""
        last = int(run.steps[-1]) if steps is None else steps - 1
        if ref is None:
            nonfinite = cls(0, last, None)
            if not nonfinite.value_of(run):
                raise InputError(
                    f"All losses and gradients of Run '{run.path}' are finite, so that a remedy can only show in how "
                    "low its loss is. Name a run that is as it should be with --ref."
                )
            return nonfinite
        last = min(last, int(ref.steps[-1])) if ref.steps.size else -1
        if last < 1:
            raise InputError(f"Run '{ref.path}' has fewer than two steps. Name one that trained as long.")
        # the second half, where what is wrong has had time to show
        half = cls((last + 1) // 2, last, 0.0)
        loss_TN, is_known_TN = half._losses(ref)
        losses = loss_TN[is_known_TN]
        if not np.isfinite(losses).all():
            raise InputError(f"Run '{ref.path}' has a loss that is not finite. Name one that is as it should be.")
        size = float(np.abs(losses).mean())
        return cls(half.first, half.last, float(losses.mean()), size if size > 0 else 1.0)

    def _in_range(self, run: Run) -> NDArray[np.bool_]:
        return (run.steps >= self.first) & (run.steps <= self.last)

    def _losses(self, run: Run) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Losses [T, N] at the measure's steps, and where there is any. Raises ``RunError`` without such steps."""
        if not run.steps.size or run.steps[-1] < self.last:
            raise RunError(f"it ended before step {self.last}: ask for fewer with --steps")
        loss_TN, is_known_TN = (values[self._in_range(run)] for values in run.pivot("loss"))
        if self.good is not None and not is_known_TN.any():
            raise RunError("it has no loss: hand it over with watch.loss")
        return loss_TN, is_known_TN


@dataclass(frozen=True)
class TreatedJob:
    """Runs ``job`` in a way; ``measured`` is what is wrong with it. ``codes`` are a digest of its losses and what its
    processes met.
    """

    job: Job
    measure: Measure

    def __call__(self, way: Way, run_folder: Path) -> Outcome:
        """Run it; raises ``OSError`` where the command cannot be started."""
        run_path, met = (run_folder / "run").absolute(), (run_folder / "met").absolute()
        met.mkdir()
        changes = {"updates": self.measure.last + AFTER, "met": str(met), **way.changes}
        job = self.job.with_words(way.words)
        is_there, why = run_watched(job, run_path, plan=PLAN, changes=changes, environ=way.environ)
        if not is_there:
            return Outcome(None, why)
        try:
            run = Run(run_path)
            wrong = self.measure.value_of(run)
        except RunError as error:
            return Outcome(None, why or str(error))
        losses = hashlib.blake2b(run.pivot("loss")[0].tobytes(), digest_size=6).hexdigest()
        names = sorted({name for path in met.glob("met-*.json") for name in json.loads(path.read_text())})
        return Outcome(False, measured=wrong, codes=(losses, *(name for name in names if not name.startswith("job:"))))


@dataclass(frozen=True)
class Ways:
    """The ways the job of ``words`` runs in an arm of a pair."""

    words: Sequence[str]
    treatment: Treatment
    seed: int
    files: Path
    more: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def way(self, arm: str, pair: int) -> Way:
        """The way of one arm: all arms of a pair have the same seeds."""
        switches_off = self.treatment.switches if arm == REMEDY else ()
        words, environ = with_off(self.words, switches_off, self.files)
        words = [word.replace(SEED, str(self.seed + pair)) for word in words]
        # a command that takes its seed by itself would be shifted twice
        seeds = {"seed": self.seed + pair, "shift": 0 if any(SEED in word for word in self.words) else pair}
        return Way(arm, environ, words, seeds | self.treatment.changes(arm))


def _is_positive(text: str) -> bool:
    try:
        return 0 < float(text) < float("inf")
    except ValueError:
        return False
