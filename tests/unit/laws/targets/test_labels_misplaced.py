"""labels-misplaced: targets two places on are found on all ranks or one, and right ones, or others, are left alone."""

import pytest
import torch
from tests.unit.healthy_run import write_run
from torch import nn
from torch.nn import functional

import trueline
from trueline.laws.targets import labels_misplaced
from trueline.schema.errors import CannotTell

V, T, B = 50, 16, 8
ALL_TARGETS = [120] * 5


class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(V, 8), nn.Linear(8, V)

    def forward(self, input_ids, labels=None, shift=True):
        logits = self.head(self.embed(input_ids))
        if labels is None:
            return logits
        logits, labels = (logits[:, :-1], labels[:, 1:]) if shift else (logits, labels)
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


class Translator(nn.Module):
    """An encoder beside a decoder, which reads tokens of its own."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = LM(), LM()

    def forward(self, source, tokens):
        return self.decoder(tokens) + self.encoder(source).mean(1, keepdim=True)


@pytest.mark.parametrize(("shifted", "offset"), [(False, 0), (True, None)])
def test_targets_of_a_decoder_are_compared_with_the_tokens_that_it_reads(tmp_path, shifted, offset):
    torch.manual_seed(0)
    model = Translator()
    optimizer = torch.optim.AdamW(model.parameters())
    with trueline.watch(model, optimizer, out=str(tmp_path / "run")):
        for _ in range(3):
            source, tokens = torch.randint(V, (B, T - 3)), torch.randint(V, (B, T))
            read, target = (tokens[:, :-1], tokens[:, 1:]) if shifted else (tokens, tokens)
            functional.cross_entropy(model(source, read).flatten(0, 1), target.flatten()).backward()
            optimizer.step()
            optimizer.zero_grad()
    findings = labels_misplaced.check(trueline.open_run(str(tmp_path / "run")))
    assert ["the input token at the same place" in finding.claim for finding in findings] == [True] * (offset == 0)


def test_a_temperature_behind_the_slice_of_places_leaves_these_known(tmp_path):
    def loss_of(model, rows):
        logits = model(rows)[:, 3:-1] / 0.5
        return functional.cross_entropy(logits.transpose(1, 2), rows[:, 4:])

    assert labels_misplaced.check(train(tmp_path / "run", loss_of)) == []


def train(folder, loss_of, *, ids=None, steps=3):
    torch.manual_seed(0)
    model = LM()
    optimizer = torch.optim.AdamW(model.parameters())
    with trueline.watch(model, optimizer, out=str(folder)):
        for _ in range(steps):
            rows = torch.randint(V, (B, T)) if ids is None else ids
            loss_of(model, rows).backward()
            optimizer.step()
            optimizer.zero_grad()
    return trueline.open_run(str(folder))


def masked(ids):
    labels = ids.clone()
    labels[:, : T // 2] = -100
    return labels


def cut(logits, targets):
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("loss_of", "target"),
    [
        (lambda model, ids: model(ids[:, :-1], labels=ids[:, 1:]), "the token 2 places on: labels are shifted twice"),
        (lambda model, ids: model(ids[:, :-1], labels=masked(ids)[:, 1:]), "the token 2 places on"),
        (
            lambda model, ids: functional.cross_entropy(model(ids[:, :-2]).flatten(0, 1), ids[:, 2:].flatten()),
            "the token 2 places on",
        ),
        (lambda model, ids: cut(model(ids)[:, 1:-2], ids[:, 3:]), "the token 2 places on"),
        (lambda model, ids: model(ids, labels=ids, shift=False), "the input token at the same place: labels are not"),
        (lambda model, ids: model(ids, labels=ids.roll(1, 1), shift=False), "the token before"),
    ],
)
def test_targets_that_are_not_the_next_token(tmp_path, loss_of, target):
    (finding,) = labels_misplaced.check(train(tmp_path / "run", loss_of))
    assert finding.claim.startswith("Each target on rank 0 is " + target)
    assert finding.severity == ("warning" if "2 places" in target else "confirm")
    assert (finding.step_first, finding.step_last) == (0, 2)


@pytest.mark.in_turn
@pytest.mark.parametrize(
    "loss_of",
    [
        lambda model, ids: model(ids, labels=ids),
        lambda model, ids: model(ids, labels=masked(ids)),
        lambda model, ids: model(ids[:, :-1], labels=ids[:, 1:], shift=False),
        lambda model, ids: model(ids, labels=ids.roll(-1, 1), shift=False),
        lambda model, ids: cut(model(ids[:, :-1])[:, 1:], ids[:, 2:]),
        lambda model, ids: cut(model(ids[:, :-1])[:, -9:].transpose(1, 2).transpose(1, 2), ids[:, -9:]),
    ],
)
@pytest.mark.parametrize("text", ["random", "one token", "two in turn"])
def test_next_tokens_are_right_in_any_text(tmp_path, loss_of, text):
    ids = {"one token": torch.ones(B, T).long(), "two in turn": torch.arange(T).expand(B, T) % 2}.get(text)
    assert labels_misplaced.check(train(tmp_path / "run", loss_of, ids=ids)) == []


@pytest.mark.parametrize(
    "loss_of",
    [
        lambda model, ids: functional.cross_entropy(model(ids).mean(1), ids[:, 0] * 0 + 3),
        lambda model, ids: functional.cross_entropy(model(ids).flatten(0, 1), (ids * 7 % V).flatten()),
        lambda model, ids: model(ids, labels=ids) + model(ids[:, :-1], labels=ids[:, 1:]),
        lambda model, ids: model(ids).square().mean(),
    ],
)
def test_other_targets_cannot_tell(tmp_path, loss_of):
    with pytest.raises(CannotTell, match="targets"):
        labels_misplaced.check(train(tmp_path / "run", loss_of))


def test_one_rank_is_named_where_the_others_are_right(tmp_path):
    right, itself = [*ALL_TARGETS, 2, 3, 120, 3, 2], [*ALL_TARGETS, 2, 120, 3, 3, 2]
    rows = {(step, rank): {"target_places": itself if rank == 2 else right} for step in range(4) for rank in range(4)}
    (finding,) = labels_misplaced.check(write_run(tmp_path, rows))
    assert (finding.ranks, finding.severity) == ((2,), "warning")
    assert "Each target on rank 2 is the input token at the same place, and the next one on the others" in finding.claim
