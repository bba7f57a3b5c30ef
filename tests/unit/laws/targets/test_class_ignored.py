"""class-ignored: a label that the loss leaves out is a class of the data; padding, and labels that are no class."""

import pytest
import torch
from tests.unit.asked import asked
from torch import nn
from torch.nn import functional

import trueline

B, T, CLASSES, STEPS = 8, 12, 5, 4


class Tagger(nn.Module):
    def __init__(self, classes=CLASSES, words=30):
        super().__init__()
        self.embedding, self.head = nn.Embedding(words, 8), nn.Linear(8, classes)

    def forward(self, ids):
        return self.head(self.embedding(ids))


def train(folder, model, batch_of, *, ignored, steps=STEPS):
    """Findings after a training with ``ignore_index``."""
    torch.manual_seed(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with trueline.watch(model, optimizer, out=folder, plan={"every": 1}):
        for _ in range(steps):
            x, y = batch_of()
            functional.cross_entropy(model(x).flatten(0, -2), y.flatten(), ignore_index=ignored).backward()
            optimizer.step()
            optimizer.zero_grad()
    return asked(folder, "class-ignored")[0]


def rows(padding, *, low=0, classes=CLASSES):
    """Ids and labels, of which those from the tenth place on are padding."""
    labels = torch.randint(low, classes, (B, T))
    labels[:, 0] = labels[:, 8] = classes - 1
    labels[:, 9:] = padding
    return torch.randint(1, 30, (B, T)), labels


def masked_words():
    """Classes are tokens, and most have no label."""
    ids, labels = rows(0, low=1, classes=30)
    labels[:, 2:7] = 0
    return ids, labels


def samples():
    return torch.randn(B, 6), torch.randint(0, CLASSES, (B,))


def test_a_tag_that_is_the_padding_too(tmp_path):
    (finding,) = train(tmp_path / "run", Tagger(), lambda: rows(0), ignored=0)
    assert finding.severity == "confirm"
    assert finding.claim.startswith("Class 0 is ignored by the loss (ignore_index=0) and is the label of ")
    assert finding.claim.endswith(" of the places that are not padding: it is never trained.")
    assert 0.1 < finding.measured < 0.2  # a fifth of seven places of nine


def test_samples_of_a_class(tmp_path):
    (finding,) = train(tmp_path / "run", nn.Linear(6, CLASSES), samples, ignored=2, steps=8)
    assert finding.claim.startswith("Class 2 is ignored by the loss (ignore_index=2)")
    assert finding.claim.endswith("of the samples: it is never trained.")


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("model", "batch_of", "ignored"),
    [
        (Tagger, lambda: rows(-100), -100),
        (Tagger, lambda: rows(0, low=1), 0),  # no word has the label of padding
        (lambda: Tagger(classes=30), masked_words, 0),
        (lambda: nn.Linear(6, CLASSES), samples, -100),
        (Tagger, lambda: rows(255), 255),  # as of pixels: no class of the model
    ],
)
def test_silent(tmp_path, model, batch_of, ignored):
    assert train(tmp_path / "run", model(), batch_of, ignored=ignored) == []


def test_few_labels_are_not_told(tmp_path):
    def few():
        ids, labels = rows(0, low=1)
        labels[0, 3] = 0
        return ids, labels

    assert train(tmp_path / "run", Tagger(), few, ignored=0) == []
