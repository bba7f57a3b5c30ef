"""`trueline trial precheck`: the operations of a Run on this device, right and wrong, and laws that do not hold."""

from __future__ import annotations

import json
import shlex

import pytest
import torch
import torch.nn.functional as F
from tests.cli import in_process
from tests.unit.trials.recorded_calls import recorded
from torch.utils._python_dispatch import TorchDispatchMode

import trueline
from trueline.comparison.expect import ops
from trueline.trials.op.precheck import precheck

LAYER = (
    lambda x, w: F.gelu(F.linear(x, w)),
    lambda x, w: torch.softmax(x @ w, -1),
    lambda x, w: F.layer_norm(x @ w, (40,)),
)


class Wrong(TorchDispatchMode):
    """Kernels with ``name`` in theirs return ``change`` of their result, but for float64."""

    def __init__(self, name, change):
        super().__init__()
        self.name, self.change = name, change

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        if self.name in str(func) and isinstance(made, torch.Tensor) and made.dtype != torch.float64:
            return self.change(made, *args)
        return made


def of(found, outcome):
    return {each.api.rpartition(".")[2] for each in found.operations if each.outcome == outcome}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_right_operations_are_within_rounding(tmp_path, dtype):
    run = recorded(tmp_path / "run", *LAYER, dtype=dtype)
    found = precheck(trueline.open_run(run), device="cpu")
    assert (found.answer.answer, found.findings) == ("excluded", ())
    assert of(found, "within") >= {"linear", "gelu", "softmax", "layer_norm", "add_"}
    assert of(found, "beyond") == of(found, "cannot tell") == set()


def test_gradients_that_cancel_within_attention_are_no_alarm(tmp_path):
    """Fused kernels round what no other form shows: an error of 11 times what is seen was measured."""
    heads = lambda x, w: [(x @ w).view(1, 24, 4, 10).transpose(1, 2)] * 3  # noqa: E731
    run = recorded(tmp_path / "run", lambda x, w: F.scaled_dot_product_attention(*heads(x, w)))
    found = precheck(trueline.open_run(run), device="cpu")
    assert (of(found, "beyond"), found.findings) == (set(), ())
    assert "scaled_dot_product_attention" in of(found, "within") | of(found, "cannot tell")


def narrow_sums(made, x, w):
    total = torch.zeros(made.shape, dtype=torch.bfloat16)
    for k in range(x.shape[1]):
        total += x[:, k : k + 1].bfloat16() * w[k].bfloat16()
    return total.to(made.dtype)


def last_row_lost(made, *_):
    made[-1] = 0
    return made


FAULTS = [
    ("mm", narrow_sums, "matmul", torch.float32),
    ("mm", last_row_lost, "matmul", torch.bfloat16),
    ("softmax", lambda made, *_: made * 1.001, "softmax", torch.float32),
    ("gelu", lambda made, *_: made.index_fill(0, torch.tensor([3]), float("nan")), "gelu", torch.float32),
]


@pytest.mark.in_turn
@pytest.mark.parametrize(("kernel", "change", "name", "dtype"), FAULTS)
def test_a_wrong_kernel_is_found_and_no_other(tmp_path, kernel, change, name, dtype):
    functions = (lambda x, w: F.gelu(x) * w[0], lambda x, w: torch.softmax(x * w[0], -1), lambda x, w: x @ w)
    run = recorded(tmp_path / "run", *functions, dtype=dtype)
    with Wrong(kernel, change):
        found = precheck(trueline.open_run(run), device="cpu")
    assert found.answer.answer == "confirmed"
    assert of(found, "beyond") == {name}
    assert [(each.code, each.severity) for each in found.findings] == [("op-inaccurate", "error")]


def test_fused_sgd_of_torch_2_13_is_found(tmp_path):
    if not torch.__version__.startswith("2.13.0"):
        pytest.skip("the kernel of torch 2.13.0 is at fault")
    run = recorded(tmp_path / "run", LAYER[0], dtype=torch.bfloat16, fused=True, momentum=0.9)
    found = precheck(trueline.open_run(run), device="cpu")
    assert of(found, "beyond") == {"fused_sgd_"}


def test_a_law_that_is_wrong_for_an_operation_is_no_alarm(tmp_path, monkeypatch):
    run = recorded(tmp_path / "run", *LAYER)
    monkeypatch.setitem(ops.LAWS, "softmax", ops.OpLaw((0.0, 0.0)))
    monkeypatch.setattr("trueline.trials.op.law.op_rounding_rel", lambda kind, *a: 1e-12 if kind == "softmax" else 1.0)
    found = precheck(trueline.open_run(run), device="cpu")
    assert (of(found, "cannot tell"), of(found, "beyond"), found.findings) == ({"softmax"}, set(), ())
    assert found.answer.answer == "excluded"


def test_an_operation_that_returns_other_bits_each_time_is_named_and_no_error(tmp_path):
    run = recorded(tmp_path / "run", *LAYER)

    def last_bit(made, *_):
        return torch.where(torch.rand(made.shape) < 0.5, made, made * (1 + 2**-23))

    calls = iter(range(100))
    with Wrong("gelu", lambda made, *_: torch.nextafter(made, made + 1) if next(calls) % 3 == 1 else made):
        found = precheck(trueline.open_run(run), device="cpu")
    assert [(each.code, each.severity) for each in found.findings] == [("nondeterministic-op", "info")]
    with Wrong("gelu", last_bit):
        drawn = precheck(trueline.open_run(run), device="cpu")
    assert "gelu" in of(drawn, "not judged")


