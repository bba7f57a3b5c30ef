"""Packs of ``ConfigChecker`` have msProbe's members, are compared by ``diff``, and hold no secret."""

import json
import zipfile

import pytest
import torch
from torch import nn

import trueline
from trueline.compat.msprobe import ConfigChecker
from trueline.schema.errors import InputError


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.sh"
    path.write_text("torchrun pretrain.py --lr 1e-4 --train-iters 10 --micro-batch-size 1 --global-batch-size 8\n")
    return path


def test_a_pack_has_the_members_of_msprobe(tmp_path, script, monkeypatch):
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefghijklmnopqrstuvwxyz")
    model = nn.Linear(2, 2)
    ConfigChecker.apply_patches("pytorch")
    ConfigChecker([model], [str(script)], str(tmp_path / "pack.zip"))
    for _ in range(2):
        model(torch.tensor([[1.0, 3.0]]))
    with zipfile.ZipFile(tmp_path / "pack.zip") as pack:
        names = pack.namelist()
        assert {"env", "pip", "hyperparameters/hyperparameters_static.json"} <= set(names)
        assert len(names) == len(set(names))
        inputs = json.loads(pack.read("dataset/step0/rank0/dataset.json"))
        assert inputs["args"]["0"] == {"max": 3.0, "min": 1.0, "mean": 2.0, "norm": pytest.approx(10**0.5)}
        assert set(json.loads(pack.read("weights/step0/rank0/weight.json"))) == {"weight", "bias"}
        assert json.loads(pack.read("hyperparameters/hyperparameters_static.json"))["lr"] == 1e-4
        assert json.loads(pack.read("env"))["NCCL_ALGO"] == "Ring"
        assert f"torch={torch.__version__}" in pack.read("pip").decode().splitlines()
        assert all(b"hf_abc" not in pack.read(name) for name in names)


def test_two_packs_are_compared(tmp_path, script):
    pytest.importorskip("xlsxwriter")
    ConfigChecker(shell_path=[str(script)], output_zip_path=str(tmp_path / "bench.zip"))
    script.write_text(script.read_text().replace("1e-4", "2e-4"))
    ConfigChecker(shell_path=[str(script)], output_zip_path=str(tmp_path / "cmp.zip"))
    found = ConfigChecker.compare(str(tmp_path / "bench.zip"), str(tmp_path / "cmp.zip"), str(tmp_path / "out"))
    assert [(each.name, each.run, each.ref) for each in found.differences] == [("learning-rate", "0.0002", "0.0001")]
    assert (tmp_path / "out/result.xlsx").is_file()


def test_a_pack_that_msprobe_wrote_is_read(tmp_path):
    """Its members, as mindstudio-probe 26.2 writes them: names with dashes, and lists of what several scripts set."""
    for name, lr in (("a", "1e-4"), ("b", "3e-4")):
        with zipfile.ZipFile(tmp_path / f"{name}.zip", "w") as pack:
            pack.writestr("env", json.dumps({"NCCL_ALGO": "Ring" if name == "a" else "Tree", "HOME": "/root"}))
            pack.writestr("pip", "torch=2.6.0\nTransformers=4.50.0\n")
            static = {"lr": lr, "train-iters": "100", "seed": {"description": "duplicate_value", "values": ["1", "2"]}}
            pack.writestr("hyperparameters/hyperparameters_static.json", json.dumps(static))
            pack.writestr("weights/step0/rank0/weight.json", "{}")
    found = trueline.diff(tmp_path / "a.zip", tmp_path / "b.zip")
    assert {each.name for each in found.differences} == {"learning-rate", "nccl_algo"}
    assert any("statistics" in note for note in found.notes)
    assert trueline.diff(tmp_path / "a.zip", tmp_path / "a.zip").differences == ()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"fmk": "mindspore"}, "not supported"),
        ({"model": 3}, "torch.nn.Module"),
        ({"output_zip_path": "pack.tar"}, "ends with .zip"),
        ({"shell_path": "train.sh"}, "list of files"),
        ({"shell_path": ["train.py"]}, "shell_path has"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(tmp_path, arguments, said):
    with pytest.raises(InputError, match=said):
        ConfigChecker(**{"output_zip_path": str(tmp_path / "p.zip"), **arguments})
    with pytest.raises(InputError, match="not supported"):
        ConfigChecker.apply_patches("mindspore")


def test_a_zip_that_is_no_pack_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as pack:
        pack.writestr("a.txt", "")
    with pytest.raises(InputError, match="no pack of msProbe"):
        trueline.diff(tmp_path / "x.zip", tmp_path / "x.zip")
