"""reduction-mismatch: means that are none, versions that differ, factors; legal changes by hooks and hand are left
alone.
"""

import pytest
from tests.unit.healthy_run import GROUPS, healthy_rows, rank_env, write_run

from trueline.laws.reduction import reduction_mismatch
from trueline.schema.errors import CannotTell

ALL_GROUPS = range(len(GROUPS))


def altered(rows, *, steps, ranks, groups=ALL_GROUPS, **values):
    """The rows with ``values`` in the columns ``group_<name>`` of ``groups``, at ``steps`` on ``ranks``."""
    for (step, rank), row in rows.items():
        if step in steps and rank in ranks:
            for name, value in values.items():
                for group in groups:
                    row[f"group_{name}"][group] = value
    return rows


def hooked(num_ranks, **facts):
    return {rank: rank_env(rank, num_ranks, **facts) for rank in range(num_ranks)}


def test_a_result_that_is_lost_on_one_rank_names_it(tmp_path):
    rows = altered(
        healthy_rows(2, 9),
        steps=[7],
        ranks=[1],
        groups=[1],
        reduce_residual=0.9,
        reduce_shape_residual=0.9,
        reduce_factor=0.0,
    )
    rows = altered(rows, steps=[7], ranks=[0, 1], groups=[1], used_residual=0.5)
    (finding,) = reduction_mismatch.check(write_run(tmp_path, rows))

    assert (finding.severity, finding.ranks, finding.step_first, finding.step_last) == ("error", (1,), 7, 7)
    assert finding.sites == ("7.0/r1/reduce/blocks.0#0:out0",)
    assert finding.claim == "The gradient of blocks.0 is not the mean of the workers' gradients on rank 1 at step 7."
    assert (finding.measured, finding.expected) == (pytest.approx(0.9), pytest.approx(1e-5))


def blind(rows, *, steps, shape=1e-7):
    """The rows as they are where only what the optimizer received was looked at, and that was not the mean."""
    for (step, _), row in rows.items():
        if step in steps:
            for name in ("reduce_residual", "reduce_factor", "used_factor", "used_shape_residual"):
                row.pop(f"group_{name}")
            row["group_reduce_shape_residual"] = [shape] * len(GROUPS)
    return rows


def test_a_lost_result_names_the_rank_where_only_its_use_was_seen(tmp_path):
    rows = healthy_rows(2, 9)
    lost_row = {(7, 1): rows[7, 1]}
    blind(lost_row, steps=[7], shape=0.9)
    altered(rows, steps=[7], ranks=[0, 1], used_residual=0.5)
    (finding,) = reduction_mismatch.check(write_run(tmp_path, rows))

    assert (finding.severity, finding.ranks, finding.step_first, finding.step_last) == ("error", (1,), 7, 7)
    assert "is not the mean of the workers' gradients on rank 1" in finding.claim


def test_clipping_where_only_its_use_was_seen_is_silent(tmp_path):
    assert reduction_mismatch.check(write_run(tmp_path, blind(healthy_rows(2, 9), steps=range(2, 8)))) == []


def test_a_user_who_changes_gradients_anyway_is_not_blamed_unseen(tmp_path):
    rows = altered(healthy_rows(2, 9), steps=range(9), ranks=[0, 1], used_shape_residual=0.3)
    assert reduction_mismatch.check(write_run(tmp_path, blind(rows, steps=range(2, 8), shape=0.3))) == []


def test_now_and_then_on_one_rank_is_one_finding(tmp_path):
    rows = altered(healthy_rows(3, 40), steps=[3, 17, 30], ranks=[2], reduce_residual=0.9, reduce_shape_residual=0.9)
    (finding,) = reduction_mismatch.check(write_run(tmp_path, rows))

    assert finding.evidence["num_steps"] == 3
    assert finding.claim.endswith("on rank 2 at steps 3, 17 and 30.")


def test_a_scaled_mean_in_all_groups_reports_the_factor(tmp_path):
    rows = altered(healthy_rows(2, 4), steps=range(4), ranks=[0, 1], reduce_residual=0.4, reduce_factor=0.5)
    (finding,) = reduction_mismatch.check(
        write_run(tmp_path, rows, envs=hooked(2, reduce_hook="mine", reduce_known=False))
    )

    assert (finding.severity, finding.measured, finding.expected) == ("error", 0.5, 1.0)
    assert finding.evidence["hooks"] == ["mine"]


