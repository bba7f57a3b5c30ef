"""Digests of weights on both sides: equal once the trainer's are merged and cast, and what is found of the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import trueline
from trueline import rl
from trueline.schema.finding import Finding

NAMES = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "down_proj")


def _weights(version: int) -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(version)
    return {f"module.layers.0.{name}.weight": torch.randn(4, 4, generator=random) for name in NAMES}


def _engine(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """As vLLM lays them out, in bfloat16."""
    of = {name.split(".")[-2]: weight for name, weight in weights.items()}
    merged = {
        "qkv_proj": torch.cat([of["q_proj"], of["k_proj"], of["v_proj"]]),
        "gate_up_proj": torch.cat([of["gate_proj"], of["up_proj"]]),
        "down_proj": of["down_proj"],
    }
    return {f"layers.0.{name}.weight": weight.bfloat16() for name, weight in merged.items()}


def _found(tmp_path: Path, *engines: dict[str, Any]) -> list[Finding]:
    out = str(tmp_path / "run")
    for step, engine in enumerate(engines):
        assert rl.record_sync(step, _weights(step), engine, version=step, out=out)
    rl.close()
    report = trueline.check(out)
    assert "weights-not-synced" in report.checks_run
    return [each for each in report.findings if each.code == "weights-not-synced"]


def test_weights_in_the_engines_layout_and_dtype_are_equal(tmp_path: Path) -> None:
    assert _found(tmp_path, _engine(_weights(0)), _engine(_weights(1))) == []


def test_digests_from_another_process_serve_as_well(tmp_path: Path) -> None:
    sent = rl.digests(_engine(_weights(0)))
    assert _found(tmp_path, sent) == []


def _stale(good: dict[str, Tensor]) -> dict[str, Tensor]:
    return good | {"layers.0.down_proj.weight": _engine(_weights(0))["layers.0.down_proj.weight"]}


def _reordered(good: dict[str, Tensor]) -> dict[str, Tensor]:
    up_gate = good["layers.0.gate_up_proj.weight"].flip(0)
    return good | {"layers.0.gate_up_proj.weight": up_gate}


def _truncated(good: dict[str, Tensor]) -> dict[str, Tensor]:
    return good | {"layers.0.down_proj.weight": good["layers.0.down_proj.weight"][:2]}


def _random(good: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: torch.randn(weight.shape).bfloat16() for name, weight in good.items()}


@pytest.mark.parametrize(
    ("change", "kinds"),
    [
        (_stale, {"stale", "some"}),
        (_reordered, {"other", "some"}),
        (_truncated, {"size", "some"}),
        (_random, {"other", "most"}),
    ],
)
def test_what_differs_is_named_with_how(tmp_path: Path, change: Any, kinds: set[str]) -> None:
    (finding,) = _found(tmp_path, _engine(_weights(0)), change(_engine(_weights(1))))
    assert set(finding.evidence["kind"]) == kinds
    assert (finding.severity, finding.step_first) == ("error", 1)


def test_a_parameter_that_the_engine_lacks_is_a_warning(tmp_path: Path) -> None:
    engine = _engine(_weights(0))
    del engine["layers.0.down_proj.weight"]
    (finding,) = _found(tmp_path, engine)
    assert (finding.severity, finding.evidence["names"]) == ("warning", ["layers.0.down_proj.weight"])


E, D, INNER = 3, 4, 5


def _moe(*, expert_names: tuple[str, ...] | None, where: str) -> dict[str, Tensor]:
    """Weights of a layer of experts and of MLA as transformers has them: all experts in one, or each by itself."""
    random = torch.Generator().manual_seed(0)
    gate, up = (torch.randn(E, INNER, D, generator=random) for _ in range(2))
    down, q_a, kv_a = (torch.randn(shape, generator=random) for shape in ((E, D, INNER), (3, D), (2, D)))
    own = {"self_attn.q_a_proj.weight": q_a, "self_attn.kv_a_proj_with_mqa.weight": kv_a}
    if expert_names is None:
        own |= {f"{where}.experts.gate_up_proj": torch.cat([gate, up], 1), f"{where}.experts.down_proj": down}
    else:
        for name, values in zip(expert_names, (gate, up, down), strict=True):
            own |= {f"{where}.experts.{index}.{name}.weight": values[index] for index in range(E)}
    return {f"model.layers.0.{name}": weight for name, weight in own.items()}


def _served(swapped: bool, where: str) -> dict[str, Tensor]:
    """The same as vLLM has them; ``swapped``: up before gate."""
    weights = _moe(expert_names=None, where="mlp")
    q_a, kv_a, gate_up, down = weights.values()
    halves = gate_up.split(INNER, 1)
    own = {
        "self_attn.fused_qkv_a_proj.weight": torch.cat([q_a, kv_a]),
        f"{where}.experts.w13_weight": torch.cat(halves[::-1] if swapped else halves, 1),
        f"{where}.experts.w2_weight": down,
    }
    return {f"model.layers.0.{name}": weight for name, weight in own.items()}


@pytest.mark.parametrize(
    ("names", "where", "engine_where"),
    [
        (None, "mlp", "mlp"),
        (None, "mlp", "block_sparse_moe"),
        (("gate_proj", "up_proj", "down_proj"), "mlp", "mlp"),
        (("w1", "w3", "w2"), "block_sparse_moe", "block_sparse_moe"),
    ],
    ids=["DeepSeek", "Mixtral", "DeepSeek, transformers 4", "Mixtral, transformers 4"],
)
@pytest.mark.parametrize("swapped", [False, True])
def test_experts_and_latent_attention_are_laid_out_as_the_engine_has_them(
    tmp_path: Path, names: tuple[str, ...] | None, where: str, engine_where: str, swapped: bool
) -> None:
    out = str(tmp_path / "run")
    assert rl.record_sync(0, _moe(expert_names=names, where=where), _served(swapped, engine_where), out=out)
    rl.close()
    found = [each for each in trueline.check(out).findings if each.code == "weights-not-synced"]
    assert [name for each in found for name in each.evidence["names"]] == (
        [f"model.layers.0.{engine_where}.experts.w13_weight"] if swapped else []
    )
