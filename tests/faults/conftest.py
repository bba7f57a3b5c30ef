"""Watched runs of entries that the tests of this folder share: that is what keeps it quick."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from gallery.entry import Entry, Reference, Variant, all_entries, num_ranks, train_on_rank
from gallery.scoring import counts
from gallery.witness import Witness

import trueline
from trueline.demo.ranks import Ranks
from trueline.judge.causes.diagnosis import Diagnosis
from trueline.schema.finding import Finding

RanksOf = Callable[[int], Ranks]


TWINS = {
    **dict.fromkeys(("R1", "R3", "R8"), "healthy.ddp"),
    **dict.fromkeys(("N4.fsdp", "R3.fsdp", "R8.fsdp"), "healthy.fsdp"),
    **dict.fromkeys(("R4", "R8.by-hand"), "R3.by-hand"),
    **dict.fromkeys(("C4", "C5", "C7"), "C3"),
    **dict.fromkeys(("B1", "I2.labels"), "W5"),
    **dict.fromkeys(("H2.rate", "H2.states", "H2.statistics"), "H2"),
    "K1.cleared": "K1",
}
"""Whose healthy run is, to the bit, that of another entry (samples, losses, weights): it is trained once."""


def twin_of(entry: Entry) -> str:
    """The id of the entry whose healthy run stands for that of ``entry``; all loops of rollouts have one."""
    return "L1.lag" if entry.id.startswith("L1.") else TWINS.get(entry.id, entry.id)


@dataclass(frozen=True)
class Watched:
    """One watched run: what each rank itself saw, the warnings and errors that were said of it, and their causes."""

    witnesses: list[Witness]
    findings: list[Finding]
    diagnosis: Diagnosis


@pytest.fixture(scope="session")
def watched(ranks_of: RanksOf, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Entry, Variant], Watched]:
    runs: dict[tuple[str, Variant], Watched] = {}
    references: dict[Reference, Path] = {}

    def trained(entry: Entry, variant: Variant) -> tuple[list[Witness], Path]:
        out = tmp_path_factory.mktemp("gallery") / "run"
        return ranks_of(num_ranks(entry, variant)).run(train_on_rank, entry.id, variant, str(out)), out

    entries = {entry.id: entry for entry in all_entries()}

    def run(entry: Entry, variant: Variant) -> Watched:
        if variant == "healthy":
            entry = entries[twin_of(entry)]
        if (entry.id, variant) not in runs:
            witnesses, out = trained(entry, variant)
            if entry.reference is not None and entry.reference not in references:
                references[entry.reference] = trained(entry, "reference")[1]
            diagnosis = trueline.diagnose(out, ref=references[entry.reference] if entry.reference else None)
            findings = [finding for finding in diagnosis.report.findings if counts(entry, finding)]
            runs[entry.id, variant] = Watched(witnesses, findings, diagnosis)
        return runs[entry.id, variant]

    return run
