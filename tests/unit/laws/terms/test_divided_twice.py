"""divided-twice: losses that both the script and what it hands them to divide by the micro-batches."""

import pytest
import torch
from tests.unit.healthy_run import healthy_rows, write_run
from torch import nn
from torch.nn import functional

import trueline
from trueline.laws.terms.columns import FUNCTIONS, NUM_FIELDS, OF_ALL, OF_ONE, terms_of
from trueline.laws.terms.divided_twice import check
from trueline.schema.errors import CannotTell

MICROS = 4
COUNTS = (7, 12, 3, 10)
"""Targets that count in each micro-batch of 12."""
NAN = float("nan")

cross_entropy = functional.cross_entropy


def trained(out, loss_of, *, micros=MICROS, steps=4, before_update=None):
    """A Run of steps of micro-batches, of which ``loss_of`` gets logits, targets and number."""
    torch.manual_seed(3)
    draw = torch.Generator().manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5))
    updates = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = trueline.watch(model, updates, out=out, plan={"every": 1})
    for _ in range(steps):
        for micro in range(micros):
            targets = torch.randint(5, (12,), generator=draw)
            targets[COUNTS[micro % 4] :] = -100
            loss = loss_of(model(torch.randn(12, 6, generator=draw)), targets, micro)
            (loss if isinstance(loss, torch.Tensor) else sum(loss)).backward()
        if before_update is not None:
            before_update(model)
        updates.step()
        updates.zero_grad()
    watch.close()
    return trueline.open_run(out)


def by_hand(logits, y, micro):
    return cross_entropy(logits, y) / MICROS / MICROS


def by_a_factor_and_a_quotient(logits, y, micro):
    return (1 / MICROS) * (cross_entropy(logits, y) / torch.tensor(float(MICROS)))


def through_a_scaler(logits, y, micro):
    return torch.amp.GradScaler("cpu", enabled=False).scale(cross_entropy(logits, y) / MICROS) / MICROS


def written_out(logits, y, micro):
    log_probs = logits.log_softmax(-1)[y >= 0]
    return -log_probs.gather(-1, y[y >= 0][:, None]).mean() / MICROS / MICROS


def a_regression(logits, y, micro):
    return functional.mse_loss(logits[:, 0], y.clamp(min=0).float()) / MICROS / MICROS


def with_a_term_beside(logits, y, micro):
    return (cross_entropy(logits, y) / MICROS + 0.1 * logits.logsumexp(-1).square().mean()) / MICROS


def with_three_divisions(logits, y, micro):
    return cross_entropy(logits, y) / MICROS / 2 / MICROS


@pytest.mark.in_turn
@pytest.mark.parametrize(
    "loss_of",
    [
        by_hand,
        by_a_factor_and_a_quotient,
        through_a_scaler,
        written_out,
        a_regression,
        with_a_term_beside,
        with_three_divisions,
    ],
)
def test_a_loss_that_is_divided_twice(tmp_path, loss_of):
    (finding,) = check(trained(tmp_path / "run", loss_of))
    assert (finding.severity, finding.measured, finding.evidence["kind"]) == ("warning", 1 / MICROS, "twice")
    assert finding.claim.startswith(
        "The loss is divided by the 4 micro-batches of an update twice: its gradient is 1/4"
    )


def test_two_micro_batches_of_a_likelihood(tmp_path):
    (finding,) = check(trained(tmp_path / "run", lambda logits, y, micro: cross_entropy(logits, y) / 2 / 2, micros=2))
    assert finding.measured == 0.5


def test_a_sum_that_is_divided_by_the_targets_of_all_and_by_the_micro_batches(tmp_path):
    def loss_of(logits, y, micro):
        return cross_entropy(logits, y, reduction="sum") / sum(COUNTS) / MICROS

    (finding,) = check(trained(tmp_path / "run", loss_of))
    assert finding.evidence["kind"] == "by-tokens-too"
    assert "twice, by their targets and by their number: " in finding.claim


def test_gradients_that_are_divided_again(tmp_path):
    def divide(model):
        for param in model.parameters():
            param.grad /= MICROS

    def loss_of(logits, y, micro):
        return cross_entropy(logits, y) / MICROS

    (finding,) = check(trained(tmp_path / "run", loss_of, before_update=divide))
    assert finding.evidence["kind"] == "gradients-too"


def test_a_division_of_gradients_that_a_product_makes_up_for_is_no_second_one(tmp_path):
    def divide(model):
        for param in model.parameters():
            param.grad /= MICROS

    def loss_of(logits, y, micro):
        return cross_entropy(logits, y) * MICROS / MICROS

    assert check(trained(tmp_path / "run", loss_of, before_update=divide)) == []