def test_a_wrong_group_of_ranks_names_all(tmp_path):
    rows = altered(
        healthy_rows(4, 4),
        steps=range(4),
        ranks=range(4),
        reduce_residual=0.4,
        reduce_shape_residual=0.4,
        used_residual=0.4,
    )
    (finding,) = reduction_mismatch.check(
        write_run(tmp_path, rows, envs=hooked(4, reduce_hook="mine", reduce_known=False))
    )

    assert (finding.severity, finding.ranks) == ("error", (0, 1, 2, 3))


def test_an_unknown_hook_that_all_agree_on_is_a_warning(tmp_path):
    rows = altered(healthy_rows(2, 4), steps=range(4), ranks=[0, 1], reduce_residual=0.4, reduce_shape_residual=0.4)
    (finding,) = reduction_mismatch.check(
        write_run(tmp_path, rows, envs=hooked(2, reduce_hook="mine", reduce_known=False))
    )

    assert finding.severity == "warning"


def test_the_frameworks_own_reduction_is_an_error(tmp_path):
    rows = altered(healthy_rows(2, 4), steps=range(4), ranks=[0, 1], reduce_residual=0.4, reduce_shape_residual=0.4)
    (finding,) = reduction_mismatch.check(write_run(tmp_path, rows))
    assert finding.severity == "error"


def test_compression_in_an_unknown_hook_is_silent(tmp_path):
    rows = altered(healthy_rows(2, 4), steps=range(4), ranks=[0, 1], reduce_residual=0.003, reduce_shape_residual=0.003)
    run = write_run(tmp_path, rows, envs=hooked(2, reduce_hook="bf16", reduce_known=False))
    assert reduction_mismatch.check(run) == []


def test_a_lossy_hook_is_not_judged_unless_replicas_disagree(tmp_path):
    rows = altered(healthy_rows(2, 4), steps=range(4), ranks=[0, 1], reduce_residual=0.4, reduce_shape_residual=0.4)
    lossy = hooked(2, reduce_hook="powerSGD_hook", reduce_lossy=True)
    with pytest.raises(CannotTell, match="'powerSGD_hook', which is lossy"):
        reduction_mismatch.check(write_run(tmp_path / "agree", rows, envs=lossy))

    rows = altered(rows, steps=[2], ranks=[0, 1], used_residual=0.3, reduce_residual=0.0)
    (finding,) = reduction_mismatch.check(write_run(tmp_path / "apart", rows, envs=lossy))
    assert finding.severity == "error"


def test_clipping_on_one_rank_names_it(tmp_path):
    rows = altered(healthy_rows(4, 4), steps=[1, 2, 3], ranks=range(4), used_residual=0.2)
    rows = altered(rows, steps=[1, 2, 3], ranks=[3], used_factor=0.3)
    (finding,) = reduction_mismatch.check(write_run(tmp_path, rows))

    assert (finding.ranks, finding.step_first) == ((3,), 1)
    assert "different versions on rank 3" in finding.claim


def test_clipping_alike_is_silent(tmp_path):
    rows = healthy_rows(4, 6)
    for (step, _), row in rows.items():
        row["group_used_factor"] = [1 / (2 + step)] * len(GROUPS)
    assert reduction_mismatch.check(write_run(tmp_path, rows)) == []


def test_dividing_again_after_the_reduction_is_found(tmp_path):
    rows = altered(healthy_rows(4, 5), steps=range(5), ranks=range(4), used_factor=0.25)
    (finding,) = reduction_mismatch.check(write_run(tmp_path, rows))

    assert (finding.severity, finding.measured) == ("error", 0.25)
    assert finding.claim == (
        "The gradient of all parameters reached the optimizer divided by the number of workers again at steps 0-4."
    )


@pytest.mark.parametrize("steps", [[2], [1, 3]])
def test_a_clipping_factor_that_happens_to_be_one_over_n_is_silent(tmp_path, steps):
    rows = healthy_rows(4, 6)
    for (step, _), row in rows.items():
        row["group_used_factor"] = [0.25 if step in steps else 0.3] * len(GROUPS)
    assert reduction_mismatch.check(write_run(tmp_path, rows)) == []


def test_dividing_by_the_micro_batches_is_silent(tmp_path):
    rows = altered(healthy_rows(4, 5), steps=range(5), ranks=range(4), used_factor=0.25)
    for row in rows.values():
        row["num_micro"] = 4
    assert reduction_mismatch.check(write_run(tmp_path, rows)) == []


