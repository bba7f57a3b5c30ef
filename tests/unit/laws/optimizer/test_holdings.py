"""updated-twice and decay-on-norms: what optimizers hold, at the steps that are followed from update to update."""

import weakref

import pytest
import torch
from tests.unit.asked import asked
from torch import nn

import trueline
from trueline.laws.accumulation import grad_accumulates
from trueline.laws.optimizer import decay_on_norms, updated_twice


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.RMSNorm(8), nn.Tanh(), nn.Linear(8, 2))


def trained(
    folder,
    make,
    *,
    step=lambda optimizers: [optimizer.step() for optimizer in optimizers],
    after=None,
    clears=lambda optimizers: [optimizer.zero_grad() for optimizer in optimizers],
):
    """The Run, and the weights at the end, of six steps with the optimizers that ``make`` returns of the model."""
    model = network()
    optimizers = make(model)
    watch = None if folder is None else trueline.watch(model, optimizers, out=folder, plan={"every": 1})
    for number in range(6):
        clears(optimizers)
        model(torch.randn(8, 4)).square().mean().backward()
        step(optimizers)
        if after is not None:
            after(number, optimizers)
    if watch is not None:
        watch.close()
    return [param.detach().clone() for param in model.parameters()]


def both(model):
    return [torch.optim.Adam(model[0].parameters(), lr=1e-2), torch.optim.SGD(model.parameters(), lr=1e-2)]


def test_what_two_optimizers_update_by_one_gradient_is_told(tmp_path):
    trained(tmp_path / "run", both)
    (finding,) = asked(tmp_path / "run", updated_twice.CODE)[0]
    assert (finding.severity, finding.evidence["names"]) == ("warning", ["0.weight", "0.bias"])
    assert "are in two optimizers (Adam and SGD)" in finding.claim


def apart(model):
    return [torch.optim.Adam(model[0].parameters(), lr=1e-2), torch.optim.SGD(model[1:].parameters(), lr=1e-2)]


@pytest.mark.parametrize(
    ("clears", "names"),
    [
        (lambda optimizers: optimizers[0].zero_grad(), ["1.weight", "3.weight", "3.bias"]),
        (lambda optimizers: [optimizer.zero_grad(set_to_none=False) for optimizer in optimizers], []),
        (lambda optimizers: [optimizer.zero_grad() for optimizer in optimizers], []),
    ],
    ids=["of one alone", "filled with zeros", "of both"],
)
def test_gradients_of_a_second_optimizer_that_nobody_clears(tmp_path, clears, names):
    trained(tmp_path / "run", apart, clears=clears)
    findings = asked(tmp_path / "run", grad_accumulates.CODE)[0]
    assert [finding.evidence["names"] for finding in findings] == ([names] if names else [])


def test_gradients_that_another_loss_leaves_and_that_are_cleared_in_time(tmp_path):
    """As those of a critic, through which the loss of a generator goes."""

    def step(optimizers):
        optimizers[0].step()
        optimizers[1].step()
        weight = optimizers[1].param_groups[0]["params"][0]
        weight.square().sum().backward()

    trained(tmp_path / "run", apart, step=step)
    assert asked(tmp_path / "run", grad_accumulates.CODE)[0] == []


def with_a_pass_between(optimizers):
    optimizers[0].step()
    optimizers[0].zero_grad()
    optimizers[1].zero_grad()
    weight = optimizers[1].param_groups[0]["params"][0]
    weight.square().sum().backward()
    optimizers[1].step()


def in_turns(optimizers):
    in_turns.number = getattr(in_turns, "number", 0) + 1
    optimizers[in_turns.number % 2].step()


class Wrapper(torch.optim.Optimizer):
    """Makes an update of the optimizer inside."""

    def __init__(self, inner):
        super().__init__(inner.param_groups, {})
        self.inner = inner

    def step(self, closure=None):
        self.inner.step()


def wrapped(model):
    return [Wrapper(torch.optim.SGD(model.parameters(), lr=1e-2))]


@pytest.mark.parametrize(
    ("make", "settings"),
    [(apart, {}), (both, {"step": with_a_pass_between}), (both, {"step": in_turns}), (wrapped, {})],
)
def test_optimizers_with_gradients_of_their_own_are_left_alone(tmp_path, make, settings):
    trained(tmp_path / "run", make, **settings)
    assert asked(tmp_path / "run", updated_twice.CODE) == ([], [])


def groups(spared, *, empty=True, decay=0.5):
    """AdamW that spares the parameters whose names end so."""

    def make(model):
        named = list(model.named_parameters())
        parts = [
            {"params": [p for n, p in named if not n.endswith(spared)], "weight_decay": decay},
            {"params": [p for n, p in named if n.endswith(spared)], "weight_decay": 0.0},
        ]
        return [torch.optim.AdamW([part for part in parts if empty or part["params"]], lr=1e-3)]

    return make


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("make", "kinds"),
    [
        (groups(("LayerNorm.weight",)), ["empty"]),
        (groups(("LayerNorm.weight",), empty=False), ["none"]),
        (groups(("bias", "LayerNorm.weight")), ["others"]),
        (groups(("bias", "1.weight")), []),
        (groups(("3.weight",)), []),  # a matrix is spared for a reason of its own
        (groups(("LayerNorm.weight",), empty=False, decay=0.0), []),
        (lambda model: [torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.5)], []),
        (lambda model: [torch.optim.AdamW([{"params": list(model.parameters())}], weight_decay=0.5)], []),
    ],
)
def test_weights_of_norms_that_were_to_be_spared_are_to_be_confirmed(tmp_path, make, kinds):
    trained(tmp_path / "run", make)
    findings, why = asked(tmp_path / "run", decay_on_norms.CODE)
    assert why == []
    assert [(finding.severity, finding.evidence["kind"]) for finding in findings] == [("confirm", k) for k in kinds]
    assert all(finding.evidence["names"] == ["1.weight"] for finding in findings)


