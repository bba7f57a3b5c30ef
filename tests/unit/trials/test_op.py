"""`trueline trial op`: a recorded call judged against float64, and the folder that proves it with torch alone."""

from __future__ import annotations

import ast
import contextlib
import json
import runpy
import sys
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from tests.cli import in_process
from tests.unit.trials.recorded_calls import recorded, sites

from trueline.trials.op import stress
from trueline.trials.op.stand_alone import alone


@pytest.fixture
def op(monkeypatch, capsys, tmp_path):
    """The command in this process: its exit code, document, and standard error."""

    def call(run, site, *words):
        asked = ("trial", "op", run, site, "--out", tmp_path / "proof", "--device", "cpu", "--json", *words)
        code, out, err = in_process.trueline(monkeypatch, capsys, *asked)
        return code, json.loads(out) if out else {}, err

    return call


@pytest.fixture
def script(monkeypatch, capsys, tmp_path):
    """The script in this process: its exit code, document, and standard error."""

    def call(*words):
        monkeypatch.setattr("sys.argv", ["op.py", "--json", *words])
        with pytest.raises(SystemExit) as left:
            runpy.run_path(str(tmp_path / "proof" / "op.py"), run_name="__main__")
        output = capsys.readouterr()
        return left.value.code, json.loads(output.out) if output.out else {}, output.err

    return call


@contextlib.contextmanager
def gelu_of_tanh():
    """The kernel of GELU replaced by its approximation."""
    library = torch.library.Library("aten", "IMPL")
    library.impl("gelu", lambda x, approximate="none": x * (1 + torch.tanh(0.79788 * (x + 0.044715 * x**3))) / 2, "CPU")
    try:
        yield
    finally:
        library._destroy()


def test_fused_sgd_of_torch_2_13_is_reproduced_bit_for_bit_by_the_script_alone(tmp_path, op, script):
    if not torch.__version__.startswith("2.13.0"):
        pytest.skip("the kernel of torch 2.13.0 is at fault")
    run = recorded(tmp_path / "run", lambda x, w: x @ w, dtype=torch.bfloat16, fused=True)
    code, document, _ = op(run, *sites(run, "fused_sgd_"))
    assert (code, document["answer"], document["trial"]) == (0, "confirmed", "op")
    assert (document["outputs"]["out0"]["verdict"], document["outputs"]["out0"]["as_recorded"]) == ("beyond", True)
    code, document, _ = script()
    found = document["outputs"]["out0"]
    assert (code, found["as_recorded"], found["left_frac"] > 0.9) == (1, True, True)


def test_the_plain_update_is_within_rounding(tmp_path, op, script):
    run = recorded(tmp_path / "run", lambda x, w: x @ w, dtype=torch.bfloat16)
    code, document, _ = op(run, sites(run, "add_")[0])
    assert (code, document["answer"]) == (0, "excluded")
    assert script()[0] == 0


def test_a_planted_kernel_is_reproduced_bit_for_bit_and_is_gone_without_it(tmp_path, op, script):
    with gelu_of_tanh():
        run = recorded(tmp_path / "run", lambda x, w: F.gelu(x) @ w)
        code, document, _ = op(run, sites(run, "gelu")[0])
        wrong = script()
    right = script()
    assert (code, document["answer"]) == (0, "confirmed")
    assert (wrong[0], wrong[1]["outputs"]["out0"]["as_recorded"]) == (1, True)
    assert (right[0], right[1]["outputs"]["out0"]["as_recorded"]) == (0, False)


def test_another_machine_with_the_same_error_makes_it_undecided(tmp_path, op, script):
    with gelu_of_tanh():
        run = recorded(tmp_path / "run", lambda x, w: F.gelu(x) @ w)
        op(run, sites(run, "gelu")[0])
        (tmp_path / "other.json").write_text(json.dumps(script()[1]))
        code, document, _ = script("--with", str(tmp_path / "other.json"))
    assert (code, document["outputs"]["out0"]["verdict"]) == (3, "cannot tell")


