"""Two ways to compute the same raise no alarm, and a fault in the same place does: small pairs of real trainings.

Letters: B batch, L positions, D width.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import trueline
from trueline.comparison.compare import compare
from trueline.comparison.match.names import NameMap
from trueline.comparison.result import Comparison

LossOf = Callable[[Tensor], Tensor]


def record(
    out: Path,
    made: Callable[[], nn.Module],
    *,
    dtype: torch.dtype = torch.float32,
    loss_of: LossOf = lambda y: y.square().mean(),
    begin: Callable[[nn.Module, Tensor], Any] = lambda model, x: None,
    clip: float = 0.0,
    around: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
    prepare: Callable[[torch.optim.Optimizer], Any] = lambda optimizer: None,
    steps: int = 2,
) -> Path:
    """Some steps of AdamW on one batch: one where a fault is to be found, two where nothing is."""
    torch.manual_seed(0)
    model, x_BLD = made().to(dtype), torch.randn(3, 4, 8, generator=torch.Generator().manual_seed(1)).to(dtype)
    torch.manual_seed(2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    prepare(optimizer)
    watch = trueline.watch(model, optimizer, out=out, plan={"preset": "mix", "depth": "stats", "stacks": True})
    for _ in range(steps):
        with watch.step(), around():
            begin(model, x_BLD)
            loss_of(model(x_BLD).float()).backward()
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            optimizer.zero_grad()
    watch.close()
    return out


def compared(tmp_path: Path, run_setup: Any, ref_setup: Any, *, names: str = "", **settings: Any) -> Comparison:
    """``run_setup`` and ``ref_setup`` make a model, or are what ``record`` takes."""
    sides = [each if isinstance(each, dict) else {"made": each} for each in (run_setup, ref_setup)]
    run, ref = (record(tmp_path / name, **side, **settings) for name, side in zip(("run", "ref"), sides, strict=True))
    return compare(run, ref, names=NameMap.load(names) if names else None)


class Residual(nn.Module):
    """x + f(x) with a part in ``middle``."""

    def __init__(self, middle: Callable[[Tensor], Tensor] = lambda x: x) -> None:
        super().__init__()
        self.first, self.last, self.middle = nn.Linear(8, 8), nn.Linear(8, 8), middle

    def forward(self, x_BLD: Tensor) -> Tensor:
        x_BLD = self.first(x_BLD)
        return x_BLD + self.last(self.middle(x_BLD))


def with_part(middle: Callable[[Tensor], Tensor]) -> Callable[[], nn.Module]:
    return lambda: Residual(middle)


# Precision


def normalised(x: Tensor) -> Tensor:
    wide = x.float()  # x itself where it is float32: its gradient has the residual's too
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5)).to(x.dtype)


def test_a_cast_that_casts_in_one_run_only_is_no_fault(tmp_path: Path) -> None:
    made = with_part(normalised)
    comparison = compared(tmp_path, {"made": made, "dtype": torch.float64}, made)
    assert (comparison.exit_code, comparison.findings[0].code) == (0, "explained-by-rounding")


def noisy(x: Tensor) -> Tensor:
    return x + torch.randn_like(x)


def test_random_numbers_of_another_dtype_are_no_fault_and_hide_what_follows(tmp_path: Path) -> None:
    comparison = compared(tmp_path, {"made": with_part(noisy), "dtype": torch.float64}, with_part(noisy))
    assert comparison.exit_code == 3
    assert any("randn_like#0:out0 draws random numbers in float64" in note for note in comparison.notes)
    assert "explained-by-rounding" not in [finding.code for finding in comparison.findings]


def test_other_random_numbers_of_one_dtype_are_a_finding(tmp_path: Path) -> None:
    def late(model: nn.Module, x: Tensor) -> None:
        torch.rand(1)

    comparison = compared(tmp_path, {"made": with_part(noisy), "begin": late}, with_part(noisy), steps=1)
    assert (comparison.exit_code, comparison.findings[0].code) == (1, "first-divergence")
    assert "draws random numbers" in comparison.findings[0].claim


class Halved(torch.autograd.Function):
    """The same forwards, half the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] / 2


