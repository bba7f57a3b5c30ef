"""Settings that must stand before torch is imported anywhere, and the pools of ranks that all tests share."""

import gc
import os
import sys

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["MKL_NUM_THREADS"] = "1"
os.environ["PYTHONDONTWRITEBYTECODE"] = ""  # or each of some hundred processes would compile all sources again

from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from tests.turns import ALL, TURNS, of_other_turns, turn_of_commit
from tests.warm_engine import WarmEngine
from tests.warm_python import warm_python

from trueline.demo import ranks
from trueline.demo.ranks import Ranks
from trueline.judge.facts import fact
from trueline.judge.facts.base_rates import BaseRate
from trueline.trials.frame.engines.local import Local

settings.register_profile(
    "trueline",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],  # it is a time on the clock
    derandomize=True,
    print_blob=True,
    max_examples=40,
)
settings.load_profile("trueline")

gc.disable()  # until the first test: what is imported and collected is no garbage, and looking through it takes seconds

ranks.PRELOADED += (
    "transformers.models.llama.modeling_llama",  # seconds in each rank of the demo
    # what a process imports as it is attached, and its adapters as a model is watched
    *("trueline.capture.launch", "trueline.rl.trl", "trueline.sinks.registry", "trueline.capture.trial.changes"),
    *(f"trueline.capture.adapters.{name}" for name in ("ddp", "deepspeed", "fsdp2", "megatron", "single")),
    "trueline.capture.trial.first_step",
    "torch.distributed.pipelining",  # half a second in each rank, which looks for the sources of what it registers
    "pytest",  # which modules of tests import, and each new rank with them
    *("trueline.cli.main", "trueline.cli.run_end", "trueline.judge.check_run"),  # of the warm `trueline`
    *("trueline.capture.record.session", "trueline.capture.record.updates", "pyarrow.compute"),  # as calls are recorded
)

MAY_SKIP = ("no CUDA device", "a tmpfs cannot be mounted here")
"""Reasons that count in continuous integration: what a machine without a GPU or without root cannot show."""

UNIT = Path(__file__).parent / "unit"

MANY_MODULES = 40
"""Modules that were imported since the last look for garbage and are worth one."""
_num_frozen_modules = 0

RanksOf = Callable[[int], Ranks]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Which tests that are marked ``in_turn`` run."""
    parser.addoption(
        "--turn",
        choices=[*map(str, range(TURNS)), ALL],
        help=f"of the tests marked in_turn those of this turn, 0 to {TURNS - 1}, or all; "
        "else where files are named all, and of the whole suite those of the commit's turn",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Let pytest-xdist, where it is there, hand out files in the order in which they stand, not by number of tests, and
    its workers, which are started as this process was, keep what they compile and know the turn.
    """
    config.option.loadscopereorder = False
    sys.dont_write_bytecode = False
    if config.option.turn is None:
        is_whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS
        config.option.turn = turn_of_commit(config.rootpath) if is_whole else ALL


def pytest_report_header(config: pytest.Config) -> str:
    """Which turn it is."""
    turn = config.option.turn
    return f"turn: {turn}" if turn == ALL else f"turn: {turn} of 0 to {TURNS - 1}; all of them: --turn all"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is another turn's. Take files of the folder ``unit`` last: they are short, so that no worker of
    pytest-xdist is left with a long one when the others have ended.
    """
    others = of_other_turns(items, config.option.turn)
    if others:
        config.hook.pytest_deselected(items=others)
        left_out = set(others)
        items[:] = [item for item in items if item not in left_out]
    items.sort(key=lambda item: item.path.is_relative_to(UNIT))


def pytest_runtest_setup() -> None:
    """What was imported is never garbage, and no collection of garbage has to look through it again: one of half a
    million objects takes 0.4 s. Tests import more and more.
    """
    global _num_frozen_modules
    if len(sys.modules) > _num_frozen_modules + MANY_MODULES:
        gc.collect()
        gc.freeze()
        gc.enable()
        _num_frozen_modules = len(sys.modules)


@pytest.fixture(autouse=True)
def _nothing_is_unusual(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs of tests are small and unusual in many ways: what of that is to confirm is the fact of the tests of facts,
    which bring base rates of their own.
    """
    monkeypatch.setattr(fact, "base_rates", dict[str, BaseRate])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In continuous integration a skip is no pass: what is missing there has to be installed."""
    report = yield
    if report.skipped and os.environ.get("CI") and isinstance(report.longrepr, tuple):
        reason = report.longrepr[2].removeprefix("Skipped: ")
        if reason not in MAY_SKIP:
            report.outcome, report.longrepr = "failed", f"Skipped in continuous integration: {reason}"
    return report


@pytest.fixture(scope="session")
def ranks_of() -> Iterator[RanksOf]:
    """The pool of a number of ranks, one for the whole session.

    A test that changes what outlives a task (environment, patches, deterministic mode, the default group), or in which
    a rank hangs, starts a pool of its own.
    """
    pools: dict[int, Ranks] = {}

    def of(world_size: int) -> Ranks:
        return pools.setdefault(world_size, Ranks(world_size))

    yield of
    for pool in pools.values():
        pool.stop()


@pytest.fixture(scope="session")
def one(ranks_of: RanksOf) -> Ranks:
    """The session's pool of one rank."""
    return ranks_of(1)


@pytest.fixture(scope="session")
def two(ranks_of: RanksOf) -> Ranks:
    """The session's pool of two ranks."""
    return ranks_of(2)


@pytest.fixture(scope="session")
def three(ranks_of: RanksOf) -> Ranks:
    """The session's pool of three ranks."""
    return ranks_of(3)


@pytest.fixture(scope="session")
def four(ranks_of: RanksOf) -> Ranks:
    """The session's pool of four ranks."""
    return ranks_of(4)


@pytest.fixture(scope="session")
def python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An interpreter for scripts that train, which has imported torch already."""
    with warm_python(tmp_path_factory.mktemp("warm")) as path:
        yield path


@pytest.fixture(scope="session")
def warm_trueline(python: str) -> str:
    """A `trueline` that has imported its verbs, for tests whose fact is what a command does and not how it starts."""
    return str(Path(python).with_name("trueline"))


@pytest.fixture(scope="session")
def _warm_engine(python: str, tmp_path_factory: pytest.TempPathFactory) -> WarmEngine:
    return WarmEngine(python, tmp_path_factory.mktemp("kept"))


@pytest.fixture
def forks(_warm_engine: WarmEngine, monkeypatch: pytest.MonkeyPatch) -> WarmEngine:
    """The engine ``local`` for one test: jobs whose command begins with ``python`` run as forks of it."""
    monkeypatch.setattr(Local, "start", lambda local, *args, **more: _warm_engine.start(*args, **more))
    for name, usual in (("remembers", False), ("as_processes", False), ("world_size", 1)):
        monkeypatch.setattr(_warm_engine, name, usual)  # and what the test makes of it ends with it
    return _warm_engine


@pytest.fixture
def alike(forks: WarmEngine, monkeypatch: pytest.MonkeyPatch) -> WarmEngine:
    """The same, for jobs that repeat themselves: of runs alike, in all tests, one is run."""
    monkeypatch.setattr(forks, "remembers", True)
    return forks
