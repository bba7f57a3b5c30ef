"""Facts that all ranks share stand once; what differs is listed with who has which value."""

from trueline.render.report.environment_table import Differing, environment
from trueline.schema.files.run_manifest import Manifest, RankEnv


def env(rank: int, **fields: object) -> RankEnv:
    return RankEnv(rank=rank, pid=100 + rank, versions={"torch": "2.13.0"}, **fields)


def test_common_facts_stand_once_and_differing_ones_name_their_ranks() -> None:
    ranks = {rank: env(rank, flags={"tf32": rank == 2}) for rank in range(4)}
    found = environment(["run"], [Manifest(world_size=4)], [ranks])

    assert ("versions", (("torch", "2.13.0"),)) in found.common
    assert found.within == (Differing("flags.tf32", (("ranks 0, 1 and 3", "false"), ("rank 2", "true"))),)
    assert [row.key for row in found.by_nature] == ["pid"]
    assert found.between == ()


def test_fact_that_one_rank_lacks_differs() -> None:
    ranks = {0: env(0, environ={"NCCL_DEBUG": "INFO"}), 1: env(1)}
    found = environment(["run"], [Manifest(world_size=2)], [ranks])

    assert found.within == (Differing("environ.NCCL_DEBUG", (("rank 0", "INFO"), ("rank 1", "(absent)"))),)


def test_runs_that_agree_share_a_line() -> None:
    one, other = {0: env(0), 1: env(1)}, {0: env(0, device="cuda"), 1: env(1, device="cuda")}
    found = environment(
        ["a", "b", "c"],
        [Manifest(adapter="ddp"), Manifest(adapter="ddp"), Manifest(adapter="fsdp2")],
        [one, one, other],
    )

    assert Differing("run.adapter", (("a, b", "ddp"), ("c", "fsdp2"))) in found.between


def test_run_without_any_environment_is_named() -> None:
    assert environment(["run"], [Manifest()], [{}]).missing == ("run",)