def test_half_a_gradient_is_found_where_rounding_hides_it_in_those_of_parameters(tmp_path: Path) -> None:
    run = with_part(lambda x: x + 0.01 * Halved.apply(x.sin()))
    comparison = compared(tmp_path, run, with_part(lambda x: x + 0.01 * x.sin()), dtype=torch.bfloat16, steps=1)
    assert comparison.exit_code == 1
    assert "only in RUN: `view_as`" in comparison.findings[0].claim


def test_a_call_that_draws_in_one_run_only_is_named(tmp_path: Path) -> None:
    def draws_more(x: Tensor) -> Tensor:
        return noisy(x + 0 * torch.rand(()))

    finding = compared(tmp_path, with_part(draws_more), with_part(noisy), steps=1).findings[0]
    assert "the two runs draw different ones: before it, only RUN draws with `rand` (" in finding.claim
    assert finding.next[0].startswith("Draw as often in both runs")


class Own(torch.autograd.Function):
    """tanh by exponentials, with its own backward: ``power`` is 2 where it is right."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, power: float) -> Tensor:
        y = 1 - 2 / ((2 * x).exp() + 1)
        ctx.save_for_backward(y)
        ctx.power = power
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (y,) = ctx.saved_tensors
        return gradients[0] * (1 - y.abs() ** ctx.power), None


@pytest.mark.in_turn
@pytest.mark.parametrize("blocks", [1, 3])
@pytest.mark.parametrize(("power", "exit_code"), [(2.0, 0), (2.2, 1)])
def test_a_wrong_backward_of_calls_that_one_run_makes_is_found(
    tmp_path: Path, blocks: int, power: float, exit_code: int
) -> None:
    """Gradients of parameters are a few percent off. Clipping after several blocks leaves none that rounding, with what
    one run alone calls, would not explain.
    """

    def made(middle: Callable[[Tensor], Tensor]) -> Callable[[], nn.Module]:
        return lambda: nn.Sequential(*(with_part(middle)() for _ in range(blocks)))

    comparison = compared(
        tmp_path, made(lambda x: Own.apply(x, power)), made(torch.tanh), clip=1e-2, steps=2 - exit_code
    )
    assert comparison.exit_code == exit_code
    if exit_code:
        assert "only in RUN: `mul`" in comparison.findings[0].claim
        assert "What the model returns agrees, and gradients before these calls do not" in comparison.findings[0].claim


class Squared(torch.autograd.Function):
    """tanh of squares, with a backward that takes x where the right one takes y."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, right: bool) -> Tensor:
        y = (x * x).tanh()
        ctx.save_for_backward(x, y if right else x)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        x, y = ctx.saved_tensors
        return gradients[0] * (1 - y.square()) * 2 * x, None


@pytest.mark.parametrize("right", [True, False])
def test_the_code_that_has_a_backward_of_its_own_is_named(tmp_path: Path, right: bool) -> None:
    """Both runs call the same there, but for a clone, and one has no gradients inside."""
    run, ref = with_part(lambda x: Squared.apply(x, right)), with_part(lambda x: (x.clone() * x).tanh())
    comparison = compared(tmp_path, run, ref, steps=2 if right else 1)
    assert comparison.exit_code == (0 if right else 1)
    if not right:
        assert "only in REF: `clone`" in comparison.findings[0].claim
        assert "Squared.forward have no gradients of their own: an autograd function" in comparison.findings[0].claim


SIZES = torch.tensor([0.05, 1.0]).repeat_interleave(torch.tensor([16, 8]))
"""Small queries and keys, as at the beginning of a training: attention is even, and hardly shows its scale."""


class Attention(nn.Module):
    """One head, by products or by a fused kernel, that may forget the scale."""

    def __init__(self, *, fused: bool = False, scale: float = 8**-0.5) -> None:
        super().__init__()
        self.qkv, self.out, self.fused, self.scale = nn.Linear(8, 24), nn.Linear(8, 8), fused, scale

    def forward(self, x_BLD: Tensor) -> Tensor:
        q, k, v = (self.qkv(x_BLD) * SIZES).to(x_BLD.dtype).unsqueeze(1).chunk(3, -1)
        if self.fused:
            mixed = functional.scaled_dot_product_attention(q, k, v, scale=self.scale)
        else:
            mixed = (self.scale * q @ k.transpose(-1, -2)).float().softmax(-1).to(v.dtype) @ v
        return x_BLD + self.out(mixed.squeeze(1))


