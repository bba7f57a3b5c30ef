"""`trial knobs` on a real job: what of it can be switched, and how it runs with some switched off."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trueline.schema.errors import InputError
from trueline.trials.frame.asked import Asked, Prepared
from trueline.trials.frame.runs import Way
from trueline.trials.frame.watched_job import WatchedJob
from trueline.trials.knobs.catalogue import IN_PROCESS, Switch, catalogue, in_use, own_switch, with_off
from trueline.trials.knobs.knobs import BASE, KnobTrial


@dataclass
class SwitchedJob:
    """The job of ``watched`` with the switches that are known and those that a user named (``users_settings``);
    ``among`` limits them by name. What its processes say that they met goes to ``folder``.
    """

    watched: WatchedJob
    folder: Path
    users_settings: Sequence[str] = ()
    among: Sequence[str] = ()
    _switches: list[Switch] = field(default_factory=list[Switch])

    def __post_init__(self) -> None:
        users_switches = [own_switch(text) for text in self.users_settings]
        users_places = {(known_switch.how, known_switch.where) for known_switch in users_switches}
        # what a user says of a setting replaces what the catalogue says of the same one
        self._switches = users_switches + [
            known_switch for known_switch in catalogue() if (known_switch.how, known_switch.where) not in users_places
        ]
        if self.among:
            self._switches = [switch for switch in self._switches if switch.name in self.among]

    @property
    def met_folder(self) -> Path:
        """Folder to which processes write what they met."""
        return self.folder / "met"

    def find(self) -> list[Switch]:
        """The switches that the job has on, by what its processes met so far."""
        met = {name for path in self.met_folder.glob("met-*.json") for name in json.loads(path.read_text())}
        return in_use(self._switches, self.watched.job.words, os.environ, met)

    def plan(self) -> list[str]:
        """Lines of the plan: without a run it is not known which settings the job has on."""
        names = [switch.name for switch in self._switches]
        return [
            "Arms: base (as it is), sham (switches in place, none switched), off (all off), then patterns of them.",
            f"Settings that are switched where the job has them on: {', '.join(names)}.",
        ]

    def way(self, arm: str, switches_off: Sequence[Switch]) -> Way:
        """The job with these switched off; ``base`` is as it is, with nothing that could switch anything."""
        # base has nothing in place that could switch: what that alone does, the sham shows
        if arm == BASE and not switches_off:
            return Way(arm)
        words, environ = with_off(self.watched.job.words, switches_off, self.folder / "files")
        self.met_folder.mkdir(parents=True, exist_ok=True)
        changes = {
            "switches": [switch.to_process() for switch in self._switches if switch.how in IN_PROCESS],
            "off": [off_switch.name for off_switch in switches_off],
            "met": str(self.met_folder.resolve()),
        }
        return Way(arm, environ, words, changes)


def prepare(asked: Asked, *, knob: Sequence[str] = (), only: Sequence[str] = ()) -> Prepared:
    """Which setting does the finding need? ``knob`` are settings that the user names, ``only`` limits all by name.
    Raises ``InputError``.
    """
    names = {switch.name for switch in catalogue()}
    if unknown := sorted({*only} - names - {text.partition("=")[0] for text in knob}):
        raise InputError(f"There is no setting '{unknown[0]}'; there are {', '.join(sorted(names))}.")
    job = SwitchedJob(asked.job, asked.folder, knob, only)
    runs = asked.runs_for_finding(knobs=list(knob), only=list(only))
    question = asked.question("Which setting does it need that")
    trial = KnobTrial(runs, question, job.find, job.way, asked.error, asked.seed)
    return asked.prepared(trial, [*asked.says(), *job.plan()], "8 to 20")
