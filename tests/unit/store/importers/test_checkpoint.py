"""Checkpoints as Runs: names, values, ties, and one sentence for every file that is none."""

import json
import pickle
import struct

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from tests.unit.imports import expect_numbers, options, rows_by_site
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict

from trueline.schema.errors import InputError, RunExistsError
from trueline.store.importers.checkpoint import import_checkpoint
from trueline.store.importers.hf import import_hf
from trueline.store.reader import Run


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(5, 3)
        self.norm = nn.BatchNorm1d(3)
        self.scale = nn.Parameter(torch.randn(3).bfloat16())
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embed.weight


@pytest.fixture
def trained():
    """A model after one update, and its optimizer, made with or without names."""

    def train(*, named=False):
        torch.manual_seed(0)
        model = Tied()
        optimizer = torch.optim.AdamW(model.named_parameters() if named else model.parameters())
        for param in model.parameters():
            param.grad = torch.randn_like(param)
        optimizer.step()
        return model, optimizer

    return train


def imported(source, target, **settings):
    import_checkpoint(str(source), str(target), options(**settings))
    return Run(target)


def expect_weights(run, state, *, step=0):
    """The Run has all tensors of a state dict, as parameters, to the bit."""
    rows = rows_by_site(run, phases=["param"])
    assert {site[1] for site in rows} == set(state)
    for name, value in state.items():
        row = rows["param", name, 0, "value"]
        expect_numbers(row, value.float().numpy())
        assert row["dtype"] == str(value.dtype).removeprefix("torch.")
        stored = run.tensor(f"{step}.0/r0/param/{name}#0:value")
        bits = value.contiguous().reshape(-1).view(torch.uint8).numpy()
        np.testing.assert_array_equal(stored.data.reshape(-1).view(np.uint8), bits)


def test_a_bare_state_dict_is_a_run_of_one_step(trained, tmp_path):
    model, _ = trained()
    torch.save(model.state_dict(), tmp_path / "model.pt")
    run = imported(tmp_path / "model.pt", tmp_path / "run", step=120)
    assert run.record_steps.tolist() == [120]
    expect_weights(run, model.state_dict(), step=120)
    assert run.problems == []


def test_tied_weights_refer_to_one_another(trained, tmp_path):
    model, _ = trained()
    torch.save(model.state_dict(), tmp_path / "model.pt")
    run = imported(tmp_path / "model.pt", tmp_path / "run")
    rows = run.records(resolve=False).to_pylist()
    (embed,) = (row["row"] for row in rows if row["name"] == "embed.weight")
    assert {row["name"]: row["same_as"] for row in rows if row["same_as"] is not None} == {"head.weight": embed}


def test_equal_weights_that_are_not_tied_stand_for_themselves(tmp_path):
    torch.save({"a": torch.ones(3), "b": torch.ones(3), "c": torch.ones(6)[:3]}, tmp_path / "model.pt")
    rows = imported(tmp_path / "model.pt", tmp_path / "run").records(resolve=False).to_pylist()
    assert [row["same_as"] for row in rows] == [None] * 3


def test_nested_dicts_lose_the_keys_of_their_containers(trained, tmp_path):
    model, optimizer = trained()
    ema = {"embed.weight": torch.zeros(5, 3)}
    torch.save(
        {"model": model.state_dict(), "ema": ema, "optimizer": optimizer.state_dict(), "epoch": 3, "hook": {1, 2}},
        tmp_path / "all.pt",
    )
    run = imported(tmp_path / "all.pt", tmp_path / "run")
    expect_weights(run, model.state_dict() | {"ema.embed.weight": ema["embed.weight"]})
    rows = rows_by_site(run, phases=["opt"])
    assert ("opt", "state.1", 0, "exp_avg_sq") in rows
    assert run.manifest.source["values"]["epoch"] == 3
    assert run.manifest.source["values"]["optimizer.param_groups.0.lr"] == 1e-3
    assert run.manifest.notes == ["Entries that are neither tensors nor plain values (1) were left out: hook."]


def test_optimizer_state_goes_by_the_names_that_it_has(trained, tmp_path):
    model, optimizer = trained(named=True)
    torch.save({"optimizer": optimizer.state_dict()}, tmp_path / "opt.pt")
    rows = rows_by_site(imported(tmp_path / "opt.pt", tmp_path / "run"))
    names = [name for name, _ in model.named_parameters()]
    assert {site[1] for site in rows} == set(names)
    state = optimizer.state_dict()["state"]
    for number, name in enumerate(names):
        expect_numbers(rows["opt", name, 0, "exp_avg"], state[number]["exp_avg"].float().numpy())


