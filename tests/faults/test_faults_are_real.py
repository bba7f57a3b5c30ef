"""Without Trueline: every planted fault takes effect, its twin does not show it, and controls keep replicas equal."""

import pytest

from trueline.testing.entry import Control, Fault, all_entries
from trueline.testing.play import play
from trueline.testing.witness import replicas_differ

FAULTS = [entry for entry in all_entries() if isinstance(entry, Fault)]
CONTROLS = [entry for entry in all_entries() if isinstance(entry, Control)]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.id)
def test_planted_fault_takes_effect_and_its_twin_is_sound(fault, pool_of):
    pool = pool_of(fault.world_size)
    faulty, healthy = (pool.run(play, fault.id, variant) for variant in ("faulty", "healthy"))
    assert fault.shows(faulty, healthy)
    assert not fault.shows(healthy, healthy)


@pytest.mark.parametrize("control", CONTROLS, ids=lambda control: control.id)
def test_control_keeps_replicas_equal(control, pool_of):
    assert not replicas_differ(pool_of(control.world_size).run(play, control.id, "healthy"), [])