@pytest.mark.parametrize(("scale", "exit_code"), [(8**-0.5, (0, 3)), (1.0, (1,))])
def test_gradients_that_are_multiples_are_found_where_rounding_may_explain_as_much(
    tmp_path: Path, scale: float, exit_code: tuple[int, ...]
) -> None:
    fused = {"made": lambda: nn.Sequential(*(Attention(fused=True, scale=scale) for _ in range(3)))}
    comparison = compared(
        tmp_path, fused, lambda: nn.Sequential(*(Attention() for _ in range(3))), dtype=torch.bfloat16
    )
    assert comparison.exit_code in exit_code
    if comparison.exit_code == 1:  # the gradients behind those that are blamed are no rounding either
        [behind] = [row.judgement for row in comparison.rows if row.site == "0.0/r0/bwd/0.qkv.weight#0:grad"]
        assert behind == "propagated"


class Gated(nn.Module):
    """x times a gate made of its mean over positions, which one run detaches."""

    def __init__(self, detached: bool) -> None:
        super().__init__()
        self.first, self.gate, self.detached = nn.Linear(8, 8), nn.Linear(8, 8), detached

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        mean = x.mean(1, keepdim=True)
        return x * (1 + 0.1 * self.gate(mean.detach() if self.detached else mean))


def test_a_detach_is_found_where_16_bits_may_explain_what_it_leaves(tmp_path: Path) -> None:
    comparison = compared(tmp_path, lambda: Gated(True), lambda: Gated(False), dtype=torch.bfloat16, steps=1)
    assert comparison.exit_code == 1
    assert "only in RUN: `detach`" in comparison.findings[0].claim