def test_the_script_imports_torch_and_the_standard_library_alone(tmp_path):
    tree = ast.parse(alone())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {
        name
        for node in imports
        for name in ([node.module] if isinstance(node, ast.ImportFrom) else [each.name for each in node.names])
    }
    assert names - {*sys.stdlib_module_names, "collections.abc"} == {
        "torch",
        "torch.utils._python_dispatch",
        "torch._decomp",
    }


def test_strides_are_those_of_the_run(tmp_path, op):
    run = recorded(tmp_path / "run", lambda x, w: torch.exp(x.t()), rows=7, width=5)
    op(run, sites(run, "exp")[0])
    document = json.loads((tmp_path / "proof" / "expected.json").read_text())
    assert document["inputs"]["in0"]["strides"] == [1, 5]


def test_inputs_that_were_not_stored_are_drawn_and_it_says_so(tmp_path, op):
    run = recorded(tmp_path / "run", lambda x, w: F.layer_norm(x @ w, (40,)), depth="stats")
    code, document, _ = op(run, sites(run, "layer_norm")[0])
    assert (code, document["answer"]) == (0, "excluded")
    assert any(line.startswith("Drawn to the recorded statistics") for line in document["says"])
    assert json.loads((tmp_path / "proof" / "expected.json").read_text())["drawn"] == ["in0", "grad of out0"]


@pytest.mark.parametrize("function", [lambda x, w: x.reshape(-1)[:40] + w, lambda x, w: F.dropout(x, 0.5) + w[0]])
def test_what_computes_nothing_or_draws_cannot_be_told(tmp_path, op, function):
    run = recorded(tmp_path / "run", function)
    name = "reshape" if sites(run, "reshape") else "dropout"
    code, document, _ = op(run, sites(run, name)[0])
    assert (code, document["answer"], document["written"]) == (3, "undecided", [])


def test_backward_is_judged_too(tmp_path, op):
    run = recorded(tmp_path / "run", lambda x, w: F.linear(x, w))
    _, document, _ = op(run, sites(run, "linear")[0])
    assert {slot: each["verdict"] for slot, each in document["outputs"].items()} == dict.fromkeys(
        ("out0", "grad of in1"), "within"
    )


def test_bad_input_is_one_sentence(tmp_path, op):
    run = recorded(tmp_path / "run", lambda x, w: x @ w)
    site = sites(run, "matmul")[0]
    for words in ((run, "nonsense"), (run, "0.0/r0/fwd/nowhere#0"), (run, site, "--device", "cuda:99"), ("gone", site)):
        code, _, err = op(*words)
        assert (code, err.count("\n"), err.startswith("trueline: ")) == (2, 1, True), words
    assert op(run, site)[0] == 0
    code, _, err = op(run, site)
    assert (code, "already" in err) == (2, True)
    assert op(run, site, "--overwrite")[0] == 0