def test_a_decay_that_follows_a_schedule_is_left_alone(tmp_path):
    def raise_decay(number, optimizers):
        optimizers[0].param_groups[0]["weight_decay"] = 0.1 * (number + 1)

    folder = tmp_path / "run"
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with trueline.watch(model, optimizer, out=folder, plan={"every": 1}):
        for number in range(20):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
            raise_decay(number, [optimizer])
    assert asked(folder, decay_on_norms.CODE) == ([], [])


def test_watching_leaves_a_training_as_it_is(tmp_path):
    torch.manual_seed(1)
    plain = trained(None, both)
    watched = trained(tmp_path / "run", both)
    assert all(map(torch.equal, plain, watched))


def test_an_optimizer_that_the_job_lets_go_of_is_not_kept(tmp_path):
    model, critic = network(), nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    optimizers = [optimizer, torch.optim.Adam(critic.parameters())]
    gone = weakref.ref(optimizers[1])
    alive = []
    with trueline.watch(model, optimizer, out=tmp_path / "run", plan={"every": 4}):
        for step in range(8):
            (model(torch.randn(8, 4)).square().mean() + critic(torch.randn(8, 4)).square().mean()).backward()
            for trained_by in optimizers:
                trained_by.step()
                trained_by.zero_grad()
            del trained_by
            if step == 5:
                optimizers.pop()
            alive.append(gone() is not None)
    assert alive == [True] * 5 + [False] * 3


def adversaries(folder, turn):
    """The findings of 20 turns of a generator and its critic."""
    torch.manual_seed(0)
    generator = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 4))
    critic = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    updates = [torch.optim.Adam(generator.parameters(), lr=1e-3), torch.optim.Adam(critic.parameters(), lr=1e-3)]
    both_watched = [
        trueline.watch(model, optimizer, out=folder, plan={"every": 1})
        for model, optimizer in ((generator, updates[0]), (critic, updates[1]))
    ]
    for _ in range(20):
        turn(generator, critic, *updates)
    for watch in both_watched:
        watch.close()
    folders = [folder, *(folder / "models").iterdir()]
    assert len(folders) == 2
    return [finding for place in folders for finding in asked(place, grad_accumulates.CODE)[0]]


def generator_turn(generator, critic, of_generator):
    of_generator.zero_grad()
    fake = generator(torch.randn(8, 3))
    (-critic(fake).mean()).backward()
    of_generator.step()
    return fake.detach()


def cleared_behind(generator, critic, of_generator, of_critic):
    fake = generator_turn(generator, critic, of_generator)
    (critic(fake).mean() - critic(torch.randn(8, 4)).mean()).backward()
    of_critic.step()
    of_critic.zero_grad()


def test_gradients_that_a_generator_leaves_in_its_critic(tmp_path):
    (finding,) = adversaries(tmp_path / "run", cleared_behind)
    assert (finding.severity, finding.evidence["kind"]) == ("confirm", "of-another-loss")
    assert "0.weight" in finding.evidence["names"]


def cleared_in_front(generator, critic, of_generator, of_critic):
    fake = generator_turn(generator, critic, of_generator)
    of_critic.zero_grad()
    (critic(fake).mean() - critic(torch.randn(8, 4)).mean()).backward()
    of_critic.step()


def frozen_meanwhile(generator, critic, of_generator, of_critic):
    critic.requires_grad_(False)
    fake = generator_turn(generator, critic, of_generator)
    critic.requires_grad_(True)
    (critic(fake).mean() - critic(torch.randn(8, 4)).mean()).backward()
    of_critic.step()
    of_critic.zero_grad()


def critic_first(generator, critic, of_generator, of_critic):
    of_critic.zero_grad(set_to_none=False)
    critic(torch.randn(8, 4)).mean().neg().backward()
    critic(generator(torch.randn(8, 3)).detach()).mean().backward()
    of_critic.step()
    generator_turn(generator, critic, of_generator)


def joint(generator, critic, of_generator, of_critic):
    of_generator.zero_grad()
    of_critic.zero_grad()
    critic(generator(torch.randn(8, 3))).square().mean().backward()
    of_generator.step()
    of_critic.step()


def shared_part(generator, critic, of_generator, of_critic):
    """The critic is a head, and the generator a part that two losses share."""
    of_critic.zero_grad()
    critic(generator(torch.randn(8, 3))).square().mean().backward()
    of_critic.step()
    generator(torch.randn(8, 3)).square().mean().backward()
    of_generator.step()
    of_generator.zero_grad()


@pytest.mark.in_turn
@pytest.mark.parametrize("turn", [cleared_in_front, frozen_meanwhile, critic_first, joint, shared_part])
def test_adversaries_that_are_cleared_and_parts_that_are_shared_are_left_alone(tmp_path, turn):
    assert adversaries(tmp_path / "run", turn) == []