def test_what_cannot_be_judged_is_named_with_its_reason(tmp_path):
    run = recorded(tmp_path / "run", lambda x, w: F.dropout(x.t().reshape(24, 40), 0.5) + w[:24])
    found = precheck(trueline.open_run(run), device="cpu")
    why = {each.api.rpartition(".")[2]: each.why for each in found.operations if each.outcome == "not judged"}
    assert why["dropout"] == "it draws random numbers"
    assert why["t"] == why["__getitem__"] == "it returns a view of its input, and computes nothing"


def test_results_of_another_machine_are_written_and_read(tmp_path, monkeypatch, capsys):
    run = recorded(tmp_path / "run", *LAYER)
    words = ("trial", "precheck", run, "--device", "cpu", "--with", tmp_path / "results.json", "--json")
    with Wrong("gelu", lambda made, *_: made * 1.01):
        first = json.loads(in_process.trueline(monkeypatch, capsys, *words)[1])
        assert (first["answer"], first["counts"]["beyond"]) == ("confirmed", 1)
        code, out, _ = in_process.trueline(monkeypatch, capsys, *words)
    assert (code, json.loads(out)["answer"], json.loads(out)["counts"]["cannot tell"]) == (0, "excluded", 1)


def test_bad_input_is_one_sentence(tmp_path, monkeypatch, capsys):
    run = recorded(tmp_path / "run", *LAYER[:1])
    (tmp_path / "bad.json").write_text("[]")
    for words in ((run, "--with", tmp_path / "bad.json"), (run, "--device", "moon"), ("gone",)):
        code, _, err = in_process.trueline(monkeypatch, capsys, "trial", "precheck", *words)
        assert (code, err.count("\n")) == (2, 1), words
    code, _, err = in_process.trueline(monkeypatch, capsys, "trial", "precheck", run, "--step", 7)
    assert (code, "No operation was recorded" in err) == (3, True)


@pytest.fixture(scope="module")
def own_operator():
    """A sum over rows of one's own, twice what it should be in every dtype."""

    def doubled(x: torch.Tensor) -> torch.Tensor:
        return 2 * x.cumsum(0)

    made = torch.library.custom_op("trueline_test::doubled", doubled, mutates_args=())
    made.register_autograd(lambda ctx, gradient: 2 * gradient.flip(0).cumsum(0).flip(0))
    return made


def test_an_operator_of_ones_own_that_torch_has_no_other_form_of_cannot_be_told(
    tmp_path, monkeypatch, capsys, own_operator
):
    run = recorded(tmp_path / "run", lambda x, w: own_operator(x @ w), *LAYER[1:])
    code, out, _ = in_process.trueline(monkeypatch, capsys, "trial", "precheck", run, "--device", "cpu", "--json")
    found = json.loads(out)
    (own,) = [each for each in found["operations"] if "doubled" in each["api"]]
    assert (code, found["answer"], own["outcome"]) == (3, "undecided", "cannot tell")
    assert {each["lacks"] for each in own["outputs"].values()} == {"truth"}
    (told,) = [each for each in found["says"] if each.startswith("cannot tell: ") and "doubled" in each]
    assert "nothing independent says what is right" in told
    assert "softmax" in {each["api"].rpartition(".")[2] for each in found["operations"] if each["outcome"] == "within"}


def test_an_operator_of_ones_own_that_is_off_in_one_dtype_is_inaccurate(tmp_path, own_operator):
    run = recorded(tmp_path / "run", lambda x, w: own_operator(x @ w))
    with Wrong("doubled", lambda made, *_: made * 1.01):
        found = precheck(trueline.open_run(run), device="cpu")
    assert any("doubled" in each.api and each.outcome == "beyond" for each in found.operations)


ROWS = 4096


def normed(x, w):
    return F.layer_norm(x * w[0], (8,), w[1], w[2])


@pytest.mark.parametrize(
    ("dtype", "depth", "answer"),
    [(torch.bfloat16, "stats", "undecided"), (torch.float32, "stats", "excluded")],
    ids=["16 bits, drawn", "32 bits, drawn"],
)
def test_sums_of_many_rows_in_16_bits_are_not_excluded_by_rows_that_are_drawn(tmp_path, dtype, depth, answer):
    """On a CPU torch 2.13 adds up the gradients of a LayerNorm's weight in bfloat16."""
    run = recorded(tmp_path / "run", normed, rows=ROWS, width=8, dtype=dtype, depth=depth)
    found = precheck(trueline.open_run(run), device="cpu")
    assert found.answer.answer == answer
    if answer == "undecided":
        assert "layer_norm" in of(found, "cannot tell")
        assert any("where their rows repeat" in each for each in found.answer.says)
        assert any('depth = "tensor"' in each for each in found.answer.next)


def test_the_next_command_proves_the_call_as_it_is_printed(tmp_path, monkeypatch, capsys):
    """With the Run's own path, the site and the module that defines operations."""
    (tmp_path / "own_operations.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    run = recorded(tmp_path / "my run", *LAYER)
    words = ("trial", "precheck", run, "--device", "cpu", "--import", "own_operations", "--json")
    with Wrong("gelu", lambda made, *_: made * 1.01):
        found = json.loads(in_process.trueline(monkeypatch, capsys, *words)[1])
        commands = [
            line.partition("`")[2].partition("`")[0] for line in (*found["next"], *found["findings"][0]["next"])
        ]
        assert commands == [commands[0]] * 2
        assert shlex.split(commands[0])[-2:] == ["--import", "own_operations"]
        code, out, _ = in_process.trueline(monkeypatch, capsys, *shlex.split(commands[0])[1:], "--json")
    assert (code, json.loads(out)["answer"]) == (0, "confirmed")
