"""Terms that are not divided by the micro-batches, as the main one is, in losses as people write them."""

import pytest
import torch
from tests.unit.healthy_run import healthy_rows, write_run
from torch import nn
from torch.nn import functional

import trueline
from trueline.judge.facts.training_facts import read_facts
from trueline.laws.terms.columns import FUNCTIONS, OF_ALL, terms_of
from trueline.laws.terms.term_not_divided import check
from trueline.schema.errors import CannotTell

NUM_MICRO = 4
COUNTS = (7, 12, 3, 10)
"""Targets that count in each micro-batch of 12."""
TOTAL = sum(COUNTS)

cross_entropy = functional.cross_entropy


def micro_batches():
    draw = torch.Generator().manual_seed(1)
    for count in COUNTS:
        targets = torch.randint(5, (12,), generator=draw)
        targets[count:] = -100
        yield torch.randn(12, 6, generator=draw), targets


def trained(out, loss_of, steps=3, **plan):
    """A Run of so many steps of four micro-batches; ``loss_of`` may call backward by itself, and return None."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5))
    updates = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = trueline.watch(model, updates, out=out, plan={"every": 1, **plan})
    for _ in range(steps):
        for micro, (x, targets) in enumerate(micro_batches()):
            loss = loss_of(model, model(x), targets, micro)
            if loss is not None:
                loss.backward()
        updates.step()
        updates.zero_grad()
    watch.close()
    return trueline.open_run(out)


def balance(logits):
    return 5 * (logits.softmax(-1).mean(0) ** 2).sum()


def undivided(model, logits, y, micro):
    return cross_entropy(logits, y) / NUM_MICRO + 0.1 * balance(logits)


def by_total(model, logits, y, micro):
    return 2 * (cross_entropy(logits, y, reduction="sum") / torch.tensor(TOTAL) + 0.02 * balance(logits))


def per_token(model, logits, y, micro):
    return cross_entropy(logits, y, reduction="none").sum() / TOTAL + 1e-4 * logits.logsumexp(-1).square().mean()


def of_the_weights(model, logits, y, micro):
    loss = cross_entropy(logits, y) * (1 / NUM_MICRO)
    for param in model.parameters():
        loss = loss + 0.003 * param.square().sum()
    return loss


def stacked(model, logits, y, micro):
    return torch.stack([cross_entropy(logits, y) / NUM_MICRO, 0.3 * balance(logits)]).sum()


def of_each_token(model, logits, y, micro):
    z_N = logits.logsumexp(-1).square()
    return (cross_entropy(logits, y, reduction="none") / NUM_MICRO + 0.3 * z_N).mean()


def backward_twice(model, logits, y, micro):
    (cross_entropy(logits, y) / NUM_MICRO).backward()
    (0.003 * sum(param.square().sum() for param in model.parameters())).backward()


def regression(model, logits, y, micro):
    return functional.mse_loss(logits[:, 0], y.clamp(min=0).float()) / NUM_MICRO - 0.3 * logits.std()


UNDIVIDED = (
    undivided,
    by_total,
    per_token,
    of_the_weights,
    stacked,
    of_each_token,
    backward_twice,
    regression,
)


@pytest.mark.in_turn
@pytest.mark.parametrize("loss_of", UNDIVIDED)
def test_a_term_that_is_not_divided_as_the_main_one_is_found(tmp_path, loss_of):
    (finding,) = check(trained(tmp_path / "run", loss_of))
    assert finding.measured == NUM_MICRO
    assert (finding.step_first, finding.step_last) == (0, 2)


def all_divided(model, logits, y, micro):
    return (cross_entropy(logits, y) + 0.1 * balance(logits)) / NUM_MICRO


def both_divided(model, logits, y, micro):
    return cross_entropy(logits, y) / NUM_MICRO + 0.1 * (balance(logits) / NUM_MICRO)


def coefficient_divided(model, logits, y, micro):
    return cross_entropy(logits, y) / NUM_MICRO + (0.1 / NUM_MICRO) * balance(logits)


def by_share_of_targets(model, logits, y, micro):
    share = COUNTS[micro] / TOTAL
    return cross_entropy(logits, y, reduction="sum") / TOTAL + 0.1 * balance(logits) * share


def over_all_targets(model, logits, y, micro):
    penalty = logits.logsumexp(-1).square()[y >= 0].sum()
    return cross_entropy(logits, y, reduction="sum") / TOTAL + 0.1 * penalty / TOTAL


def none_divided(model, logits, y, micro):
    return cross_entropy(logits, y) + 0.1 * balance(logits)


def a_weighted_mean(model, logits, y, micro):
    return 0.25 * cross_entropy(logits, y) + 0.3 * logits.logsumexp(-1).square().mean() + 0.45 * logits.std()


def two_of_which_one_is_a_quarter(model, logits, y, micro):
    return functional.l1_loss(logits[:, 0], y.float()) + 0.25 * functional.mse_loss(logits[:, 0], y.float())


def four_heads(model, logits, y, micro):
    return sum(cross_entropy(logits * factor, y) for factor in (1, 2, 3, 4)) / 4 + 0.1 * logits.std()


def backward_twice_divided(model, logits, y, micro):
    (cross_entropy(logits, y) / NUM_MICRO).backward()
    (0.003 * sum(param.square().sum() for param in model.parameters()) / NUM_MICRO).backward()


def penalty_once_an_update(model, logits, y, micro):
    (cross_entropy(logits, y) / NUM_MICRO).backward()
    if not micro:
        (0.003 * sum(param.square().sum() for param in model.parameters())).backward()


@pytest.mark.in_turn
@pytest.mark.parametrize(
    "loss_of",
    [
        all_divided,
        both_divided,
        coefficient_divided,
        by_share_of_targets,
        over_all_targets,
        none_divided,
        a_weighted_mean,
        two_of_which_one_is_a_quarter,
        four_heads,
        penalty_once_an_update,
        backward_twice_divided,
    ],
)
def test_terms_that_are_divided_alike_are_left_alone(tmp_path, loss_of):
    assert check(trained(tmp_path / "run", loss_of)) == []


def test_a_loss_scale_and_what_a_framework_divides_by_are_of_all_terms(tmp_path):
    scaler = torch.amp.GradScaler("cpu")

    def loss_of(model, logits, y, micro):
        return scaler.scale(undivided(model, logits, y, micro)) / 3

    assert len(check(trained(tmp_path / "run", loss_of))) == 1


def test_a_term_that_one_step_does_not_show_is_none(tmp_path):
    num_calls = []

    def loss_of(model, logits, y, micro):
        num_calls.append(1)
        is_first = len(num_calls) <= NUM_MICRO
        return undivided(model, logits, y, micro) if is_first else cross_entropy(logits, y) / NUM_MICRO

    assert check(trained(tmp_path / "run", loss_of)) == []


def test_the_first_steps_are_looked_at_then_ever_fewer(tmp_path):
    run = trained(tmp_path / "run", undivided, steps=9)
    assert sorted(step for step, _ in run.lists("loss_terms")) == [0, 1, 2, 3, 5]


def test_the_fact_has_value_and_factor_of_each_term(tmp_path):
    run = trained(tmp_path / "run", undivided)
    (fact,) = [fact for fact in read_facts(run).facts if fact.name == "loss-terms"]
    first, second = fact.value["terms"]
    assert (first["function"], first["factor"], fact.value["passes"]) == ("cross-entropy", 1 / NUM_MICRO, NUM_MICRO)
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5))
    x, y = next(micro_batches())
    assert first["value"] == pytest.approx(cross_entropy(model(x), y).item(), rel=1e-6)
    assert second["value"] * second["factor"] == pytest.approx(0.1 * balance(model(x)).item(), rel=1e-5)
    assert "cross-entropy" in fact.text
    assert "/ 4 + another term" in fact.text


def test_what_all_of_a_loss_is_divided_by_stands_behind_it(tmp_path):
    run = trained(tmp_path / "run", all_divided)
    (fact,) = [fact for fact in read_facts(run).facts if fact.name == "loss-terms"]
    assert fact.text.startswith("backward is called on (cross-entropy ")
    assert ") / 4, in the first of 4 backward passes of an update" in fact.text


def test_a_sum_over_all_ranks_is_divided_by_the_targets_of_all(tmp_path):
    """Each rank has half of the targets, as with the tokens of all ranks in Hugging Face's Trainer."""
    rows = healthy_rows(2, 2)
    for row in rows.values():
        row["loss_terms"] = [x for micro in range(2) for x in (*term(micro, 25.0, over=100.0), *term(micro, 0.02))]
    (finding,) = check(write_run(tmp_path / "run", rows))
    assert finding.ranks == (0, 1)
    for row in rows.values():
        row["loss_terms"] = [x for micro in range(2) for x in (*term(micro, 25.0, over=60.0), *term(micro, 0.02))]
    assert check(write_run(tmp_path / "weighs otherwise", rows)) == []


def term(micro, number, over=None):
    """A cross-entropy over ``number`` targets that is divided by ``over``, or without it a term times ``number``."""
    nan = float("nan")
    is_sum = over is not None
    head = [micro, FUNCTIONS.index("cross-entropy") if is_sum else 0, 1, number if is_sum else nan, nan, 1.0, 0.0]
    row = [*head, *[nan] * 2 * OF_ALL, *((nan,) if is_sum else (number,)), nan, nan, over if is_sum else nan, nan, nan]
    assert len(list(terms_of(row))) == 1
    return row


def test_a_run_without_losses_that_were_read_cannot_be_told(tmp_path):
    with pytest.raises(CannotTell):
        check(write_run(tmp_path / "run", healthy_rows(1, 2)))
