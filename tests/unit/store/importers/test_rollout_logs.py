"""Logs and dumps of frameworks as rollouts. The samples are made to the formats that the sources of the frameworks
write; none comes from a real training.
"""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import trueline
from trueline.cli.main import app
from trueline.rl.batch import rows_of
from trueline.schema.errors import InputError, RunError
from trueline.store.importers.rollout_logs import import_rollouts

WRITTEN = Path(__file__).parents[3] / "data" / "rl"
"""Files that the code of frameworks wrote; each ``make_*.py`` there says which, and makes them again."""


def _imported(source: Path, tmp_path: Path) -> list[dict]:
    out = tmp_path / "run"
    import_rollouts(str(source), str(out), rows_of, version="0")
    return trueline.open_run(out).kept("rollouts").table().to_pylist()


def _lines(path: Path, entries: list[dict]) -> Path:
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return path


def test_metrics_of_verl_give_means_a_step(tmp_path: Path) -> None:
    data = {"rollout_corr/kl": 0.097, "rollout_corr/k3_kl": 0.0047, "training/global_step": 1}
    rows = _imported(_lines(tmp_path / "metrics.jsonl", [{"step": 1, "data": data}, {"step": 2, "data": {}}]), tmp_path)
    assert [(row["step"], row["mean_diff"], row["mean_k3"]) for row in rows] == [(1, 0.097, 0.0047)]


def test_a_cut_by_top_p_shows_in_two_means_of_a_log(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    cut = [
        {"step": n, "data": {"rollout_corr/kl": 0.097 + 0.002 * random.normal(), "rollout_corr/k3_kl": 0.0047}}
        for n in range(200)
    ]
    import_rollouts(str(_lines(tmp_path / "m.jsonl", cut)), str(tmp_path / "cut"), rows_of, version="0")
    (finding,) = [each for each in trueline.check(tmp_path / "cut").findings if each.is_grave]
    assert (finding.code, finding.evidence["kind"]) == ("sampling-mismatch", "cut-support")
    assert finding.measured == pytest.approx(0.908, abs=0.002)


def test_means_of_a_healthy_log_are_left_alone(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    kl = 0.0005 * random.normal(size=3000)
    healthy = [{"step": n, "data": {"rollout_corr/kl": x, "rollout_corr/k3_kl": 2e-4}} for n, x in enumerate(kl)]
    import_rollouts(str(_lines(tmp_path / "m.jsonl", healthy)), str(tmp_path / "run"), rows_of, version="0")
    report = trueline.check(tmp_path / "run")
    assert report.findings == ()
    assert "sampling-mismatch" in report.checks_run


def test_the_history_of_trl_gives_mean_differences(tmp_path: Path) -> None:
    state = {
        "log_history": [
            {"step": 5, "sampling/sampling_logp_difference/mean": 0.02, "loss": 0.1},
            {"step": 10, "loss": 0.1},
        ]
    }
    (tmp_path / "trainer_state.json").write_text(json.dumps(state))
    (row,) = _imported(tmp_path / "trainer_state.json", tmp_path)
    assert (row["step"], row["mean_abs_diff"]) == (5, 0.02)


def test_tensors_of_a_batch_of_verl_are_taken_by_their_names(tmp_path: Path) -> None:
    logp = -torch.rand(2, 3)
    batch = {
        "prompts": torch.ones(2, 4, dtype=torch.long),
        "responses": torch.arange(6).reshape(2, 3),
        "response_mask": torch.tensor([[1, 1, 1], [1, 1, 0]]),
        "rollout_log_probs": logp,
        "old_log_probs": logp + 0.5,
        "entropys": torch.ones(2, 3),
        "token_level_scores": torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.0, 0.0]]),
    }
    torch.save(batch, tmp_path / "batch_7.pt")
    first, second = _imported(tmp_path / "batch_7.pt", tmp_path)
    assert (first["step"], first["response_ids"], first["reward"]) == (7, [0, 1, 2], 1.0)
    assert second["logp_train"] == pytest.approx((logp[1, :2] + 0.5).tolist())


@pytest.mark.parametrize(
    ("prompts", "read"),
    [
        ([[0, 0, 7, 8], [0, 7, 8, 9], [7, 8, 9, 9]], [[7, 8], [7, 8, 9], [7, 8, 9, 9]]),
        ([[7, 7, 8, 9], [7, 7, 5, 6]], [[7, 7, 8, 9], [7, 7, 5, 6]]),
        ([[7, 8, 9, 9], [5, 8, 9, 9]], [[7, 8, 9, 9], [5, 8, 9, 9]]),
    ],
)
def test_what_begins_some_prompts_and_others_not_is_padding(
    tmp_path: Path, prompts: list[list[int]], read: list[list[int]]
) -> None:
    ids = torch.ones(len(prompts), 3, dtype=torch.long)
    logp = -torch.ones(ids.shape)
    batch = {"prompts": torch.tensor(prompts), "responses": ids, "rollout_log_probs": logp, "old_log_probs": logp}
    torch.save(batch, tmp_path / "step_1.pt")
    assert [row["prompt_ids"] for row in _imported(tmp_path / "step_1.pt", tmp_path)] == read


