"""Values of two runs matched: whatever the names, with calls missing, extra, or done again."""

from __future__ import annotations

import random

import pytest

from trueline.comparison.match.align import align
from trueline.comparison.match.names import NameMap
from trueline.comparison.match.needleman_wunsch import align_sequences
from trueline.judge.recorded.step_values import StepValues, Value
from trueline.schema.errors import AlignmentError
from trueline.schema.site import Site


class Steps:
    """Makes a step by hand; values are told apart by their site."""

    def __init__(self, label="run"):
        self.label = label
        self.values = []
        self.counts = {}

    def add(
        self, name, slots, *, module="", kind="op", phase="fwd", micro=0, number=None, args="{}", shape=(2,), flags=()
    ):
        """One call; ``slots`` as text, a slot with ``=5`` has the same tensor as value 5."""
        if number is None:
            number = self.counts.get((micro, phase, name), 0)
            self.counts[micro, phase, name] = number + 1
        for slot in slots.split():
            slot, _, root = slot.partition("=")
            index = len(self.values)
            api = "torch." + name.rpartition(".")[2] if kind == "op" else f"my.{name if not module else 'Module'}"
            self.values.append(
                Value(
                    index=index,
                    root=int(root) if root else index,
                    ranks=(0,),
                    site=Site(0, micro, 0, phase, name, number, slot),
                    kind=kind,
                    api="" if kind == "param" else api,
                    module=module,
                    flags=frozenset(flags),
                    dtype="float32",
                    shape=shape,
                    args=args,
                )
            )
            args = None
        return self

    def gradient(self, name, slots, *, module="", kind="op", micro=0, number=0):
        return self.add(name, slots, module=module, kind=kind, phase="bwd", micro=micro, number=number, args=None)

    @property
    def step(self):
        return StepValues(self.label, 0, (0,), self.values)


def sites(pairs):
    """``name#call:slot`` of twins, ``-`` for none."""

    def text(value):
        return "-" if value is None else f"{value.site.phase}/{value.site.name}#{value.site.call}:{value.site.slot}"

    return [(text(pair.mine), text(pair.theirs)) for pair in pairs]


def unmatched(alignment):
    return {
        text: pair.reason
        for pair, (mine, theirs) in zip(alignment.pairs, sites(alignment.pairs), strict=True)
        if pair.reason
        for text in (mine if mine != "-" else theirs,)
    }


def model(prefix="", *, root="LM", label="run"):
    made = Steps(label)
    made.add(root, "in0", kind="module")
    for layer in range(3):
        where = f"{prefix}layers.{layer}"
        made.add(where, "in0", kind="module", module=root)
        made.add(f"{where}.linear", "in0 in1 out0", module=where)
        made.add(f"{where}.add", "in0 in1 out0", module=where)
        made.add(f"{where}.add", "in0 in1 out0", module=where)
    made.add(f"{root}.mean", "in0 out0", module=root)
    made.gradient(f"{prefix}layers.2.add", "out0", module=f"{prefix}layers.2", number=1)
    made.add(f"{prefix}layers.0.weight", "value", kind="param", phase="param", args=None)
    return made


def test_the_same_steps_align_one_by_one_in_order():
    mine, theirs = model().step, model().step
    found = align(mine, theirs, NameMap())
    assert [(pair.mine.index, pair.theirs.index) for pair in found.pairs] == [(i, i) for i in range(len(mine.values))]
    assert not any(pair.reason for pair in found.pairs)
    assert [(one.first.index, other.first.index) for one, other in found.calls] == [
        (call.first.index, call.first.index) for call in mine.calls()
    ]


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "_fsdp_wrapped_module.", "model.", "base.model."])
@pytest.mark.parametrize("swapped", [False, True])
def test_wrappers_and_a_part_in_front_of_all_names_do_not_matter(prefix, swapped):
    sides = [model(prefix, root="FSDPLM").step, model().step]
    found = align(*(reversed(sides) if swapped else sides), NameMap())
    assert not any(pair.reason for pair in found.pairs)


