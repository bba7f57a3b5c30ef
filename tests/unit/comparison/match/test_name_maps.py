"""A Llama of transformers beside itself as vLLM and Megatron lay it out: with the built-in maps only rounding differs,
and a fault is found.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.unit import served_models as served
from torch.nn import functional

import trueline
from trueline.comparison.arrange import arrange
from trueline.comparison.match.names import NameMap
from trueline.schema.errors import InputError

MADE = {"hf-vllm": served.Vllm, "hf-megatron": served.Megatron}
TRAINED = {"hf-vllm": False, "hf-megatron": True}


def record(out: Path, model: Any, *, trained: bool, depth: str, preset: str, steps: int = 2) -> torch.Tensor:
    """The logits of the last step, [B, L, VOCABULARY]."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    watch = trueline.watch(model, optimizer, out=out, plan={"preset": preset, "depth": depth})
    draw, logits = torch.Generator().manual_seed(0), torch.empty(0)
    for _ in range(steps):
        ids = torch.randint(served.VOCABULARY, (served.B, served.L), generator=draw)
        with watch.step(ids):
            made = model(input_ids=ids)
            logits = made if isinstance(made, torch.Tensor) else made.logits
            if trained:
                functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()
                optimizer.step()
                optimizer.zero_grad()
    watch.close()
    return logits.detach()


@pytest.fixture(scope="module", params=[("hf-vllm", "tensor"), ("hf-megatron", "tensor"), ("hf-megatron", "stats")])
def pair(request, tmp_path_factory) -> tuple[str, dict[str, Any], Path, Path]:
    """The name of the map, how steps are recorded, the Run of transformers, and the healthy other one."""
    name, depth = request.param
    out = tmp_path_factory.mktemp(name)
    how = {"trained": TRAINED[name], "depth": depth, "preset": "mix"}
    made = [
        record(out / "hf", served.llama(), **how),
        record(out / "other", MADE[name](served.llama()), **how),
    ]
    assert torch.allclose(*made, rtol=0, atol=1e-5)
    return name, how, out / "hf", out / "other"


@pytest.mark.in_turn
@pytest.mark.parametrize("swapped", [False, True])
def test_only_rounding_differs_and_merged_weights_are_compared(pair, swapped) -> None:
    name, how, *runs = pair
    found = trueline.compare(*(reversed(runs) if swapped else runs), names=name)
    assert (found.exit_code, found.first) == (0, None)
    assert [finding.code for finding in found.findings if finding.is_grave] == []
    assert "explained-by-rounding" in {finding.code for finding in found.findings}
    compared = {(row.site or "").split("/")[2] for row in found.rows if row.judgement in ("equal", "within")}
    phases = ("fwd",) if name == "hf-vllm" else ("fwd", "bwd", "param", "grad")
    assert set(phases) <= compared
    merged = [row for row in found.rows if "qkv" in str(row.site) and row.judgement in ("equal", "within")]
    assert {row.how for row in merged} <= ({"tensor", "fingerprint"} if how["depth"] == "tensor" else {"statistics"})
    assert any(str(row.site).endswith("qkv.weight#0:value") or ".linear#0:in1" in str(row.site) for row in merged)


def faulty(model: Any, fault: str) -> Any:
    with torch.no_grad():
        layer = (model.decoder if hasattr(model, "decoder") else model.model).layers[1]
        attention = layer.self_attention if hasattr(layer, "self_attention") else layer.self_attn
        if fault == "scale":
            attention.scale *= 1.25
        elif fault == "key":
            projection = attention.linear_qkv if hasattr(attention, "linear_qkv") else attention.qkv_proj
            projection.weight[served.H // served.G * served.d + 3] *= 1.1
        else:
            (layer.mlp.linear_fc1 if hasattr(layer.mlp, "linear_fc1") else layer.mlp.gate_up_proj).weight[7, 2] += 0.1
    return model


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("fault", "place"), [("scale", "self_att"), ("key", "qkv"), ("gate", "gate_up_proj linear_fc1")]
)
def test_a_fault_is_found_where_it_is(pair, tmp_path, fault, place) -> None:
    name, how, hf, _ = pair
    record(tmp_path / "run", faulty(MADE[name](served.llama()), fault), **how)
    found = trueline.compare(tmp_path / "run", hf, names=name)
    assert found.exit_code == 1
    assert "layers.1." in found.first.site
    assert any(part in found.first.site for part in place.split())
    if fault != "scale" and how["trained"]:
        (claim,) = (each.claim for each in found.findings if each.code == "weight-differs")
        assert any(part in claim for part in place.split())
        assert claim.startswith("1 of ")


def test_without_shapes_of_heads_the_map_says_how_large_they_are(tmp_path) -> None:
    how = {"trained": True, "depth": "tensor", "preset": "modules", "steps": 1}
    record(tmp_path / "hf", served.llama(), **how)
    record(tmp_path / "other", served.Megatron(served.llama()), **how)

    def ways(names: str | Path) -> set[str]:
        found = trueline.compare(tmp_path / "other", tmp_path / "hf", names=names)
        assert found.exit_code == 0
        return {row.how for row in found.rows if row.site and "linear_qkv.weight" in row.site and row.how}

    assert ways("hf-megatron") == {"statistics"}
    told = tmp_path / "map.toml"
    told.write_text(
        'built_in = "hf-megatron"\n[merge]\n"q_proj, k_proj, v_proj" = {into = "linear_qkv", head_size = 8}\n'
    )
    assert ways(told) == {"tensor"}
    told.write_text(told.read_text().replace("= 8}", "= 7}"))
    with pytest.raises(InputError, match=r"The 16 rows of 'v_proj' cannot be cut into heads of 7 rows"):
        ways(told)


def test_the_merged_weight_is_that_of_megatron(tmp_path) -> None:
    """Against the rows that the conversion in ``served_models`` writes one by one."""
    how = {"trained": False, "depth": "tensor", "preset": "mix", "steps": 1}
    record(tmp_path / "hf", served.llama(), **how)
    other = served.Megatron(served.llama())
    record(tmp_path / "other", other, **how)
    runs = trueline.open_run(tmp_path / "hf"), trueline.open_run(tmp_path / "other")
    mine, _ = arrange(*runs, names=NameMap.load("hf-megatron"))[0].read().sides
    names = "layers.1.self_attn.linear_qkv.linear"
    value = next(each for each in mine.values if each.site.name.endswith(names) and each.site.slot == "in1")
    weight = other.decoder.layers[1].self_attention.linear_qkv.weight.detach().numpy()
    assert np.array_equal(np.asarray(value.load()), weight)