def shifted(x: Tensor, *, detached: bool) -> Tensor:
    """Softmax without overflow: the gradient of what is subtracted is 0 but for rounding."""
    most = x.amax(-1, keepdim=True)
    weights = (x - (most.detach() if detached else most)).exp()
    return weights / weights.sum(-1, keepdim=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_detach_of_what_has_no_gradient_but_rounding_is_silent(tmp_path: Path, dtype: torch.dtype) -> None:
    run, ref = (with_part(lambda x, detached=detached: shifted(x, detached=detached)) for detached in (True, False))
    assert compared(tmp_path, run, ref, dtype=dtype).exit_code == 0


# Order


class Experts(nn.Module):
    """One expert for each row, by the largest number; the rows of each expert at a time, in some ``order``."""

    def __init__(self, order: tuple[int, ...] = (0, 1, 2)) -> None:
        super().__init__()
        self.experts, self.order = nn.ModuleList(nn.Linear(8, 8) for _ in range(3)), order

    def forward(self, x_BLD: Tensor) -> Tensor:
        x_ND = x_BLD.flatten(0, 1)
        chosen_N = x_ND[:, :3].argmax(-1)
        out_ND = torch.zeros_like(x_ND)
        for index, expert in zip(self.order, (self.experts[each] for each in self.order), strict=True):
            rows = torch.where(chosen_N == index)[0]
            out_ND = out_ND.index_add(0, rows, expert(x_ND[rows]))
        return out_ND


def test_experts_in_another_order_are_no_fault(tmp_path: Path) -> None:
    comparison = compared(tmp_path, lambda: Experts((2, 0, 1)), Experts)
    assert (comparison.exit_code, [finding.code for finding in comparison.findings if finding.is_grave]) == (
        0,
        [],
    )


class Swapped(Experts):
    """Two experts that answer for each other."""

    def __init__(self) -> None:
        super().__init__()
        self.experts[0], self.experts[1] = self.experts[1], self.experts[0]


def test_an_expert_that_answers_for_another_is_a_finding(tmp_path: Path) -> None:
    assert compared(tmp_path, Swapped, Experts, steps=1).exit_code == 1


@pytest.mark.parametrize(("turned", "exit_code"), [(True, 0), (False, 1)])
def test_addends_in_another_order_are_no_fault_unless_their_places_stay(
    tmp_path: Path, turned: bool, exit_code: int
) -> None:
    place_N = torch.tensor([0, 1, 1, 2, 0, 2, 1, 0, 2, 1, 2, 0])

    def added(place_N: Tensor, x_BLD: Tensor) -> Tensor:
        x_ND = x_BLD.flatten(0, 1)
        return x_ND.new_zeros(3, 8).index_add(0, place_N, x_ND)[:, None].expand_as(x_BLD)

    def backwards(x_BLD: Tensor) -> Tensor:
        return added(place_N.flip(0) if turned else place_N, x_BLD.flatten(0, 1).flip(0).view_as(x_BLD))

    comparison = compared(tmp_path, with_part(backwards), with_part(lambda x: added(place_N, x)), steps=2 - exit_code)
    assert comparison.exit_code == exit_code


class Turned(nn.Module):
    """A decision at a number that is 0 where a sum is taken at once, and more than 0 where it is taken in halves."""

    def __init__(self, decide: Callable[[Tensor], Tensor], *, in_halves: bool, scale: float = 1.0) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 512), nn.Linear(512, 8)
        self.decide, self.in_halves, self.scale = decide, in_halves, scale
        x_BLD = torch.randn(3, 4, 8, generator=torch.Generator().manual_seed(1))
        with torch.no_grad():
            at_once, halves = (self.centred(self.first(x_BLD), in_halves=each) for each in (False, True))
        self.at = at_once[halves > at_once][0]

    @staticmethod
    def centred(x: Tensor, *, in_halves: bool) -> Tensor:
        parts = x.unflatten(-1, (2, -1)).sum(-1) if in_halves else x
        return x - 0.37 * parts.sum(-1, keepdim=True)

    def forward(self, x_BLD: Tensor) -> Tensor:
        y = self.decide(self.centred(self.first(x_BLD), in_halves=self.in_halves) - self.at)
        if self.scale != 1.0:
            y.register_hook(lambda gradient: gradient * self.scale)
        return self.last(y)


@pytest.mark.in_turn
@pytest.mark.parametrize("decide", [torch.relu, lambda x: torch.maximum(x, 0 * x)])
@pytest.mark.parametrize(("scale", "exit_code"), [(1.0, 0), (0.8, 1)])
def test_a_decision_that_rounding_turns_for_one_number_is_no_fault(
    tmp_path: Path, decide: Callable[[Tensor], Tensor], scale: float, exit_code: int
) -> None:
    run, ref = (
        lambda halves=halves, factor=factor: Turned(decide, in_halves=halves, scale=factor)
        for halves, factor in ((True, scale), (False, 1.0))
    )
    comparison = compared(tmp_path, run, ref, steps=2 - exit_code)
    assert comparison.exit_code == exit_code
    assert (scale == 1.0) == any(row.note.startswith("a decision that rounding turned") for row in comparison.rows)


# Masks


def masked(lowest: float, diagonal: int = 1) -> Callable[[], nn.Module]:
    def attend(x_BLD: Tensor) -> Tensor:
        scores_BLL = x_BLD @ x_BLD.transpose(1, 2)
        later_LL = torch.ones(4, 4, dtype=torch.bool).triu(diagonal)
        mask_LL = torch.zeros(4, 4, dtype=x_BLD.dtype).masked_fill(later_LL, lowest)
        return (scores_BLL + mask_LL).softmax(-1) @ x_BLD

    return with_part(attend)


LOWEST = torch.finfo(torch.float32).min


@pytest.mark.parametrize("lowest", [-torch.inf, -1e9, -65504.0])
def test_another_number_in_a_mask_is_no_fault(tmp_path: Path, lowest: float) -> None:
    comparison = compared(tmp_path, masked(lowest), masked(LOWEST))
    assert comparison.exit_code == 0
    assert any("masked_fill#0:out0 differs from the reference, and nothing" in note for note in comparison.notes)