def test_an_extra_call_shifts_the_numbers_of_those_after_it_and_of_their_gradients():
    mine = Steps().add("m", "in0", kind="module", module="LM")
    mine.add("m.mul", "in0 out0", module="m", shape=(3,))
    mine.add("m.add", "in0 out0", module="m", shape=(4,)).add("m.add", "in0 out0", module="m", shape=(5,))
    mine.gradient("m.add", "out0", module="m", number=1).gradient("m.add", "out0", module="m", number=0)
    theirs = Steps().add("m", "in0", kind="module", module="LM")
    theirs.add("m.mul", "in0 out0", module="m", shape=(3,)).add("m.add", "in0 out0", module="m", shape=(9,))
    theirs.add("m.add", "in0 out0", module="m", shape=(4,)).add("m.add", "in0 out0", module="m", shape=(5,))
    theirs.gradient("m.add", "out0", module="m", number=2).gradient("m.add", "out0", module="m", number=1)
    theirs.gradient("m.add", "out0", module="m", number=0)
    found = align(mine.step, theirs.step, NameMap())
    twins = dict(sites(found.pairs))
    assert twins["fwd/m.add#0:out0"] == "fwd/m.add#1:out0"
    assert twins["fwd/m.add#1:out0"] == "fwd/m.add#2:out0"
    assert twins["bwd/m.add#0:out0"] == "bwd/m.add#1:out0"
    assert twins["bwd/m.add#1:out0"] == "bwd/m.add#2:out0"
    assert unmatched(found) == {
        "fwd/m.add#0:in0": "only in REF: a call that RUN does not make",
        "fwd/m.add#0:out0": "only in REF: a call that RUN does not make",
        "bwd/m.add#0:out0": "only in REF: RUN has no gradient there",
    }


def test_what_only_the_other_side_has_follows_what_it_follows_there():
    theirs = Steps().add("m", "in0", kind="module", module="LM").add("m.exp", "out0", module="m")
    theirs.add("m.add", "out0", module="m")
    mine = Steps().add("m", "in0", kind="module", module="LM").add("m.add", "out0", module="m")
    assert sites(align(mine.step, theirs.step, NameMap()).pairs) == [
        ("fwd/m#0:in0", "fwd/m#0:in0"),
        ("-", "fwd/m.exp#0:out0"),
        ("fwd/m.add#0:out0", "fwd/m.add#0:out0"),
    ]


def test_ops_that_do_the_same_in_another_way_are_twins():
    theirs = Steps().add("m", "in0", kind="module", module="LM").add("m.add", "in0 in1 out0", module="m")
    for name in ("add_", "iadd", "radd"):
        mine = Steps().add("m", "in0", kind="module", module="LM").add(f"m.{name}", "in0 in1 out0", module="m")
        assert unmatched(align(mine.step, theirs.step, NameMap())) == {}


def test_calls_that_only_move_other_numbers_are_no_twins():
    """Eager attention repeats its keys and reshapes them; one kernel for all of it reshapes what comes out instead."""
    mine = Steps().add("m", "in0", kind="module", module="LM").add("m.expand", "in0 out0", module="m")
    mine.add("m.reshape", "in0=2 out0", module="m", shape=(2, 2)).add("m.matmul", "in0 out0", module="m")
    theirs = Steps().add("m", "in0", kind="module", module="LM").add("m.attend", "in0 out0", module="m")
    theirs.add("m.reshape", "in0=2 out0", module="m", shape=(4,))
    twins = dict(sites(align(mine.step, theirs.step, NameMap()).pairs))
    assert twins["fwd/m.reshape#0:in0"] == twins["fwd/m.reshape#0:out0"] == "-"


def test_calls_that_move_what_comes_from_the_same_call_are_twins_whatever_its_shape():
    mine, theirs = (Steps().add("m", "in0", kind="module", module="LM") for _ in range(2))
    for side, shape in ((mine, (2, 2)), (theirs, (4,))):
        side.add("m.linear", "in0 out0", module="m", shape=shape)
        side.add("m.reshape", "in0=2 out0", module="m", shape=shape)
    mine.add("m.exp", "in0 out0", module="m")
    twins = dict(sites(align(mine.step, theirs.step, NameMap()).pairs))
    assert twins["fwd/m.reshape#0:in0"] == "fwd/m.reshape#0:in0"


def update(made, name, shape):
    """What Adam does with one parameter."""
    at = len(made.values)
    made.add(name, "value", kind="param", phase="param", args=None, shape=shape)
    made.add(name, "grad", kind="param", phase="grad", args=None, shape=shape)
    made.add("Adam.add_", "in0 out0", module="Adam", phase="opt", shape=())
    made.add("Adam.lerp_", f"in0 in1={at + 1} out0", module="Adam", phase="opt", shape=shape)
    state = len(made.values) - 1
    made.add("Adam.sqrt", f"in0={state} out0", module="Adam", phase="opt", shape=shape)
    return made.add("Adam.addcdiv_", f"in0={at} in1={state} out0", module="Adam", phase="opt", shape=shape)


