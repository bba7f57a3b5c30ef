"""Models of transformers with random weights are recorded whole, and train as they do unrecorded."""

from __future__ import annotations

import copy
import types

import pytest
import torch
import transformers
from tests.unit.recording import Recording

SMALL = {
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}


def language_model(name, **options):
    config = getattr(transformers, f"{name}Config")(**SMALL, **options)
    ids = torch.randint(0, 100, (2, 16))
    return getattr(transformers, f"{name}ForCausalLM")(config), {"input_ids": ids, "labels": ids}


def vision_model():
    sizes = {name: value for name, value in SMALL.items() if name.startswith(("hidden", "interm", "num_h", "num_att"))}
    config = transformers.ViTConfig(**sizes, image_size=32, patch_size=8, num_labels=5)
    batch = {"pixel_values": torch.randn(2, 3, 32, 32), "labels": torch.tensor([1, 2])}
    return transformers.ViTForImageClassification(config), batch


MODELS = {
    "Llama": lambda: language_model("Llama"),
    "Qwen2": lambda: language_model("Qwen2"),
    "Mixtral": lambda: language_model("Mixtral", num_local_experts=4),
    "ViT": vision_model,
}


def trained(model, batch, *, recorded):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    recording = Recording(model, {"preset": "mix", "depth": "fingerprint"}, optimizer) if recorded else None
    losses = []
    torch.manual_seed(1)
    for step in range(3):
        if recording is not None:
            recording.session.open_step(step)
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    if recording is None:
        return losses, []
    recording.session.drain(wait=True)
    return losses, recording.steps[-1]


def rows_of_whole_twin(model, twin, batch):
    """The rows of a recorded step of ``twin``, which has all its modules and trains as ``model`` does unrecorded."""
    bare, _ = trained(model, batch, recorded=False)
    losses, rows = trained(twin, batch, recorded=True)
    assert losses == bare
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(a, b)
    ran = {row["name"] for row in rows if row["kind"] == "module"}
    missing = {key for key, module in twin.named_modules() if key and key not in ran}
    assert {type(twin.get_submodule(key)).__name__ for key in missing} <= {"ModuleList"}
    return rows


@pytest.mark.in_turn
@pytest.mark.parametrize("name", MODELS)
def test_every_module_and_gradient_is_recorded_and_training_is_the_same(name):
    torch.manual_seed(0)
    model, batch = MODELS[name]()
    twin = copy.deepcopy(model)
    rows = rows_of_whole_twin(model, twin, batch)
    backward = {row["name"] for row in rows if row["phase"] == "bwd"}
    assert {key for key, param in twin.named_parameters() if param.grad is None and key not in backward} == set()
    assert {row["note"] for row in rows} <= {None, "memory that is not initialised"}


def rolled_out(model, batch, *, recorded):
    """Tokens that the model makes in the middle of a training step, and the rows of that step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    recording = Recording(model, {"preset": "mix"}, optimizer) if recorded else None
    ids = batch["input_ids"][:, :5]
    torch.manual_seed(1)
    if recording is not None:
        recording.session.open_step(0)
    tokens = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=3, do_sample=True, pad_token_id=0)
    model(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()
    if recording is None:
        return tokens, []
    recording.session.drain(wait=True)
    return tokens, recording.steps[0]


@pytest.mark.parametrize("name", ["Llama", "Qwen2", "Mixtral"])
def test_generation_is_told_apart_by_no_grad_and_changes_nothing(name):
    torch.manual_seed(0)
    model, batch = MODELS[name]()
    twin = copy.deepcopy(model)
    bare, _ = rolled_out(model, batch, recorded=False)
    tokens, rows = rolled_out(twin, batch, recorded=True)
    assert torch.equal(tokens, bare)
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(a, b)
    layers = {(row["call"], row["flags"]) for row in rows if row["name"] == "model.layers.0" and row["phase"] == "fwd"}
    assert layers == {(0, "no_grad"), (1, "no_grad"), (2, "no_grad"), (3, "")}
    assert {row["micro"] for row in rows} == {0}
    linear = "model.layers.0.self_attn.q_proj.linear"
    assert {row["call"] for row in rows if row["name"] == linear and row["flags"] == "no_grad"} == {0, 1, 2}
    assert not [row for row in rows if row["phase"] == "bwd" and row["call"] < 3 and row["name"] == linear]


def wrapped_as_accelerate_does(model):
    """``Accelerator.prepare_model`` with bf16: the instance's ``forward`` in autocast, its outputs turned to fp32."""
    inside = torch.autocast("cpu", torch.bfloat16)(model.forward.__func__)

    def to_fp32(*args, **kwargs):
        output = inside(*args, **kwargs)
        output.logits = output.logits.float()
        return output

    to_fp32.__wrapped__ = inside
    model.forward = types.MethodType(to_fp32, model)
    return model


@pytest.mark.in_turn
@pytest.mark.parametrize("name", MODELS)
def test_models_that_accelerate_wraps_in_autocast_are_recorded_whole(name):
    torch.manual_seed(0)
    model, batch = MODELS[name]()
    twin = wrapped_as_accelerate_does(copy.deepcopy(model))
    rows = rows_of_whole_twin(wrapped_as_accelerate_does(model), twin, batch)
    root = {row["slot"]: row["dtype"] for row in rows if row["name"] == type(twin).__name__ and row["phase"] == "fwd"}
    assert root["out.logits"] == "float32"
    returned = {row["dtype"] for row in rows if row["name"].endswith("proj.linear") and row["slot"] == "out0"}
    assert returned <= {"bfloat16"}
    assert {row["dtype"] for row in rows if row["phase"] == "grad"} == {"float32"}