@pytest.mark.in_turn
@pytest.mark.parametrize("lowest", [LOWEST, -torch.inf, -1e9, -65504.0, -1e4])
def test_a_mask_off_by_one_is_a_finding_whatever_its_number(tmp_path: Path, lowest: float) -> None:
    comparison = compared(tmp_path, masked(lowest, diagonal=2), masked(lowest), steps=1)
    assert comparison.exit_code == 1
    assert comparison.first is not None
    assert "triu" in str(comparison.first.site)


@pytest.mark.parametrize(("power", "exit_code"), [(torch.exp, 0), (torch.exp2, 1)])
def test_what_is_made_of_scores_beside_a_mask_is_judged(
    tmp_path: Path, power: Callable[[Tensor], Tensor], exit_code: int
) -> None:
    def attend(x_BLD: Tensor, weigh: Callable[[Tensor], Tensor]) -> Tensor:
        later_LL = torch.ones(4, 4, dtype=torch.bool).triu(1)
        return weigh((x_BLD @ x_BLD.transpose(1, 2)).masked_fill(later_LL, -1e30)) @ x_BLD

    def by_hand(scores_BLL: Tensor) -> Tensor:
        powers_BLL = power(scores_BLL - scores_BLL.amax(-1, keepdim=True))
        return powers_BLL / powers_BLL.sum(-1, keepdim=True)

    run, ref = (with_part(lambda x, weigh=weigh: attend(x, weigh)) for weigh in (by_hand, lambda s: s.softmax(-1)))
    comparison = compared(tmp_path, run, ref, steps=2 - exit_code)
    assert comparison.exit_code == exit_code


# Structure


