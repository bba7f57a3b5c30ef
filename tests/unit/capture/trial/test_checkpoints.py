"""Checkpoints of a job that is drilled: none outside of its folder is written, replaced or deleted."""

import io
import json
import os
import shutil

import pytest
import torch

from trueline.capture.trial.checkpoints import CHANGES_FILES, FILE, KeptCheckpoints, _path_of


@pytest.fixture
def guard(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    folder.mkdir()
    guard = KeptCheckpoints(str(folder))
    for module, names in {**CHANGES_FILES, torch: ("save",)}.items():
        for name in names:
            monkeypatch.setattr(module, name, getattr(module, name))  # and put back what is installed
    return guard, folder


def test_what_is_saved_in_the_folder_is_written(guard):
    kept, folder = guard
    kept._around_save(torch.save, {"x": 1}, folder / "files.pt")
    kept._around_save(torch.save, {"x": 1}, io.BytesIO())
    assert (folder / "files.pt").exists()
    assert not (folder / FILE).exists()


def test_what_is_saved_elsewhere_is_left_out_and_nothing_there_is_replaced_or_deleted(guard, tmp_path):
    kept, folder = guard
    old, older, beside = tmp_path / "out" / "last.pt", tmp_path / "out" / "older", folder / "part"
    older.mkdir(parents=True)
    old.write_text("real")
    beside.write_text("of the Run")
    kept._num_updates = 3
    kept._around_save(torch.save, {"x": 1}, str(tmp_path / "out" / "last.tmp"))
    assert not (tmp_path / "out" / "last.tmp").exists()
    kept._around_change(os.replace, tmp_path / "out" / "last.tmp", old)
    kept._around_change(os.replace, beside, old)
    kept._around_change(shutil.rmtree, older)
    kept._around_change(os.remove, path=str(old))
    assert (old.read_text(), older.exists()) == ("real", True)
    kept._around_change(os.replace, beside, folder / "whole")
    assert (folder / "whole").exists(), "a Run is written"
    told = json.loads((folder / FILE).read_text())
    assert (told["updates"], told["path"]) == (3, str(tmp_path / "out" / "last.tmp"))


def test_all_ranks_end_with_the_update_after_it(guard, tmp_path):
    kept, folder = guard
    kept._after_update(None, (), {})
    kept._around_save(torch.save, {"x": 1}, tmp_path / "last.pt")
    behind = KeptCheckpoints(str(folder))
    behind._after_update(None, (), {})
    for rank in (kept, behind):
        with pytest.raises(SystemExit):
            rank._after_update(None, (), {})


def test_a_checkpoint_that_goes_to_memory_first_is_known(tmp_path):
    assert _path_of({"pytorch-lightning_version": "2", "state_dict": {}}, io.BytesIO()) is not None
    assert _path_of({"x": 1}, io.BytesIO()) is None
    with (tmp_path / "last.pt").open("wb") as file:
        assert _path_of({"x": 1}, file) == tmp_path / "last.pt"
