"""What a demo may write over, and what it never removes."""

import json

import pytest

from trueline.demo.output_folder import MARKER, claim, require_free
from trueline.schema.errors import InputError, RunExistsError


def earlier_demo(out):
    claim(out, {}, overwrite=False)
    run = out / "s1-2"
    (run / "workers").mkdir(parents=True)
    (run / "manifest.json").write_text("{}")
    (run / "findings-r00003.jsonl").write_text("")
    (out / "report.html").write_text("old")
    return out


def everything(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize("make", [lambda out: None, lambda out: out.mkdir()], ids=["missing", "empty"])
def test_a_missing_or_empty_directory_is_taken_and_marked(tmp_path, make):
    make(tmp_path / "out")
    claim(tmp_path / "out", {"steps": 3}, overwrite=False)
    assert json.loads((tmp_path / "out" / MARKER).read_text()) == {"trueline": "demo", "steps": 3}


def test_an_earlier_demo_is_kept_unless_overwriting(tmp_path):
    out = earlier_demo(tmp_path / "out")
    before = everything(out)
    with pytest.raises(RunExistsError, match="--overwrite"):
        claim(out, {}, overwrite=False)
    assert everything(out) == before
    claim(out, {}, overwrite=True)
    assert everything(out) == [MARKER]


def test_files_beside_the_output_of_a_demo_survive_overwriting(tmp_path):
    out = earlier_demo(tmp_path / "out")
    (out / "notes.txt").write_text("mine")
    (out / "other-run").mkdir()
    claim(out, {}, overwrite=True)
    assert everything(out) == [MARKER, "notes.txt", "other-run"]


def test_a_foreign_directory_is_refused_even_when_overwriting(tmp_path):
    out = tmp_path / "thesis"
    (out / "s1-1").mkdir(parents=True)
    (out / "s1-1" / "manifest.json").write_text("{}")
    (out / MARKER).write_text('{"scenes": 3}')
    before = everything(out)
    for overwrite in (False, True):
        with pytest.raises(RunExistsError, match="never overwritten"):
            claim(out, {}, overwrite=overwrite)
    assert everything(out) == before


def test_a_foreign_file_inside_a_run_stops_the_removal_of_anything(tmp_path):
    out = earlier_demo(tmp_path / "out")
    (out / "s1-2" / "checkpoint.pt").write_text("precious")
    before = everything(out)
    with pytest.raises(RunExistsError, match=r"checkpoint\.pt"):
        claim(out, {}, overwrite=True)
    assert everything(out) == before


def test_a_link_in_place_of_a_run_is_not_followed(tmp_path):
    out = earlier_demo(tmp_path / "out")
    (tmp_path / "elsewhere").mkdir()
    (out / "labels").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunExistsError, match="labels"):
        claim(out, {}, overwrite=True)
    assert (tmp_path / "elsewhere").is_dir()


def test_a_file_or_a_link_as_out_is_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    (tmp_path / "target").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "target")
    for name in ("file", "link"):
        with pytest.raises(RunExistsError, match="not a directory"):
            require_free(tmp_path / name, overwrite=True)


def test_a_place_that_cannot_be_written_is_an_input_error(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="cannot be written"):
        claim(tmp_path / "file" / "out", {}, overwrite=False)
