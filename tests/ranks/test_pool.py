"""The pool of ranks: results and errors come back, and nothing is left behind."""

import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from trueline.demo.ranks import RankError, Ranks, run_ranks


def sum_of_ranks(rank: int, world_size: int) -> float:
    total = torch.tensor(float(rank))
    dist.all_reduce(total)
    return total.item()


def own_place(rank: int, world_size: int, word: str) -> tuple[int, int, str, str, int]:
    return rank, world_size, word, os.environ["RANK"], os.getpid()


def fail_on_rank_1(rank: int, world_size: int) -> None:
    if rank == 1:
        raise ValueError("rank 1 has had enough")
    dist.barrier()


def die_on_rank_1(rank: int, world_size: int) -> None:
    if rank == 1:
        print("last words", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


def hang_on_rank_1(rank: int, world_size: int) -> None:
    if rank == 1:
        time.sleep(600)
    dist.barrier()


def unpicklable(rank: int, world_size: int) -> object:
    return lambda: rank


def leave_groups_behind(rank: int, world_size: int) -> None:
    model = torch.nn.Linear(1, 1)
    model.group, model.itself = dist.new_group([0, 1]), [model]


def double_over_mesh(rank: int, world_size: int) -> list[float]:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("rows", "columns"))
    shards = DTensor.from_local(torch.tensor([rank // 2 + 1.0]), mesh, [Shard(0), Replicate()])
    return (shards * 2).full_tensor().tolist()


def num_gloo_threads(rank: int, world_size: int) -> int:
    threads = Path("/proc/self/task").glob("*/comm")
    return sum(thread.read_text().startswith("gloo") for thread in threads)


def gone(pids: tuple[int, ...]) -> bool:
    _, alive = psutil.wait_procs([psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)], timeout=30)
    return not alive


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_ranks_reduce_together(world_size):
    assert run_ranks(sum_of_ranks, world_size) == [sum(range(world_size))] * world_size


def test_results_come_in_rank_order_with_arguments_passed_on():
    answers = run_ranks(own_place, 2, "hello")
    assert [answer[:4] for answer in answers] == [(0, 2, "hello", "0"), (1, 2, "hello", "1")]


def test_processes_are_reused_between_runs():
    with Ranks(2) as ranks:
        first, second = ranks.run(own_place, ""), ranks.run(own_place, "")
    assert [answer[4] for answer in first] == [answer[4] for answer in second]


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are counted in /proc")
def test_groups_of_earlier_tasks_keep_no_threads():
    with Ranks(2) as ranks:
        own = ranks.run(num_gloo_threads)
        for _ in range(3):
            ranks.run(leave_groups_behind)
        assert ranks.run(num_gloo_threads) == own


def test_meshes_that_torch_remembers_from_earlier_tasks_still_work():
    with Ranks(4) as ranks:
        assert [ranks.run(double_over_mesh) for _ in range(2)] == [[[2.0, 4.0]] * 4] * 2


def test_failure_of_one_rank_is_told_with_its_traceback_and_stops_all():
    with Ranks(2) as ranks:
        pids = ranks.pids
        with pytest.raises(RankError, match=r"(?s)^1 of 2 ranks failed.*\nrank 1: Traceback.*had enough") as told:
            ranks.run(fail_on_rank_1)
        assert gone(pids)
        assert told.value.failures.keys() == {1}
        assert told.value.failures[1].endswith("rank 1 has had enough")


def test_death_of_one_rank_is_told_with_its_last_output():
    with Ranks(2) as ranks:
        pids = ranks.pids
        with pytest.raises(RankError, match=r"(?s)rank 1: the process ended with exit code -9.*last words") as told:
            ranks.run(die_on_rank_1)
        assert gone(pids)
        assert told.value.failures[1] == "the process ended with exit code -9"


def test_silence_is_told_and_stops_all():
    with Ranks(2) as ranks:
        pids = ranks.pids
        with pytest.raises(RankError, match=r"no answer within 0\.5 s"):
            ranks.run(hang_on_rank_1, timeout_s=0.5)
        assert gone(pids)


def test_pool_starts_again_after_a_failure():
    with Ranks(2) as ranks:
        with pytest.raises(RankError):
            ranks.run(fail_on_rank_1)
        assert ranks.run(sum_of_ranks) == [1.0, 1.0]


def test_pool_starts_again_after_a_rank_died_between_runs():
    with Ranks(2) as ranks:
        os.kill(ranks.pids[0], signal.SIGKILL)
        with pytest.raises(RankError):
            ranks.run(sum_of_ranks)
        assert ranks.run(sum_of_ranks) == [1.0, 1.0]


def test_result_that_cannot_be_sent_is_told():
    with pytest.raises(RankError, match="2 of 2 ranks failed"):
        run_ranks(unpicklable, 2)


def test_pool_of_no_ranks_is_refused():
    with pytest.raises(RankError, match="A pool of 0 ranks"):
        Ranks(0)


PARENT = """
import sys, time
from pathlib import Path
from trueline.demo.ranks import run_ranks

def stay(rank, world_size, folder):
    import os
    (Path(folder) / f"{rank}.tmp").write_text(str(os.getpid()))
    (Path(folder) / f"{rank}.tmp").rename(Path(folder) / f"{rank}.pid")
    time.sleep(600)

if __name__ == "__main__":
    run_ranks(stay, 2, sys.argv[1], timeout_s=600)
"""


def test_busy_ranks_do_not_outlive_a_killed_parent(tmp_path: Path, python: str):
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    parent = subprocess.Popen([python, str(script), str(tmp_path)])
    while len(notes := list(tmp_path.glob("*.pid"))) < 2:
        assert parent.poll() is None
        time.sleep(0.05)
    pids = tuple(int(note.read_text()) for note in notes)
    parent.kill()
    parent.wait()
    assert gone(pids)