def test_calls_of_the_optimizer_are_twins_where_they_work_on_one_parameter():
    sides = [model() for _ in range(2)]
    for side, names in zip(sides, ("abc", "cxa"), strict=True):
        for name in names:
            update(side, f"layers.{name}", (3,))
    found = align(*(side.step for side in sides), NameMap())
    opt = [pair for pair in found.pairs if pair.mine is not None and pair.mine.site.phase == "opt"]
    twins = {pair.mine.site.call: pair.theirs.site.call if pair.theirs else None for pair in opt}
    assert {pair.mine.api for pair in opt} == {f"torch.{name}" for name in ("add_", "lerp_", "sqrt", "addcdiv_")}
    assert twins == {0: 2, 1: None, 2: 0}


def test_inputs_by_name_are_twins_of_those_by_position():
    mine = Steps().add("m", "in0", kind="module", module="LM").add("m.linear", "in0 weight out0", module="m")
    theirs = Steps().add("m", "in0", kind="module", module="LM").add("m.linear", "input in1 out0", module="m")
    twins = dict(sites(align(mine.step, theirs.step, NameMap()).pairs))
    assert twins["fwd/m.linear#0:weight"] in ("fwd/m.linear#0:in1", "fwd/m.linear#0:input")
    assert "-" not in twins.values()


def test_gradients_of_calls_that_were_done_again_belong_to_the_first():
    def step(recomputed):
        made = Steps().add("m", "in0", kind="module", module="LM").add("m.mul", "in0 out0", module="m")
        if recomputed:
            made.add("m.mul", "in0 out0", module="m", flags=("recomputed",))
        return made.gradient("m.mul", "out0", module="m", number=int(recomputed)).step

    found = align(step(True), step(False), NameMap())
    assert ("bwd/m.mul#1:out0", "bwd/m.mul#0:out0") in sites(found.pairs)
    assert set(unmatched(found).values()) == {"only in RUN: recomputed for the backward pass, which REF does not do"}
    found = align(step(False), step(True), NameMap())
    assert ("bwd/m.mul#0:out0", "bwd/m.mul#1:out0") in sites(found.pairs)


def test_what_has_no_twin_says_why():
    mine = Steps().add("m", "in0", kind="module", module="LM", flags=("compiled",))
    mine.add("all_reduce", "in0", phase="comm").add("extra", "in0", kind="module", module="LM")
    mine.add("m.mul", "in0 in1 out0", module="m")
    mine.add("SGD.mul_", "in0", module="SGD", phase="opt")
    theirs = Steps().add("m", "in0", kind="module", module="LM").add("m.a", "in0", kind="module", module="m")
    theirs.add("m.mul", "in0 out0", module="m").add("w", "value", kind="param", phase="param", args=None)
    theirs.add("m.a.exp", "in0", module="m.a").add("m.mul", "out0", phase="bwd", args=None, module="m")
    assert unmatched(align(mine.step, theirs.step, NameMap())) == {
        "fwd/m.a#0:in0": "only in REF: inside a compiled module of RUN",
        "fwd/m.a.exp#0:in0": "only in REF: inside a compiled module of RUN",
        "bwd/m.mul#0:out0": "only in REF: inside a compiled module of RUN",
        "comm/all_reduce#0:in0": "only in RUN: a collective that REF does not need",
        "fwd/extra#0:in0": "only in RUN: REF has no module of that name",
        "fwd/m.mul#0:in1": "only in RUN: the call has no such value in REF",
        "opt/SGD.mul_#0:in0": "only in RUN: REF recorded nothing in phase opt",
        "param/w#0:value": "only in REF: RUN recorded nothing in phase param",
    }


def test_a_model_that_was_compiled_whole_hides_all_that_is_inside():
    mine = Steps().add("LM", "in0 out0", kind="module", flags=("compiled",)).add("loss", "in0 out0")
    mine.add("layers.0.weight", "value", kind="param", phase="param", args=None)
    found = unmatched(align(mine.step, model().add("loss", "in0 out0").step, NameMap()))
    reasons = {site: why for site, why in found.items() if site.startswith(("fwd/layers", "bwd/layers"))}
    assert set(reasons.values()) == {"only in REF: inside a compiled module of RUN"}
    assert len(reasons) == 1 + 3 * 10


def test_micro_batches_align_apart_and_the_update_whatever_it_is_noted_with():
    def step(last):
        made = Steps()
        for micro in (0, 1):
            made.add("m", "in0", kind="module", module="LM", micro=micro)
        return made.add("w", "value", kind="param", phase="param", micro=last, args=None).step

    found = align(step(0), step(1), NameMap())
    assert [(pair.mine.site.micro, pair.theirs.site.micro) for pair in found.pairs] == [(0, 0), (1, 1), (0, 1)]


def test_nothing_in_common_is_an_error_that_names_a_map():
    mine, theirs = model("model.decoder.", label="a").step, model("transformer.h.", label="b").step
    with pytest.raises(AlignmentError) as error:
        align(mine, theirs, NameMap())
    assert "'a' has 'model.decoder.layers.0.weight', 'b' has 'transformer.h.layers.0.weight'" in str(error.value)
    suggested = str(error.value).split("--map '")[1].split("'")[0]
    assert not any(pair.reason for pair in align(mine, theirs, NameMap.load(suggested)).pairs)