def test_a_name_that_comes_twice_is_the_whole_path(tmp_path):
    torch.save({"model": {"w": torch.ones(1)}, "state_dict": {"w": torch.zeros(1)}}, tmp_path / "two.pt")
    rows = rows_by_site(imported(tmp_path / "two.pt", tmp_path / "run"))
    assert {site[1]: row["max"] for site, row in rows.items()} == {"w": 1.0, "state_dict.w": 0.0}


def test_values_can_be_left_out(trained, tmp_path):
    model, _ = trained()
    torch.save(model.state_dict(), tmp_path / "model.pt")
    run = imported(tmp_path / "model.pt", tmp_path / "run", tensors=False)
    rows = rows_by_site(run)
    assert all(row["tensor"] is None and row["fingerprint"] is not None for row in rows.values())
    assert run.size_bytes("tensors") == 0
    assert run.manifest.plan["depth"] == "fingerprint"


def test_a_distributed_checkpoint_is_read_without_ranks(trained, tmp_path):
    model, optimizer = trained()
    weights, state = get_state_dict(model, optimizer)
    with pytest.warns(UserWarning, match="torch.distributed is disabled"):
        dcp.save({"model": weights, "optim": state, "step": 5}, checkpoint_id=tmp_path / "dcp", no_dist=True)
    run = imported(tmp_path / "dcp", tmp_path / "run")
    expect_weights(run, model.state_dict())
    average = optimizer.state[model.scale]["exp_avg"]
    expect_numbers(rows_by_site(run)["opt", "scale", 0, "exp_avg"], average.float().numpy())


def test_safetensors_are_read_to_the_bit(trained, tmp_path):
    state = {name: value.clone() for name, value in trained()[0].state_dict().items()}
    state |= {"empty": torch.zeros(0, 3), "eight": torch.arange(4.0).to(torch.float8_e4m3fn)}
    save_file(state, tmp_path / "model.safetensors", metadata={"format": "pt"})
    run = imported(tmp_path / "model.safetensors", tmp_path / "run")
    empty = rows_by_site(run)["param", "empty", 0, "value"]
    assert (empty["numel"], empty["shape"], empty["nan"]) == (0, [0, 3], 0)
    eight = run.tensor("0.0/r0/param/eight#0:value")
    np.testing.assert_array_equal(eight.data, state["eight"].view(torch.uint8).numpy())
    assert len(rows_by_site(run)) == len(state)
    row = rows_by_site(run)["param", "scale", 0, "value"]
    expect_numbers(row, state["scale"].float().numpy())


@pytest.fixture
def model_folder(tmp_path):
    """A model directory as transformers writes it: two shards, an index and config.json."""
    folder = tmp_path / "llm"
    folder.mkdir()
    shards = {f"model-0000{n}-of-00002.safetensors": {f"layers.{n}.w": torch.full((2, 2), float(n))} for n in (1, 2)}
    for name, tensors in shards.items():
        save_file(tensors, folder / name)
    names = {key: name for name, tensors in shards.items() for key in tensors}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "tie_word_embeddings": True}))
    return folder


def test_a_model_directory_has_its_config_in_the_manifest(model_folder, tmp_path):
    import_hf(str(model_folder), str(tmp_path / "run"), options())
    run = Run(tmp_path / "run")
    assert {site[1]: row["max"] for site, row in rows_by_site(run).items()} == {"layers.1.w": 1.0, "layers.2.w": 2.0}
    assert run.manifest.source["config"] == {"model_type": "llama", "tie_word_embeddings": True}
    assert run.manifest.source["format"] == "hf"


def test_a_directory_of_shards_is_a_checkpoint_too(model_folder, tmp_path):
    assert len(rows_by_site(imported(model_folder, tmp_path / "run"))) == 2
    (model_folder / "model.safetensors.index.json").unlink()
    assert len(rows_by_site(imported(model_folder, tmp_path / "plain"))) == 2


def test_old_model_directories_have_files_of_torch_save(tmp_path):
    folder = tmp_path / "old"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    torch.save({"w": torch.ones(2)}, folder / "pytorch_model.bin")
    import_hf(str(folder), str(tmp_path / "run"), options())
    assert rows_by_site(tmp_path / "run")["param", "w", 0, "value"]["sum"] == 2.0


