"""Where only calls of modules are recorded, what differs between them is found in its module, and rounding is not.

Letters: B batch, L positions, D width.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import trueline
from trueline.comparison.compare import compare
from trueline.schema.finding import Finding


def attended(q_BLD: Tensor, k_BLD: Tensor, v_BLD: Tensor) -> Tensor:
    return (q_BLD @ k_BLD.mT / math.sqrt(q_BLD.shape[-1])).softmax(-1) @ v_BLD


def sharper(q_BLD: Tensor, k_BLD: Tensor, v_BLD: Tensor) -> Tensor:
    return attended(q_BLD * 1.001, k_BLD, v_BLD)


def in_bfloat16(q_BLD: Tensor, k_BLD: Tensor, v_BLD: Tensor) -> Tensor:
    return attended(q_BLD.bfloat16(), k_BLD.bfloat16(), v_BLD.bfloat16()).float()


def keys_detached(q_BLD: Tensor, k_BLD: Tensor, v_BLD: Tensor) -> Tensor:
    return attended(q_BLD, k_BLD.detach(), v_BLD)


def halved_gradient(q_BLD: Tensor, k_BLD: Tensor, v_BLD: Tensor) -> Tensor:
    if q_BLD.requires_grad:
        q_BLD.register_hook(lambda gradient: gradient / 2)
    return attended(q_BLD, k_BLD, v_BLD)


class Attention(nn.Module):
    """Code between a module for the projections and one for the result."""

    def __init__(self, attend: Callable[..., Tensor]) -> None:
        super().__init__()
        self.qkv, self.out, self.attend = nn.Linear(8, 24), nn.Linear(8, 8), attend

    def forward(self, x_BLD: Tensor) -> Tensor:
        return self.out(self.attend(*self.qkv(x_BLD).chunk(3, dim=-1)))


class Model(nn.Module):
    """Two branches, each added to what it takes."""

    def __init__(
        self, attend: Callable[..., Tensor] = attended, inner: Callable[[nn.Module], nn.Module] = nn.Sequential
    ) -> None:
        super().__init__()
        self.embed, self.norm = nn.Linear(6, 8), nn.LayerNorm(8)
        self.attn, self.inner, self.head = Attention(attend), inner(nn.Linear(8, 8)), nn.Linear(8, 3)

    def forward(self, x_BLD: Tensor) -> Tensor:
        x_BLD = self.embed(x_BLD)
        x_BLD = x_BLD + self.attn(self.norm(x_BLD))
        return self.head((x_BLD + self.inner(x_BLD)).mean(1))


def record(
    out: Path,
    made: Callable[[], nn.Module] = Model,
    *,
    loss_of: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy,
    scaler: torch.amp.GradScaler | None = None,
    unscaled: bool = True,
    clip: float | None = None,
    compiled: bool = False,
    dtype: torch.dtype = torch.float32,
    prepared: Callable[[Tensor], Tensor] = lambda x_BLD: x_BLD,
    left_out: str = "",
) -> Path:
    torch.manual_seed(0)
    model = torch.compile(made().to(dtype), backend="eager") if compiled else made()
    optimizer = torch.optim.AdamW([each for name, each in model.named_parameters() if name != left_out], lr=1e-3)
    watch = trueline.watch(model, optimizer, out=out, plan={"preset": "modules"})
    draw = torch.Generator().manual_seed(1)
    for _ in range(2):
        x_BLD, y_B = torch.randn(4, 5, 6, generator=draw), torch.randint(3, (4,), generator=draw)
        x_BLD = prepared(x_BLD.to(dtype))
        with watch.step():
            loss = loss_of(model(x_BLD), y_B)
            (loss if scaler is None else scaler.scale(loss)).backward()
            if scaler is not None and unscaled:
                scaler.unscale_(optimizer)
            if clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step() if scaler is None else scaler.step(optimizer)
            if scaler is not None:
                scaler.update()
            optimizer.zero_grad()
    watch.close()
    return out


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("modules") / "reference")


def leading(run: Path, reference: Path) -> Finding:
    found = compare(run, reference)
    assert found.exit_code == 1
    return found.findings[0]


@pytest.mark.parametrize(
    "different",
    [
        {"made": lambda: Model(F.scaled_dot_product_attention)},
        {"made": lambda: Model(lambda q, k, v: attended(q.double(), k.double(), v.double()).float())},
        {"loss_of": lambda logits, y: -logits.log_softmax(-1).gather(-1, y[:, None]).mean()},
    ],
)
def test_another_way_to_compute_the_same_is_rounding(reference: Path, tmp_path: Path, different: Any) -> None:
    found = compare(record(tmp_path / "run", **different), reference)
    assert found.exit_code == 0, found.findings


@pytest.mark.parametrize("attend", [sharper, in_bfloat16])
def test_wrong_code_is_found_in_its_module(reference: Path, tmp_path: Path, attend: Callable[..., Tensor]) -> None:
    finding = leading(record(tmp_path / "run", lambda: Model(attend)), reference)
    assert (finding.code, finding.sites) == (
        "first-divergence",
        ("0.0/r0/fwd/attn#0:out0", "0.0/r0/fwd/attn.out#0:in0"),
    )
    assert "made by code of attn, which was not recorded, at 0.0/r0/fwd/attn.out#0:in0" in finding.claim
    assert 'preset = "mix", names = ["attn*"]' in finding.next[0]


@pytest.mark.parametrize("attend", [keys_detached, halved_gradient])
def test_a_wrong_backward_of_code_is_found_in_its_module(
    reference: Path, tmp_path: Path, attend: Callable[..., Tensor]
) -> None:
    finding = leading(record(tmp_path / "run", lambda: Model(attend)), reference)
    assert finding.sites == ("0.0/r0/bwd/attn#0:out0", "0.0/r0/bwd/attn.qkv#0:out0")


def test_a_wrong_loss_is_found_after_the_model(reference: Path, tmp_path: Path) -> None:
    finding = leading(record(tmp_path / "run", loss_of=lambda x, y: F.cross_entropy(x, y) / 1.1), reference)
    assert finding.sites[0] == "0.0/r0/fwd/Model#0:out0"
    assert "code outside of the model" in finding.claim


class Turned(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return -gradients[0]


class TurnedBack(nn.Sequential):
    def forward(self, x_BLD: Tensor) -> Tensor:
        return Turned.apply(super().forward(x_BLD))


class OwnTanh(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.tanh()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] * 0.9


class Scaled(nn.Sequential):
    """A factor of its own, of which a part of the gradient may be cut off."""

    def __init__(self, linear: nn.Module, kept: float = 1.0) -> None:
        super().__init__(linear)
        self.factor, self.kept = nn.Parameter(torch.ones(8)), kept

    def forward(self, x_BLD: Tensor) -> Tensor:
        factor = self.kept * self.factor + (1 - self.kept) * self.factor.detach()
        return super().forward(x_BLD) * factor


@pytest.mark.parametrize("turned", [nn.Sequential, TurnedBack])
def test_code_behind_what_a_module_returns_is_its_own(
    reference: Path, tmp_path: Path, turned: Callable[[nn.Module], nn.Module]
) -> None:
    found = compare(record(tmp_path / "run", lambda: Model(inner=turned)), reference)
    named = [each.sites[0] for each in found.findings if each.severity == "error"]
    assert named == ([] if turned is nn.Sequential else ["0.0/r0/bwd/inner#0:out0"])


def test_a_gradient_that_only_one_module_makes_is_named_there(tmp_path: Path) -> None:
    def with_tanh(tanh: Callable[[Tensor], Tensor]) -> Callable[[], nn.Module]:
        def made() -> nn.Module:
            act = nn.Tanh()
            act.forward = tanh  # type: ignore[method-assign]
            return Model(inner=lambda linear: nn.Sequential(linear, act))

        return made

    finding = leading(
        record(tmp_path / "run", with_tanh(OwnTanh.apply)), record(tmp_path / "ref", with_tanh(torch.tanh))
    )
    assert finding.sites == ("0.0/r0/bwd/inner.1#0:in0",)
    assert "its backward computation differs, or a hook on this tensor changes it" in finding.claim


def test_a_gradient_that_a_hook_leaves_as_zeros_is_of_the_module_that_returned_it(tmp_path: Path) -> None:
    def made(zeroed: bool) -> nn.Module:
        first, act = nn.Linear(8, 8), nn.Tanh()
        if zeroed:
            first.register_forward_hook(lambda module, args, output: output.register_hook(torch.zeros_like) and None)
        return Model(inner=lambda linear: nn.Sequential(linear, first, act))

    finding = leading(record(tmp_path / "run", lambda: made(True)), record(tmp_path / "ref", lambda: made(False)))
    assert finding.sites[0] == "0.0/r0/bwd/inner.1#0:out0"


def test_code_that_uses_a_parameter_is_named_by_its_gradient(tmp_path: Path) -> None:
    ref = record(tmp_path / "ref", lambda: Model(inner=Scaled))
    finding = leading(record(tmp_path / "run", lambda: Model(inner=lambda each: Scaled(each, 0.5))), ref)
    assert finding.sites == ("0.0/r0/bwd/inner#0:out0", "0.0/r0/bwd/inner.factor#0:grad")
    assert "made by code of inner" in finding.claim


def test_a_parameter_that_only_one_optimizer_has_is_named(reference: Path, tmp_path: Path) -> None:
    finding = leading(record(tmp_path / "run", left_out="inner.0.bias"), reference)
    assert finding.code == "optimizer-differs"
    assert "Only REF updates inner.0.bias." in finding.claim


class Detached(nn.Sequential):
    def forward(self, x_BLD: Tensor) -> Tensor:
        return super().forward(x_BLD).detach() * 1.0


def test_the_module_in_which_gradients_end_is_named(reference: Path, tmp_path: Path) -> None:
    finding = leading(record(tmp_path / "run", lambda: Model(inner=Detached)), reference)
    assert "2 parameters have a gradient only in REF: inner.0.weight and inner.0.bias." in finding.claim
    assert finding.sites == ("0.0/r0/bwd/inner#0:out0",)


def test_a_module_that_only_one_run_calls_is_named(reference: Path, tmp_path: Path) -> None:
    run = record(tmp_path / "run", lambda: Model(inner=lambda linear: nn.Sequential(linear, nn.ReLU())))
    finding = leading(run, reference)
    assert finding.code == "structure-differs"
    assert "only in RUN: module `inner.1`" in finding.claim


@pytest.mark.in_turn
@pytest.mark.parametrize("clip", [None, 0.1])
@pytest.mark.parametrize("unscaled", [True, False])
def test_a_scale_is_no_difference_unless_clipping_alone_undoes_it(
    tmp_path: Path, clip: float | None, unscaled: bool
) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    run = record(tmp_path / "run", scaler=scaler, clip=clip, unscaled=unscaled)
    found = compare(run, record(tmp_path / "ref", clip=clip))
    healthy = unscaled or clip is None  # the scaler unscales in its step where nobody has
    assert found.exit_code == (0 if healthy else 1)
    assert any("1024 times those of the reference" in note for note in found.notes) is healthy


def test_another_norm_to_clip_at_is_a_setting(tmp_path: Path) -> None:
    run, ref = record(tmp_path / "run", clip=0.1), record(tmp_path / "ref", clip=0.2)
    finding = leading(run, ref)
    assert finding.code == "optimizer-differs"
    assert "max_norm of clip_grad_norm_ is 0.1 and not 0.2" in finding.claim
    high, higher = record(tmp_path / "high", clip=1e3), record(tmp_path / "higher", clip=1e4)
    assert compare(high, higher).exit_code == 0  # neither clips


@pytest.mark.parametrize(("lost", "exit_code"), [(20.0, 0), (3000.0, 1)])
def test_what_is_lost_in_another_dtype_before_the_model_is_no_other_input(
    tmp_path: Path, lost: float, exit_code: int
) -> None:
    def of(dtype: torch.dtype) -> Path:
        def prepared(x_BLD: Tensor) -> Tensor:
            return x_BLD.to(dtype).add(lost).sub(lost)

        return record(tmp_path / str(dtype), lambda: Model().to(dtype), prepared=prepared)

    assert compare(of(torch.bfloat16), of(torch.float32)).exit_code == exit_code


def test_gradients_of_a_compiled_model_are_rounding_or_its_code(tmp_path: Path) -> None:
    ref = record(tmp_path / "ref", compiled=True)
    healthy = record(tmp_path / "healthy", lambda: Model(F.scaled_dot_product_attention), compiled=True)
    assert compare(healthy, ref).exit_code == 0
    finding = leading(record(tmp_path / "wrong", lambda: Model(keys_detached), compiled=True), ref)
    assert finding.sites[0] == "0.0/r0/bwd/Model#0:out0"
    assert "made by code of Model, which was not recorded, at 0.0/r0/bwd/" in finding.claim


def test_what_a_compiled_model_draws_in_another_dtype_cannot_be_judged(tmp_path: Path) -> None:
    def noisy() -> nn.Module:
        return Model(lambda q, k, v: attended(q, k, v) + torch.randn_like(v))

    ref = record(tmp_path / "ref", noisy, compiled=True)
    assert compare(record(tmp_path / "run", noisy, compiled=True, dtype=torch.float64), ref).exit_code == 3
