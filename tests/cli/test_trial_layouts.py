"""`trueline trial layouts` on one small transformer in several layouts, and with faults of parallelism."""

import json
from pathlib import Path

import pytest
from tests.cli import in_process

JOB = Path(__file__).parents[1] / "layouts_job.py"


@pytest.fixture
def layouts(python, alike, tmp_path, monkeypatch, capsys):
    """The command line, with an arm for each layout; the first has one rank."""
    monkeypatch.chdir(tmp_path)

    def call(*words, ref="single", options=("--json",)):
        arms = [f"{word.replace(' ', '_')}={python} {JOB} {word} --steps 3" for word in (ref, *words)]
        options = ("--steps", "2", *options, *(part for arm in arms for part in ("--arm", arm)))
        code, out, err = in_process.trueline(monkeypatch, capsys, "trial", "layouts", *options)
        return code, json.loads(out) if out.startswith("{") else out, err

    return call


@pytest.mark.in_turn
def test_layouts_that_compute_the_same_agree(layouts):
    code, found, _ = layouts("dp --ranks 2", "accum", "fsdp2 --ranks 2")
    assert (code, found["answer"], found["credible"]) == (0, "excluded", []), found
    lines = [line for line in found["says"] if " agrees with single: the largest of " in line]
    assert len(lines) == 3
    assert all(" The loss is apart by " in line for line in lines)


@pytest.mark.in_turn
def test_the_first_place_of_each_arm_is_named(layouts):
    arms = (
        "dp --ranks 2 --fault averaged-twice",
        "cp --ranks 2 --fault mask-off",
        "fsdp2 --ranks 2 --fault shard-norm",
    )
    code, found, _ = layouts(*arms)
    assert (code, found["answer"]) == (0, "confirmed"), found
    places = [text.partition(": ")[2] for text in found["credible"]]
    assert places == ["forward: the loss", "forward: blocks.0.attention.out", "backward: head.weight"]
    assert [finding["code"] for finding in found["findings"]] == ["layouts-differ"] * 3
    assert found["next"][0].startswith("trueline compare ")
    assert any(line.startswith("Each is ") for line in found["says"])


@pytest.mark.in_turn
def test_layouts_in_which_ranks_hold_pieces_of_one_model_are_put_together(layouts):
    arms = ("tp --ranks 2", "pp --ranks 2", "sp --ranks 2 --fault norm-not-reduced")
    code, found, _ = layouts(*arms, ref="single --no-experts")
    assert (code, found["answer"]) == (0, "confirmed"), found
    assert [text.partition(": ")[2] for text in found["credible"]] == ["backward: norm.bias"]
    says = " ".join(found["says"])
    assert says.count(" agrees with single_--no-experts: the largest of ") == 2
    assert "Ranks do not take the same gradient (replicas differ: rank 1 (shown) from rank 0)" in says
    assert "Not compared" not in says


@pytest.mark.in_turn
def test_arms_of_another_job_are_no_arms(layouts):
    code, found, _ = layouts("dp --ranks 2 --fault other-seed", "accum --fault other-data")
    assert (code, found["answer"], found["credible"]) == (3, "undecided", []), found
    says = " ".join(found["says"])
    assert "is not the same job as single: weight embed.weight differs by" in says
    assert "the first step reads 8 samples, of which 0 are among the 8 of the reference" in says


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ((), "too few arms were given (0)"),
        (("--arm", "one"), "--arm is 'one'; expected NAME=COMMAND"),
        (("--arm", "a=python x.py", "--arm", "a=python y.py"), "Two arms have the same name"),
        (("--arm", "a=python x.py", "--arm", "b=python y.py", "--ref", "c"), "--ref is 'c'"),
        (("--arm", "a=python x.py", "--arm", "b=no-such-program y.py"), "'no-such-program' is not a program on PATH"),
        (("--arm", "a=python x.py", "--", "python"), "Leave out what is behind --"),
    ],
)
def test_bad_input_is_one_sentence(monkeypatch, capsys, tmp_path, options, says):
    monkeypatch.chdir(tmp_path)
    code, _, err = in_process.trueline(monkeypatch, capsys, "trial", "layouts", *options)
    assert code == 2
    assert says in " ".join(err.split())


def test_an_arm_that_does_not_run_is_said(layouts):
    code, found, _ = layouts("nonsense --ranks nonsense")
    assert (code, found["answer"]) == (3, "undecided"), found
    assert "arm nonsense_--ranks_nonsense: it ended with status 2" in found["says"][0]


def test_the_plan_names_the_commands(layouts):
    code, out, _ = layouts("accum", options=("--dry-run",))
    assert code == 0
    assert "single --steps 3 (the reference)" in out
    assert "Runs: 4." in out
