"""`trueline trial modules` on a script that knows nothing of it."""

import json
from pathlib import Path

import pytest
from tests.cli import in_process

JOB = Path(__file__).parents[1] / "modules_job.py"


def recorded(alike, out, preset="mix", depth="tensor"):
    alike.record(out, JOB, "none", plan={"preset": preset, "depth": depth, "steps": [2, 3]})


@pytest.fixture
def modules(python, alike, tmp_path, monkeypatch, capsys):
    """The command line, with a Run of the job as it should be."""
    monkeypatch.chdir(tmp_path)

    def call(kind, *words, ref="good", preset="mix"):
        if not Path(ref).exists():
            recorded(alike, ref, preset)
        words = ("trial", "modules", "--ref", ref, "--out", kind, *words, "--json", "--", python, JOB, kind)
        code, out, err = in_process.trueline(monkeypatch, capsys, *words)
        return code, json.loads(out) if out.startswith("{") else out, err

    return call


@pytest.mark.in_turn
def test_all_modules_that_are_wrong_by_themselves_are_named_and_no_other(modules):
    code, found, err = modules("norm,gelu")
    assert (code, found["answer"], found["credible"]) == (0, "confirmed", ["blocks.1.norm", "blocks.2.act"]), (
        found,
        err,
    )
    assert "2.0/r0/fwd/blocks.2.act.gelu#0:out0, in torch.nn.functional.gelu" in found["says"][1]
    assert found["says"][2] == "22 modules of 22 fed at step 2."
    code, found, _ = modules("backward")
    assert found["credible"] == ["blocks.0.act"], found
    assert found["says"][0].startswith("blocks.0.act (backward) makes something else of the same values, by 0.05 where")
    code, found, _ = modules("glue")
    assert found["credible"] == ["blocks.3"], found
    assert "torch.Tensor.mul" in found["says"][0]


def test_what_code_between_modules_makes_is_told_where_it_arrives(modules):
    code, found, _ = modules("call")
    assert (code, found["answer"], found["credible"]) == (0, "confirmed", ["before blocks.1.up"]), found
    assert "blocks.1.up (by 0.01): code between modules makes them" in found["says"][0]
    assert found["says"][1].startswith("Calls that this job alone makes: blocks.1.mul (")


def test_where_modules_alone_were_stored_they_are_named_too(modules):
    _, found, _ = modules("glue,norm", ref="modules-alone", preset="modules")
    assert found["credible"] == ["blocks.1.norm", "blocks.3"], found


@pytest.mark.in_turn
def test_other_weights_are_no_modules_fault_and_a_job_as_it_should_be_has_none(modules, alike):
    alike.as_processes = True  # as users have them
    code, found, _ = modules("weights")
    assert (code, found["answer"], found["credible"]) == (0, "excluded", []), found
    assert "blocks.1.up.weight the most, by 0.01." in found["says"][-1]
    code, found, _ = modules("none")
    assert (code, found["answer"]) == (0, "excluded"), found


def test_what_was_not_stored_is_said(modules, alike):
    recorded(alike, "shallow", depth="fingerprint")
    code, _, err = modules("none", ref="shallow")
    assert (code, "stored no values of modules. Record a step" in " ".join(err.split())) == (3, True), err
    code, _, err = modules("none", "--step", "4")
    assert (code, "--step is 4" in err, "it recorded 2" in " ".join(err.split())) == (2, True, True), err
    code, found, _ = modules("none,gelu", "--timeout", "0.0001")
    assert (code, found["answer"]) == (3, "undecided"), found
