"""Two processes with one seed draw the same numbers, dropout off means off, and what is not covered is said."""

import json
import os
import random
import subprocess
import sys

import numpy as np
import pytest
import torch
from tests.forked_scripts import run_unwatched
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import trueline
from trueline.demo.ranks import Ranks
from trueline.schema.errors import InputError

DRAW = """
import json, random, sys
import numpy as np, torch, trueline
from torch.utils.data import DataLoader, Dataset

class Drawn(Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        return index, random.random(), float(np.random.rand()), float(torch.rand(()))

report = trueline.seed_all(int(sys.argv[1]))
order = [batch[0].tolist() for batch in DataLoader(range(16), shuffle=True, generator=report.loader_generator(),
                                                   collate_fn=lambda rows: (torch.tensor(rows),))]
loaded = [[column.tolist() for column in batch] for batch in DataLoader(Drawn(), batch_size=2, num_workers=2)]
print(json.dumps({
    "python": random.random(), "numpy": float(np.random.rand()), "torch": float(torch.rand(())),
    "loaded": loaded, "order": order, "hash": hash("trueline"), "not_covered": report.not_covered,
}))
"""


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """What three processes draw: two with seed 7, one of which was started with a hash seed, and one with seed 8."""
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"}  # left by other tests
    late, early = (
        subprocess.Popen([sys.executable, "-c", DRAW, "7"], stdout=subprocess.PIPE, text=True, env=environ)
        for environ in (plain, {**plain, "PYTHONHASHSEED": "7"})
    )
    script = tmp_path_factory.mktemp("draw") / "draw.py"
    script.write_text(DRAW)
    other = drawn_in_a_fork(script, 8)
    answers = [late.communicate(timeout=100)[0], early.communicate(timeout=100)[0], other]
    return [json.loads(answer) for answer in answers]


def drawn_in_a_fork(script, seed):
    with Ranks(1) as ranks:
        return run_unwatched(ranks, script, str(seed))[0]


@pytest.fixture(autouse=True)
def put_back():
    """Leave torch and the environment as they were."""
    flags = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.deterministic
    environ, benchmark = dict(os.environ), torch.backends.cudnn.benchmark
    yield
    torch.use_deterministic_algorithms(flags[0])
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = flags[1], benchmark
    os.environ.clear()
    os.environ.update(environ)
    trueline.seed_all(0, dropout=True)


@pytest.mark.in_turn
@pytest.mark.parametrize("stream", ["python", "numpy", "torch", "loaded", "order"])
def test_one_seed_gives_one_stream_in_two_processes_and_another_seed_another(drawn, stream):
    first, second, other = drawn
    assert first[stream] == second[stream]
    assert first[stream] != other[stream]


def test_the_workers_of_a_loader_draw_different_numbers_from_each_other(drawn):
    one, other = drawn[0]["loaded"]
    assert all(mine != theirs for mine, theirs in zip(one[1:], other[1:], strict=True))


def test_a_hash_seed_that_came_too_late_is_reported_and_only_then(drawn):
    late, early, _ = drawn
    assert any("PYTHONHASHSEED=7" in sentence for sentence in late["not_covered"])
    assert not any("PYTHONHASHSEED" in sentence for sentence in early["not_covered"])
    assert late["hash"] != early["hash"]


def test_the_streams_are_those_that_each_library_gives_for_the_seed():
    trueline.seed_all(3)
    ours = random.random(), np.random.rand(), torch.rand(())
    assert ours == (
        random.Random(3).random(),
        np.random.RandomState(3).rand(),
        torch.rand((), generator=torch.Generator().manual_seed(3)),
    )


def test_a_loader_generator_is_left_alone_by_what_the_model_draws():
    report = trueline.seed_all(3)
    first = torch.randperm(8, generator=report.loader_generator())
    torch.rand(100)
    assert torch.equal(first, torch.randperm(8, generator=report.loader_generator()))


