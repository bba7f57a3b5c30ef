"""Dumps of msProbe that have checksums and no numbers: equal, different from which call on, or not comparable."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.store.importers.test_msprobe import DUMP, imported, leaves

import trueline


def dumped(out: Path, *, wrong: tuple[str, ...] = (), xor: bool = False, numbers: bool = False) -> str:
    """A Run of the dump with nothing but checksums, other ones for what the calls ``wrong`` returned; with ``numbers``
    statistics and no checksums.
    """
    shutil.copytree(DUMP, out / "dump")
    path = next((out / "dump").rglob("dump.json"))
    document = json.loads(path.read_text())
    for name, entry in document["data"].items():
        for leaf in leaves(entry):
            for each in () if numbers else ("Max", "Min", "Mean", "Norm"):
                leaf.pop(each)
            if xor:
                leaf["md5"] = f"0x{leaf['md5']:0>16}"
        for leaf in leaves(entry.get("output")) if name in wrong else ():
            leaf["md5"] = "0000002a"
        for leaf in list(leaves(entry)) if numbers else ():
            del leaf["md5"]
    path.write_text(json.dumps(document))
    imported(out / "dump", out / "run")
    return str(out / "run")


def calls() -> Iterator[str]:
    """Calls of the dump in the order of execution."""
    document: dict[str, Any] = json.loads(next(DUMP.rglob("dump.json")).read_text())
    return (name for name in document["data"] if name.startswith("Functional") and name.endswith("forward"))


@pytest.fixture
def ref(tmp_path: Path) -> str:
    return dumped(tmp_path / "ref")


def test_the_same_checksums_are_the_same(tmp_path: Path, ref: str) -> None:
    found = trueline.compare(dumped(tmp_path / "run"), ref)
    assert (found.exit_code, found.first) == (0, None)
    assert found.counts["equal"] > 20


@pytest.mark.parametrize("place", [0, 1, -1])
def test_the_first_call_whose_checksum_differs_is_named_and_no_size_is_told(tmp_path, ref, place) -> None:
    """Two calls differ; the first one in the order of execution counts, whatever the order in the dump's file."""
    names = list(calls())
    run = dumped(tmp_path / "run", wrong=(names[place], names[-1]))
    found = trueline.compare(run, ref)
    assert found.exit_code == 1
    (claim,) = (each.claim for each in found.findings if each.code == "first-divergence")
    assert claim.startswith("The first value whose checksum differs is at ")
    assert "by an amount that checksums do not show" in claim
    _, function, number, _ = names[place].split(".")
    assert f".{function}#" in found.first.site
    assert (found.first.measured, found.first.times, found.first.judgement) == (None, None, "beyond")
    assert number.isdigit()


def test_checksums_say_nothing_beside_statistics_or_another_kind(tmp_path: Path, ref: str) -> None:
    for run in (dumped(tmp_path / "xor", xor=True), dumped(tmp_path / "numbers", numbers=True)):
        found = trueline.compare(run, ref)
        assert found.exit_code == 3
        assert set(found.counts) == {"not-comparable"}
        assert "fingerprints of different kinds (" in " ".join(found.notes)