def once(logits, y, micro):
    return cross_entropy(logits, y) / MICROS


def mean_of_four_heads(logits, y, micro):
    return sum(cross_entropy(logits * scale, y) for scale in (1, 2, 3, 4)) / 4 / MICROS


def mean_of_stacked_heads(logits, y, micro):
    return torch.stack([cross_entropy(logits * scale, y) for scale in (1, 2, 3, 4)]).mean() / MICROS


def sum_over_four_samples(logits, y, micro):
    return cross_entropy(logits[:3], y[:3], reduction="sum") / 4 / MICROS


def means_of_samples_added_up(logits, y, micro):
    return (logits.square().mean(-1).sum() / 4) / MICROS


def auxiliary_of_a_quarter(logits, y, micro):
    return (cross_entropy(logits, y) + 0.25 * logits.square().mean()) / MICROS


def by_all_targets(logits, y, micro):
    return cross_entropy(logits, y, reduction="sum") / sum(COUNTS)


def divided_twice_and_multiplied(logits, y, micro):
    return cross_entropy(logits, y) * MICROS / MICROS / MICROS


def temperature_within(logits, y, micro):
    return cross_entropy(logits / 4, y) / MICROS


@pytest.mark.in_turn
@pytest.mark.parametrize(
    "loss_of",
    [
        once,
        mean_of_four_heads,
        mean_of_stacked_heads,
        sum_over_four_samples,
        means_of_samples_added_up,
        auxiliary_of_a_quarter,
        by_all_targets,
        divided_twice_and_multiplied,
        temperature_within,
    ],
)
def test_losses_that_are_divided_once(tmp_path, loss_of):
    assert check(trained(tmp_path / "run", loss_of)) == []


@pytest.mark.parametrize(
    "loss_of",
    [
        lambda logits, y, micro: functional.mse_loss(logits[:, 0], y.float()) / 2 / 2,
        lambda logits, y, micro: (cross_entropy(logits, y) + cross_entropy(logits.flip(0), y.flip(0))) / 2 / 2,
        lambda logits, y, micro: 0.5 * cross_entropy(logits, y) / 2,
    ],
)
def test_a_half_may_be_a_weight_where_there_are_two(tmp_path, loss_of):
    assert check(trained(tmp_path / "run", loss_of, micros=2)) == []


def test_gradients_that_are_clipped_are_divided_by_nothing(tmp_path):
    def clip(model):
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)

    assert check(trained(tmp_path / "run", once, before_update=clip)) == []


def rows_of(tmp_path, name, *, ranks, divisors=(4.0, 4.0), reduced=None):
    """A Run of ranks with four passes an update, whose cross-entropy is divided by these."""
    rows = healthy_rows(ranks, 4)
    head = [FUNCTIONS.index("cross-entropy"), 1, NAN, 1.6, 0.1, 1.0, *[NAN] * 2 * OF_ALL, *[NAN] * OF_ONE]
    divided = [*divisors, *[NAN] * (OF_ONE - len(divisors))]
    row_of_terms = [x for micro in range(4) for x in (micro, *head, *divided)]
    assert len(row_of_terms) == 4 * NUM_FIELDS
    assert len(list(terms_of(row_of_terms))) == 4
    for row in rows.values():
        row["loss_terms"] = row_of_terms
        if reduced is not None:
            row["group_reduce_factor"] = [reduced] * len(row.get("group_reduce_factor", [1.0]))
    return write_run(tmp_path / name, rows)


def test_one_division_may_be_over_as_many_ranks(tmp_path):
    assert len(check(rows_of(tmp_path, "two", ranks=2))) == 1
    assert len(check(rows_of(tmp_path, "averaged", ranks=4, reduced=1.0))) == 1
    with pytest.raises(CannotTell, match="may be over ranks"):
        check(rows_of(tmp_path, "added", ranks=4, reduced=4.0))


def test_cannot_tell_without_an_accumulation(tmp_path):
    with pytest.raises(CannotTell, match="several backward passes"):
        check(trained(tmp_path / "run", lambda logits, y, micro: cross_entropy(logits, y), micros=1))


def test_rows_of_another_version_are_not_read(tmp_path):
    rows = healthy_rows(1, 2)
    rows[0, 0]["loss_terms"] = [0.0] * 16
    with pytest.raises(CannotTell, match="another version"):
        check(write_run(tmp_path / "run", rows))
