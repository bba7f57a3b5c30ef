"""``collect``: what lies on several disks becomes one Run, as often as it is called, and nothing is lost or mixed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import fsspec
import pytest
from tests.unit.healthy_run import healthy_rows, rank_env

import trueline
from trueline.schema.errors import InputError, RunError
from trueline.schema.files.run_manifest import Manifest
from trueline.schema.files.start import Start
from trueline.schema.finding import Finding
from trueline.store import collect as module
from trueline.store.collecting import copying
from trueline.store.file_names import PartName
from trueline.store.log import merge
from trueline.store.reader import Run
from trueline.store.verify import verify
from trueline.store.writer import RunWriter

WORLD = 4


def machine(path: Path, ranks, *, steps=range(6), job="one", start=None, close=True, seal_steps=4):
    """What ``ranks`` wrote to a disk; the writers, which are open unless ``close``."""
    rows = healthy_rows(WORLD, 20)
    writers = []
    for rank in ranks:
        writer = RunWriter(path, rank=rank, creates=rank == 0, start=start or Start(), seal_steps=seal_steps)
        manifest = Manifest(world_size=WORLD, data_parallel_ranks=[*range(WORLD)], adapter="ddp", job=job)
        writer.describe(manifest if rank == 0 else None, rank_env(rank, WORLD).model_copy(update={"job": job}))
        for step in steps:
            writer.write({"step": step, **rows[step, rank]})
        writers.append(writer)
        if close:
            writer.close()
    return writers


def content(path) -> list[tuple[int, int]]:
    return Run(path).query("SELECT step, rank FROM workers ORDER BY ALL")


def files(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


@pytest.fixture
def disks(tmp_path: Path) -> tuple[Path, Path]:
    machine(tmp_path / "a", [0, 1])
    machine(tmp_path / "b", [2, 3])
    return tmp_path / "a", tmp_path / "b"


def test_two_disks_become_one_run(disks, tmp_path):
    before = [files(disk) for disk in disks]
    found = trueline.collect(disks, tmp_path / "whole")
    assert (found.ranks, found.missing, found.world_size, found.problems, found.exit_code) == (
        (0, 1, 2, 3),
        (),
        4,
        (),
        0,
    )
    assert content(tmp_path / "whole") == [(step, rank) for step in range(6) for rank in range(WORLD)]
    assert Run(tmp_path / "whole").problems == []
    assert verify(str(tmp_path / "whole")).exit_code == 0
    assert [files(disk) for disk in disks] == before


def test_a_second_time_copies_nothing(disks, tmp_path):
    first = trueline.collect(disks, tmp_path / "whole")
    before = files(tmp_path / "whole")
    second = trueline.collect([*disks, disks[0]], tmp_path / "whole")
    assert (first.copied, second.copied) == (len(before), 0)
    assert files(tmp_path / "whole") == before


def test_one_disk_after_the_other(disks, tmp_path):
    found = trueline.collect(disks[1:], tmp_path / "whole")
    assert (found.world_size, found.exit_code) == (None, 1)
    assert "only ranks 2 and 3" in found.verdict
    found = trueline.collect(disks[:1], tmp_path / "whole")
    assert (found.missing, found.exit_code) == ((), 0)


def test_ranks_that_are_nowhere_are_named(disks, tmp_path):
    found = trueline.collect(disks[:1], tmp_path / "whole")
    assert (found.missing, found.exit_code) == ((2, 3), 1)
    assert "ranks 2 and 3 of 4" in found.verdict


@pytest.mark.in_turn
def test_a_job_that_writes_is_collected_again_and_again(tmp_path):
    (writer,) = machine(tmp_path / "a", [0], steps=range(3), close=False, seal_steps=2)
    rows = healthy_rows(WORLD, 20)
    whole = tmp_path / "whole"
    for step in range(3, 20):
        assert trueline.collect([tmp_path / "a"], whole).unclosed == (0,)
        assert content(whole) == [(number, 0) for number in range(step)]
        writer.write({"step": step, **rows[step, 0]})
    writer.close()
    assert trueline.collect([tmp_path / "a"], whole).unclosed == ()
    assert content(whole) == [(number, 0) for number in range(20)]
    assert {name for name in files(whole) if "part" in name} == {
        name for name in files(tmp_path / "a") if "part" in name
    }


def test_an_object_store(disks, tmp_path):
    url = f"memory://{tmp_path.name}/whole"
    trueline.collect(disks, url)
    assert trueline.collect(disks, url).copied == 0
    assert content(url) == [(step, rank) for step in range(6) for rank in range(WORLD)]
    trueline.collect([url], tmp_path / "back")
    assert content(tmp_path / "back") == content(url)


def test_further_models_and_groups_of_ranks(tmp_path):
    machine(tmp_path / "a", [0, 1])
    machine(tmp_path / "a" / "models" / "critic", [0, 1], job="of the critic")
    machine(tmp_path / "b", [2, 3])
    machine(tmp_path / "b" / "models" / "critic", [2, 3], job="of the critic")
    shutil.copytree(tmp_path / "a", tmp_path / "b.ranks-2")
    trueline.collect([tmp_path / "a", tmp_path / "b"], tmp_path / "whole")
    whole = Run(tmp_path / "whole")
    assert content(whole.models["critic"]) == content(tmp_path / "whole")
    assert content(tmp_path / "whole.ranks-2") == content(tmp_path / "a")


def test_a_rank_that_went_on_on_another_machine(tmp_path):
    """The first machine was lost: rows that it had not sealed are kept, and the journal of the second one, too."""
    machine(tmp_path / "a", [0, 1], steps=range(5), close=False, seal_steps=4)
    later = Start(attempt=1, step=5, manifest=None)
    manifest = Manifest(world_size=WORLD, adapter="ddp", job="one", attempts=[{"step": 0}, {"step": 5}])  # type: ignore[list-item]
    (writer,) = machine(tmp_path / "b", [1], steps=range(5, 8), start=later, close=False, seal_steps=50)
    (first,) = machine(tmp_path / "c", [0], steps=range(5, 8), start=Start(1, 5, manifest=manifest), seal_steps=50)
    first.close()
    for order in (["a", "b", "c"], ["a", "c"], ["c", "b", "a"]):
        whole = tmp_path / "-".join(order)
        for name in order:
            trueline.collect([tmp_path / name], whole)
        if "b" not in order:
            trueline.collect([tmp_path / "b"], whole)
        (whole / "manifest.json").write_text(manifest.model_dump_json())
        assert content(whole) == [(step, rank) for step in range(8) for rank in (0, 1)], order
    del writer


def test_other_jobs_are_not_mixed(disks, tmp_path):
    machine(tmp_path / "c", [2], job="another")
    with pytest.raises(InputError, match="are of different jobs"):
        trueline.collect([disks[0], tmp_path / "c"], tmp_path / "whole")
    assert not (tmp_path / "whole").exists()
    trueline.collect(disks, tmp_path / "whole")
    before = files(tmp_path / "whole")
    with pytest.raises(InputError, match="are of different jobs"):
        trueline.collect([tmp_path / "c"], tmp_path / "whole")
    assert files(tmp_path / "whole") == before


def test_what_does_not_say_of_which_job_it_is(disks, tmp_path):
    machine(tmp_path / "old", [2], job="")
    with pytest.raises(InputError, match="does not say of which job it is"):
        trueline.collect([disks[0], tmp_path / "old"], tmp_path / "whole")
    machine(tmp_path / "alone", [0, 1], job="")
    assert trueline.collect([tmp_path / "alone"], tmp_path / "copy").ranks == (0, 1)


def test_a_job_that_is_just_beginning_may_be_collected(disks, tmp_path):
    """Its manifest is provisional until all ranks have met."""
    writer = RunWriter(tmp_path / "begins", rank=0)
    trueline.collect([tmp_path / "begins"], tmp_path / "whole")
    assert trueline.collect(disks[1:], tmp_path / "whole").missing == (0, 1)
    writer.close()
    assert trueline.collect(disks, tmp_path / "whole").exit_code == 0


def test_a_rank_that_is_there_twice(disks, tmp_path):
    machine(tmp_path / "c", [2], steps=range(1, 7))
    with pytest.raises(InputError, match="Rank 2 is there twice"):
        trueline.collect([*disks, tmp_path / "c"], tmp_path / "whole")
    assert not (tmp_path / "whole").exists()


def test_the_same_files_twice_are_one(disks, tmp_path):
    shutil.copytree(disks[1], tmp_path / "again")
    assert trueline.collect([*disks, tmp_path / "again"], tmp_path / "whole").exit_code == 0


def test_a_part_that_is_torn_is_copied_and_named(disks, tmp_path):
    part = next((disks[1] / "workers").iterdir())
    part.write_bytes(part.read_bytes()[:-9])
    for _ in range(2):
        found = trueline.collect(disks, tmp_path / "whole")
        assert found.exit_code == 1
        assert part.name in found.problems[0]
        assert (tmp_path / "whole" / "workers" / part.name).read_bytes() == part.read_bytes()


def test_a_part_that_is_nowhere_is_named_each_time(disks, tmp_path):
    sorted((disks[1] / "workers").glob("part-r00003-*"))[0].unlink()
    for _ in range(2):
        found = trueline.collect(disks, tmp_path / "whole")
        assert found.exit_code == 1
        assert found.problems == ("workers: part 0 of rank 3 is missing, and the rows in it with it",)


def test_parts_that_are_merged_meanwhile_are_found_in_what_they_became(tmp_path, monkeypatch):
    machine(tmp_path / "a", [0], steps=range(12), seal_steps=2)
    parts = tmp_path / "a" / "workers"
    real = copying._copy

    def merged_first(side, name, into, work):
        monkeypatch.setattr(copying, "_copy", real)
        merge._merge(str(parts), sorted(filter(None, map(PartName.parse, os.listdir(parts)))))
        return real(side, name, into, work)

    monkeypatch.setattr(copying, "_copy", merged_first)
    found = trueline.collect([tmp_path / "a"], tmp_path / "whole")
    assert found.problems == ()
    assert content(tmp_path / "whole") == [(step, 0) for step in range(12)]


def test_a_line_that_is_half_written_is_copied_when_it_is_whole(tmp_path):
    (writer,) = machine(tmp_path / "a", [0], close=False)
    writer.write(Finding(code="watch-degraded", severity="warning", claim="one", ranks=(0,)))
    file = tmp_path / "a" / "findings.jsonl"
    whole = file.read_bytes()
    for data in (whole + whole[:20], whole + whole):
        file.write_bytes(data)
        trueline.collect([tmp_path / "a"], tmp_path / "whole")
        assert [each.claim for each in Run(tmp_path / "whole").live_findings] == ["one"]
        assert not [line for line in Run(tmp_path / "whole").problems if "findings" in line]
    writer.close()


def test_findings_of_both_machines(tmp_path):
    for name, claim in (("a", "one"), ("b", "two")):
        (writer,) = machine(tmp_path / name, [1], close=False, steps=(), start=Start(attempt=int(name == "b")))
        writer.write(Finding(code="watch-degraded", severity="warning", claim=claim, ranks=(1,)))
        writer.close()
    machine(tmp_path / "c", [0])
    for _ in range(2):
        trueline.collect([tmp_path / name for name in "bac"], tmp_path / "whole")
        assert sorted(each.claim for each in Run(tmp_path / "whole").live_findings) == ["one", "two"]


@pytest.mark.parametrize(
    ("sources", "into", "said"),
    [
        (["nothing"], "whole", "is not there"),
        (["empty"], "whole", "holds nothing that ranks wrote"),
        (["a"], "a", "both collected from and collected into"),
        (["a"], "other", "holds what is not of a Run"),
        (["a"], "file", "is a file"),
        ([], "whole", "Nothing to collect from"),
        (["a"], "", "is empty"),
        (["a"], "nokind://x/y", "cannot be opened"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(disks, tmp_path, sources, into, said):
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    before = files(tmp_path)
    target = into if "://" in into or not into else tmp_path / into
    with pytest.raises((InputError, RunError), match=said) as told:
        trueline.collect([tmp_path / name for name in sources], target)
    assert "\n" not in str(told.value)
    assert files(tmp_path) == before


def test_a_place_that_is_written_to_is_left_alone(disks, tmp_path):
    writers = machine(tmp_path / "running", [0, 1], close=False)
    with pytest.raises(InputError, match="is being written by this process"):
        trueline.collect(disks, tmp_path / "running")
    for writer in writers:
        writer.close()


def test_a_store_that_keeps_something_else(disks, tmp_path, monkeypatch):
    kind = type(fsspec.filesystem("memory"))
    real = kind.pipe_file
    monkeypatch.setattr(kind, "pipe_file", lambda self, path, value, **_: real(self, path, value[:-1]))
    with pytest.raises(OSError, match="does not keep what is written to it"):
        trueline.collect(disks, f"memory://{tmp_path.name}/whole")


def test_a_store_that_is_away_for_a_while_costs_nothing(disks, tmp_path, monkeypatch):
    real, calls, said = module.collect, [], []

    def sometimes(*args, **kwargs):
        calls.append(args)
        if len(calls) in (2, 3):
            raise OSError("the store is away")
        return real(*args, **kwargs)

    monkeypatch.setattr(module, "collect", sometimes)
    module.follow_until(
        lambda: len(calls) >= 5, [str(disk) for disk in disks], str(tmp_path / "whole"), every_s=0.01, tell=said.append
    )
    assert [line.partition(".")[0] for line in said] == ["the store is away", "collecting goes on"]
    assert content(tmp_path / "whole") == [(step, rank) for step in range(6) for rank in range(WORLD)]


def test_nothing_is_copied_faster_than_asked(disks, tmp_path, monkeypatch):
    now, slept = [0.0], []

    def sleep(seconds):
        slept.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(copying.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(copying.time, "sleep", sleep)
    found = trueline.collect(disks, tmp_path / "whole", max_bytes_per_s=1000)
    last = max(path.stat().st_size for path in (tmp_path / "whole").rglob("*") if path.is_file())
    assert sum(slept) >= (found.copied_bytes - last) / 1000
