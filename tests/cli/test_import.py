"""`trueline import`: a line for people, one JSON document for programs, one sentence for mistakes."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tests.cli.in_process import trueline

DUMP = Path(__file__).parents[1] / "unit" / "fixtures" / "msprobe" / "mix"


def test_an_imported_dump_is_shown_by_info(tmp_path, monkeypatch, capsys):
    run = tmp_path / "run"
    code, out, _ = trueline(monkeypatch, capsys, "import", "msprobe", DUMP, run, "--model", "Net")
    assert code == 0
    assert out.startswith(f"Run: {run} (")
    assert "1 step, 1 rank" in out
    code, out, _ = trueline(monkeypatch, capsys, "info", run)
    assert code == 0
    assert f"msprobe {DUMP}" in out.replace("\n", "")
    assert "Watched by" not in out
    code, out, _ = trueline(monkeypatch, capsys, "info", run, "--site", "block.fc.linear", "--stacks")
    assert code == 0
    assert "0.0/r0/fwd/block.fc.linear#0:in1" in out
    assert "/home/user/train.py" in out


def test_checks_have_nothing_to_say_of_an_imported_dump(tmp_path, monkeypatch, capsys):
    trueline(monkeypatch, capsys, "import", "msprobe", DUMP, tmp_path / "run")
    code, out, err = trueline(monkeypatch, capsys, "check", tmp_path / "run", "--json")
    assert err == "" or "Traceback" not in err
    assert code in (0, 3)
    assert json.loads(out)["findings"] == []


def test_a_checkpoint_has_the_step_it_is_given(tmp_path, monkeypatch, capsys):
    torch.save({"model": {"w": torch.ones(2, 2)}}, tmp_path / "model.pt")
    words = ("import", "checkpoint", tmp_path / "model.pt", tmp_path / "run", "--step", "40", "--json")
    code, out, _ = trueline(monkeypatch, capsys, *words)
    assert code == 0
    assert json.loads(out) == {
        "schema": 1,
        "run": str(tmp_path / "run"),
        "steps": [40],
        "ranks": [0],
        "rows": 1,
        "notes": [],
    }


def test_a_model_directory_is_imported_without_values(tmp_path, monkeypatch, capsys):
    save_file({"w": torch.ones(2)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    code, _, _ = trueline(monkeypatch, capsys, "import", "hf", tmp_path, tmp_path / "run", "--no-tensors")
    assert code == 0
    code, out, _ = trueline(monkeypatch, capsys, "info", tmp_path / "run", "--json")
    document = json.loads(out)
    assert document["manifest"]["source"]["config"] == {"model_type": "llama"}
    assert document["records"]["bytes"]["tensors"] == 0


@pytest.mark.parametrize("kind", ["msprobe", "checkpoint", "hf"])
def test_mistakes_are_one_sentence_and_exit_2(tmp_path, monkeypatch, capsys, kind):
    code, out, err = trueline(monkeypatch, capsys, "import", kind, tmp_path / "nothing", tmp_path / "run")
    assert (code, out) == (2, "")
    assert err.startswith("trueline: ")
    assert err.count("\n") == 1
    assert not any(tmp_path.iterdir())
