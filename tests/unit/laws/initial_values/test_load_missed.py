"""load-missed: a checkpoint whose names have no place in the model is named with the renaming by which they would."""

import json
from collections import OrderedDict

import pytest
import torch
from tests.unit.asked import asked
from torch import nn

import trueline
from trueline.capture.probes.loads import loads
from trueline.judge.facts.model import is_frozen_as_drawn, parameters
from trueline.laws.initial_values import load_missed
from trueline.laws.initial_values.renaming import renaming_of


class Encoder(nn.Module):
    """Two layers and a head."""

    def __init__(self, classes=3):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 8))
        self.fc = nn.Linear(8, classes)

    def forward(self, x):
        return self.fc(self.body(x))


@pytest.fixture(autouse=True)
def _listening():
    loads.listen()
    yield
    loads.stop()


def trained(folder, model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with trueline.watch(model, optimizer, out=folder, plan={"every": 1}):
        for _ in range(2):
            model(torch.randn(6, 4)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return folder


def said(folder, model):
    return asked(trained(folder, model), load_missed.CODE)[0]


def prefixed(prefix, model):
    return {f"{prefix}{name}": value for name, value in model.state_dict().items()}


@pytest.mark.parametrize("prefix", ["module.", "model.", "_orig_mod.", "module._orig_mod."])
def test_a_prefix_that_the_model_has_not_leaves_all_unloaded(tmp_path, prefix):
    model = Encoder()
    model.load_state_dict(prefixed(prefix, Encoder()), strict=False)
    (finding,) = said(tmp_path / "run", model)
    assert (finding.severity, finding.evidence["kind"], finding.measured) == ("warning", "renamed", 0)
    assert finding.claim == (
        f"load_state_dict(strict=False) put 0 of 8 tensors into Encoder ({finding.claim.split('(')[2].split(')')[0]}): "
        f"8 keys of the checkpoint ('{prefix}body.0.weight', …) have no place in it, and fit without the prefix "
        f"'{prefix}'."
    )
    assert "test_load_missed.py:" in finding.claim


def test_a_prefix_that_the_model_has_alone_is_named(tmp_path):
    model = nn.Sequential(OrderedDict(backbone=Encoder(), head=nn.Linear(3, 2)))
    model.load_state_dict(Encoder().state_dict(), strict=False)
    assert "fit with the prefix 'backbone.'" in said(tmp_path / "run", model)[0].claim


def test_a_part_that_has_another_name_in_the_checkpoint_is_named(tmp_path):
    model = Encoder()
    state = {name.replace("body.", "trunk."): value for name, value in Encoder().state_dict().items()}
    model.load_state_dict(state, strict=False)
    (finding,) = said(tmp_path / "run", model)
    assert "put 2 of 8 tensors" in finding.claim
    assert "with 'body.' in the place of 'trunk.'" in finding.claim


def test_weights_below_a_key_of_the_checkpoint_are_named_with_it(tmp_path):
    model = Encoder()
    checkpoint = {"epoch": 3, "model": Encoder().state_dict(), "optimizer": {"state": {}}}
    model.load_state_dict(checkpoint, strict=False)
    (finding,) = said(tmp_path / "run", model)
    assert (finding.severity, finding.evidence["kind"]) == ("warning", "nested")
    assert "put 0 of 8 tensors" in finding.claim
    assert "they stand below its key 'model'." in finding.claim


def test_a_dict_of_the_models_own_state_into_which_nothing_was_merged_is_named(tmp_path):
    torch.save(prefixed("module.", Encoder()), tmp_path / "ddp.pt")
    model = Encoder()
    pretrained = torch.load(tmp_path / "ddp.pt")
    state = model.state_dict()
    state.update({name: value for name, value in pretrained.items() if name in state})
    model.load_state_dict(state)
    (finding,) = said(tmp_path / "run", model)
    assert (finding.severity, finding.evidence["kind"]) == ("warning", "own")
    assert "load_state_dict put 0 of 8 tensors into Encoder" in finding.claim
    assert "8 of 'ddp.pt' ('module.body.0.weight', …) would fit without the prefix 'module.'" in finding.claim


def test_a_checkpoint_of_which_nothing_has_a_place_is_to_be_confirmed(tmp_path):
    model = Encoder()
    model.load_state_dict({"a.kernel": torch.zeros(3, 3), "b.kernel": torch.zeros(2)}, strict=False)
    (finding,) = said(tmp_path / "run", model)
    assert (finding.severity, finding.evidence["kind"]) == ("confirm", "nothing")
    assert "2 keys of the checkpoint ('a.kernel', …) have no place in it, and 8 of its 8 tensors" in finding.claim


def test_a_model_beside_the_trained_one_is_named_as_such(tmp_path):
    teacher = Encoder()
    teacher.load_state_dict(prefixed("module.", Encoder()), strict=False)
    assert "which is no part of the model that is trained" in said(tmp_path / "run", Encoder())[0].claim


def _whole(model):
    model.load_state_dict(Encoder().state_dict())


def _new_head(model):
    state = {name: value for name, value in Encoder(9).state_dict().items() if not name.startswith("fc.")}
    model.load_state_dict(state, strict=False)


def _head_of_another_shape_and_name(model):
    state = {name.replace("fc.", "classifier."): value for name, value in Encoder(9).state_dict().items()}
    model.load_state_dict(state, strict=False)


def _head_of_another_name(model):
    state = {name.replace("fc.", "classifier."): value for name, value in Encoder().state_dict().items()}
    model.load_state_dict(state, strict=False)


def _more_parts(model):
    model.load_state_dict(Encoder().state_dict() | prefixed("teacher.", Encoder()), strict=False)


def _new_head_and_a_second_copy(model):
    state = {name: value for name, value in Encoder().state_dict().items() if not name.startswith("fc.")}
    model.load_state_dict(state | prefixed("teacher.", Encoder()), strict=False)


def _tried_again(model):
    state = prefixed("module.", Encoder())
    model.load_state_dict(state, strict=False)
    model.load_state_dict({name.removeprefix("module."): value for name, value in state.items()})


def _in_two_files(model):
    state = Encoder().state_dict()
    for part in ("body", "fc"):
        model.load_state_dict({name: value for name, value in state.items() if name.startswith(part)}, strict=False)


def _by_parts(model):
    state = prefixed("encoder.", Encoder())
    model.load_state_dict(state, strict=False)
    for name in ("body", "fc"):
        at = f"encoder.{name}."
        getattr(model, name).load_state_dict({k.removeprefix(at): v for k, v in state.items() if k.startswith(at)})


def _merged(model):
    state = model.state_dict()
    state.update({name: value for name, value in Encoder().state_dict().items() if "fc" not in name})
    model.load_state_dict(state)


def _assigned(model):
    model.load_state_dict(Encoder().state_dict(), assign=True)


def _not_at_all(model):
    model.load_state_dict(model.state_dict())


@pytest.mark.parametrize("prefix", ["", "module."])
def test_what_is_frozen_as_it_was_loaded_is_not_unusual(tmp_path, prefix):
    model = Encoder()
    model.load_state_dict(prefixed(prefix, Encoder()), strict=False)
    model.body.requires_grad_(False)
    folder = trained(tmp_path / "run", model)
    text, value = parameters(trueline.open_run(folder))
    assert is_frozen_as_drawn(value) == bool(prefix)
    assert text.endswith(")" if prefix else "), all of them as they were loaded")


HEALTHY = (
    _whole, _new_head, _head_of_another_shape_and_name, _head_of_another_name, _more_parts, _new_head_and_a_second_copy,
    _tried_again, _in_two_files, _by_parts, _merged, _assigned, _not_at_all,
)  # fmt: skip


@pytest.mark.in_turn
@pytest.mark.parametrize("load", HEALTHY, ids=lambda load: load.__name__)
def test_loads_that_are_meant_so_are_left_alone(tmp_path, load):
    torch.save(Encoder().state_dict(), tmp_path / "whole.pt")
    torch.load(tmp_path / "whole.pt")
    model = Encoder()
    load(model)
    assert asked(trained(tmp_path / "run", model), load_missed.CODE) == ([], [])


def test_a_head_that_is_made_anew_is_no_part_of_another_that_is_alike_by_chance():
    """BERT: a checkpoint of a language model has a dense layer of the shapes of the pooler's."""
    unexpected = [("cls.transform.dense.weight", (8, 8)), ("cls.transform.dense.bias", (8,))]
    unexpected += [("cls.transform.LayerNorm.weight", (8,)), ("cls.transform.LayerNorm.bias", (8,))]
    missing = [("bert.pooler.dense.weight", (8, 8)), ("bert.pooler.dense.bias", (8,)), ("classifier.weight", (2, 8))]
    assert renaming_of(unexpected, missing) is None


@pytest.mark.parametrize(
    ("unexpected", "missing", "words"),
    [
        ("h.0.attn.weight", "h.0._orig_mod.attn.weight", "with '_orig_mod' in their names"),
        ("h.0._orig_mod.attn.weight", "h.0.attn.weight", "without '_orig_mod' in their names"),
        ("a.module.b.weight", "x.weight", None),
    ],
)
def test_a_part_of_a_name_may_be_there_or_not(unexpected, missing, words):
    renaming = renaming_of([(unexpected, (2, 2))], [(missing, (2, 2))])
    assert (renaming and renaming.words) == words


def test_other_shapes_do_not_fit():
    assert renaming_of([("module.fc.weight", (5, 8))], [("fc.weight", (3, 8))]) is None


def test_loads_before_a_watch_of_ones_own_are_not_known(tmp_path):
    loads.stop()
    findings, why = asked(trained(tmp_path / "run", Encoder()), load_missed.CODE)
    assert findings == []
    assert why == ["what was loaded before training is seen only in jobs that `trueline run` starts"]


def test_what_from_pretrained_knows_is_read(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=16, n_positions=8)
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path / "right")
    safetensors = pytest.importorskip("safetensors.torch")
    state = safetensors.load_file(tmp_path / "right" / "model.safetensors")
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path / "wrong")
    wrong = {f"policy.{name}": value for name, value in state.items()}
    safetensors.save_file(wrong, tmp_path / "wrong" / "model.safetensors", metadata={"format": "pt"})
    right = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "right")
    assert list(loads.beside(right)) == []
    model = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "wrong")
    misses = [load_missed._miss(load) for load in load_missed.loads_from(json.dumps(list(loads.beside(model))))]
    assert [(miss.load.call, miss.load.into, miss.kind) for miss in misses] == [
        ("from_pretrained", "GPT2LMHeadModel", "renamed")
    ]
    assert misses[0].renaming.words == "without the prefix 'policy.'"