@pytest.mark.parametrize("name", ["verl_batch_3.pt", "verl_tensordict_3.pt"])
def test_a_batch_that_verl_saved_itself_is_read(tmp_path: Path, name: str) -> None:
    """The files are of verl 0.9.1: tests/data/rl/make_verl.py."""
    rows = _imported(WRITTEN / name, tmp_path)
    assert [(row["step"], len(row["prompt_ids"]), len(row["response_ids"])) for row in rows] == [
        *((3, 1, 5), (3, 3, 3), (3, 3, 5), (3, 3, 5))
    ]
    for index, row in enumerate(rows):
        assert row["response_ids"][0] == 5 * index
        assert row["reward"] == index
        diff = np.subtract(row["logp_rollout"], row["logp_train"])
        np.testing.assert_allclose(diff, 0.25, atol=1e-6)
    assert {row["version_rollout"] for row in rows} == ({2} if "batch" in name else {None})


def test_metrics_that_verl_logged_itself_are_read(tmp_path: Path) -> None:
    (row,) = _imported(WRITTEN / "verl_metrics.jsonl", tmp_path)
    assert row["step"] == 3
    assert row["mean_diff"] == pytest.approx(0.25, abs=1e-6)
    assert row["mean_k3"] == pytest.approx(np.exp(-0.25) - 1 + 0.25, abs=1e-6)


def test_texts_that_verl_dumps_are_refused_with_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nothing of rollouts: no log-probabilities"):
        _imported(WRITTEN / "verl_generations", tmp_path)
    assert not (tmp_path / "run").exists()


def test_what_slime_dumped_itself_is_read(tmp_path: Path) -> None:
    """The files are of slime 624b824: tests/data/rl/make_slime.py."""
    rows = _imported(WRITTEN / "slime", tmp_path)
    assert [(row["step"], row["prompt_ids"], row["reward"]) for row in rows] == [
        (3, [1, 2, 3], 0.0),
        (3, [2, 2, 3], 1.0),
    ]
    for index, row in enumerate(rows):
        assert row["response_ids"] == list(range(10 * index, 10 * index + 4))
        assert row["mask"] == [1, 1, 0, 1]
        np.testing.assert_allclose(np.subtract(row["logp_rollout"], row["logp_train"]), 0.25, atol=1e-6)


def test_what_nemo_rl_logged_itself_is_read(tmp_path: Path) -> None:
    """The files are of NeMo-RL 7ea279a: tests/data/rl/make_nemo_rl.py."""
    rows = _imported(WRITTEN / "nemo_rl", tmp_path)
    assert [(row["step"], row["prompt_ids"], row["reward"]) for row in rows] == [
        (4, [1, 2, 3], 0.0),
        (4, [8, 9, 10], 1.0),
    ]
    assert [row["response_ids"] for row in rows] == [[4, 5, 6, 7], [11, 12, 13]]
    for row in rows:
        np.testing.assert_allclose(np.subtract(row["logp_rollout"], row["logp_train"]), 0.25, atol=1e-6)


def test_a_pass_that_nemo_rl_skipped_is_no_evidence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no log-probabilities of both sides"):
        _imported(WRITTEN / "nemo_rl_skipped", tmp_path)


def test_tensors_of_areal_are_aligned(tmp_path: Path) -> None:
    ids, mask = torch.arange(10).view(2, 5), torch.tensor([[0, 0, 1, 1, 1], [0, 1, 1, 1, 0]])
    rollout = -torch.rand(2, 5) * mask
    batch = {"input_ids": ids, "loss_mask": mask, "logprobs": rollout, "prox_logp": (rollout - 0.25 * mask).roll(-1, 1)}
    torch.save(batch | {"versions": torch.where(mask > 0, 7, -1), "rewards": torch.ones(2)}, tmp_path / "batch_2.pt")
    rows = _imported(tmp_path / "batch_2.pt", tmp_path)
    assert [(row["prompt_ids"], row["response_ids"]) for row in rows] == [([0, 1], [2, 3, 4]), ([5], [6, 7, 8])]
    assert [row["version_rollout"] for row in rows] == [7, 7]
    for row in rows:
        np.testing.assert_allclose(np.subtract(row["logp_rollout"], row["logp_train"]), 0.25, atol=1e-6)


