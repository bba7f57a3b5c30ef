"""What a recorded step keeps until its end is few objects, as Python's garbage collector looks at every one of them."""

import gc

import torch
from tests.unit.recording import Recording
from torch import nn

OBJECTS_A_ROW = 1.5
"""A Call for the two to five rows of a call, and the key of a value that is measured: 0.8 here; rows, shapes and
counts that are tuples of their own make it 3.2.
"""


def test_a_recorded_row_keeps_about_one_object_for_the_collector():
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(50))).requires_grad_(False)
    session = Recording(model, {"preset": "mix", "depth": "stats"}).session
    for step in range(2):  # the first learns names, shapes and stacks
        gc.collect()
        gc.disable()
        try:
            session.open_step(step)
            before = len(gc.get_objects())
            model(torch.zeros(2, 4))
            kept = len(gc.get_objects()) - before
        finally:
            gc.enable()
        num_rows = session._buffer.num_rows
        session.close_step()
    assert num_rows > 200
    assert kept < OBJECTS_A_ROW * num_rows
