"""The JSON documents of a Run: what was written is read, or what is damaged is named, and never anything else."""

from __future__ import annotations

import json
import random

import pytest

from trueline.schema.errors import PlanError, RunError
from trueline.schema.files.plan_files import read_changes, revision_path, write_plan
from trueline.schema.files.run_manifest import Manifest, RankEnv
from trueline.schema.finding import Finding
from trueline.schema.plan import Plan
from trueline.schema.text.documents import decode, encode, sealed
from trueline.store.reader import Run
from trueline.store.writer import RunWriter

DOCUMENT = {"rank": 3, "grad_dtype": "torch.bfloat16", "reduce_known": False, "notes": ["a", 'crc32": "'], "π": {}}


@pytest.mark.parametrize("indent", [1, None])
@pytest.mark.parametrize("document", [DOCUMENT, {}])
def test_a_document_reads_back_as_it_was_and_is_json_to_others(document, indent):
    data = encode(document, indent=indent)
    assert decode(data) == (document, True)
    assert {key: value for key, value in json.loads(data).items() if key != "crc32"} == document
    assert data.endswith(b"\n")
    assert (b"\n" in data[:-1]) == (indent is not None and bool(document))


def test_bytes_that_are_no_utf8_read_back_by_name():
    document = {"command": ["train.py", b"--name=\xff\xe9".decode("utf-8", "surrogateescape")]}
    assert decode(encode(document)) == ({"command": ["train.py", r"--name=\xff\xe9"]}, True)
    encode(document).decode("utf-8")


@pytest.mark.parametrize("indent", [1, None])
def test_no_flip_of_a_byte_and_no_truncation_gives_another_document(indent):
    data, rng = encode(DOCUMENT, indent=indent), random.Random(0)
    damaged = [data[:end] for end in range(len(data))]
    for at in range(len(data)):
        bits = {1 << rng.randrange(8), rng.randrange(1, 256)}
        damaged += [data[:at] + bytes([data[at] ^ flip]) + data[at + 1 :] for flip in bits]
    for one in damaged:
        try:
            document, had_checksum = decode(one)
        except ValueError:
            continue
        unknown = set(document) - set(DOCUMENT)
        assert {key: document[key] for key in document if key not in unknown} == DOCUMENT
        assert had_checksum or unknown, one  # a key that nobody knows is told


def test_documents_without_a_checksum_are_read_and_those_with_a_misplaced_one_are_not():
    assert decode(b'{"a": 1}') == ({"a": 1}, False)
    with pytest.raises(ValueError, match="not its last key"):
        decode(b'{"crc32": "00000000", "a": 1}')


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "9" * 5_000, "3", "", "{"])
def test_what_is_no_object_is_a_value_error(text):
    with pytest.raises(ValueError, match=r"."):
        decode(text.encode())


def made_run(path):
    writer = RunWriter(path, rank=0)
    writer.describe(Manifest(world_size=1, adapter="single"), RankEnv(grad_dtype="torch.bfloat16", reduce_lossy=True))
    writer.write({"step": 0})
    writer.write(Finding("worker-nonfinite", "error", "Rank 0 had NaN.", ranks=(0,), step_first=0))
    writer.write(Finding("rng-streams", "info", "B."))
    writer.close()
    return path


def test_a_flipped_bit_of_an_environment_or_a_finding_takes_it_away_and_is_named(tmp_path):
    path = made_run(tmp_path / "run")
    for name, old, new in (
        ("env/rank-00000.json", b"reduce_lossy", b"reduce_lossx"),  # an unknown key, and the default for it
        ("env/rank-00000.json", b"bfloat16", b"bfloat36"),
        ("findings.jsonl", b"Rank 0", b"Rank 8"),
    ):
        whole = (path / name).read_bytes()
        (path / name).write_bytes(whole.replace(old, new))
        run = Run(path)
        assert any(name in problem and "damaged" in problem for problem in run.problems), run.problems
        assert len(run.env) == (0 if "env" in name else 1)
        assert [finding.code for finding in run.live_findings] == ["worker-nonfinite", "rng-streams"][
            "findings" in name :
        ]
        (path / name).write_bytes(whole)
    assert Run(path).problems == []


def test_a_flipped_bit_of_the_manifest_is_a_sentence(tmp_path):
    path = made_run(tmp_path / "run")
    manifest = path / "manifest.json"
    manifest.write_bytes(manifest.read_bytes().replace(b'"world_size": 1', b'"world_size": 3'))
    with pytest.raises(RunError, match=r"manifest.json of .* is damaged \(it has CRC32 .* remove its key 'crc32'"):
        Run(path)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a": ' * 100_000, "{", "[]", "\0"])
def test_a_manifest_that_is_no_document_is_not_advised_to_lose_its_checksum(tmp_path, text):
    RunWriter(tmp_path, rank=0).close()
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(RunError, match=r"manifest.json of .* is damaged \(.*\).* Restore the file\.$"):
        Run(tmp_path)


def test_keys_that_are_unknown_are_told_and_kept(tmp_path):
    path = made_run(tmp_path / "run")
    for name in ("manifest.json", "env/rank-00000.json"):
        document, _ = decode((path / name).read_bytes())
        (path / name).write_bytes(encode(document | {"of_tomorrow": [1]}))
    run = Run(path)
    assert [problem.split(":")[0] for problem in run.problems] == ["manifest.json", "env/rank-00000.json"]
    assert all("'of_tomorrow'" in problem for problem in run.problems)
    assert run.manifest.model_dump()["of_tomorrow"] == run.env[0].model_dump()["of_tomorrow"] == [1]


def test_a_finding_that_was_being_written_is_told_apart_from_damage(tmp_path):
    path = made_run(tmp_path / "run") / "findings.jsonl"
    path.write_bytes(path.read_bytes()[:-1])
    run = Run(path.parent)
    assert len(run.live_findings) == 1
    assert "incomplete (killed, or writing just now)" in run.problems[0]
    path.write_bytes(b"")
    assert "it is empty" in Run(path.parent).problems[0]


def test_a_copy_of_the_plan_has_a_checksum_and_the_one_that_people_edit_has_none(tmp_path):
    write_plan(str(tmp_path / "plan.json"), Plan(every=5))
    (tmp_path / "plan.json").write_text((tmp_path / "plan.json").read_text().replace("5,", "7,", 1))
    assert read_changes(str(tmp_path / "plan.json"))["every"] == 7
    copy = revision_path(str(tmp_path), 1)
    write_plan(copy, Plan(every=5))
    with open(copy, "r+b") as file:
        damaged = file.read().replace(b'"every": 5', b'"every": 7')
        file.seek(0)
        file.write(damaged)
    with pytest.raises(PlanError, match="CRC32"):
        read_changes(copy)


def test_a_text_keeps_its_layout():
    assert sealed('{\n "a": 1\n}\n').startswith(b'{\n "a": 1,\n "crc32": "')
