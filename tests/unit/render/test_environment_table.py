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


GROUPS = [
    {"lr": 2e-4, "betas": [0.9, 0.999], "weight_decay": 0.1},
    {"lr": 2e-4, "betas": [0.9, 0.999], "weight_decay": 0.0},
]


def of_optimizer(**changed: object) -> RankEnv:
    groups = [{**group, **(changed if place == 1 else {})} for place, group in enumerate(GROUPS)]
    return env(1, optimizer={"class": "AdamW", "groups": groups})


def test_what_a_scheduler_moves_is_not_compared_at_moments_that_ranks_chose() -> None:
    ranks = {0: env(0, optimizer={"class": "AdamW", "groups": GROUPS}), 1: of_optimizer(lr=1e-4, betas=[0.85, 0.999])}
    found = environment(Manifest(world_size=2), ranks)
    assert found.within == ()
    assert ("groups.1.weight_decay", "0.0") in dict(found.common)["optimizer"]


def test_of_an_optimizer_only_the_leaf_that_differs_is_shown() -> None:
    ranks = {0: env(0, optimizer={"class": "AdamW", "groups": GROUPS}), 1: of_optimizer(lr=1e-4, weight_decay=0.5)}
    found = environment(Manifest(world_size=2), ranks)
    assert found.within == (Differing("optimizer.groups.1.weight_decay", (("rank 0", "0.0"), ("rank 1", "0.5"))),)
    assert environment(Manifest(world_size=2), ranks, optimizer_alike=True).within == ()
