"""held-out-trained: evaluations of which a part is trained on; evaluations that are held out, or not at all."""

import itertools

import pytest
import torch
from tests.unit.asked import asked
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, Subset, SubsetRandomSampler, TensorDataset, random_split

import trueline

N, WIDTH, BATCH = 160, 6, 16


def rows(n=N, seed=0, values=None):
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(n, WIDTH, generator=draw)
    return x if values is None else torch.randint(0, values, (n, 1), generator=draw).float().expand(n, WIDTH).clone()


def evaluate(model, batches):
    model.eval()
    with torch.no_grad():
        for x in batches:
            model(x)
    model.train()


def trained(out, batches_of, evaluated_of, *, epochs=3, every=0):
    """Train on ``batches_of(epoch)``, and evaluate ``evaluated_of(epoch)`` after each, or at every so many steps."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with trueline.watch(model, optimizer, out=out, plan={"every": 1}):
        step = 0
        for epoch in range(epochs):
            for x in batches_of(epoch):
                functional.mse_loss(model(x), x.sum(-1, keepdim=True)).backward()
                optimizer.step()
                optimizer.zero_grad()
                step += 1
                if every and step % every == 0:
                    evaluate(model, evaluated_of(epoch))
            if not every:
                evaluate(model, evaluated_of(epoch))


def said(out):
    findings, missing = asked(out, "held-out-trained")
    return [(finding.severity, finding.claim) for finding in findings], missing


def loader(data, *, shuffle=True, **keys):
    made = DataLoader(data, batch_size=BATCH, shuffle=shuffle, **keys)
    return lambda epoch: (batch[0] if isinstance(batch, (list, tuple)) else batch for batch in made)


class Augmented(Dataset):
    def __init__(self, x, *, noise):
        self.x, self.noise = x, noise

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index] + self.noise * torch.randn(WIDTH)


def split(data, seed):
    return random_split(data, [N - 32, 32], generator=torch.Generator().manual_seed(seed))


def test_two_splits_without_one_generator(tmp_path):
    trained(
        tmp_path,
        loader(split(Augmented(rows(), noise=0.1), 1)[0]),
        loader(split(Augmented(rows(), noise=0.0), 2)[1], shuffle=False),
    )
    (told,), _ = said(tmp_path)
    assert told == (
        "confirm",
        "27 of the 32 indices of the data set that evaluations read are among the 128 that are trained on.",
    )


def test_samplers_of_one_data_set_that_overlap(tmp_path):
    data = TensorDataset(rows())
    order = torch.randperm(N).tolist()
    trained(
        tmp_path,
        loader(data, shuffle=None, sampler=SubsetRandomSampler(order[:128])),
        loader(data, shuffle=None, sampler=SubsetRandomSampler(order[112:])),
    )
    (told,), _ = said(tmp_path)
    assert told[1].startswith("16 of the 48 indices")


def test_files_that_share_rows(tmp_path):
    x = rows(1200)
    trained(tmp_path, loader(TensorDataset(x[:1000])), loader(TensorDataset(x[900:1020]), shuffle=False), epochs=2)
    (told,), _ = said(tmp_path)
    assert told == (
        "confirm",
        "100 of the 120 samples that evaluations read were trained on before (looked at before steps 63 and 126).",
    )
    facts = {fact.name: fact for fact in trueline.facts(tmp_path).facts}
    assert facts["evaluated-samples"].text == "evaluations read 120 different samples, of which 100 are trained on"
    assert not facts["evaluated-samples"].marks


def by_hand(x, *, size=BATCH, shuffled=True):
    def batches(epoch):
        order = torch.randperm(len(x)) if shuffled else torch.arange(len(x))
        return (x[part] for part in order.split(size))

    return batches


def test_arrays_that_are_cut_by_hand(tmp_path):
    x = rows()
    trained(tmp_path, by_hand(x[:128]), by_hand(x[80:], size=80, shuffled=False))
    (told,), _ = said(tmp_path)
    assert told[1].startswith("48 of the 80 samples that evaluations read were trained on before")


def test_the_last_evaluation_after_the_training(tmp_path):
    x = rows(600)
    data, held_out = TensorDataset(x[:500]), TensorDataset(x[400:])
    trained(tmp_path, loader(data), lambda epoch: loader(held_out)(epoch) if epoch == 2 else ())
    (told,), _ = said(tmp_path)
    assert told[1].startswith("100 of the 200 samples")


def held_out(x):
    return loader(TensorDataset(x[:128])), loader(TensorDataset(x[128:]), shuffle=False)


def on_training(x):
    return loader(TensorDataset(x)), loader(TensorDataset(x[:48]), shuffle=False)


def same_loader(x):
    made = loader(TensorDataset(x))
    return made, made


def both(x):
    data = loader(TensorDataset(x[:128]))
    parts = [loader(TensorDataset(x[:48]), shuffle=False), loader(TensorDataset(x[128:]), shuffle=False)]
    return data, lambda epoch: itertools.chain(*(part(epoch) for part in parts))


def both_by_hand(x):
    return by_hand(x[:128]), lambda epoch: (x[:48], x[128:])


def pool(x):
    """A part of what is evaluated is trained on: that which is hardest."""
    return loader(TensorDataset(x[:48])), loader(TensorDataset(x), shuffle=False)


def folds(x):
    """Each part is held out for two epochs, and trained on in the others."""
    parts = [list(range(40 * fold, 40 * fold + 40)) for fold in range(4)]
    data = TensorDataset(x)

    def subset(fold, held):
        chosen = parts[fold] if held else [index for index in range(N) if index not in parts[fold]]
        return loader(Subset(data, chosen))(0)

    return lambda epoch: subset(epoch // 2, False), lambda epoch: subset(epoch // 2, True)


def labelled(x):
    """Active learning: what was evaluated is trained on from then on, and is evaluated no more."""
    return (
        lambda epoch: loader(TensorDataset(x[: 64 + 8 * epoch]))(0),
        lambda epoch: loader(TensorDataset(x[64 + 8 * epoch :]))(0),
    )


def acting(x):
    """An agent: what it meets is trained on later."""
    met = []

    def evaluated(epoch):
        met.append(x[torch.randint(0, N, (8,))] + torch.randn(8, WIDTH))
        return met[-1:]

    return (lambda epoch: [torch.cat(met)[torch.randint(0, 8 * len(met), (16,))]] if met else [x[:16]]), evaluated


def windows(x):
    """Random windows of a text, of the training's and of another one, as nanoGPT evaluates them."""
    text, other = torch.randn(400), torch.randn(200)

    def drawn(source):
        return torch.stack([source[at : at + WIDTH] for at in torch.randint(0, len(source) - WIDTH, (BATCH,)).tolist()])

    return (lambda epoch: [drawn(text) for _ in range(20)]), (lambda epoch: [drawn(text), drawn(other)])