def test_names_that_have_no_end_in_common_give_no_rule():
    one = Steps().add("stem.conv", "value", kind="param", phase="param", args=None)
    other = Steps().add("head.proj", "value", kind="param", phase="param", args=None)
    with pytest.raises(AlignmentError, match="If they are one model, pass a --map of its names, or record again"):
        align(one.step, other.step, NameMap())


def test_a_step_that_one_side_did_not_record_aligns_with_nothing():
    found = align(model().step, Steps().step, NameMap())
    assert all(pair.theirs is None for pair in found.pairs)


def brute_force(mine, theirs, score):
    """The best sum of scores, by trying everything."""
    if not mine or not theirs:
        return 0
    best = max(brute_force(mine[1:], theirs, score), brute_force(mine, theirs[1:], score))
    pair = score(mine[0], theirs[0])
    return max(best, pair + brute_force(mine[1:], theirs[1:], score)) if pair > 0 else best


def test_sequences_align_as_well_as_trying_everything_does():
    draw = random.Random(0)

    def score(one, other):
        return (one[0] == other[0]) * (4 + (one == other))

    for _ in range(60):
        mine, theirs = ([(draw.choice("ab"), draw.randrange(2)) for _ in range(draw.randrange(7))] for _ in range(2))
        found = align_sequences(mine, theirs, score)
        assert [i for i, _ in found if i is not None] == list(range(len(mine)))
        assert [j for _, j in found if j is not None] == list(range(len(theirs)))
        total = sum(score(mine[i], theirs[j]) for i, j in found if i is not None and j is not None)
        assert total == brute_force(mine, theirs, score)


def test_long_sequences_align_within_a_band():
    mine = [i % 97 for i in range(3000)]
    theirs = mine[:500] + [1000] * 5 + mine[500:2000] + mine[2010:]
    found = align_sequences(mine, theirs, lambda one, other: one == other)
    pairs = [(i, j) for i, j in found if i is not None and j is not None]
    assert len(pairs) == 2990
    assert all(mine[i] == theirs[j] for i, j in pairs)
    assert [i for i, _ in found if i is not None] == list(range(len(mine)))
    assert [j for _, j in found if j is not None] == list(range(len(theirs)))


def training_step(label, *, swapped=False):
    """Two layers with checkpointing, their gradients, and an update that takes the parameters in one order or other."""
    made = Steps(label)
    for layer in ("m.0", "m.1"):
        made.add(layer, "in0", module="m", kind="module")
        made.add(f"{layer}.linear", "in0 in1 out0", module=layer).add(f"{layer}.add", "in0 in1 out0", module=layer)
        made.add(f"{layer}.add", "in0 in1 out0", module=layer)
    made.add("m.0.linear", "in0 in1 out0", module="m.0", flags=("recomputed",))
    for layer in ("m.1", "m.0"):
        made.gradient(f"{layer}.add", "out0 in0", module=layer, number=1).gradient(
            f"{layer}.linear", "in1", module=layer
        )
    params = [len(made.values), len(made.values) + 1]
    for layer in ("m.0", "m.1"):
        made.add(f"{layer}.weight", "param", kind="param", phase="param", args=None)
    for param in reversed(params) if swapped else params:
        made.add("AdamW.mul_", f"in0={param} out0={param}", phase="opt")
    return made.step


def test_steps_laid_out_alike_are_beside_each_other_as_matching_has_them(monkeypatch):
    mine, theirs = training_step("a"), training_step("b")
    quick = align(mine, theirs, NameMap())
    monkeypatch.setattr("trueline.comparison.match.align._has_same_layout", lambda *_: False)
    matched = align(mine, theirs, NameMap())

    assert [(pair.mine, pair.theirs, pair.reason) for pair in quick.pairs] == [
        (pair.mine, pair.theirs, pair.reason) for pair in matched.pairs
    ]
    assert [(call.values, twin.values) for call, twin in quick.calls] == [
        (call.values, twin.values) for call, twin in matched.calls
    ]
    assert [pair.mine.index for pair in quick.pairs] == [pair.theirs.index for pair in quick.pairs]


def test_an_update_in_another_order_is_told_by_its_parameters():
    mine, theirs = training_step("a"), training_step("b", swapped=True)
    beside = {pair.mine.index: pair.theirs.index for pair in align(mine, theirs, NameMap()).pairs}
    first = len(mine.values) - 4
    assert [beside[first + place] for place in range(4)] == [first + 2, first + 3, first, first + 1]
