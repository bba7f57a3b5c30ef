"""Facts that all ranks share stand once; what differs is listed with who has which value."""

from trueline.render.report.environment_table import Differing, Environment, environment
from trueline.schema.files.run_manifest import Manifest, RankEnv


def env(rank: int, **fields: object) -> RankEnv:
    return RankEnv(rank=rank, pid=100 + rank, versions={"torch": "2.13.0"}, **fields)


def test_common_facts_stand_once_and_differing_ones_name_their_ranks() -> None:
    ranks = {rank: env(rank, flags={"tf32": rank == 2}) for rank in range(4)}
    found = environment(Manifest(world_size=4), ranks)

    assert ("versions", (("torch", "2.13.0"),)) in found.common
    assert found.within == (Differing("flags.tf32", (("ranks 0, 1 and 3", "false"), ("rank 2", "true"))),)
    assert [row.key for row in found.by_nature] == ["pid"]


def test_fact_that_one_rank_lacks_differs() -> None:
    ranks = {0: env(0, environ={"NCCL_DEBUG": "INFO"}), 1: env(1)}
    found = environment(Manifest(world_size=2), ranks)

    assert found.within == (Differing("environ.NCCL_DEBUG", (("rank 0", "INFO"), ("rank 1", "(absent)"))),)


def test_run_without_any_environment_has_no_facts() -> None:
    assert environment(Manifest(), {}) == Environment((), (), ())
