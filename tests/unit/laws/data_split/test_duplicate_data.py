"""duplicate-data: workers that read the same in the same steps are found and grouped; healthy repeats are not."""

from itertools import permutations

import numpy as np
import pytest
from tests.simulated_epochs import HEALTHY, Size, same_batches, samples_of, with_copies
from tests.unit.healthy_run import rank_env, sample_rows, write_run

from trueline.laws.data_split import duplicate_data
from trueline.laws.data_split.repeats_in_step import find_duplicates, find_reveals
from trueline.schema.errors import CannotTell

SIZE = Size(rows=512, workers=4, batch=4, epochs=1)


@pytest.mark.parametrize(("workers", "batch", "steps"), [(2, 1, 10), (2, 4, 3), (4, 4, 2), (8, 4, 2), (8, 1, 4)])
def test_same_batches_are_found_in_few_steps(tmp_path, workers, batch, steps):
    epochs = same_batches(Size(512, workers, batch, 1), np.random.default_rng(1))
    (finding,) = duplicate_data.check(write_run(tmp_path, sample_rows(epochs, batch, num_steps=steps)))

    assert finding.severity == "error"
    assert finding.ranks == tuple(range(workers))
    assert (finding.step_first, finding.step_last) == (0, steps - 1)
    assert (finding.measured, finding.expected) == (1.0, 0.0)
    assert finding.false_alarm_rate == 1e-6


def test_claim_names_ranks_and_steps(tmp_path):
    epochs = same_batches(Size(512, 2, 4, 1), np.random.default_rng(1))
    (finding,) = duplicate_data.check(write_run(tmp_path, sample_rows(epochs, 4, num_steps=50)))

    assert finding.claim == "Ranks 0 and 1 consumed the same samples at steps 0-49."
    assert finding.sites[:2] == ("0.0/r0/batch/samples#0:in0", "0.0/r1/batch/samples#0:in0")


@pytest.mark.parametrize(("collectives", "severity"), [(0, "info"), (1, "error")])
def test_ranks_that_exchange_nothing_do_the_same_work_each(tmp_path, collectives, severity):
    rows = sample_rows([[np.arange(200), np.arange(200)]], 4, num_steps=50)
    for (step, _), row in rows.items():
        row["passes"] = 3 + collectives * step
    (finding,) = duplicate_data.check(write_run(tmp_path, rows, adapter="manual"))
    assert finding.severity == severity
    assert ("exchanged nothing" in finding.claim) == (severity == "info")


