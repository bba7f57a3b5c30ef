"""`trueline trial remedy` on a script that knows nothing of it."""

import json
from pathlib import Path

import pytest
from tests.cli import in_process

JOB = Path(__file__).parents[1] / "remedies_job.py"


@pytest.fixture
def remedy(python, alike, tmp_path, monkeypatch, capsys):
    """The command line, on Runs of kinds of the job."""
    monkeypatch.chdir(tmp_path)

    def call(kind, *words, ref=None, job=(python, str(JOB))):
        for each in filter(None, (kind, ref)):
            if not Path(each).exists():
                alike.record(each, JOB, each, plan={"every": 1})
        given = ("--ref", ref) if ref else ()
        words = ("trial", "remedy", kind, *given, *words, "--pairs", "6", "--", *job, kind)
        code, out, err = in_process.trueline(monkeypatch, capsys, *words)
        return code, json.loads(out) if out.startswith("{") else " ".join(out.split()), err

    return call


@pytest.mark.in_turn
def test_float32_in_the_module_that_overflows_recovers_it_and_the_sham_does_not(remedy):
    code, found, err = remedy("overflow", "--remedy", "fp32:blocks.2", "--json")
    assert (code, found["answer"], found["credible"]) == (0, "confirmed", ["recovers"]), (found, err)
    arms = {arm["name"]: (arm["runs"], arm["showed"]) for arm in found["arms"]}
    assert arms["remedy"] == (6, 0)
    assert arms["sham"][1] >= 4
    assert "The remedy was at blocks.2, the sham at blocks." in found["says"][-1]
    assert "better than both the job as it is and the sham in 6 of 6 pairs" in found["says"][-2]


@pytest.mark.in_turn
def test_clipping_one_layer_recovers_the_loss(remedy):
    code, found, err = remedy("spikes", "--remedy", "clip:embed=0.5", "--json", ref="none")
    assert (code, found["credible"]) == (0, ["recovers"]), (found, err)


@pytest.mark.in_turn
def test_a_job_with_nothing_wrong_has_no_effect_of_any_remedy(remedy):
    code, said, err = remedy("none", "--remedy", "clip:embed=0.5", ref="as-it-is")
    assert code == 0, (said, err)
    assert said.startswith("Excluded: the remedy has no effect.")


@pytest.mark.in_turn
def test_what_is_not_there_and_what_cannot_be(remedy, alike):
    alike.as_processes = True  # as users have them
    code, said, _ = remedy("overflow", "--remedy", "fp32:blocks.9")
    assert (code, "no module of the model is called 'blocks.9'" in said) == (3, True), said
    code, said, _ = remedy("overflow", "--remedy", "fused-optimizer", "--out", "o")
    assert (code, "the job does not have fused-optimizer on" in said) == (3, True), said
    for words, told in (
        (("--remedy", "clip:embed"), "give clip:MODULE=NORM"),
        (("--remedy", "magic"), "give fp32:MODULE"),
    ):
        code, _, err = remedy("overflow", *words)
        assert (code, told in " ".join(err.split())) == (2, True), err
    code, _, err = remedy("none", "--remedy", "unfused")
    assert (code, "Name a run that is as it should be with --ref" in " ".join(err.split())) == (2, True), err