HEALTHY = {
    "held out": held_out,
    "on training": on_training,
    "same loader": same_loader,
    "both": both,
    "both by hand": both_by_hand,
    "pool": pool,
    "folds": folds,
    "labelled": labelled,
    "acting": acting,
    "windows": windows,
    "few values": lambda x: held_out(rows(values=100)),
    "few values by hand": lambda x: (by_hand(rows(values=90)), by_hand(rows(40, seed=3, values=90), size=40)),
    "twice in the data": lambda x: held_out(torch.cat([x[:156], x[:4]])[torch.randperm(N)]),
    "flipped": lambda x: (
        lambda epoch: (batch * torch.sign(torch.rand(len(batch), 1) - 0.5) for batch in loader(TensorDataset(x))(0)),
        loader(TensorDataset(x[:48]), shuffle=False),
    ),
}


@pytest.mark.in_turn
@pytest.mark.parametrize("made", HEALTHY.values(), ids=HEALTHY)
def test_what_is_held_out_or_evaluated_on_purpose_is_silent(tmp_path, made):
    torch.manual_seed(5)
    trained(tmp_path, *made(rows()), epochs=8)
    assert said(tmp_path)[0] == []


def test_an_evaluation_that_comes_before_the_data_are_gone_through_tells_nothing(tmp_path):
    x, made = rows(640), loader(TensorDataset(rows(640)))
    evaluated = loader(TensorDataset(x[:320]), shuffle=False)
    trained(tmp_path, lambda epoch: itertools.islice(made(epoch), 30), evaluated, epochs=1, every=12)
    findings, missing = said(tmp_path)
    assert findings == []
    assert "has not gone through its data" in str(missing)


def test_an_evaluation_of_nothing_but_training_samples_is_a_fact(tmp_path):
    trained(tmp_path, *on_training(rows()))
    fact = next(f for f in trueline.facts(tmp_path).facts if f.name == "evaluated-samples")
    assert dict(fact.marks) == {"nothing-held-out": "all 48 samples that evaluations read are trained on"}


def test_without_an_evaluation_nothing_is_said(tmp_path):
    trained(tmp_path, loader(TensorDataset(rows())), lambda epoch: ())
    findings, missing = said(tmp_path)
    assert findings == []
    assert "no forward pass in evaluation mode" in str(missing)