class Merged(nn.Module):
    """q, k and v of one linear."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def parts(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.qkv(x).chunk(3, -1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.view(3, 4, 8) for part in self.parts(x))
        return (q @ k.transpose(1, 2)).softmax(-1) @ v


class Split(Merged):
    """The same of three."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        for name, weight, bias in zip("qkv", self.qkv.weight.chunk(3), self.qkv.bias.chunk(3), strict=True):
            part = nn.Linear(8, 8)
            part.weight.data, part.bias.data = weight.detach().clone(), bias.detach().clone()
            self.add_module(name, part)
        self.k.weight.data *= scale
        del self.qkv

    def parts(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.q(x), self.k(x), self.v(x)


class Around(nn.Module):
    """A model with an attention inside."""

    def __init__(self, attention: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.out = nn.Linear(8, 8)
        self.attn = attention()

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.attn(x))


@pytest.mark.in_turn
@pytest.mark.parametrize("names", ["", "q, k, v = qkv"])
@pytest.mark.parametrize(("scale", "exit_code"), [(1.0, 0), (1.01, 1)])
def test_a_split_linear_is_no_fault_unless_a_part_is_wrong(
    tmp_path: Path, names: str, scale: float, exit_code: int
) -> None:
    run, ref = lambda: Around(lambda: Split(scale)), lambda: Around(Merged)
    comparison = compared(tmp_path, run, ref, names=names, clip=1e-2, steps=2 - exit_code)
    assert comparison.exit_code == exit_code


class Recurrent(nn.Module):
    """A state that begins with zeros and is added to itself by a linear, three times."""

    def __init__(self, in_halves: bool, cap: float = 0.0) -> None:
        super().__init__()
        self.of_state, self.cap = nn.Linear(8, 8), cap
        if in_halves:
            self.of_state.forward = self.add_halves  # type: ignore[method-assign]

    def forward(self, x_BLD: Tensor) -> Tensor:
        state_BD = torch.zeros_like(x_BLD[:, 0])
        for x_BD in x_BLD.unbind(1)[:3]:
            change_BD = self.of_state(state_BD)
            if self.cap:
                change_BD = self.cap * torch.tanh(change_BD / self.cap)
            state_BD = torch.relu(change_BD + x_BD)
        return state_BD

    def add_halves(self, state_BD: Tensor) -> Tensor:
        weight, bias = self.of_state.weight, self.of_state.bias
        first_BD = functional.linear(state_BD[..., :4], weight[:, :4], bias)
        return first_BD + functional.linear(state_BD[..., 4:], weight[:, 4:])


@pytest.mark.parametrize(("run", "exit_code"), [((True,), 0), ((False, 1e6), 1)], ids=["in halves", "capped"])
def test_a_product_in_halves_is_no_fault_where_one_is_of_zeros_and_a_cap_is_one(
    tmp_path: Path, run: tuple[Any, ...], exit_code: int
) -> None:
    """The first state is zero, so that the second half adds nothing to it; a cap of 10^6 changes nothing at all."""
    comparison = compared(tmp_path, lambda: Recurrent(*run), lambda: Recurrent(False), steps=2 - exit_code)
    assert comparison.exit_code == exit_code


def test_an_evaluation_before_the_step_is_no_call_that_the_other_run_lacks(tmp_path: Path) -> None:
    def evaluated(model: nn.Module, x: Tensor) -> None:
        with torch.no_grad():
            model(x)

    comparison = compared(tmp_path, {"made": Residual, "begin": evaluated}, Residual)
    assert comparison.exit_code == 0
    backward = next(each for each in comparison.judged.at_first_step if each.name == "backward")
    assert backward.judged == backward.values_of_ref


@pytest.mark.parametrize(("more", "exit_code"), [(0, 0), (1, 1)])
def test_a_sum_that_is_divided_is_a_mean_unless_by_another_number(tmp_path: Path, more: int, exit_code: int) -> None:
    def summed(y: Tensor) -> Tensor:
        return functional.mse_loss(y, torch.zeros_like(y), reduction="sum") / (y.numel() + more)

    def averaged(y: Tensor) -> Tensor:
        return functional.mse_loss(y, torch.zeros_like(y))

    run, ref = ({"made": Residual, "loss_of": loss_of} for loss_of in (summed, averaged))
    comparison = compared(tmp_path, run, ref, steps=2 - exit_code)
    assert comparison.exit_code == exit_code


# Below the rounding of results


def small(part: Callable[[Tensor], Tensor]) -> Callable[[], nn.Module]:
    """A part of which bfloat16 shows hardly anything in what the model returns."""
    return with_part(lambda x: x + part(x) * 2**-10)


def turned(x: Tensor) -> Tensor:
    return functional.softplus(x).neg()


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("made", "exit_code"),
    [
        (small(torch.exp), 1),
        (small(turned), 1),
        (small(lambda x: turned(x).neg()), 0),
        (with_part(lambda x: functional.softplus(x) * 2**-10 + x), 0),
    ],
    ids=["replaced", "inserted", "undone", "added the other way round"],
)
def test_a_call_that_no_other_undoes_is_a_finding_though_rounding_hides_what_follows(
    tmp_path: Path, made: Callable[[], nn.Module], exit_code: int
) -> None:
    comparison = compared(tmp_path, made, small(functional.softplus), dtype=torch.bfloat16, steps=2 - exit_code)
    assert comparison.exit_code == exit_code
    assert all(finding.code == "structure-differs" for finding in comparison.findings if finding.is_grave)


def crossed(x: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat([second.cos(), first.sigmoid()], -1)


def straight(x: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat([first.cos(), second.sigmoid()], -1)


def added(x: Tensor, order: int) -> Tensor:
    first, second, third = [x.cos(), x.sigmoid(), x.tanh()]
    return (first + second) + third if order else (third + second) + first


@pytest.mark.parametrize(
    ("made", "ref", "exit_code"),
    [(crossed, straight, 1), (lambda x: added(x, 0), lambda x: added(x, 1), 0)],
    ids=["crossed", "addends in another order"],
)
def test_calls_connected_otherwise_are_a_finding_unless_they_only_add_in_another_order(
    tmp_path: Path, made: Callable[[Tensor], Tensor], ref: Callable[[Tensor], Tensor], exit_code: int
) -> None:
    comparison = compared(tmp_path, small(made), small(ref), dtype=torch.bfloat16, steps=2 - exit_code)
    assert comparison.exit_code == exit_code
