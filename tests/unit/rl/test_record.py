"""What ``trueline.rl.record`` keeps, of good input and of bad, and that it never raises."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

import numpy as np
import pytest
import torch

import trueline
from trueline import rl
from trueline.rl.logits import of_logits


@pytest.fixture
def out(tmp_path: Path) -> str:
    yield str(tmp_path / "run")
    rl.close()


def _rows(out: str) -> list[dict]:
    return trueline.open_run(out).kept("rollouts").table().to_pylist()


def test_rows_are_there_before_the_run_is_closed_and_after(out: str) -> None:
    for step in (0, 0, 3):
        assert rl.record(
            step, response_ids=[[5, 6], [7]], logp_rollout=[[-1, -2], [-3]], logp_train=[[-1, -2], [-3]], out=out
        )
    before = _rows(out)
    rl.close()
    assert _rows(out) == before
    assert [(row["step"], row["row"]) for row in before] == [(0, 0), (0, 1), (0, 2), (0, 3), (3, 0), (3, 1)]
    assert before[0]["response_ids"] == [5, 6]
    assert before[0]["logp_train"] == [-1.0, -2.0]


def test_padded_tensors_of_bfloat16_are_cut_at_the_last_token_that_counts(out: str) -> None:
    logp = torch.tensor([[-1.0, -2.0, -3.0], [-4.0, 0.0, 0.0]], dtype=torch.bfloat16)
    rl.record(
        1,
        response_ids=torch.ones(2, 3, dtype=torch.long),
        mask=torch.tensor([[1, 0, 1], [1, 0, 0]]),
        logp_rollout=logp,
        logp_train=logp,
        out=out,
    )
    first, second = _rows(out)
    assert (first["mask"], first["logp_rollout"]) == ([1, 0, 1], [-1.0, -2.0, -3.0])
    assert (second["mask"], second["logp_rollout"]) == ([1], [-4.0])


def test_what_does_not_fit_is_left_out_and_named(out: str) -> None:
    assert rl.record(
        2,
        response_ids=[[1, 2, 3], [], [4]],
        mask=[[1, 1], [], [1]],
        logp_rollout=[[-1.0, -2.0, -3.0], [], [float("-inf")]],
        logp_train=[[-1.0, -2.0], [], [float("nan")]],
        versions=([0, 1.5], 2),
        reward=[1.0],
        out=out,
    )
    misfit, empty, infinite = _rows(out)
    assert "mask has 2 values for 3 tokens" in misfit["note"]
    assert "logp_train has 2 values for 3 tokens" in misfit["note"]
    assert "no token was sampled" in empty["note"]
    assert "1.5" in empty["note"]
    assert infinite["logp_rollout"] == [float("-inf")]
    assert [row["version_rollout"] for row in (misfit, empty, infinite)] == [0, None, None]
    assert {row["version_train"] for row in (misfit, empty, infinite)} == {2}
    assert trueline.check(out).exit_code in (1, 3)


def test_ids_that_are_none_are_left_out(out: str) -> None:
    rl.record(
        0, prompt_ids=[[2**40]], response_ids=[[0.5, 1.5]], logp_rollout=[[-1, -1]], logp_train=[[-1, -1]], out=out
    )
    (row,) = _rows(out)
    assert "prompt_ids are no token ids" in row["note"]
    assert "response_ids are no token ids" in row["note"]
    assert row["logp_rollout"] == [-1.0, -1.0]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"step": -1, "logp_rollout": [[-1.0]]}, "step=-1"),
        ({"step": 0}, "no tokens"),
        ({"step": 0, "logp_rollout": [[-1.0]], "logprobs": 1}, "no argument 'logprobs'"),
        ({"step": 0, "logp_rollout": np.zeros((2, 2, 2))}, "expected [sequences, tokens]"),
        ({"step": 0, "logp_rollout": [[-1.0]], "sampling": "T=1"}, "sampling='T=1' is given to rl.record"),
    ],
)
def test_a_batch_that_cannot_be_taken_is_said_and_stops_nothing(
    out: str, caplog: pytest.LogCaptureFixture, given: dict, said: str
) -> None:
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert rl.record(out=out, **given) is False
    assert caplog.text.count(said) == 1
    assert rl.record(0, response_ids=[[1]], logp_rollout=[[-1]], logp_train=[[-1]], out=out)


def test_a_path_that_is_taken_costs_the_record_and_not_the_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("mine")
    for _ in range(2):
        assert (
            rl.record(0, response_ids=[[1]], logp_rollout=[[-1]], logp_train=[[-1]], out=str(tmp_path / "file"))
            is False
        )
    rl.close()
    assert (tmp_path / "file").read_text() == "mine"
    assert "is a file" in caplog.text


def test_what_is_watched_takes_the_rollouts_into_its_run(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = trueline.watch(model, optimizer, out=str(tmp_path / "watched"))
    for step in range(2):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        assert rl.record(step, response_ids=[[1]], logp_rollout=[[-1]], logp_train=[[-1]])
    watch.close()
    run = trueline.open_run(tmp_path / "watched")
    assert run.kept("rollouts").table().num_rows == 2
    assert len(run.steps) == 2
    assert not os.path.exists(rl.RUN)


@pytest.mark.parametrize("watches", [True, False])
def test_what_comes_before_the_first_call_of_a_model_waits_for_it_below_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, watches: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRUELINE_RUN", str(tmp_path / "watched"))
    model = torch.nn.Linear(2, 1)
    assert rl.record_sync(0, model.named_parameters(), model.named_parameters())
    assert not os.path.exists(rl.RUN)
    if watches:
        watch = trueline.watch(model, torch.optim.SGD(model.parameters(), lr=0.1), out=str(tmp_path / "watched"))
        assert rl.record(0, response_ids=[[1]], logp_rollout=[[-1]], logp_train=[[-1]])
        watch.close()
    rl.close()
    run = trueline.open_run(tmp_path / "watched" if watches else rl.RUN)
    assert run.kept("syncs").table().num_rows == 2
    assert os.path.exists(rl.RUN) is not watches


def test_a_run_that_is_there_already_is_left_alone_and_named_once(out: str, caplog: pytest.LogCaptureFixture) -> None:
    assert rl.record(0, response_ids=[[1]], logp_rollout=[[-1]], logp_train=[[-1]], out=out)
    rl.close()
    before = _rows(out)
    for step in range(3):
        assert not rl.record(step, response_ids=[[2]], logp_rollout=[[-1]], logp_train=[[-1]], out=out)
    assert caplog.text.count("is not empty. Pass another out to trueline.rl.record") == 1
    rl.close()
    assert _rows(out) == before


def test_secrets_in_what_was_declared_are_not_kept(out: str) -> None:
    rl.record(
        0,
        response_ids=[[1]],
        logp_rollout=[[-1]],
        sampling={"temperature": 0.7, "api_key": "sk-abcdefghijklmnop123456"},
        out=out,
    )
    (row,) = _rows(out)
    assert json.loads(row["sampling"])["temperature"] == 0.7
    assert "abcdefghijklmnop" not in row["sampling"]


def test_statistics_of_logits_equal_a_plain_sum_over_the_vocabulary() -> None:
    torch.manual_seed(0)
    logits, ids = 3 * torch.randn(2, 5, 40), torch.randint(40, (2, 5))
    found = of_logits(logits, ids, temperature=0.8)
    for b, t in np.ndindex(2, 5):
        p = torch.softmax(logits[b, t].double() / 0.8, -1).numpy()
        y, entropy = int(ids[b, t]), -(p * np.log(p)).sum()
        assert found.logp[b, t] == pytest.approx(np.log(p[y]), rel=1e-5, abs=1e-6)
        assert found.entropy[b, t] == pytest.approx(entropy, rel=1e-5, abs=1e-6)
        assert found.varentropy[b, t] == pytest.approx((p * (np.log(p) + entropy) ** 2).sum(), rel=1e-4, abs=1e-5)
        assert found.mass_above[b, t] == pytest.approx(p[p > p[y]].sum(), abs=1e-5)
        first, second = np.argsort(-p)[:2]
        assert found.odds[b, t] == pytest.approx(np.log(p[first] / p[second]), rel=1e-4)


def test_masked_words_of_a_vocabulary_have_no_part_in_the_entropy() -> None:
    logits = torch.tensor([[0.0, 0.0, float("-inf")]])
    found = of_logits(logits, torch.tensor([0]))
    assert found.entropy.item() == pytest.approx(np.log(2))
    assert found.varentropy.item() == pytest.approx(0, abs=1e-12)