@pytest.mark.parametrize("damage", ["missing", "cut", "other", "device", "import"])
def test_the_script_refuses_bad_input_with_exit_code_2(tmp_path, op, script, damage):
    run = recorded(tmp_path / "run", lambda x, w: x @ w)
    op(run, sites(run, "matmul")[0])
    folder, words = tmp_path / "proof", ()
    if damage == "missing":
        (folder / "expected.json").unlink()
    elif damage == "cut":
        held = (folder / "inputs.safetensors").read_bytes()
        (folder / "inputs.safetensors").write_bytes(held[: len(held) // 2])
    elif damage == "other":
        (folder / "expected.json").write_text("{}")
    else:
        words = ("--device", "cuda:99") if damage == "device" else ("--import", "no_such_module")
    code, _, err = script(*words)
    assert (code, err.count("\n")) == (2, 1), err


BAD = """
import os, random, torch
plain = torch.nn.functional.gelu
chance = random.Random(os.getpid())
def spoilt(x, *args, **kwargs):
    made = plain(x, *args, **kwargs)
    if os.environ.get("DEVICE") in {names} and chance.random() < {share}:
        made = made.clone()
        made.view(-1)[3] += 1e-3
    return made
torch.nn.functional.gelu = spoilt
"""


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("names", "share", "answer", "odd"),
    [((), 1.0, "excluded", []), (("c",), 0.3, "confirmed", ["c"]), (("a", "b", "c", "d"), 0.5, "undecided", [])],
    ids=["sound", "one spoils a third", "all do"],
)
def test_a_device_that_returns_other_bits_than_most_is_voted_out(
    tmp_path, op, python, monkeypatch, names, share, answer, odd
):
    """The interpreter is that of users where one spoils it, else one that has imported torch."""
    if not odd:
        monkeypatch.setattr(stress, "sys", SimpleNamespace(executable=python))
    run = recorded(tmp_path / "run", lambda x, weight: F.gelu(x @ weight))
    (tmp_path / "bad_device.py").write_text(BAD.format(names=names, share=share))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(F, "gelu", F.gelu)  # the import below replaces it, in this process too
    devices = "abc" if odd else "abcd"
    asked = ("--devices", ",".join(devices), "--variable", "DEVICE", "--again", "40", "--import", "bad_device")
    code, found, _ = op(run, sites(run, "gelu")[0], *asked)
    sys.modules.pop("bad_device")

    assert (code, found["answer"], found["credible"]) == (3 if answer == "undecided" else 0, answer, odd), found
    assert [(arm["name"], arm["runs"]) for arm in found["arms"]] == [(name, 40) for name in devices]
    if odd:
        (bad,) = (arm for arm in found["arms"] if arm["showed"])
        assert 0 < bad["showed"] < 40


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (("--devices", "0,1"), "a majority takes 3 devices or more"),
        (("--devices", "0,1,1"), "a majority takes 3 devices or more"),
        (("--devices", "0-3", "--again", "0"), "--again is 0"),
        (("--devices", "north,south,west"), "--variable"),
        (("--again", "40"), "--again says how --devices are asked, and none are named"),
        (("--variable", "DEVICE"), "--variable says how --devices are asked, and none are named"),
    ],
)
def test_devices_that_cannot_be_voted_on_are_one_sentence(tmp_path, op, asked, told):
    run = recorded(tmp_path / "run", lambda x, weight: F.gelu(x @ weight))
    code, found, err = op(run, sites(run, "gelu")[0], *asked)
    assert (code, found) == (2, {})
    assert told in err
    assert not (tmp_path / "proof").exists(), "what cannot be asked writes nothing"


def normed(x, w):
    return F.layer_norm(x * w[0], (8,), w[1], w[2])


def test_a_sum_of_16_bits_is_said_to_be_one_beside_the_bound_of_float32(tmp_path, op):
    """On a CPU torch 2.13 adds up the gradients of a LayerNorm's weight in bfloat16."""
    rows = 4096
    for dtype in (torch.bfloat16, torch.float32):
        run = recorded(tmp_path / str(dtype), normed, rows=rows, width=8, dtype=dtype)
        _, document, _ = op(run, sites(run, "layer_norm")[0], "--overwrite")
        weight, unit = document["outputs"]["grad of weight"], torch.finfo(dtype).eps / 2
        assert weight["verdict"] == "within"
        # half of the outputs are below 0 and have no gradient: the terms that add up are a quarter of all at least
        assert unit < weight["sum_bound"] < unit + 4 * rows * 2**-24
        assert ("added up in fewer bits" in weight["why"]) == (dtype is torch.bfloat16)
        assert "sum_bound" not in document["outputs"]["out0"]


def test_drawn_rows_that_repeat_are_those_of_the_folder(tmp_path, op, script):
    run = recorded(tmp_path / "run", normed, rows=4096, width=8, dtype=torch.bfloat16, depth="stats")
    code, document, _ = op(run, sites(run, "layer_norm")[0])
    assert (code, document["answer"]) == (3, "undecided")
    assert any("with three of four rows alike" in line for line in document["says"])
    assert script()[0] == 1
