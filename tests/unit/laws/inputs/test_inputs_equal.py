"""inputs-equal: two inputs that are one at every step; inputs that may be."""

import pytest
from tests.unit.healthy_run import write_run

from trueline.laws.inputs import inputs_equal
from trueline.schema.columns.input_values import ROWS_ALIKE, InputFact, facts_text
from trueline.schema.errors import CannotTell


def fact(name, shape=(4, 8), dtype="torch.float32"):
    return InputFact(name, False, dtype, shape)


def found_in(tmp_path, *tensors, steps=8, kinds=0):
    rows = {}
    for step in range(steps):
        values = [number for _, of in tensors for number in (of(step), 0, 0, kinds)]
        rows[step, 0] = {"input_facts": facts_text([name for name, _ in tensors]), "input_values": values}
    return inputs_equal.check(write_run(tmp_path, rows))


def by_step(step):
    return step + 1


def test_two_inputs_that_are_one_are_found(tmp_path):
    (finding,) = found_in(tmp_path, (fact("state"), by_step), (fact("next_state"), by_step))
    assert (finding.severity, finding.evidence["kind"]) == ("confirm", "state-next_state")
    assert finding.claim == (
        "Two inputs of the model are bitwise the same in every sample: `state` and `next_state`, at each of 8 steps "
        "that were looked at."
    )


@pytest.mark.parametrize(
    "second",
    [
        (fact("b"), lambda step: -step),
        (fact("b"), lambda step: step + 1 if step else 99),  # but for one step
        (fact("b", (4, 9)), by_step),
        (fact("b", dtype="torch.float64"), by_step),
        (fact("labels"), by_step),
        (fact("decoder_attention_mask"), by_step),
        (fact("key"), by_step),
    ],
)
def test_inputs_that_differ_or_may_be_one_are_silent(tmp_path, second):
    assert found_in(tmp_path, (fact("a"), by_step), second) == []


def test_what_never_changes_or_has_one_row_is_left_alone(tmp_path):
    assert found_in(tmp_path / "constant", (fact("a"), lambda step: 1), (fact("b"), lambda step: 1)) == []
    assert found_in(tmp_path / "alike", (fact("a"), by_step), (fact("b"), by_step), kinds=ROWS_ALIKE) == []


def test_seven_steps_tell_nothing(tmp_path):
    with pytest.raises(CannotTell, match="fewer than 8 steps"):
        found_in(tmp_path, (fact("a"), by_step), (fact("b"), by_step), steps=7)