def test_one_group_over_n_is_no_second_division(tmp_path):
    rows = altered(healthy_rows(4, 5), steps=range(5), ranks=range(4), groups=[0], used_factor=0.25)
    assert reduction_mismatch.check(write_run(tmp_path, rows)) == []


def in_shards(tmp_path, rows, num_ranks):
    for row in rows.values():
        row.pop("group_used_residual")
    shards = {rank: rank_env(rank, num_ranks, replica_key=f"shard {rank} of {num_ranks}") for rank in range(num_ranks)}
    return reduction_mismatch.check(write_run(tmp_path, rows, envs=shards, adapter="fsdp2"))


def test_the_one_rank_that_leaves_its_shards_unclipped_is_named(tmp_path):
    rows = altered(healthy_rows(4, 4), steps=[1, 2], ranks=[0, 1, 3], used_factor=0.3)
    (finding,) = in_shards(tmp_path, rows, 4)
    assert (finding.severity, finding.ranks, finding.step_first, finding.step_last) == ("error", (2,), 1, 2)
    assert (finding.measured, finding.expected) == (1.0, 0.3)


def test_one_group_of_shards_scaled_on_one_rank_is_a_warning_and_zeroed_is_none(tmp_path):
    rows = altered(healthy_rows(3, 4), steps=[2], ranks=[0], groups=[1], used_factor=0.5)
    (finding,) = in_shards(tmp_path / "scaled", rows, 3)
    assert (finding.severity, finding.ranks, finding.evidence["names"]) == ("warning", (0,), ["blocks.0"])
    rows = altered(healthy_rows(3, 4), steps=[2], ranks=[0], groups=[1], used_factor=0.0, used_shape_residual=None)
    assert in_shards(tmp_path / "zeroed", rows, 3) == []


def test_shards_that_are_not_the_mean_times_a_factor_say_nothing(tmp_path):
    rows = altered(healthy_rows(2, 4), steps=range(4), ranks=[0], used_factor=0.8)
    altered(rows, steps=range(4), ranks=[1], used_factor=0.5, used_shape_residual=0.4)
    assert in_shards(tmp_path, rows, 2) == []


def by_hand(rows, tmp_path, num_ranks):
    return reduction_mismatch.check(write_run(tmp_path, rows, adapter="manual"))


@pytest.mark.parametrize("factor", [2.0, 0.3, 1.0])
def test_any_common_factor_by_hand_is_legal(tmp_path, factor):
    residual = abs(factor - 1) * 0.7
    rows = altered(
        healthy_rows(2, 4),
        steps=range(4),
        ranks=[0, 1],
        reduce_factor=factor,
        reduce_residual=residual,
        used_factor=factor,
    )
    assert by_hand(rows, tmp_path, 2) == []


def test_a_second_division_by_hand_is_found_to_rounding(tmp_path):
    """The mean has 0.1 of the workers' norm, so rounding moves the factor by ten floors."""
    rows = altered(
        healthy_rows(2, 4),
        steps=range(4),
        ranks=[0, 1],
        reduce_factor=0.5 * (1 + 4e-5),
        used_factor=0.5,
        reduce_residual=0.05,
        reduce_shape_residual=1e-6,
    )
    (finding,) = by_hand(rows, tmp_path, 2)
    assert finding.measured == pytest.approx(0.5, abs=1e-4)


def test_clipping_by_value_by_hand_is_legal(tmp_path):
    rows = altered(
        healthy_rows(2, 4),
        steps=range(4),
        ranks=[0, 1],
        reduce_residual=0.4,
        reduce_shape_residual=0.4,
        used_shape_residual=0.4,
        used_factor=0.8,
    )
    assert by_hand(rows, tmp_path, 2) == []


def test_a_lost_result_by_hand_names_the_rank(tmp_path):
    rows = altered(healthy_rows(2, 9), steps=[7], ranks=[0, 1], used_residual=0.5)
    rows = altered(
        rows,
        steps=[7],
        ranks=[1],
        reduce_factor=0.0,
        reduce_residual=0.9,
        reduce_shape_residual=0.0,
        used_factor=0.0,
        used_shape_residual=float("nan"),
    )
    (finding,) = by_hand(rows, tmp_path, 2)
    assert (finding.ranks, finding.step_first) == ((1,), 7)