x = torch.linspace(0.5, 2.0, 64).reshape(2, 4, 8)
CALLS = {
    "module": lambda: nn.Dropout(0.5)(x),
    "module 1d": lambda: nn.Dropout1d(0.5)(x),
    "alpha module": lambda: nn.AlphaDropout(0.5)(x),
    "keyword": lambda: functional.dropout(x, p=0.5),
    "default": lambda: functional.dropout(x),
    "in place": lambda: functional.dropout(x.clone(), 0.5, inplace=True),
    "2d": lambda: functional.dropout2d(x[None], 0.5)[0],
    "feature alpha": lambda: functional.feature_alpha_dropout(x, 0.5, training=True),
    "torch": lambda: torch.dropout(x, 0.5, True),
    "native": lambda: torch.native_dropout(x, 0.5, True)[0],
    "operator": lambda: torch.ops.aten.dropout.default(x, 0.5, True),
    "compiled": lambda: torch.compile(lambda y: functional.dropout(y, 0.5) * 1, backend="eager")(x),
    "checkpoint": lambda: checkpoint(nn.Dropout(0.5), x, use_reentrant=False),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_with_dropout_off_every_way_to_drop_returns_its_input(call):
    trueline.seed_all(1, dropout=False)
    assert torch.equal(call(), x)
    trueline.seed_all(1, dropout=True)
    assert not torch.equal(call(), x)


def packed():
    return nn.utils.rnn.pack_padded_sequence(x, [2, 2, 1, 1])


def attention(p):
    query, key, value = torch.randn(3, 1, 2, 4, 8)
    return functional.scaled_dot_product_attention(query, key, value, dropout_p=p)


LAYERS = {
    "sdpa": attention,
    "attention": lambda p: nn.MultiheadAttention(8, 2, dropout=p)(x, x, x)[0],
    "attention without weights": lambda p: nn.MultiheadAttention(8, 2, dropout=p)(x, x, x, need_weights=False)[0],
    "transformer layer": lambda p: nn.TransformerEncoderLayer(8, 2, 16, dropout=p)(x),
    "lstm": lambda p: nn.LSTM(8, 8, 2, dropout=p)(x)[0],
    "rnn": lambda p: nn.RNN(8, 8, 2, dropout=p)(x)[0],
    "packed gru": lambda p: nn.GRU(8, 8, 2, dropout=p)(packed())[0].data,
}


@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)
def test_with_dropout_off_layers_that_drop_inside_give_what_they_give_at_probability_zero(layer):
    dropping, truth = (made(layer, p) for p in (0.5, 0.0))
    trueline.seed_all(1, dropout=False)
    assert torch.equal(made(layer, 0.5), truth)
    assert not torch.equal(dropping, truth)


def made(layer, p):
    torch.manual_seed(0)
    return layer(p)


def test_dropout_off_leaves_the_model_and_the_functions_of_torch_as_they_are():
    drop, function = nn.Dropout(0.5), functional.dropout
    trueline.seed_all(1, dropout=False)
    drop(x)
    assert (drop.p, functional.dropout) == (0.5, function)


def test_turned_on_again_dropout_leaves_no_mode_behind_unless_another_came_after():
    def modes():
        return torch.overrides._get_current_function_mode_stack()

    before = modes()
    trueline.seed_all(1, dropout=False)
    trueline.seed_all(1, dropout=True)
    assert modes() == before
    trueline.seed_all(1, dropout=False)
    with torch.device("cpu"):
        trueline.seed_all(1, dropout=True)
        assert not torch.equal(functional.dropout(x, 0.5), x)
    trueline.seed_all(1, dropout=True)
    assert modes() == before


def test_with_dropout_off_calls_outside_of_the_model_are_still_recorded(tmp_path):
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trueline.seed_all(1, dropout=False)
    with trueline.watch(model, optimizer, out=tmp_path / "run", plan={"preset": "ops"}):
        functional.mse_loss(model(torch.ones(2, 4)), torch.zeros(2, 4)).backward()
        optimizer.step()
    run = trueline.open_run(tmp_path / "run")
    assert "mse_loss" in run.records(columns=["name"])["name"].to_pylist()
    assert run.manifest.notes == []


def test_without_a_word_about_dropout_it_stays_as_it_is():
    trueline.seed_all(1, dropout=False)
    trueline.seed_all(1)
    assert torch.equal(functional.dropout(x, 0.5), x)


def test_deterministic_makes_an_operation_without_such_a_form_raise_or_warn():
    def put():
        return torch.zeros(3).put_(torch.tensor([0, 0]), torch.tensor([1.0, 2.0]))

    trueline.seed_all(1, deterministic=True)
    with pytest.raises(RuntimeError, match="deterministic"):
        put()
    report = trueline.seed_all(1, deterministic="warn")
    with pytest.warns(UserWarning, match="deterministic"):
        put()
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8" == report.settings["CUBLAS_WORKSPACE_CONFIG"]
    assert torch.backends.cudnn.deterministic
    assert not torch.backends.cudnn.benchmark


def test_a_workspace_that_the_user_chose_stays(monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    assert trueline.seed_all(1, deterministic=True).settings["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"


def test_without_deterministic_no_switch_moves_and_the_report_says_so():
    report = trueline.seed_all(1)
    assert not torch.are_deterministic_algorithms_enabled()
    assert any("deterministic=True" in sentence for sentence in report.not_covered)


def test_the_printed_report_has_seed_streams_settings_and_what_is_not_covered():
    text = str(trueline.seed_all(5, deterministic=True, dropout=False))
    assert text.splitlines()[0] == "Seed 5 on rank 0: random, numpy.random, torch, the workers of every DataLoader."
    assert "Set: torch.use_deterministic_algorithms = True" in text
    assert "Not covered: dropout in other threads" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"seed": -1}, r"The seed is -1, expected a whole number from 0 to 4294967295"),
        ({"seed": 2**32}, r"The seed is 4294967296"),
        ({"seed": True}, r"The seed is True"),
        ({"seed": 1.5}, r"The seed is 1.5"),
        ({"seed": 1, "deterministic": "yes"}, r"deterministic is 'yes'. Pass True, False or 'warn'"),
        ({"seed": 1, "dropout": 0.1}, r"dropout is 0.1. Pass False"),
    ],
)
def test_what_cannot_be_meant_is_refused_and_nothing_is_seeded(arguments, message):
    before = torch.get_rng_state()
    with pytest.raises(InputError, match=message):
        trueline.seed_all(**arguments)
    assert torch.equal(before, torch.get_rng_state())
