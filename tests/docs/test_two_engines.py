"""The example with two engines: CTranslate2 samples and transformers trains, and what is said when they disagree."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import trueline

EXAMPLE = Path(__file__).parents[2] / "examples" / "grpo_two_engines.py"
NEEDED = {"logprob-gap", "recorded-logprobs-wrong", "sampling-mismatch", "policy-lag", "reward-differs"}


def _trained(out: Path, *, model: str = "llama", dtype: str = "float32", steps: int = 8, **options: Any) -> Any:
    """The report of a short training; ``options`` are of the engine's sampling."""
    from examples import grpo_two_engines as example  # all of transformers: not where tests are only collected

    torch.manual_seed(0)
    engine = example.Engine(dtype)
    engine.options |= options
    loop = example.Grpo(example.tiny(model, 128), engine, str(out))
    rewards = [loop.step(step)[0] for step in range(steps)]
    trueline.rl.close()
    assert rewards[-1] > rewards[0]
    return trueline.check(out)


@pytest.mark.in_turn
@pytest.mark.parametrize(("model", "dtype"), [("llama", "float32"), ("qwen2", "float32"), ("qwen3", "int8")])
def test_two_engines_that_agree_are_left_alone(tmp_path: Path, model: str, dtype: str) -> None:
    report = _trained(tmp_path / "run", model=model, dtype=dtype)
    assert [each.claim for each in report.findings] == []
    exact = {"weights-not-synced"} if dtype == "float32" else set()
    assert {*report.checks_run} >= NEEDED | exact


def test_a_temperature_that_the_engine_does_not_record_is_found(tmp_path: Path) -> None:
    """CTranslate2 returns log-probabilities from before its temperature: both sides agree to the last bits."""
    report = _trained(tmp_path / "run", sampling_temperature=0.7)
    assert {each.code for each in report.findings} == {"recorded-logprobs-wrong"}


def test_weights_that_the_converter_got_wrong_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from examples import grpo_two_engines as example

    def stale(self: Any, *_: Any, **__: Any) -> Any:
        model = load_model(self)
        model.model.layers[1].mlp.down_proj.weight.data.copy_(first)
        return model

    load_model, first = example.Converter.load_model, torch.zeros(64, 128)
    monkeypatch.setattr(example.Converter, "load_model", stale)
    report = _trained(tmp_path / "run", steps=4)
    found = next(each for each in report.findings if each.code == "weights-not-synced")
    assert found.evidence["names"] == ["model.layers.1.mlp.down_proj.weight"]


def test_what_is_not_installed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with pytest.raises(SystemExit, match="CTranslate2, which is not installed: pip install ctranslate2"):
        runpy.run_path(str(EXAMPLE), run_name="__main__")