@pytest.mark.parametrize("kept", [0.3, 0.9])
def test_a_batch_of_verl_that_was_cut_off_is_refused(tmp_path: Path, kept: float) -> None:
    whole = (WRITTEN / "verl_batch_3.pt").read_bytes()
    (tmp_path / "cut.pt").write_bytes(whole[: int(len(whole) * kept)])
    with pytest.raises(InputError, match="Copy it again"):
        _imported(tmp_path / "cut.pt", tmp_path)


def test_nothing_that_a_batch_of_verl_names_is_called(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple:
            return (eval, (f"open({str(tmp_path / 'ran')!r}, 'w')",))

    whole = pickle.dumps({"verl.protocol": Evil()})
    (tmp_path / "evil.pt").write_bytes(whole)
    with pytest.raises(InputError, match="eval"):
        _imported(tmp_path / "evil.pt", tmp_path)
    assert not (tmp_path / "ran").exists()


def test_a_pickled_object_is_refused_in_one_sentence(tmp_path: Path) -> None:
    torch.save(Path("x"), tmp_path / "data.pt")
    with pytest.raises(InputError, match="nothing but tensors and plain containers"):
        _imported(tmp_path / "data.pt", tmp_path)
    assert not (tmp_path / "run").exists()


def test_samples_of_slime_have_their_ids_and_masks(tmp_path: Path) -> None:
    sample = {"tokens": [9, 8, 1, 2, 3], "response_length": 3, "loss_mask": [1, 0, 1], "reward": 1.0}
    sample |= {"rollout_log_probs": [-1.0, -9.0, -2.0], "log_probs": [-1.1, -9.0, -2.1]}
    torch.save({"rollout_id": 4, "samples": [sample]}, tmp_path / "rollout.pt")
    (row,) = _imported(tmp_path / "rollout.pt", tmp_path)
    assert (row["step"], row["prompt_ids"], row["response_ids"], row["mask"]) == (4, [9, 8], [1, 2, 3], [1, 0, 1])


def test_lines_of_nemo_rl_count_where_something_was_generated(tmp_path: Path) -> None:
    (tmp_path / "exp").mkdir()
    line = {"content": "hi", "rewards": 1.0, "token_ids": [5, 6, 7, 8], "generation_logprobs": [0.0, 0.0, -1.0, -2.0]}
    line |= {"prev_logprobs": [0.0, -3.0, -1.1, -2.1], "input_lengths": 4}
    _lines(tmp_path / "exp" / "train_data_step12.jsonl", [line])
    (row,) = _imported(tmp_path / "exp", tmp_path)
    assert (row["step"], row["response_ids"], row["mask"]) == (12, [7, 8], [1, 1])
    assert row["logp_train"] == pytest.approx([-1.1, -2.1])


def test_a_log_that_was_cut_off_is_read_up_to_there_and_damage_is_named(tmp_path: Path) -> None:
    line = json.dumps({"step": 1, "data": {"rollout_corr/kl": 0.1, "rollout_corr/k3_kl": 0.1}})
    (tmp_path / "cut.jsonl").write_text(line + "\n" + line[:20])
    assert len(_imported(tmp_path / "cut.jsonl", tmp_path)) == 1
    (tmp_path / "bad.jsonl").write_text(line[:20] + "\n" + line)
    with pytest.raises(InputError, match="Line 1 of"):
        import_rollouts(str(tmp_path / "bad.jsonl"), str(tmp_path / "other"), rows_of, version="0")


def test_gaps_of_a_log_are_left_out_and_said(tmp_path: Path) -> None:
    good = {"rollout_corr/kl": 0.1, "rollout_corr/k3_kl": 0.1}
    lines = [{"step": 3, "data": good}, {"step": 5, "data": {"loss": 1.0}}, {"step": 90, "data": good}]
    lines += [{"step": step, "data": good} for step in (-4, float("inf"), 1e30, "12", None)]
    lines += [{"step": 7, "data": dict.fromkeys(good, value)} for value in (None, "0.1", float("nan"))]
    rows = _imported(_lines(tmp_path / "m.jsonl", lines), tmp_path)
    assert [row["step"] for row in rows] == [3, 90]
    (note,) = trueline.check(tmp_path / "run").notes
    assert note == "'m.jsonl': 8 lines of 11 with means of rollouts have no number or no step, the first is line 4."


def test_what_holds_nothing_of_rollouts_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds nothing of rollouts"):
        _imported(_lines(tmp_path / "m.jsonl", [{"loss": 1.0}]), tmp_path)
    with pytest.raises(InputError, match="does not exist"):
        import_rollouts(str(tmp_path / "none"), str(tmp_path / "run"), rows_of, version="0")
    with pytest.raises(RunError):
        trueline.open_run(tmp_path / "run")


def of_slime(*, with_engine: bool, older: bool = False) -> dict[str, object]:
    """A dump as slime writes what it trained on: a list of samples in the order of the rollout, or columns."""
    columns: dict[str, list[object]] = {
        "tokens": [torch.tensor([9, 8, 1, 2]), torch.tensor([7, 3, 4, 5])],
        "response_lengths": [2, 3],
        "total_lengths": [4, 4],
        "loss_masks": [torch.tensor([1, 1]), torch.tensor([1, 0, 1])],
        "log_probs": [torch.tensor([-0.1, -0.2]), torch.tensor([-0.3, -0.4, -0.5])],
        "rewards": [1.0, 0.0],
    }
    if with_engine:
        columns["rollout_log_probs"] = [torch.tensor([-0.1, -0.25]), torch.tensor([-0.3, -0.4, -0.6])]
    if older:
        return {"rollout_id": 3, "rank": 0, "rollout_data": columns}
    samples = [{name: values[place] for name, values in columns.items()} for place in range(2)]
    placed = [one | {"rollout_position": 1 - place} for place, one in enumerate(samples)]
    return {"format_version": 2, "rollout_id": 3, "samples": placed}


@pytest.mark.parametrize("kind", ["whole", "older", "beside"])
def test_what_slime_trained_on_is_read_in_each_of_its_forms(tmp_path: Path, kind: str) -> None:
    (tmp_path / "dump" / "train_data").mkdir(parents=True)
    (tmp_path / "dump" / "rollout_data").mkdir()
    dump = of_slime(with_engine=kind != "beside", older=kind == "older")
    torch.save(dump, tmp_path / "dump" / "train_data" / "3.pt")
    sampled = [
        {"index": 1, "tokens": [7, 3, 4, 5], "response_length": 3, "loss_mask": None, "status": "completed"},
        {"index": 0, "tokens": [9, 8, 1, 2], "response_length": 2, "loss_mask": None, "status": "completed"},
    ]
    for one, values in zip(sampled, ([-0.3, -0.4, -0.6], [-0.1, -0.25]), strict=True):
        one["rollout_log_probs"] = values
    torch.save({"rollout_id": 3, "samples": sampled}, tmp_path / "dump" / "rollout_data" / "3.pt")
    rows = _imported(tmp_path / "dump", tmp_path)
    assert [row["step"] for row in rows] == [3, 3]
    by_length = {len(row["response_ids"]): row for row in rows}
    assert (by_length[2]["prompt_ids"], by_length[3]["prompt_ids"]) == ([9, 8], [7])
    assert (by_length[2]["mask"], by_length[3]["mask"]) == ([1, 1], [1, 0, 1])
    assert by_length[2]["logp_rollout"] == pytest.approx([-0.1, -0.25])
    assert by_length[3]["logp_rollout"] == pytest.approx([-0.3, -0.4, -0.6])
    assert by_length[3]["logp_train"] == pytest.approx([-0.3, -0.4, -0.5])
    assert [by_length[length]["reward"] for length in (2, 3)] == [1.0, 0.0]


def test_what_a_log_does_not_say_of_its_sampling_may_be_declared(tmp_path: Path) -> None:
    batch = {"responses": torch.ones(2, 3, dtype=torch.long), "rollout_log_probs": -torch.ones(2, 3)}
    torch.save({**batch, "old_log_probs": -torch.ones(2, 3)}, tmp_path / "step_4.pt")
    command = ["import", "rl", str(tmp_path / "step_4.pt"), str(tmp_path / "run")]
    declared = ["--sampling", "dtype=float32", "--sampling", "lag=1", "--sampling", "temperature=0.7"]
    assert CliRunner().invoke(app, [*command, *declared]).exit_code == 0
    (row, _) = trueline.open_run(tmp_path / "run").kept("rollouts").table().to_pylist()
    assert json.loads(row["sampling"]) == {"dtype": "float32", "lag": 1, "temperature": 0.7}


@pytest.mark.parametrize(("setting", "says"), [("heat=1", "there is no 'heat'"), ("lag", "has no value")])
def test_a_setting_of_sampling_that_is_none_is_refused_in_a_sentence(tmp_path: Path, setting: str, says: str) -> None:
    result = CliRunner().invoke(app, ["import", "rl", str(tmp_path), str(tmp_path / "run"), "--sampling", setting])
    assert isinstance(result.exception, InputError)  # which the command ends with exit code 2
    assert says in str(result.exception)
    assert not (tmp_path / "run").exists()