def test_one_parameter_is_named_by_its_norms(tmp_path):
    rows = altered(healthy_rows(4, 3), steps=range(3), ranks=range(4), groups=[1], used_residual=0.4)
    for (_, rank), row in rows.items():
        row["used_param_norms"] = row["used_param_norms"] + [0, 0, 0.1 * (rank // 2), 0]
    (finding,) = by_hand(rows, tmp_path, 4)
    assert finding.sites[0] == "0.0/r0/reduce/blocks.0.bias#0:out0"


def test_gradients_that_were_never_reduced_are_left_to_that_check(tmp_path):
    rows = altered(
        healthy_rows(2, 4),
        steps=range(4),
        ranks=[0, 1],
        used_residual=0.6,
        used_local=1e-9,
        reduce_residual=0.6,
        reduce_shape_residual=0.6,
    )
    assert reduction_mismatch.check(write_run(tmp_path, rows)) == []


def test_many_sets_of_ranks_become_one_finding(tmp_path):
    rows = healthy_rows(4, 12)
    for step in range(12):
        rows = altered(
            rows, steps=[step], ranks=[step % 4, (step // 4) % 3], reduce_residual=0.4, reduce_shape_residual=0.4
        )
    (finding,) = reduction_mismatch.check(write_run(tmp_path, rows))
    assert finding.ranks == (0, 1, 2, 3)


def test_healthy_rows_are_silent(tmp_path):
    assert reduction_mismatch.check(write_run(tmp_path, healthy_rows(4, 5))) == []


def test_nothing_measured_cannot_tell(tmp_path):
    with pytest.raises(CannotTell):
        reduction_mismatch.check(write_run(tmp_path, {(0, 0): {"loss": 1.0}, (0, 1): {"loss": 1.0}}))


def different_uses(num_ranks, factors, norms, steps=9):
    """Rows whose optimizers received ``factors`` times the reduced gradient, of the norm ``norms(step, rank)``."""
    rows = altered(healthy_rows(num_ranks, steps), steps=range(steps), ranks=range(num_ranks), used_residual=0.4)
    for (step, rank), row in rows.items():
        factor = factors[rank] if isinstance(factors, (list, tuple)) else factors(step, rank)
        altered({(step, rank): row}, steps=[step], ranks=[rank], used_factor=factor, used_shape_residual=0.0)
        row["used_param_norms"] = [norms(step, rank) if at == 0 else 0.0 for at in range(len(row["used_param_norms"]))]
    return rows


def test_clipping_on_one_rank_is_told_by_the_norm_that_it_leaves(tmp_path):
    factors = lambda step, rank: 0.1 + 0.01 * step if rank == 0 else 1.0  # noqa: E731
    rows = different_uses(2, factors, lambda step, rank: 0.1 if rank == 0 else 1.0 / (1 + 0.1 * step))
    (finding,) = reduction_mismatch.check(write_run(tmp_path, rows))
    assert finding.evidence["kind"] == ["replicas-apart", "clipped"]
    assert finding.evidence["factors"] == {"0": pytest.approx(0.1), "1": pytest.approx(1.0)}
    assert "its norm there is 0.1 at every step, as clipping leaves it" in finding.claim


def test_loss_scales_are_powers_of_two_apart(tmp_path):
    rows = different_uses(2, [2.0**-12, 2.0**-13], lambda step, rank: 1 + step + rank)
    (finding,) = reduction_mismatch.check(write_run(tmp_path, rows))
    assert finding.evidence["kind"] == ["replicas-apart", "loss-scale"]


def test_another_factor_is_only_told(tmp_path):
    rows = different_uses(2, [0.7, 1.0], lambda step, rank: 1 + step + rank)
    (finding,) = reduction_mismatch.check(write_run(tmp_path, rows))
    assert finding.evidence["kind"] == ["replicas-apart", "scaled"]
    assert "They are the reduced gradient times 0.7 on rank 0 and 1 on rank 1." in finding.claim


@pytest.mark.parametrize(("residual", "right"), [(0.0, True), (float("nan"), False)])
def test_replicas_that_change_a_gradient_after_a_reduction_that_was_right_are_told_so(tmp_path, residual, right):
    rows = healthy_rows(2, 9)
    altered(rows, steps=[5, 6], ranks=[0, 1], used_residual=1.0, used_shape_residual=1.0, reduce_residual=residual)
    (finding,) = reduction_mismatch.check(write_run(tmp_path, rows))
    assert finding.evidence["kind"][:2] == ["replicas-apart", "other"]
    assert ("after-the-mean" in finding.evidence["kind"]) is right


def test_the_rank_whose_optimizer_got_no_gradient_is_named(tmp_path):
    rows = healthy_rows(2, 9)
    for rank in range(2):
        altered(rows, steps=[6], ranks=[rank], used_residual=1.0)
    for name in [name for name in rows[6, 1] if "used" in name]:
        rows[6, 1].pop(name)
    (finding,) = reduction_mismatch.check(write_run(tmp_path, rows))
    assert (finding.ranks, finding.evidence["kind"]) == ((1,), ["replicas-apart", "dropped"])
    assert finding.claim.endswith("The optimizer of rank 1 received no gradient, or zeros.")


def test_a_broadcast_of_one_ranks_gradient_is_an_error(tmp_path):
    changed = {"reduce_residual": 0.7, "used_shape_residual": 0.6, "reduce_shape_residual": 0.6}
    rows = altered(healthy_rows(2, 4), steps=range(4), ranks=[0, 1], **changed)
    assert by_hand(rows, tmp_path / "other", 2) == []
    altered(rows, steps=range(4), ranks=[0], used_local=0.0)
    (finding,) = by_hand(rows, tmp_path / "own", 2)
    assert (finding.severity, finding.ranks, finding.evidence["kind"]) == ("error", (0, 1), ["one-ranks"])


@pytest.mark.parametrize(
    ("num_ranks", "adapter", "factor", "kinds"),
    [
        (2, "ddp", 2.0, ["multiplied", "not-divided"]),
        (4, "ddp", 2.0, ["multiplied", "other-factor"]),
        (4, "manual", 2.0, ["multiplied", "other-factor"]),
        (4, "manual", 4.0, None),  # a sum
        (2, "ddp", 1.5, None),
    ],
)
def test_a_mean_times_a_number_that_ranks_are_counted_by_is_a_warning(tmp_path, num_ranks, adapter, factor, kinds):
    values = {"used_factor": factor}
    if adapter == "manual":
        values |= {"reduce_factor": factor, "reduce_residual": (factor - 1) * 0.5}
    rows = altered(healthy_rows(num_ranks, 4), steps=range(4), ranks=range(num_ranks), **values)
    findings = reduction_mismatch.check(write_run(tmp_path, rows, adapter=adapter))
    assert [(finding.severity, finding.evidence["kind"]) for finding in findings] == (
        [("warning", kinds)] if kinds else []
    )


@pytest.mark.parametrize(("factor", "residual", "number"), [(0.0, 2**0.5, 1), (0.0, 5.0, 0), (0.7, 1.0, 0)])
def test_a_mean_at_other_places_has_its_length_and_not_its_direction(tmp_path, factor, residual, number):
    """``residual`` of a mean of norm 1 and a vector of that norm at right angles to it, a longer one, a nearer one."""
    shape = (residual**2 - (1 - factor) ** 2) ** 0.5
    sine = shape / (shape**2 + factor**2) ** 0.5
    changed = {"reduce_residual": residual, "reduce_shape_residual": shape, "reduce_factor": factor}
    rows = altered(
        healthy_rows(2, 4), steps=range(4), ranks=[0, 1], used_shape_residual=sine, used_factor=factor, **changed
    )
    envs = {rank: rank_env(rank, 2, sketch_length=2053) for rank in range(2)}
    findings = reduction_mismatch.check(write_run(tmp_path, rows, envs=envs, adapter="manual"))
    assert [finding.evidence["kind"] for finding in findings] == [["misplaced"]] * number


@pytest.mark.parametrize("extra", [(2, 4, 6), (2, 4, 5, 6), (2, 4)])
def test_backward_calls_of_one_rank_alone_tell_where_they_are_at_just_these_steps(tmp_path, extra):
    rows = altered(healthy_rows(3, 9), steps=[2, 4, 6], ranks=[0, 1, 2], used_residual=0.3)
    for (step, rank), row in rows.items():
        row["passes_begun"] = 2 if rank == 1 and step in extra else 1
    (finding,) = reduction_mismatch.check(write_run(tmp_path, rows))

    at_just_these = extra == (2, 4, 6)
    assert ("extra-pass" in finding.evidence["kind"]) == at_just_these
    assert ("rank 1 made 2 backward calls, the others 1" in finding.claim) == at_just_these
    assert finding.ranks == ((1,) if at_just_these else (0, 1, 2))
    assert ("torch.autograd.grad" in finding.next[0]) == at_just_these
