"""The first screen names what differs: a call, an argument, a tie, a precision, and no cause that is not one.

Letters as in ``test_healthy_pairs``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.unit.comparison.judgement import test_healthy_pairs as pairs
from tests.unit.comparison.judgement.test_healthy_pairs import Around, Residual, with_part
from torch import Tensor, nn
from torch.nn import functional

from trueline.comparison.result import Comparison


def compared(tmp_path: Path, run_setup: Any, ref_setup: Any, *, steps: int = 1, **how: Any) -> Comparison:
    """What differs is named at the first step; what does not has to stay silent at one more."""
    return pairs.compared(tmp_path, run_setup, ref_setup, steps=steps, **how)


class Masked(nn.Module):
    """Attention of one head that is causal by an argument, or by a mask that begins at a diagonal."""

    def __init__(self, diagonal: int | None) -> None:
        super().__init__()
        self.qkv, self.diagonal = nn.Linear(8, 24), diagonal

    def forward(self, x_BLD: Tensor) -> Tensor:
        q, k, v = self.qkv(x_BLD).unsqueeze(1).chunk(3, -1)
        if self.diagonal is None:
            return functional.scaled_dot_product_attention(q, k, v, is_causal=True).squeeze(1)
        mask_LL = torch.ones(4, 4, dtype=torch.bool).tril(self.diagonal)
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask_LL).squeeze(1)


@pytest.mark.parametrize(("diagonal", "exit_code"), [(0, 0), (1, 1)])
def test_attention_whose_mask_is_another_is_named_itself_and_not_its_block(
    tmp_path: Path, diagonal: int, exit_code: int
) -> None:
    run, ref = (lambda at=at: Around(lambda: Masked(at)) for at in (None, diagonal))
    comparison = compared(tmp_path, run, ref, steps=2 - exit_code)
    assert comparison.exit_code == exit_code
    if exit_code:
        claim = comparison.findings[0].claim
        assert "attn.scaled_dot_product_attention#0:out0" in claim
        assert "is_causal is true in RUN and not given in REF" in claim
        assert "attn_mask is not given in RUN and a tensor in REF" in claim


def normalised(chosen: Tensor, *, divided: bool) -> Tensor:
    most = chosen.softmax(-1).topk(2).values
    if divided:
        most /= most.sum(-1, keepdim=True)
    return chosen * most.to(chosen.dtype).sum(-1, keepdim=True)


def test_a_division_in_place_that_only_one_run_makes_is_named(tmp_path: Path) -> None:
    run, ref = (with_part(lambda x, divided=each: normalised(x, divided=divided)) for each in (False, True))
    comparison = compared(tmp_path, run, ref)
    assert comparison.findings[0].code == "structure-differs"
    assert "only in REF: `sum` and `div_` in `Residual`" in comparison.findings[0].claim


def gated(way: str) -> Callable[[], nn.Module]:
    """Of which bfloat16 shows nothing forwards, and a gradient that is one of many does."""
    return with_part(lambda x: x + functional.gelu(x, approximate=way))


def test_an_argument_of_the_call_that_a_gradient_comes_back_from_is_the_claim(tmp_path: Path) -> None:
    comparison = compared(tmp_path, gated("tanh"), gated("none"))
    assert 'approximate is "tanh" and not "none"' in comparison.findings[0].claim
    assert "hook" not in comparison.findings[0].claim


# Calls that change nothing here


def capped(x: Tensor, cap: float = 1e6) -> Tensor:
    return cap * torch.tanh(x / cap)


def unpadded(x_BLD: Tensor) -> Tensor:
    return x_BLD.masked_fill(torch.zeros(4, 8, dtype=torch.bool), -1e9)


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("part", "words"),
    [
        (capped, "`div`, `tanh` and `mul`"),
        (unpadded, "`zeros` and `masked_fill`"),
        (lambda x: x.clamp(-1e4, 1e4), "`clamp`"),
    ],
    ids=["a cap", "a mask without padding", "a clamp"],
)
@pytest.mark.parametrize("in_run", [True, False])
def test_a_call_that_only_one_run_makes_is_a_finding_though_it_changes_nothing_here(
    tmp_path: Path, part: Callable[[Tensor], Tensor], words: str, *, in_run: bool
) -> None:
    changed, plain = with_part(part), with_part(lambda x: x)
    comparison = compared(tmp_path, *((changed, plain) if in_run else (plain, changed)))
    assert (comparison.exit_code, comparison.findings[0].code) == (1, "structure-differs")
    assert f"only in {'RUN' if in_run else 'REF'}: {words}" in comparison.findings[0].claim
    assert "explained-by-rounding" not in [finding.code for finding in comparison.findings]


@pytest.mark.in_turn
@pytest.mark.parametrize(
    "part",
    [
        lambda x: x.clone().contiguous().view_as(x) * 1.0,
        lambda x: functional.dropout(x, 0.0),
        lambda x: functional.dropout(x, 0.5, training=False),
        lambda x: (x * 4) / 4,
        lambda x: (x.norm(), x.argmax(), x)[2],
    ],
    ids=["moved", "dropout of nothing", "dropout in evaluation", "scaled and back", "a metric"],
)
def test_a_call_that_changes_no_number_whatever_it_is_raises_no_alarm(
    tmp_path: Path, part: Callable[[Tensor], Tensor]
) -> None:
    assert compared(tmp_path, with_part(part), with_part(lambda x: x), steps=2).exit_code == 0


# Parameters and the update


class Tied(nn.Module):
    """Two linears with one weight, or (``copied``) with two of the same numbers."""

    def __init__(self, *, copied: bool) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)
        self.last.weight = nn.Parameter(self.first.weight.detach().clone()) if copied else self.first.weight

    def forward(self, x_BLD: Tensor) -> Tensor:
        return self.last(self.first(x_BLD).tanh())


@pytest.mark.parametrize(("copied", "said"), [(True, "the tie is lost"), (False, "the tie is only there")])
def test_a_tie_of_one_run_alone_is_named_as_such(tmp_path: Path, *, copied: bool, said: str) -> None:
    comparison = compared(tmp_path, lambda: Tied(copied=copied), lambda: Tied(copied=not copied))
    claim = comparison.findings[0].claim
    assert claim.startswith("first.weight and last.weight are one tensor in ")
    assert said in claim
    assert not any("backward computation" in finding.claim for finding in comparison.findings)


def autocast() -> torch.autocast:
    return torch.autocast("cpu", torch.bfloat16)


def test_weights_and_states_in_16_bits_are_a_finding_where_the_forward_pass_has_one_precision(tmp_path: Path) -> None:
    comparison = compared(tmp_path, {"made": Residual, "dtype": torch.bfloat16}, {"made": Residual, "around": autocast})
    assert (comparison.exit_code, comparison.findings[0].code) == (1, "dtype-differs")
    assert "optimizer are bfloat16 in RUN and float32 in REF" in comparison.findings[0].claim


@pytest.mark.parametrize("run", [{"dtype": torch.bfloat16}, {"around": autocast}], ids=["all of it", "autocast"])
def test_a_run_that_is_in_another_precision_altogether_is_no_fault(tmp_path: Path, run: dict[str, Any]) -> None:
    assert compared(tmp_path, {"made": Residual, **run}, Residual, steps=2).exit_code == 0


def advanced(optimizer: torch.optim.Optimizer) -> None:
    """As if ten updates had been made by gradients of 0."""
    for param in optimizer.param_groups[0]["params"]:
        zeros = {name: torch.zeros_like(param) for name in ("exp_avg", "exp_avg_sq")}
        optimizer.state[param] = {"step": torch.tensor(10.0), **zeros}


def test_a_count_of_updates_that_differs_is_no_setting(tmp_path: Path) -> None:
    comparison = compared(tmp_path, {"made": Residual, "prepare": advanced}, Residual)
    assert comparison.findings[0].code == "optimizer-differs"
    assert "the number of updates so far" in comparison.findings[0].claim
    assert ": 10 in RUN and 0 in REF." in comparison.findings[0].claim
    assert "beta2" not in comparison.findings[0].claim


def test_clipping_that_only_one_run_does_is_named(tmp_path: Path) -> None:
    claim = compared(tmp_path, {"made": Residual, "clip": 1e-2}, Residual).findings[0].claim
    assert "only RUN clips gradients: only in RUN: " in claim
    assert "connect" not in claim


def test_another_norm_to_clip_by_is_the_one_error(tmp_path: Path) -> None:
    comparison = compared(tmp_path, {"made": Residual, "clip": 1e-2}, {"made": Residual, "clip": 2e-2}, steps=2)
    (error,) = [finding for finding in comparison.findings if finding.severity == "error"]
    assert error.claim.startswith("Gradients are clipped differently: max_norm of clip_grad_norm_ is 0.01 and not 0.02")


def test_no_advice_hides_what_draws_random_numbers(tmp_path: Path) -> None:
    run, ref = (with_part(lambda x, p=p: functional.dropout(x, p)) for p in (0.2, 0.1))
    comparison = compared(tmp_path, run, ref)
    assert not any("dropout off" in each for finding in comparison.findings for each in finding.next)
    assert "its arguments differ, p is 0.2 and not 0.1" in comparison.findings[0].claim


# Losses


def test_the_loss_is_the_recorded_one_wherever_it_is_told(tmp_path: Path) -> None:
    run, ref = (
        {"made": Residual, "loss_of": lambda y, factor=factor: factor * functional.huber_loss(y, y.detach() + 1)}
        for factor in (3, 1)
    )
    comparison = compared(tmp_path, run, ref)
    assert comparison.steps[0].loss_rel == pytest.approx(2.0, rel=1e-4)
    assert any("is 3 times the reference's at step 0" in note for note in comparison.notes)