def test_pairs_of_ranks_are_grouped(tmp_path):
    order = np.random.default_rng(1).permutation(512)
    epochs = [[order[rank // 2 :: 2] for rank in range(4)]]
    (finding,) = duplicate_data.check(write_run(tmp_path, sample_rows(epochs, 4, num_steps=20)))

    assert finding.ranks == (0, 1, 2, 3)
    assert finding.evidence["groups"] == [[0, 1], [2, 3]]


@pytest.mark.parametrize(("pieces", "accused"), [([[0, 2], [1, 3]], ()), ([[0, 1], [2, 3]], (0, 1))])
def test_whole_sequences_that_ranks_cut_into_pieces_by_themselves_are_no_duplicates(tmp_path, pieces, accused):
    """In turn: of sequences that are cut already, two ranks with the same piece read the same."""
    order = np.random.default_rng(1).permutation(512)
    epochs = [[order[rank // 2 :: 2] for rank in range(4)]]
    if accused:
        epochs[0][2:] = np.random.default_rng(2).permutation(512)[:256] + 512, np.arange(256) + 1024
    run = write_run(tmp_path, sample_rows(epochs, 4, num_steps=20), pieces=pieces)
    assert tuple(rank for finding in duplicate_data.check(run) for rank in finding.ranks) == accused


def rows_of_pieces(epochs, *, alike=()):
    """Rows of ranks that read ``epochs`` and hold ``embed`` and ``head`` in common; pairs of ``alike`` all else too."""
    rows = sample_rows(epochs, 4, num_steps=20)
    for (step, rank), row in rows.items():
        own = 1 + rank if rank not in alike else 99
        row["param_digests"] = [step, 1000 * step + own, 2000 * step + own, 3 * step]
        row["used_param_norms"] = [1.0, own, 2.0 * own, 1.0]
    return rows


def run_of_pieces(path, rows, num_ranks, **env):
    envs = {rank: rank_env(rank, num_ranks, talks_in_forward=True, **env) for rank in range(num_ranks)}
    return write_run(path, rows, envs=envs, adapter="manual")


def test_ranks_that_compute_the_pieces_of_one_batch_read_the_same_by_design(tmp_path):
    order = np.random.default_rng(1).permutation(512)
    with pytest.raises(CannotTell, match="pieces of one batch") as reason:
        duplicate_data.check(run_of_pieces(tmp_path / "pieces", rows_of_pieces([[order, order]]), 2))
    assert reason.value.reason == "by-design"
    replicas = run_of_pieces(tmp_path / "replicas", rows_of_pieces([[order, order]], alike=(0, 1)), 2)
    assert len(duplicate_data.check(replicas)) == 1


@pytest.mark.parametrize(("parts", "accused"), [([0, 0, 1, 1], ()), ([0, 0, 1, 2], (0, 1))])
def test_pairs_of_pieces_read_the_same_and_a_single_pair_does_not(tmp_path, parts, accused):
    order = np.random.default_rng(1).permutation(512)
    rows = rows_of_pieces([[order[part::4] for part in parts]])
    findings = duplicate_data.check(run_of_pieces(tmp_path, rows, 4))
    assert tuple(rank for finding in findings for rank in finding.ranks) == accused


def test_one_pair_among_healthy_ranks_is_named(tmp_path):
    epoch = HEALTHY["distributed sampler"](SIZE, np.random.default_rng(1), np.arange(512))[0]
    epoch[3] = epoch[1].copy()
    (finding,) = duplicate_data.check(write_run(tmp_path, sample_rows([epoch], 4)))

    assert finding.ranks == (1, 3)


def test_same_samples_in_another_order_are_found(tmp_path):
    rng = np.random.default_rng(1)
    batches = rng.permutation(512).reshape(-1, 4)[:40]
    epochs = [[np.concatenate([rng.permutation(batch) for batch in batches]) for _ in range(2)]]
    (finding,) = duplicate_data.check(write_run(tmp_path, sample_rows(epochs, 4)))

    assert finding.measured == 1.0


def test_batches_in_reverse_order_are_found(tmp_path):
    batches = np.random.default_rng(1).permutation(512)[:40].reshape(20, 2)
    run = write_run(tmp_path, sample_rows([[batches.ravel(), batches[:, ::-1].ravel()]], 2))
    assert len(duplicate_data.check(run)) == 1


def test_equal_rows_do_not_draw_other_ranks_in(tmp_path):
    """A third of the rows are copies, so that every rank shares a sample with another one now and then."""
    rng = np.random.default_rng(1)
    size = Size(400, 5, 20, 1)
    epoch = HEALTHY["distributed sampler"](size, rng, with_copies(size, rng, 0.3))[0]
    epoch[3] = epoch[1].copy()
    epoch[4] = epoch[0].copy()
    (finding,) = duplicate_data.check(write_run(tmp_path, sample_rows([epoch], 20)))

    assert finding.evidence["groups"] == [[0, 4], [1, 3]]


def test_half_of_a_batch_that_is_shared_is_measured(tmp_path):
    order = np.random.default_rng(1).permutation(512)[:240].reshape(20, 12)
    rank_a, rank_b = order[:, :8], np.concatenate([order[:, :4], order[:, 8:]], axis=1)
    (finding,) = duplicate_data.check(write_run(tmp_path, sample_rows([[rank_a.ravel(), rank_b.ravel()]], 8)))

    assert finding.measured == pytest.approx(0.5)
    assert "50.0% of their samples" in finding.claim


@pytest.mark.parametrize("seeded_again", [True, False])
def test_samples_that_come_again_at_their_position_only_hang_on_it(tmp_path, seeded_again):
    """Half of 64 images are one and the same, with noise of their position, or with new noise, mixed in."""
    rng = np.random.default_rng(1)
    images = [rng.permutation(np.maximum(np.arange(64) - 32, 0)) for _ in range(2)]
    noise = np.tile(np.arange(8), 8) if seeded_again else rng.integers(8, size=64)
    epochs = [[image * 8 + noise for image in images]]
    duplicates = duplicate_data.check(write_run(tmp_path, sample_rows(epochs, 8)))

    assert [finding.evidence["kind"] for finding in duplicates] == ["positions-kept"] * seeded_again
    assert all(finding.measured > finding.expected and "seed" in finding.next[0] for finding in duplicates)


def test_duplication_that_starts_late_starts_there(tmp_path):
    healthy = HEALTHY["distributed sampler"](Size(512, 4, 4, 1), np.random.default_rng(2), np.arange(512))[0]
    healthy[2][64:] = healthy[0][64:]
    (finding,) = duplicate_data.check(write_run(tmp_path, sample_rows([healthy], 4)))

    assert (finding.ranks, finding.step_first) == ((0, 2), 16)


def test_duplicates_without_epochs_are_found(tmp_path):
    epochs = same_batches(Size(64, 2, 4, 3), np.random.default_rng(1))
    assert duplicate_data.check(write_run(tmp_path, sample_rows(epochs, 4, epoch_seen=False)))


def test_tensor_parallel_peers_are_not_compared(tmp_path):
    order = np.random.default_rng(1).permutation(512)
    epochs = [[order[rank // 2 :: 2] for rank in range(4)]]
    run = write_run(tmp_path, sample_rows(epochs, 4, num_steps=20), data_parallel_ranks=[0, 2])

    assert duplicate_data.check(run) == []


def test_states_of_a_small_game_that_each_rank_plays_by_itself_cannot_tell(tmp_path):
    """Six states, of which every game begins with the first: the same position of the batch has it on all ranks."""
    rng = np.random.default_rng(1)
    right = np.linspace(0.3, 0.95, 40)[:, None]  # as it learns, in 16 games of 14 moves a step
    states = [np.zeros((3, 40, 16), dtype=int)]
    for _ in range(13):
        states.append(np.clip(states[-1] + np.where(rng.random((3, 40, 16)) < right, 1, -1), 0, 5))
    of_ranks = np.stack(states, axis=2).reshape(3, -1)
    run = write_run(tmp_path, sample_rows([[*of_ranks]], 14 * 16, epoch_seen=False))
    with pytest.raises(CannotTell, match=r"share \d+% of them by chance"):
        duplicate_data.check(run)


@pytest.mark.parametrize("copies", [0.0, 0.3])
@pytest.mark.parametrize("kind", HEALTHY)
def test_healthy_consumption_is_silent(tmp_path, kind, copies):
    rng = np.random.default_rng(3)
    size = Size(rows=250, workers=4, batch=4, epochs=3)
    epochs = HEALTHY[kind](size, rng, with_copies(size, rng, copies))

    assert duplicate_data.check(write_run(tmp_path, sample_rows(epochs, 4))) == []


def test_padding_of_an_epoch_of_one_step_cannot_tell(tmp_path):
    epochs = HEALTHY["padded batches (accelerate)"](Size(5, 4, 4, 6), np.random.default_rng(1), np.arange(5))
    with pytest.raises(CannotTell, match="single step"):
        duplicate_data.check(write_run(tmp_path, sample_rows(epochs, 4)))


def test_one_batch_repeated_by_everyone_is_silent(tmp_path):
    epochs = [[np.tile(np.arange(4), 30) for _ in range(2)]]
    assert duplicate_data.check(write_run(tmp_path, sample_rows(epochs, 4))) == []


def test_equal_rows_in_file_order_are_a_warning_where_declared(tmp_path):
    rows = sample_rows([[np.arange(64), np.arange(64)]], 4)
    facts = {"sampler": "DistributedSampler", "num_replicas": 2, "dataset_len": 128, "shuffle": False}
    envs = {rank: rank_env(rank, 2, data={**facts, "sampler_rank": rank}) for rank in range(2)}
    (finding,) = duplicate_data.check(write_run(tmp_path, rows, envs=envs))

    assert (finding.severity, finding.false_alarm_rate) == ("warning", None)


def test_advice_tells_too_few_replicas(tmp_path):
    rows = sample_rows(same_batches(Size(128, 2, 4, 1), np.random.default_rng(1)), 4)
    facts = {"sampler": "DistributedSampler", "num_replicas": 1, "sampler_rank": 0, "shuffle": True, "seed": 0}
    envs = {rank: rank_env(rank, 2, data=facts) for rank in range(2)}
    (finding,) = duplicate_data.check(write_run(tmp_path, rows, envs=envs))

    assert "into 1 for 2 workers" in finding.next[0]


def test_one_worker_cannot_tell(tmp_path):
    run = write_run(tmp_path, sample_rows([[np.arange(64)]], 4))
    with pytest.raises(CannotTell, match="one worker"):
        duplicate_data.check(run)


def test_runs_without_samples_cannot_tell(tmp_path):
    with pytest.raises(CannotTell, match="sample digests"):
        duplicate_data.check(write_run(tmp_path, {(0, 0): {"loss": 1.0}, (0, 1): {"loss": 1.0}}))


def test_evidence_averages_to_at_most_one_over_all_arrangements():
    """The null hypothesis itself, exhaustively: every arrangement of these samples over two steps and two workers."""
    content = [1, 1, 1, 1, 2, 2, 2, 3]
    arrangements = sorted(set(permutations(content)))
    last: dict[int, list[float]] = {}
    for arrangement in arrangements:
        first, second = np.array(arrangement[:4]), np.array(arrangement[4:])
        samples = samples_of([[first, second]], 2)
        for number, reveal in enumerate(find_reveals(samples)):
            log_e = reveal.log_e()
            last.setdefault(number, []).append(float(np.exp(log_e[-1])) if len(log_e) else 1.0)

    assert len(arrangements) == 280
    for values in last.values():
        assert np.mean(values) <= 1 + 1e-12


def test_finding_duplicates_needs_no_names():
    duplicates = find_duplicates(samples_of(same_batches(SIZE, np.random.default_rng(0)), 4))
    assert duplicates is not None
    assert duplicates.groups == ((0, 1, 2, 3),)
