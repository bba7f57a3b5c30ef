"""Overflow checks have nothing to say of healthy transformers, whatever masks and precision they train with."""

import pytest
import torch
import transformers
from tests.unit.capture.record.test_record_transformers import SMALL, language_model, vision_model

import trueline
from trueline.laws.overflow import overflow_origin, range_saturation
from trueline.store.reader import Run


def padded(model, batch, side):
    mask = torch.ones_like(batch["input_ids"])
    mask[0, (slice(0, 5) if side == "left" else slice(11, None))] = 0
    return model, {**batch, "attention_mask": mask, "labels": batch["labels"].masked_fill(mask == 0, -100)}


def causal(name, attention="sdpa", **options):
    return language_model(name, attn_implementation=attention, **options)


def gpt2(attention):
    config = transformers.GPT2Config(
        vocab_size=100, n_embd=32, n_layer=2, n_head=4, n_positions=64, attn_implementation=attention
    )
    ids = torch.randint(0, 100, (2, 16))
    return transformers.GPT2LMHeadModel(config), {"input_ids": ids, "labels": ids}


def bert():
    config = transformers.BertConfig(
        **{name: value for name, value in SMALL.items() if name not in ("num_key_value_heads",)}
    )
    ids = torch.randint(0, 100, (2, 16))
    return transformers.BertForMaskedLM(config), {"input_ids": ids, "labels": ids}


MODELS = {
    "Llama": lambda: causal("Llama"),
    "Llama eager, padded left": lambda: padded(*causal("Llama", "eager"), "left"),
    "Llama sdpa, padded left": lambda: padded(*causal("Llama"), "left"),
    "Llama sdpa, padded right": lambda: padded(*causal("Llama"), "right"),
    "Qwen2": lambda: causal("Qwen2"),
    "Qwen2 eager, padded right": lambda: padded(*causal("Qwen2", "eager"), "right"),
    "Qwen2 with dropout": lambda: padded(*causal("Qwen2", attention_dropout=0.2), "right"),
    "Mixtral": lambda: causal("Mixtral", num_local_experts=4),
    "Mixtral eager, padded left": lambda: padded(*causal("Mixtral", "eager", num_local_experts=4), "left"),
    "GPT2 eager with dropout, padded": lambda: padded(*gpt2("eager"), "right"),
    "Bert, padded": lambda: padded(*bert(), "right"),
    "ViT": vision_model,
}


def trained(model, batch, out, *, autocast=None, preset="mix", depth="stats", optimizer_of=torch.optim.AdamW):
    torch.manual_seed(0)
    optimizer = optimizer_of(model.parameters(), lr=1e-3)
    watch = trueline.watch(model, optimizer, out=out, plan={"preset": preset, "depth": depth})
    for _ in range(2):
        with watch.step(batch):
            with torch.autocast("cpu", dtype=autocast or torch.bfloat16, enabled=autocast is not None):
                loss = model(**batch).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    watch.close()
    run = Run(out)
    assert len(run.record_steps) == 2
    near = [finding for finding in range_saturation.check(run) if finding.severity == "warning"]
    return overflow_origin.check(run) + near


@pytest.mark.in_turn
@pytest.mark.parametrize("name", MODELS)
def test_a_healthy_model_is_left_alone(tmp_path, name):
    torch.manual_seed(0)
    model, batch = MODELS[name]()
    assert trained(model, batch, str(tmp_path / "run")) == []


@pytest.mark.parametrize("name", ["Llama eager, padded left", "Qwen2 with dropout", "GPT2 eager with dropout, padded"])
def test_a_healthy_model_under_autocast_is_left_alone(tmp_path, name):
    torch.manual_seed(0)
    model, batch = MODELS[name]()
    assert trained(model, batch, str(tmp_path / "run"), autocast=torch.bfloat16) == []


@pytest.mark.parametrize("name", ["Llama eager, padded left", "Mixtral eager, padded left", "ViT"])
def test_a_healthy_model_with_checkpointing_is_left_alone(tmp_path, name):
    model, batch = MODELS[name]()
    model.gradient_checkpointing_enable()
    model.train()
    assert trained(model, batch, str(tmp_path / "run"), depth="fingerprint") == []


@pytest.mark.in_turn
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["Llama eager, padded left", "Mixtral", "ViT"])
def test_a_healthy_model_all_in_sixteen_bits_is_left_alone(tmp_path, name, dtype):
    torch.manual_seed(0)
    model, batch = MODELS[name]()
    batch = {key: value.to(dtype) if value.is_floating_point() else value for key, value in batch.items()}
    run_path = str(tmp_path / "run")
    assert trained(model.to(dtype), batch, run_path, preset="ops", optimizer_of=torch.optim.SGD) == []


def test_adam_whose_epsilon_is_zero_in_float16_is_found(tmp_path):
    # Its default of 1e-8 is below the smallest number of float16: a second moment that sinks to zero divides by it.
    torch.manual_seed(0)
    model, batch = causal("Llama")
    (finding,) = trained(model.half(), batch, str(tmp_path / "run"), preset="ops")
    assert "/opt/AdamW.addcdiv_" in finding.sites[0]
    assert not all(param.isfinite().all() for param in model.parameters())


@pytest.mark.in_turn
@pytest.mark.parametrize("name", ["Llama eager, padded left", "Mixtral", "ViT"])
@pytest.mark.parametrize("preset", ["modules", "mix"])
def test_an_infinity_in_a_weight_of_each_is_found(tmp_path, name, preset):
    torch.manual_seed(0)
    model, batch = MODELS[name]()
    weights = [(key, param) for key, param in model.named_parameters() if param.dim() == 2 and "embed" not in key]
    key, weight = weights[len(weights) // 2]
    weight.data[1, 2] = torch.inf
    (finding,) = trained(model, batch, str(tmp_path / "run"), preset=preset)
    assert finding.sites[0] == f"0.0/r0/param/{key}#0:value"
