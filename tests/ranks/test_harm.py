"""Jobs run to the same end, and print the same, watched or not: bits of weights are among what they print."""

from collections.abc import Callable, Iterator

import pytest
from tests.harm.generator import draw
from tests.harm.kinds import KINDS
from tests.harm.running import Both, Job, serve

from trueline.demo import ranks

Runs = Callable[[Job], Both]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    """What becomes of a job, by itself and watched, in forks of one process."""
    context = ranks._context()
    ours, theirs = context.Pipe()
    server = context.Process(target=serve, args=(theirs, tmp_path_factory.mktemp("harm") / "job"))
    server.start()
    theirs.close()

    def run(job: Job) -> Both:
        ours.send(job)
        return ours.recv()

    yield run
    ours.close()
    server.join()


@pytest.mark.in_turn
@pytest.mark.parametrize(("name", "preset"), [(name, each) for name, kind in KINDS.items() for each in kind.presets])
def test_a_job_is_not_changed_by_being_watched(runs: Runs, name: str, preset: str):
    kind = KINDS[name]
    ran = runs(Job(kind.source, num_ranks=kind.num_ranks, preset=preset))
    assert ran.harm == ""
    assert set(ran.bare.status) == {0}
    assert "not watching" not in "".join(ran.watched.errors)


@pytest.mark.in_turn
@pytest.mark.parametrize("number", range(6))
def test_a_random_job_is_not_changed_by_being_watched(runs: Runs, number: int):
    ran = runs(draw(number))
    assert ran.harm == "", ran.job.traits
    assert "not watching" not in "".join(ran.watched.errors)
