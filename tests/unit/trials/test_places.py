"""The places that `trueline trial op` and `precheck` take: the forms in which `trueline compare` prints one."""

from __future__ import annotations

import json
import shlex

import pytest
import torch
from tests.cli import in_process
from torch import nn
from torch.nn import functional as F

import trueline
from trueline.schema.errors import InputError
from trueline.trials.op.places import calls_at


class Tokens(nn.Module):
    """An embedding whose weight is used twice, and a normalisation that is called twice."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        self.embed = nn.Embedding(12, 8, dtype=dtype)
        self.norm = nn.LayerNorm(8, dtype=dtype)

    def forward(self, ids):
        x = self.norm(self.norm(self.embed(ids)).tanh())  # called here
        return F.linear(x, self.embed.weight).float().square().mean()


LINE = "test_places.py:28"


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
        ("embed.weight", BOTH),
        ("embed", [BOTH[0], BOTH[2]]),
    ],
)
def test_every_form_of_a_place_names_its_operations(run, place, sites):
    assert [call.site for call in calls_at(trueline.open_run(run), place)] == sites


def test_a_line_names_what_it_called(run):
    names = {call.name for call in calls_at(trueline.open_run(run), LINE)}
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
