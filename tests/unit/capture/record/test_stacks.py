"""Stacks hold lines of the training script and of libraries, none of what Trueline puts between them."""

from __future__ import annotations

import sys

from trueline.capture.model.patches import unseen
from trueline.capture.record.stacks import Stacks


def test_a_frame_that_only_passes_the_call_on_is_no_line_of_the_user() -> None:
    stacks = Stacks()
    unseen_pass_on = unseen(lambda call: call())
    unseen_pass_on(lambda: stacks.take(sys._getframe()))
    (stack,) = stacks.new
    assert [frame.split()[0].rpartition("/")[2].partition(":")[0] for frame in stack.frames[:2]] == [
        "test_stacks.py"
    ] * 2
    assert not any("<trueline" in frame for frame in stack.frames)
