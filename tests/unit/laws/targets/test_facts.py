"""Facts of tokens: padding and targets, as shares of the places of rows."""

import pytest
import torch
from tests.unit.healthy_run import write_run
from tests.unit.laws.targets.test_end_untrained import END, PAD, TEXTS, passed
from tests.unit.laws.targets.test_token_doubled import passed as edged

import trueline
from trueline.laws.targets import facts


def run_of(tmp_path, *passes):
    return write_run(tmp_path, {(step, 0): {"end_tokens": tokens.to_row()} for step, tokens in enumerate(passes)})


def test_padding_and_targets_are_shares_of_places(tmp_path):
    """Rows of 4, 6, 3 and 5 tokens in 6 places; the first token of each is the target of no position."""
    run = run_of(tmp_path, passed(TEXTS, end=[END]), passed(TEXTS, end=[END]))
    assert facts.padding(run) == (
        f"25% of the places of tokens are padding (token {PAD})",
        {"share": 0.25, "tokens": [PAD], "side": ""},
    )
    assert facts.targets(run) == (
        "of rows with a target, 58% of the places have one that counts in the loss",
        {"targets": 28, "places": 48, "share": 0.5833},
    )


@pytest.mark.parametrize(("edges", "side"), [(("left",), "left"), (("right",), "right"), (("left", "right"), "")])
def test_the_side_of_padding_is_told(tmp_path, edges, side):
    rows = [row for edge in edges for row in edged(TEXTS, side=edge).to_row()]
    run = write_run(tmp_path, {(0, 0): {"end_tokens": passed(TEXTS).to_row(), "edge_tokens": rows}})
    text, value = facts.padding(run)
    assert value["side"] == (f"on the {side}" if side else "on both sides")
    assert text.endswith(f"padding (token {PAD}), {value['side']}")


def test_rows_without_padding_have_no_such_line(tmp_path):
    assert facts.padding(run_of(tmp_path / "whole", passed([[9, 8, 7]] * 4))) is None
    none = write_run(tmp_path / "none", {(0, 0): {"loss": 1.0}})
    assert (facts.padding(none), facts.targets(none)) == (None, None)


class Classifier(torch.nn.Module):
    """Reads rows of tokens, and returns one of two classes of each."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = torch.nn.Embedding(TOKENS, 16), torch.nn.Linear(16, 2)

    def forward(self, ids):
        return self.head(self.embedding(ids).mean(1))


def test_a_class_of_a_text_is_no_place_of_a_token(tmp_path):
    model = Classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = trueline.watch(model, optimizer, out=tmp_path)
    for _ in range(8):
        ids = torch.randint(0, TOKENS, (16, LENGTH))
        torch.nn.functional.cross_entropy(model(ids), ids[:, 0] % 2).backward()
        optimizer.step()
        optimizer.zero_grad()
    watch.close()
    names = {fact.name for fact in trueline.facts(tmp_path).facts}
    assert names.isdisjoint({"token-targets", "first-targets"})


MARKER, TOKENS, LENGTH = 3, 40, 14
NOT_SAID = "the token behind token 3 is never a target"


class Reader(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.gru = torch.nn.Embedding(TOKENS, 16), torch.nn.GRU(16, 16, batch_first=True)
        self.head = torch.nn.Linear(16, TOKENS)

    def forward(self, ids):
        return self.head(self.gru(self.embedding(ids))[0])


def batch(step, *, late, between=(), prompts=(3, 8)):
    """Rows of a prompt, a marker, tokens of which only some are read ``between``, and an answer, with its labels."""
    draw = torch.Generator().manual_seed(step)
    ids = torch.randint(10, TOKENS, (16, LENGTH), generator=draw)
    labels = ids.clone()
    for row, length in enumerate(torch.randint(*prompts, (16,), generator=draw).tolist()):
        ids[row, length] = labels[row, length] = MARKER
        if between:
            ids[row, length + 1] = between[row % len(between)]
        labels[row, : length + 1 + late] = -100
    return ids, labels


def trained(path, *, by="labels", **kinds):
    """Facts and marks of where targets begin."""
    torch.manual_seed(0)
    model = Reader()
    optimizer = torch.optim.AdamW(model.parameters())
    watch = trueline.watch(model, optimizer, out=path)
    for step in range(8):
        ids, labels = batch(step, **kinds)
        logits, goals = model(ids)[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
        if by == "labels":
            loss = torch.nn.functional.cross_entropy(logits, goals)
        else:
            mask = (goals != -100).float()
            losses = torch.nn.functional.cross_entropy(logits, ids[:, 1:].flatten(), reduction="none")
            loss = (losses * mask).sum() / mask.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    watch.close()
    (fact,) = (fact for fact in trueline.facts(path).facts if fact.name == "first-targets")
    shares = next(fact.value["share"] for fact in trueline.facts(path).facts if fact.name == "token-targets")
    return fact, shares


@pytest.mark.parametrize("by", ["labels", "mask"])
def test_a_mask_that_begins_one_late_skips_the_first_token(tmp_path, by):
    fact, share = trained(tmp_path / "late", late=1, by=by)
    assert fact.text == (
        "the first target of a row stands behind 5 to 9 tokens, 2 places behind token 3, the last at its end, in "
        "128 rows"
    )
    assert fact.marks["first-token-untrained"].startswith(NOT_SAID)
    fact, whole = trained(tmp_path / "right", late=0, by=by)
    assert "behind 4 to 8 tokens, directly behind token 3" in fact.text
    assert not fact.marks
    assert whole - share == pytest.approx(1 / LENGTH, abs=1e-3)


@pytest.mark.in_turn
@pytest.mark.parametrize(
    "kinds",
    [
        {"late": 1, "between": (4, 5, 6)},  # a language or a class that is given in front of the text
        {"late": 1, "between": (4,)},
        {"late": 1, "prompts": (5, 6)},  # prompts of one length: what stands before a target is no marker
        {"late": -4, "prompts": (3, 4)},
        {"late": 3},
    ],
)
def test_what_only_looks_like_a_late_mask_has_no_mark(tmp_path, kinds):
    assert not trained(tmp_path / "run", **kinds)[0].marks