class Dangerous:
    """Makes a file ``touched`` when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


def test_nothing_in_a_file_is_executed(tmp_path):
    torch.save({"w": torch.ones(1), "x": Dangerous(str(tmp_path / "touched"))}, tmp_path / "evil.pt")
    (tmp_path / "dcp").mkdir()
    (tmp_path / "dcp" / ".metadata").write_bytes(pickle.dumps(Dangerous(str(tmp_path / "touched"))))
    module, name = b"torch.distributed.checkpoint.metadata", b"os.system"
    inner = b"\x80\x04\x8c" + bytes([len(module)]) + module + b"\x8c" + bytes([len(name)]) + name + b"\x93."
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / ".metadata").write_bytes(inner)
    for name, told in (("evil.pt", "holds an object of"), ("dcp", "refers to"), ("deep", "refers to")):
        with pytest.raises(InputError, match=told):
            imported(tmp_path / name, tmp_path / "run")
    assert not (tmp_path / "touched").exists()


def torn(path):
    save_file({"w": torch.ones(64)}, path)
    path.write_bytes(path.read_bytes()[:-8])


def unknown_dtype(path):
    header = json.dumps({"w": {"dtype": "F4", "shape": [2], "data_offsets": [0, 1]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + b"\0")


@pytest.mark.parametrize(
    ("name", "make", "told"),
    [
        ("none.pt", lambda path: None, "does not exist"),
        ("empty", lambda path: path.mkdir(), "holds no checkpoint"),
        ("torn.safetensors", torn, "cannot be read as safetensors"),
        ("short.safetensors", lambda path: path.write_bytes(b"abc"), "cannot be read as safetensors"),
        ("four.safetensors", unknown_dtype, "tensors of F4"),
        ("text.pt", lambda path: path.write_text("hello"), "no file of torch.save"),
        ("cut.pt", lambda path: path.write_bytes(b"PK\x03\x04"), "cut.pt"),
        ("numbers.pt", lambda path: torch.save({"lr": 1.0}, path), "holds no tensors"),
        ("m.safetensors.index.json", lambda path: path.write_text("{}"), "Pass its directory"),
    ],
)
def test_a_file_that_is_no_checkpoint_is_one_sentence_and_leaves_nothing(tmp_path, name, make, told):
    make(tmp_path / name)
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(InputError, match=told) as met:
        imported(tmp_path / name, tmp_path / "run")
    assert "\n" not in str(met.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_a_value_that_cannot_be_read_half_way_leaves_nothing(tmp_path):
    torch.save({"w": torch.ones(2)}, tmp_path / "model.pt")
    before = sorted(path.name for path in tmp_path.iterdir())

    def fail(x):
        raise InputError("Torn.")

    with pytest.raises(InputError, match="Torn"):
        import_checkpoint(str(tmp_path / "model.pt"), str(tmp_path / "run"), type(options())(fail))
    assert sorted(path.name for path in tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda folder: (folder / "config.json").unlink(), "has no config.json"),
        (lambda folder: (folder / "config.json").write_text("{"), "cannot be read"),
        (lambda folder: (folder / "model-00002-of-00002.safetensors").unlink(), "1 of 2 files"),
        (
            lambda folder: save_file({"x": torch.ones(1)}, folder / "model-00002-of-00002.safetensors"),
            "lacks 1 of the tensors",
        ),
        (lambda folder: (folder / "model.safetensors.index.json").write_text("{}"), "no 'weight_map'"),
        (lambda folder: [path.unlink() for path in folder.glob("model*")], "neither model.safetensors"),
    ],
)
def test_an_incomplete_model_directory_is_one_sentence(model_folder, tmp_path, spoil, told):
    spoil(model_folder)
    with pytest.raises(InputError, match=told):
        import_hf(str(model_folder), str(tmp_path / "run"), options())
    assert not (tmp_path / "run").exists()


def test_what_is_there_already_is_not_touched(tmp_path):
    torch.save({"w": torch.ones(2)}, tmp_path / "model.pt")
    (tmp_path / "run").write_text("mine")
    with pytest.raises(RunExistsError, match="exists already"):
        imported(tmp_path / "model.pt", tmp_path / "run")
    assert (tmp_path / "run").read_text() == "mine"
