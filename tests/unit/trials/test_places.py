"""The places that `trueline trial op` and `precheck` take: the forms in which `trueline compare` prints one."""

from __future__ import annotations

import inspect
import json
import shlex

import pytest
import torch
from tests.cli import in_process
from torch import nn
from torch.nn import functional as F

import trueline
from trueline.judge.recorded.operations import operations_of
from trueline.judge.recorded.step_values import StepValues, Value
from trueline.schema.errors import InputError
from trueline.schema.site import Site
from trueline.trials.op.places import calls_at


class Tokens(nn.Module):
    """An embedding whose weight is used twice, and a normalisation that is called twice."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        self.embed = nn.Embedding(12, 8, dtype=dtype)
        self.norm = nn.LayerNorm(8, dtype=dtype)

    def forward(self, ids):
        x = self.norm(self.norm(self.embed(ids)).tanh())
        return F.linear(x, self.embed.weight).float().square().mean()


LINE_NUMBER = inspect.getsourcelines(Tokens.forward)[1] + 1


def recorded(out, dtype=torch.float32, *, rows=6, depth="tensor"):
    """The path of a Run of one step, in two micro-batches."""
    torch.manual_seed(0)
    model = Tokens(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ids = torch.full((rows, 128), 5)
    ids[:, ::4] = torch.arange(32) % 12
    with trueline.watch(model, optimizer, out=out, plan={"preset": "mix", "steps": [0, 1], "depth": depth}):
        for _ in range(2):
            model(ids).backward()
        optimizer.step()
    return out


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return recorded(tmp_path_factory.mktemp("places") / "run")


EMBEDDING, LINEAR = "0.0/r0/fwd/embed.embedding#0", "0.0/r0/fwd/Tokens.linear#0"
BOTH = [EMBEDDING, LINEAR, EMBEDDING.replace("0.0", "0.1"), LINEAR.replace("0.0", "0.1")]
NORM = "0.0/r0/fwd/norm.layer_norm#0"


@pytest.mark.parametrize(
    ("place", "sites"),
    [
        (EMBEDDING, [EMBEDDING]),
        (f"{EMBEDDING}:out0", [EMBEDDING]),
        ("0.0/r0/bwd/embed.embedding#0:in1", [EMBEDDING]),
        ("0.1/r0/fwd/Tokens.linear#0:in1", [BOTH[3]]),
        ("0.0/r0/fwd/norm#0:out0", [NORM]),
        ("0.0/r0/bwd/norm#0:in0", [NORM]),
        ("0.0/r0/fwd/no…layer_norm#0:out0", [NORM]),
        ("fwd/norm.layer_norm#1", [NORM.replace("#0", "#1"), NORM.replace("0.0", "0.1").replace("#0", "#1")]),
        ("0.0/r0/fwd/norm#1", [NORM.replace("#0", "#1")]),
        ("0.1/r0/grad/embed.weight#0:grad", BOTH),
        ("0.0/r0/bwd/embed.weight#0:grad", BOTH),
        ("0.1/r0/grad/embed.weight#0:out0", BOTH),
        ("embed.weight", BOTH),
        ("embed", [BOTH[0], BOTH[2]]),
    ],
)
def test_every_form_of_a_place_names_its_operations(run, place, sites):
    assert [call.site for call in calls_at(trueline.open_run(run), place)] == sites


def test_a_line_names_what_it_called(run):
    names = {call.name for call in calls_at(trueline.open_run(run), f"test_places.py:{LINE_NUMBER}")}
    assert names == {"embed.embedding", "norm.layer_norm", "Tokens.tanh"}


@pytest.mark.parametrize(
    "place", ["0.0/r0/fwd/norm.layernorm#0:out0", "9.0/r0/fwd/norm.layer_norm#0", "norm.layer_norms"]
)
def test_an_unknown_place_is_one_sentence_with_the_nearest_sites(run, place):
    with pytest.raises(InputError, match=r"the nearest are '0.[01]/r0/fwd/norm.layer_norm#[01]', ") as raised:
        calls_at(trueline.open_run(run), place)
    assert place in str(raised.value)


def test_compare_prints_a_command_that_runs_where_the_operation_and_its_numbers_are_held(tmp_path, monkeypatch, capsys):
    """A gradient of an embedding that torch adds up in bfloat16 on a CPU, beside float32."""
    monkeypatch.chdir(tmp_path)
    recorded("a run", torch.bfloat16, rows=64)
    recorded("ref", rows=64)

    def ask(*words):
        code, out, err = in_process.trueline(monkeypatch, capsys, *words, "--json")
        assert code in (0, 1), err
        return json.loads(out)

    compared = ask("compare", "a run", "ref")
    (command,) = [action["argv"] for action in compared["actions"] if action["argv"][1:3] == ["trial", "op"]]
    assert command[3:] == ["a run", compared["first"]["site"]]
    assert shlex.join(command) in compared["findings"][0]["next"]
    proved = ask(*command[1:], "--device", "cpu")
    assert proved["answer"] in ("confirmed", "excluded")
    checked = ask("trial", "precheck", "a run", "--site", command[4], "--device", "cpu")
    assert proved["site"] in {operation["site"] for operation in checked["operations"]}

    recorded("statistics", torch.bfloat16, rows=64, depth="stats")
    words = [action["argv"] for action in ask("compare", "statistics", "ref")["actions"]]
    assert not [argv for argv in words if argv and argv[1] == "trial"]


@pytest.mark.parametrize(
    ("is_sum", "names"),
    [(False, ["m.linear"]), (True, ["m.linear", "m.other"])],
    ids=["its gradient is that of an operation", "its gradient is a sum"],
)
def test_a_parameter_that_no_call_is_seen_to_take_is_found_by_its_gradient_or_its_module(is_sum, names):
    """As DDP has them: the rows of a parameter and of its averaged gradient are no tensor that was seen before."""
    rows = [
        ("fwd", "m.linear", "in0", "op", 0),
        ("fwd", "m.linear", "weight", "op", 1),
        ("fwd", "m.linear", "out0", "op", 2),
        ("bwd", "m.weight", "grad", "param", 3),
        ("bwd", "m.linear", "weight", "op", 4 if is_sum else 3),
        ("fwd", "m.other", "in0", "op", 2),
        ("param", "m.weight", "value", "param", 6),
        ("grad", "m.weight", "grad", "param", 7),
    ]
    values = [
        Value(
            index, root, (0,), Site(0, 0, 0, phase, name, 0, slot), kind, "", name.rpartition(".")[0],
            frozenset(), "float32", (2,), args="{}" if kind == "op" and phase == "fwd" else None,
        )
        for index, (phase, name, slot, kind, root) in enumerate(rows)
    ]  # fmt: skip
    calls = operations_of(StepValues("", 0, (0,), values), Site(0, 0, 0, "grad", "m.weight", 0, "grad"))
    assert [call.name for call in calls] == names
