"""A Mixtral and a DeepSeek of transformers beside themselves with the parameters of vLLM: with the built-in map nothing
differs, and a fault is found where it is.
"""

from __future__ import annotations

import pytest
import torch
from tests.unit import served_experts as served

import trueline

WHOLE = {"mixtral": ("qkv_proj",), "deepseek_v3": ("fused_qkv_a_proj", "shared_experts.gate_up_proj")}
MODELS = {"Mixtral": served.mixtral, "DeepSeek": served.deepseek}


def record(out, model):
    """The logits of the step that is recorded, of an update that changes nothing."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    watch = trueline.watch(model, optimizer, out=out, plan={"preset": "mix", "depth": "tensor"})
    ids = torch.randint(served.VOCABULARY, (served.B, served.L), generator=torch.Generator().manual_seed(0))
    with watch.step(ids):
        logits = model(input_ids=ids, use_cache=False).logits
        logits.square().mean().backward()
        optimizer.step()
    optimizer.zero_grad()
    watch.close()
    return logits.detach()


@pytest.fixture(scope="module", params=MODELS)
def trained(request, tmp_path_factory):
    model, out = MODELS[request.param](), tmp_path_factory.mktemp(request.param) / "hf"
    return model, out, record(out, model)


def test_nothing_differs_and_merged_parameters_are_compared(trained, tmp_path):
    model, out, logits = trained
    assert torch.allclose(record(tmp_path / "engine", served.served(model)), logits, rtol=0, atol=1e-5)
    for pair in ((out, tmp_path / "engine"), (tmp_path / "engine", out)):
        found = trueline.compare(*pair, names="hf-vllm")
        assert [finding.code for finding in found.findings if finding.is_grave] == []
        rows = [row for row in found.rows if "/param/" in str(row.site)]
        assert {row.judgement for row in rows} <= {"equal", "within"}
        for name in ("experts.w13_weight", "experts.w2_weight", *WHOLE[model.config.model_type]):
            assert any(name in f"{row.site} {row.ref_site}" for row in rows), name


@pytest.mark.in_turn
@pytest.mark.parametrize("place", ["experts.w13_weight", "experts.w2_weight", "qkv"])
def test_a_fault_is_found_where_it_is(trained, tmp_path, place):
    model, out, _ = trained
    other = served.served(model)
    with torch.no_grad():
        next(param for name, param in other.model.layers[1].named_parameters() if place in name).view(-1)[5] += 0.5
    record(tmp_path / "engine", other)
    found = trueline.compare(tmp_path / "engine", out, names="hf-vllm")
    (finding,) = [each for each in found.findings if each.code == "weight-differs"]
    assert place in str(finding.sites[0] if finding.sites else finding.claim) or place in finding.claim
