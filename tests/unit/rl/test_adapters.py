"""Adapters beside the trainer's weights, and an engine that has them merged: what is compared, and what is said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import trueline
from trueline import rl
from trueline.judge.check_run import CheckReport

SCALE, RANK, WIDTH = 2.0, 4, 32


class Adapted(nn.Module):
    """A layer as PEFT keeps it: ``base_layer``, ``lora_A.default`` and ``lora_B.default``."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.base_layer = layer
        self.lora_A = nn.ModuleDict({"default": nn.Linear(layer.in_features, RANK, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(RANK, layer.out_features, bias=False)})
        nn.init.zeros_(self.lora_B["default"].weight)

    def delta(self) -> Tensor:
        return (self.lora_B["default"].weight @ self.lora_A["default"].weight).detach() * SCALE


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = (Adapted(nn.Linear(WIDTH, WIDTH, bias=False)) for _ in range(3))
        self.down_proj = Adapted(nn.Linear(2 * WIDTH, WIDTH))
        self.norm = nn.LayerNorm(WIDTH)
        self.score = nn.Module()
        self.score.original_module = nn.Linear(WIDTH, 2)
        self.score.modules_to_save = nn.ModuleDict({"default": nn.Linear(WIDTH, 2)})


class Policy(nn.Module):
    """Names as a model of ``get_peft_model`` has them: base_model.model.layers.0.q_proj.base_layer.weight."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.base_model = nn.Module()
        self.base_model.model = nn.Module()
        self.base_model.model.layers = nn.ModuleList([Block() for _ in range(2)])
        self.frozen = dtype
        for layer in self.adapted():
            layer.base_layer.to(dtype)

    def adapted(self) -> list[Adapted]:
        return [module for module in self.modules() if isinstance(module, Adapted)]

    @torch.no_grad()
    def update(self) -> None:
        for layer in self.adapted():
            for part in (layer.lora_A["default"], layer.lora_B["default"]):
                part.weight += 0.05 * torch.randn_like(part.weight)

    def merge(self, sign: int = 1) -> None:
        for layer in self.adapted():
            layer.base_layer.weight.data += sign * layer.delta().to(layer.base_layer.weight.dtype)


def engine_of(policy: Policy, *, adds: bool = True, fused: bool = False) -> dict[str, Tensor]:
    """The weights that an engine has in bfloat16, merged as PEFT merges."""
    found: dict[str, Tensor] = {}
    for number, block in enumerate(policy.base_model.model.layers):
        own = {
            name: (layer.base_layer.weight + layer.delta() * adds).detach().bfloat16()
            for name, layer in block.named_children()
            if isinstance(layer, Adapted)
        }
        if fused:
            own["qkv_proj"] = torch.cat([own.pop(name) for name in ("q_proj", "k_proj", "v_proj")])
        found |= {f"layers.{number}.{name}.weight": value for name, value in own.items()}
        found[f"layers.{number}.down_proj.bias"] = block.down_proj.base_layer.bias.detach().bfloat16()
        for name, value in block.norm.named_parameters(f"layers.{number}.norm"):
            found[name] = value.detach().bfloat16()
        for name, value in block.score.modules_to_save["default"].named_parameters(f"layers.{number}.score"):
            found[name] = value.detach().bfloat16()
    return found


def checked(
    folder: Path, engine: Callable[[Policy], Any], *, syncs: int = 3, dtype: torch.dtype = torch.float32
) -> CheckReport:
    policy, out = Policy(dtype), str(folder / "run")
    for step in range(syncs):
        policy.update()
        assert rl.record_sync(step, policy.named_parameters(), engine(policy), version=step, out=out)
    rl.close()
    return trueline.check(out)


def _kinds(report: CheckReport) -> set[str]:
    return {kind for each in report.findings if each.code == "weights-not-synced" for kind in each.evidence["kind"]}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("fused", [False, True])
def test_an_engine_with_adapters_merged_has_the_trainers_weights(
    tmp_path: Path, fused: bool, dtype: torch.dtype
) -> None:
    report = checked(tmp_path, lambda policy: engine_of(policy, fused=fused), dtype=dtype)
    assert [each.claim for each in report.findings] == []
    assert "weights-not-synced" in report.checks_run
    (note,) = [note for note in report.notes if note.startswith("Weights of the engine")]
    assert "base + scale * B A" in note
    assert "the scale that fits is 2" in note


def test_adapters_merged_into_the_trainers_own_weights_are_in_the_engines(tmp_path: Path) -> None:
    """As in a trainer that calls merge_adapter, hands over, and unmerges."""

    def merged(policy: Policy) -> dict[str, Tensor]:
        return engine_of(policy, adds=False)

    policy, out = Policy(), str(tmp_path / "run")
    for step in range(4):
        policy.update()
        policy.merge()
        assert rl.record_sync(step, policy.named_parameters(), merged(policy), out=out)
        policy.merge(-1)
    rl.close()
    assert _kinds(trueline.check(out)) == set()


def test_an_adapter_that_has_not_moved_changes_nothing(tmp_path: Path) -> None:
    policy, out = Policy(), str(tmp_path / "run")
    assert rl.record_sync(0, policy.named_parameters(), engine_of(policy), out=out)
    rl.close()
    report = trueline.check(out)
    assert [each.claim for each in report.findings] == []
    assert not [note for note in report.notes if note.startswith("Weights of the engine")]


@pytest.mark.parametrize(("syncs", "kinds"), [(1, set()), (3, {"base", "some"})])
def test_an_engine_without_the_adapter_is_found_once_it_stands_still(
    tmp_path: Path, syncs: int, kinds: set[str]
) -> None:
    report = checked(tmp_path, lambda policy: engine_of(policy, adds=False), syncs=syncs)
    assert _kinds(report) == kinds
    said = any("right if it was merged into base_layer before" in note for note in report.notes)
    assert said is (syncs == 1)


def test_a_layer_whose_adapter_did_not_arrive_is_named_beside_others_that_did(tmp_path: Path) -> None:
    def without_one(policy: Policy) -> dict[str, Tensor]:
        name = "layers.1.q_proj.weight"
        return engine_of(policy) | {name: engine_of(policy, adds=False)[name]}

    report = checked(tmp_path, without_one, syncs=1)
    assert _kinds(report) == {"base", "some"}
    (finding,) = (each for each in report.findings if each.code == "weights-not-synced")
    assert finding.evidence["names"] == ["layers.1.q_proj.weight"]
    assert "1 of 18 parameters" in finding.claim
    assert "the trainer's without its adapter" in finding.claim


def test_an_engine_that_keeps_the_adapter_of_an_earlier_sync_is_stale(tmp_path: Path) -> None:
    first: dict[str, Tensor] = {}

    def stays(policy: Policy) -> dict[str, Tensor]:
        if not first:
            first.update(engine_of(policy))
        return first

    assert "stale" in _kinds(checked(tmp_path, stays, syncs=4))


def test_weights_of_another_model_are_no_merged_adapter(tmp_path: Path) -> None:
    def other(policy: Policy) -> dict[str, Tensor]:
        return {name: torch.randn(value.shape).bfloat16() for name, value in engine_of(policy).items()}

    assert _kinds(checked(tmp_path, other)) == {"other", "most"}


def test_digests_alone_leave_merged_weights_uncompared_and_say_so(tmp_path: Path) -> None:
    report = checked(tmp_path, lambda policy: rl.digests(engine_of(policy)))
    assert [each.claim for each in report.findings] == []
    (note,) = [note for note in report.notes if note.startswith("Weights of the engine")]
    assert "5 more were not compared: a digest tells nothing of a weight with an adapter merged into it" in note


def test_an_adapter_of_another_kind_is_left_uncompared_and_named(tmp_path: Path) -> None:
    def scaled(policy: Policy) -> dict[str, Tensor]:
        found = engine_of(policy)
        return found | {"layers.0.q_proj.weight": 1.5 * found["layers.0.q_proj.weight"]}

    policy, out = Policy(), str(tmp_path / "run")
    policy.update()
    named = dict(policy.named_parameters())
    named["base_model.model.layers.0.q_proj.lora_magnitude_vector.default.weight"] = torch.full((WIDTH,), 1.5)
    assert rl.record_sync(0, named, scaled(policy), out=out)
    rl.close()
    report = trueline.check(out)
    assert [each.claim for each in report.findings] == []
    assert "layers.0.q_proj.weight was not compared: an adapter of another kind" in " ".join(report.notes)


@pytest.mark.parametrize("shows", [True, False])
def test_an_engine_that_holds_adapters_apart_is_compared_with_its_base(tmp_path: Path, shows: bool) -> None:
    """vLLM with enable_lora has ``base_layer`` in its names, and adapters in tensors that are no parameters."""

    def apart(policy: Policy) -> dict[str, Tensor]:
        named = {
            name.removeprefix("base_model.model."): value.detach().bfloat16()
            for name, value in policy.named_parameters()
            if "original_module" not in name and (shows or ".lora_" not in name)
        }
        return {name.replace(".modules_to_save.default", ""): value for name, value in named.items()}

    report = checked(tmp_path, apart)
    assert [each.claim for each in report.findings] == []
    assert any("the engine keeps adapters out of sight" in note for note in report.notes) is not shows


def test_transposed_layers_and_embeddings_are_merged_as_they_lie(tmp_path: Path) -> None:
    """GPT-2's layers are [in, out]; an embedding has lora_embedding_A [r, words] and lora_embedding_B [width, r]."""
    torch.manual_seed(0)
    square, wide, words = torch.randn(WIDTH, WIDTH), torch.randn(WIDTH, 3 * WIDTH), torch.randn(50, WIDTH)
    a, b = torch.randn(RANK, WIDTH), 0.1 * torch.randn(3 * WIDTH, RANK)
    of_words, to_width = torch.randn(RANK, 50), 0.1 * torch.randn(WIDTH, RANK)
    train = {
        "base_model.model.h.c_attn.base_layer.weight": wide,
        "base_model.model.h.c_attn.lora_A.default.weight": a,
        "base_model.model.h.c_attn.lora_B.default.weight": b,
        "base_model.model.h.c_proj.base_layer.weight": square,
        "base_model.model.h.c_proj.lora_A.default.weight": a,
        "base_model.model.h.c_proj.lora_B.default.weight": b[:WIDTH],
        "base_model.model.wte.base_layer.weight": words,
        "base_model.model.wte.lora_embedding_A.default": of_words,
        "base_model.model.wte.lora_embedding_B.default": to_width,
    }
    engine = {
        "h.c_attn.weight": wide + 0.5 * (b @ a).T,
        "h.c_proj.weight": square + 0.5 * (b[:WIDTH] @ a).T,
        "wte.weight": words + 0.5 * (to_width @ of_words).T,
    }
    out = str(tmp_path / "run")
    assert rl.record_sync(0, train, engine, out=out)
    rl.close()
    report = trueline.check(out)
    assert [each.claim for each in report.findings] == []
    assert "3 parameters were compared with base + scale" in " ".join(report.notes)
