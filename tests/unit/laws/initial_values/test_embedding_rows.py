"""embedding-rows: a drawn row for padding and new rows that are frozen are told; what was trained is not."""

import pytest
import torch
from tests.unit.asked import asked
from torch import nn

import trueline
from trueline.laws.initial_values import embedding_rows

ROWS, WIDTH = 300, 32


class Reader(nn.Module):
    """Sums an embedding over the tokens of a row."""

    def __init__(self, embedding, vocab_size=None):
        super().__init__()
        self.embed, self.read = embedding, nn.Linear(WIDTH, 4)
        if vocab_size is not None:
            self.vocab_size = vocab_size

    def forward(self, ids, attention_mask=None):
        x = self.embed(ids)
        return self.read((x if attention_mask is None else x * attention_mask[:, :, None]).sum(1))


def trained(folder, model, ids, **inputs):
    optimizer = torch.optim.SGD([param for param in model.parameters() if param.requires_grad], lr=0.1)
    watch = None if folder is None else trueline.watch(model, optimizer, out=folder, plan={"every": 1})
    for _ in range(3):
        model(ids, **inputs).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    if watch is not None:
        watch.close()
    return [param.detach().clone() for param in model.parameters()]


def kinds(folder):
    findings, why = asked(folder, embedding_rows.CODE)
    assert why == []
    assert all(finding.severity == "confirm" for finding in findings)
    return [finding.evidence["kind"] for finding in findings]


def redrawn(embedding):
    nn.init.normal_(embedding.weight, std=0.02)


def redrawn_but_padding(embedding):
    redrawn(embedding)
    embedding.weight.data[0] = 0


def learned(embedding):
    """Norms that differ, as in a model that was trained; the row for padding, too."""
    embedding.weight.data = torch.randn(ROWS, WIDTH) * torch.rand(ROWS, 1)


@pytest.mark.parametrize(
    ("fill", "expected"),
    [(redrawn, ["padding"]), (redrawn_but_padding, []), (learned, []), (lambda embedding: None, [])],
)
def test_a_row_for_padding_that_was_drawn_is_to_be_confirmed(tmp_path, fill, expected):
    torch.manual_seed(0)
    embedding = nn.Embedding(ROWS, WIDTH, padding_idx=0)
    fill(embedding)
    trained(tmp_path / "run", Reader(embedding), torch.randint(0, ROWS, (8, 6)))
    assert kinds(tmp_path / "run") == expected


def frozen(fill=learned):
    torch.manual_seed(0)
    embedding = nn.Embedding(ROWS, WIDTH)
    fill(embedding)
    embedding.weight.requires_grad_(False)
    return embedding


NEW = torch.tensor([[3, ROWS - 1, 7], [4, ROWS - 2, 9]])


def at_the_mean(embedding):
    learned(embedding)
    embedding.weight.data[-3:] = embedding.weight.data[:-3].mean(0) + 1e-5 * torch.randn(3, WIDTH)


def drawn_larger(embedding):
    learned(embedding)
    embedding.weight.data[-3:] = 3 * torch.randn(3, WIDTH)


@pytest.mark.parametrize(
    ("embedding", "vocab_size"),
    [(frozen(redrawn), ROWS - 3), (frozen(at_the_mean), None), (frozen(drawn_larger), None)],
)
def test_new_rows_that_are_frozen_and_read_are_to_be_confirmed(tmp_path, embedding, vocab_size):
    trained(tmp_path / "run", Reader(embedding, vocab_size), NEW)
    (finding,) = asked(tmp_path / "run", embedding_rows.CODE)[0]
    assert (finding.severity, finding.evidence["kind"]) == ("confirm", "new-tokens")
    assert finding.evidence["rows"] == [ROWS - 3, ROWS - 1]
    assert "is frozen, and with it its rows 297 to 299" in finding.claim


def test_rows_like_the_others_and_what_is_trained_are_left_alone(tmp_path):
    trained(tmp_path / "alike", Reader(frozen()), NEW)
    assert kinds(tmp_path / "alike") == []
    embedding = frozen(drawn_larger)
    embedding.weight.requires_grad_(True)
    trained(tmp_path / "trained", Reader(embedding, ROWS - 3), NEW)
    assert asked(tmp_path / "trained", embedding_rows.CODE)[1] == ["no embedding is frozen or has a row for padding"]


@pytest.mark.parametrize("how", ["unread", "masked"])
def test_new_rows_that_nothing_reads_are_left_alone(tmp_path, how):
    ids = torch.randint(0, ROWS - 3, (2, 3)) if how == "unread" else NEW
    mask = {} if how == "unread" else {"attention_mask": (NEW < ROWS - 3).long()}
    trained(tmp_path / "run", Reader(frozen(drawn_larger), ROWS - 3), ids, **mask)
    assert kinds(tmp_path / "run") == []


def test_what_an_adapter_around_it_trains_is_left_alone(tmp_path):
    class Adapted(nn.Module):
        def __init__(self, base_layer):
            super().__init__()
            self.base_layer, self.delta = base_layer, nn.Parameter(torch.zeros(ROWS, WIDTH))

        def forward(self, ids):
            return self.base_layer(ids) + self.delta[ids]

    model = Reader(nn.Identity(), ROWS - 3)
    model.embed = Adapted(frozen(drawn_larger))
    trained(tmp_path / "run", model, NEW)
    assert asked(tmp_path / "run", embedding_rows.CODE)[0] == []


def test_watching_leaves_a_training_as_it_is(tmp_path):
    torch.manual_seed(3)
    plain = trained(None, Reader(frozen(drawn_larger), ROWS - 3), NEW)
    torch.manual_seed(3)
    watched = trained(tmp_path / "run", Reader(frozen(drawn_larger), ROWS - 3), NEW)
    assert all(map(torch.equal, plain, watched))
