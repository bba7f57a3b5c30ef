"""`trueline trial vote` on a script that knows nothing of it, whose fault is of a device, of a rank, or everywhere."""

import json
from pathlib import Path

import pytest
from tests.cli import in_process

JOB = Path(__file__).parents[1] / "devices_job.py"


@pytest.fixture
def vote(python, forks, tmp_path, monkeypatch, capsys):
    """The command line."""
    monkeypatch.chdir(tmp_path)

    def call(*words):
        code, out, err = in_process.trueline(
            monkeypatch, capsys, "trial", "vote", "--steps", "5", *words[:-1], "--", *words[-1]
        )
        return code, json.loads(out) if out.startswith("{") else out, err

    return call


@pytest.mark.in_turn
def test_the_device_of_a_flipped_bit_is_named(vote, python, tmp_path):
    words = ("--devices", "1-4", "--variable", "MINE", "--at-once", "2", "--json", [python, str(JOB), "device"])
    code, found, err = vote(*words)
    assert (code, found["answer"], found["credible"]) == (0, "confirmed", ["device 3"]), found
    assert found["findings"][0]["code"] == "minority-rank"
    assert found["findings"][0]["evidence"]["devices"] == ["3"]
    assert "run 1 of at most 200: replay" in err
    assert vote(*words)[1] == found, "all of it was on disk"


@pytest.mark.in_turn
def test_what_follows_the_rank_is_no_devices_fault(vote, python, tmp_path):
    """Two ranks, as torchrun starts them."""
    launcher = tmp_path / "launch.sh"
    launcher.write_text(
        "export WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=$(shuf -i 20000-30000 -n 1)\n"
        'RANK=1 LOCAL_RANK=1 "$@" & RANK=0 LOCAL_RANK=0 "$@" && wait $!\n'
    )
    job = ["bash", str(launcher), python, str(JOB), "rank", "0.3"]
    words = ("--devices", "0-5", "--group", "2", "--variable", "MINE", "--runs", "14", "--json", job)
    _, found, _ = vote(*words)
    assert (found["answer"] != "confirmed", found.get("findings")) == (True, None), found


@pytest.mark.in_turn
def test_what_differs_everywhere_and_what_nowhere(vote, forks, python):
    code, said, _ = vote("--devices", "0-2", "--variable", "MINE", [python, str(JOB), "everywhere"])
    assert code == 3
    assert "not deterministic here" in " ".join(said.split())
    forks.remembers = True  # what nothing flips repeats itself
    rest = ("--rate", "0.7", "--out", "none", [python, str(JOB), "none"])
    code, said, _ = vote("--devices", "0-2", "--variable", "MINE", *rest)
    assert code == 0
    assert said.startswith("Excluded: no device was found")
    assert "q <= 1, 95 % confidence). That is no proof of health." in " ".join(said.split())


def test_what_no_device_can_be_told_from_is_not_voted_on(vote, python):
    code, said, _ = vote("--devices", "0-2", [python, str(JOB), "none"])
    assert code == 3
    assert "it ran on the CPU, whichever devices it was shown" in " ".join(said.split())
    for words, told in (
        (("--devices", "0,1"), "A majority takes 3 groups"),
        (("--devices", "a,b,c"), "Nothing tells the command on which of a, b, c it runs"),
        (("--devices", "0-2", "--rate", "1"), "--rate is 1; give a probability above 0 and below 1"),
    ):
        code, _, err = vote(*words, [python, str(JOB), "none"])
        assert (code, told in " ".join(err.split())) == (2, True), err
    code, out, _ = vote("--devices", "0-8", "--group", "3", "--dry-run", [python, str(JOB), "none"])
    assert code == 0
    assert "3 groups of 3 devices, of 0, 1, 2" in out
    assert "Runs: about 27 where every run shows it, at most 200." in out
