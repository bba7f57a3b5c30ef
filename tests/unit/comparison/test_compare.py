"""Which call is blamed for a planted difference between two recorded runs, and what is left alone."""

from __future__ import annotations

import contextlib
import gc
import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch
from gallery.changed_kernel import ChangedKernel
from gallery.problems import CausalLM
from gallery.reference_training import in_halves
from tests.following import copy_of
from torch import nn

import trueline
from trueline.comparison.compare import compare
from trueline.comparison.result import Comparison
from trueline.schema.errors import RunError

STEPS = 2
UP = "blocks.1.mlp.0"

Change = Callable[[nn.Module], object]


def record(
    out: Path,
    *,
    change: Change = lambda model: None,
    inside: AbstractContextManager[Any] | None = None,
    seed: int = 0,
    data_seed: int = 0,
    dtype: torch.dtype = torch.float32,
    depth: str = "fingerprint",
    **settings: Any,
) -> Path:
    """A Run of two recorded steps of a small causal LM on one process."""
    problem = CausalLM()
    model = problem.model(seed=seed)
    change(model)
    model.to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), **{"lr": 1e-3, "foreach": False, **settings})
    batches = torch.utils.data.DataLoader(problem.dataset(16, seed=data_seed), batch_size=8)
    watch = trueline.watch(model, optimizer, out=out, plan={"preset": "mix", "depth": depth, "stacks": True})
    with inside or contextlib.nullcontext():
        for _, batch in zip(range(STEPS), batches, strict=False):
            with watch.step(batch):
                problem.loss(model, batch).backward()
                optimizer.step()
                optimizer.zero_grad()
    watch.close()
    return out


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A Run with the ``fault`` of that name, or none, to read: one training for all tests that ask for it."""
    folder = tmp_path_factory.mktemp("compare")

    def run(fault: str | None = None, depth: str = "fingerprint") -> Path:
        out = folder / f"{fault} {depth}"
        if not out.exists():
            record(out, depth=depth, **(FAULTS[fault][0]() if fault else {}))
        return out

    return run


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("compare") / "reference")


def scaled(factor: float) -> Change:
    def change(model: nn.Module) -> None:
        with torch.no_grad():
            model.get_parameter(f"{UP}.weight").mul_(factor)

    return change


def infinite(model: nn.Module) -> None:
    with torch.no_grad():
        model.get_parameter(f"{UP}.weight")[3, 5] = float("inf")


def tanh(model: nn.Module) -> None:
    model.get_submodule("blocks.1.mlp.1").approximate = "tanh"


def wide_eps(model: nn.Module) -> None:
    model.get_submodule("blocks.1.norm_attn").eps = 1e-2


AGREE = "its inputs and arguments agree{extent}"

FAULTS: dict[str, tuple[Callable[[], dict[str, Any]], str, str]] = {
    "tanh by argument": (lambda: {"change": tanh}, "blocks.1.mlp.1.gelu#0:out0", "arguments do not: approximate"),
    "tanh in the kernel": (
        lambda: {"inside": ChangedKernel("aten.gelu", approximate="tanh")},
        "blocks.1.mlp.1.gelu#0:out0",
        AGREE,
    ),
    "scale of attention in the kernel": (
        lambda: {"inside": ChangedKernel("attention", scale=1.25 / 4)},
        "blocks.1.scaled_dot_product_attention#0:out0",
        AGREE,
    ),
    "weight x 1.001": (lambda: {"change": scaled(1.001)}, f"{UP}.linear#0:out0", f"weight {UP}.weight"),
    "weight x 1.00001": (lambda: {"change": scaled(1.00001)}, f"{UP}.linear#0:out0", f"weight {UP}.weight"),
    "eps of a norm": (lambda: {"change": wide_eps}, "blocks.1.norm_attn.layer_norm#0:out0", "arguments do not"),
    "an infinite weight": (lambda: {"change": infinite}, f"{UP}.linear#0:out0", f"weight {UP}.weight"),
}


def codes(comparison: Comparison, severity: str = "error") -> set[str]:
    return {finding.code for finding in comparison.findings if finding.severity == severity}


def test_a_run_that_is_the_same_has_no_difference(reference: Path, recorded: Callable[..., Path]) -> None:
    comparison = compare(recorded(), reference)
    assert set(comparison.counts) == {"equal"}
    assert (comparison.findings, comparison.first, comparison.exit_code) == ((), None, 0)


STORED = ("tanh by argument", "tanh in the kernel", "weight x 1.00001", "an infinite weight")
"""An argument, a kernel and weights of which values are stored."""


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("name", "depth"), [*((name, "stats") for name in FAULTS), *((name, "tensor") for name in STORED)]
)
def test_the_call_that_computes_otherwise_is_named_first(
    name: str, depth: str, recorded: Callable[..., Path], request: pytest.FixtureRequest
) -> None:
    _, site, why = FAULTS[name]
    comparison = compare(recorded(name, depth), request.getfixturevalue("reference" if depth == "stats" else "tensors"))
    assert comparison.first is not None
    assert comparison.first.site == f"0.0/r0/fwd/{site}"
    assert comparison.exit_code == 1
    divergence = next(finding for finding in comparison.findings if finding.code == "first-divergence")
    assert (divergence.sites, divergence.step_first) == ((comparison.first.site,), 0)
    extent = "" if depth == "tensor" else " as far as statistics show, so probably its computation differs"
    assert why.format(extent=extent) in divergence.claim


@pytest.fixture(scope="module")
def tensors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("compare") / "tensors", depth="tensor")


def test_a_changed_weight_is_told_beside_the_call_that_uses_it(reference: Path, recorded: Callable[..., Path]) -> None:
    comparison = compare(recorded("weight x 1.001"), reference)
    assert codes(comparison) == {"first-divergence", "weight-differs"}
    weights = next(finding for finding in comparison.findings if finding.code == "weight-differs")
    assert weights.evidence["parameters"] == [f"{UP}.weight"]
    assert weights.measured == pytest.approx(1e-3, rel=0.01)


def test_other_data_are_told_and_not_what_follows_from_them(reference: Path, tmp_path: Path) -> None:
    comparison = compare(record(tmp_path / "run", data_seed=1), reference)
    assert codes(comparison) == {"input-differs"}


def test_another_weight_decay_is_told_as_a_setting_or_an_update(reference: Path, tmp_path: Path) -> None:
    comparison = compare(record(tmp_path / "run", weight_decay=0.1), reference)
    assert codes(comparison) == {"optimizer-differs"}


def test_bfloat16_beside_float32_is_explained_by_rounding(reference: Path, tmp_path: Path) -> None:
    comparison = compare(record(tmp_path / "run", dtype=torch.bfloat16), reference)
    assert codes(comparison) == set()
    assert codes(comparison, "info") >= {"explained-by-rounding", "dtype-differs"}
    assert comparison.exit_code == 0


def test_a_fault_is_found_in_bfloat16_beside_float32(reference: Path, tmp_path: Path) -> None:
    run = record(tmp_path / "run", dtype=torch.bfloat16, inside=ChangedKernel("attention", scale=2.0))
    comparison = compare(run, reference)
    assert comparison.first is not None
    assert comparison.first.site == "0.0/r0/fwd/blocks.1.scaled_dot_product_attention#0:out0"


def test_another_reduction_order_is_explained_by_rounding(reference: Path, tmp_path: Path) -> None:
    with torch.backends.mkldnn.flags(enabled=False):
        run = record(tmp_path / "run", change=in_halves)
    comparison = compare(run, reference)
    assert comparison.counts["within"] > 0
    assert codes(comparison) == set()


def test_the_first_difference_between_stored_values_is_described(tensors: Path, recorded: Callable[..., Path]) -> None:
    comparison = compare(recorded("tanh by argument", "tensor"), tensors)
    assert comparison.first is not None
    assert comparison.first.how == "tensor"
    assert {"max_abs", "cosine"} <= set(comparison.first.details or {})


def test_only_the_first_steps_that_differ_and_some_later_ones_are_looked_at(
    reference: Path, recorded: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trueline.comparison.compare.STEPS_IN_DETAIL", 1)
    same = compare(recorded(), reference)
    assert [step.detailed for step in same.steps] == [True, False]
    assert (same.exit_code, len(same.notes)) == (0, 1)
    other = compare(recorded("tanh by argument"), reference)
    assert [step.detailed for step in other.steps] == [True, True]
    chosen = compare(recorded(), reference, steps=[0, 1])
    assert [step.detailed for step in chosen.steps] == [True, True]


def test_fingerprints_of_two_kinds_are_not_held_against_each_other(reference: Path, tmp_path: Path) -> None:
    run = copy_of(reference, tmp_path / "run")
    manifest = run / "manifest.json"
    document = json.loads(manifest.read_text())
    del document["crc32"]
    manifest.write_text(json.dumps({**document, "fingerprint": "msprobe-crc32"}))
    comparison = compare(run, reference)
    assert set(comparison.counts) == {"equal"}
    assert {row.how for row in comparison.rows} == {"statistics"}


@pytest.mark.parametrize("divided", [True, False], ids=["divided", "not divided"])
def test_losses_divided_by_the_number_of_micro_batches_are_one_loss(divided: bool, tmp_path: Path) -> None:
    one = record_accumulating(tmp_path / "one", 1, divided=True)
    comparison = compare(record_accumulating(tmp_path / "four", 4, divided=divided), one)
    assert codes(comparison) == (set() if divided else {"first-divergence"})


def record_accumulating(out: Path, num_micro: int, *, divided: bool) -> Path:
    """A Run of one step of the same 16 samples in some micro-batches, each loss divided by their number."""
    problem = CausalLM()
    model = problem.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    columns = {name: column.chunk(num_micro) for name, column in problem.dataset(16).columns.items()}
    batches = [{name: parts[micro] for name, parts in columns.items()} for micro in range(num_micro)]
    watch = trueline.watch(model, optimizer, out=out, plan={"preset": "mix"})
    with watch.step(batches):
        for batch in batches:
            (problem.loss(model, batch) / (num_micro if divided else 1)).backward()
        optimizer.step()
    watch.close()
    return out


def test_an_argument_whose_effect_rounding_hides_is_told(reference: Path, tmp_path: Path) -> None:
    comparison = compare(record(tmp_path / "run", dtype=torch.bfloat16, change=wide_eps), reference)
    told = next(finding for finding in comparison.findings if finding.code == "structure-differs")
    assert (told.severity, comparison.exit_code) == ("info", 0)
    assert "eps is 0.01 and not 1e-05" in told.claim
    assert "blocks.1.norm_attn.layer_norm#0" in told.claim


def test_garbage_collection_is_as_before_after_a_comparison(reference: Path, tmp_path: Path) -> None:
    assert gc.isenabled()
    compare(reference, reference)
    assert gc.isenabled()
    with pytest.raises(RunError):
        compare(reference, tmp_path / "gone")
    assert gc.isenabled()


@pytest.mark.parametrize("threads", [False, True], ids=["another kernel", "another order of a sum"])
def test_a_chosen_step_has_the_verdict_of_all_steps(reference: Path, tmp_path: Path, *, threads: bool) -> None:
    """What an update before left of parameters is no difference before any update, whether its step is asked for."""
    change = in_halves if threads else (lambda model: model.double().float())
    inside = None if threads else torch.backends.mkldnn.flags(enabled=False)
    run = record(tmp_path / "run", change=change, inside=inside)
    whole, last = compare(run, reference), compare(run, reference, steps=[1])
    assert (whole.exit_code, last.exit_code) == (0, 0)
    assert {row.step for row in last.rows} == {each.step for each in last.steps} == {1}
    assert [row for row in whole.rows if row.step == 1] == list(last.rows)


def test_a_fault_that_begins_before_the_chosen_step_is_told_with_its_step(
    reference: Path, recorded: Callable[..., Path]
) -> None:
    found = compare(recorded("tanh by argument"), reference, steps=[1])
    assert (found.exit_code, found.findings[0].step_first) == (1, 0)
    assert "The difference begins at step 0, before the steps that were chosen." in found.notes
