"""Steps that need not be judged again: a check that was silent on them goes on where it was.

A check whose verdict on a step needs that step, and a few before it, says so (``FOLLOWS`` in its module). It has
nothing to say of a Run if it has nothing to say of any stretch of it. So such checks are shown one stretch after the
other, with the few steps before it: memory is that of a stretch, and what is kept in the Run (``judged.json``) is, for
each check, up to which step it was silent. Where one has something to say of a stretch, it is shown the whole Run, as
all other checks are: who is silent follows, who speaks looks at everything. Either way the findings are those of the
whole Run.

That holds where facts of the whole Run are what they are by default (``_is_plain``): no ranks that hold parts of one
model, no change of what is trained, no local updates; elsewhere every check is shown the whole Run.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import sys
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trueline import laws
from trueline.judge.compared_ranks import data_parallel_ranks
from trueline.judge.follows import MARGIN_STEPS, ByStep, Stretch
from trueline.judge.registry import Check
from trueline.judge.series.local_updates import digests_alike
from trueline.judge.stats.memoize import memoized
from trueline.schema.columns.table import param_columns
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.store.judged import read_judged, restored, stored, write_judged
from trueline.store.reader import Run

_log = logging.getLogger(__name__)

STRETCH_STEPS = 250
"""Steps after which is kept how far checks came: a further look judges fewer than these, and ``OPEN_STEPS`` more,
again."""

OPEN_STEPS = 50
"""Last steps of a Run that are never taken for judged: a rank may still add to them."""

STEPS_AT_ONCE = 2000
"""Most steps that are shown to checks at once."""

BYTES_AT_ONCE = 3 << 29
"""Most that the columns of the rows take that are shown at once, unless ``STRETCH_STEPS`` steps take more: that much
again is read ahead."""


@dataclass(frozen=True)
class Silent:
    """A check said nothing of the first ``num_steps`` steps, and could judge some of them (``judged``) or none.

    ``last`` are the last of them that it measures anything at, as many as the next verdict needs; ``lengths`` are those
    of the lists that it reads, by column; ``carried`` is what adds up along time. One that ``spoke``, or that cannot be
    told from stretches, follows no more.
    """

    num_steps: int = 0
    spoke: bool = False
    judged: bool = False
    last: tuple[int, ...] = ()
    lengths: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    carried: Mapping[str, NDArray[Any]] = field(default_factory=dict[str, NDArray[Any]], compare=False)


@dataclass(frozen=True)
class Followed:
    """Knowledge of the stretches of a Run so far: by code, where each check was silent to, and whether ranks held
    equal parameters at all steps with digests, at none (``alike``).
    """

    silent: Mapping[str, Silent] = field(default_factory=dict[str, Silent])
    alike: frozenset[bool] = frozenset()


Answers = dict[str, list[Finding] | CannotTell]
"""Findings of checks, or why they cannot tell, by their codes."""


def earlier_judgements(run: Run, checks: Sequence[Check]) -> Followed | None:
    """What the Run keeps of earlier judgements by ``checks``; nothing where the Run, or this program, has become
    another since. None where no check can follow.
    """
    if not _is_plain(run):
        return None
    document = read_judged(run.path)
    if document is None or document.get("of") != _identity(run, checks, document.get("end_step")):
        return Followed()
    try:
        silent = {code: _silent(run.path, entry) for code, entry in document["silent"].items()}
        return Followed(silent, frozenset(map(bool, document["alike"])))
    except (KeyError, TypeError, ValueError, AttributeError, OSError, zlib.error):
        return Followed()


def unjudged_steps(run: Run, followed: Followed, code: str) -> Run:
    """The steps of which it is not known that a check was silent on them."""
    silent = followed.silent.get(code)
    if silent is None or silent.spoke or not silent.num_steps:
        return run
    return run.between(int(run.steps[min(silent.num_steps, len(run.steps) - 1)]), int(run.steps[-1]) + 1)


def write_judgements(run: Run, checks: Sequence[Check], followed: Followed) -> None:
    """Keep in the Run what is known of it now."""
    num_steps = max((state.num_steps for state in followed.silent.values()), default=0)
    end_step = int(run.steps[num_steps - 1]) + 1 if num_steps else 0
    with contextlib.suppress(OSError):
        silent = {code: _document(run.path, state) for code, state in sorted(followed.silent.items())}
        arrays = [array for state in silent.values() for array in state["carried"].values()]
        document = {"of": _identity(run, checks, end_step), "end_step": end_step, "alike": sorted(followed.alike)}
        write_judged(run.path, {**document, "silent": silent}, arrays)
        run.parts.keep()


def follow(run: Run, checks: Sequence[Check], followed: Followed) -> tuple[Answers, Followed]:
    """What those of ``checks`` say that need not be shown the whole Run, and what is known of the Run now."""
    followers = _followers(checks)
    settled = {name: followed.silent.get(name, Silent()) for name in followers}
    live = {name: state for name, state in settled.items() if not state.spoke}
    if len({state.num_steps for state in live.values()}) > 1:
        settled |= (live := dict.fromkeys(live, Silent()))
    num_steps = len(run.steps)
    first = next((state.num_steps for state in live.values()), num_steps)
    kept_to = _num_settled(run)
    needs = {"param_digests"}.union(*(check.needs for check in checks if _name(check) in live))
    part_ends = run.part_ends()
    stretches = list(_stretches(run, part_ends, first, kept_to, num_steps))
    alike, window = followed.alike, None
    for (begin, end), loaded in _load_stretches(run, part_ends, stretches, _first_needed(live), needs):
        last = _first_needed(live)
        window = _window(run, begin, last, [loaded] if window is None else [window, loaded])
        stretch, reached = _stretch(run, window, begin, end, last)
        alike |= digests_alike(stretch.part)
        if len(alike) > 1:  # they may be averaged now and then, which checks see along the whole Run
            return {}, Followed({name: Silent(spoke=True) for name in settled}, alike)
        for name in tuple(live):
            live[name] = _advance(stretch, reached, followers[name], live[name], end)
            if live[name].spoke:
                settled[name] = live.pop(name)
            elif end <= kept_to:
                settled[name] = live[name]
    answers: Answers = {}
    for check in checks:
        if _name(check) in live:
            try:
                findings = _findings_of(run, check, live[_name(check)])
                answers |= {} if findings is None else {check.code: findings}
            except CannotTell as error:
                answers[check.code] = error
    return answers, Followed(settled, alike)


def _first_needed(live: Mapping[str, Silent]) -> list[int]:
    """The first step that is measured before a stretch and that a check needs for it, of each that needs one."""
    return [step for state in live.values() for step in state.last[:1]]


def _low(run: Run, begin: int, last: Sequence[int]) -> int:
    """The first step that is read for a stretch from the ``begin``-th on."""
    return min([int(run.steps[max(begin - MARGIN_STEPS, 0)]), *last])


def _load_stretches(
    run: Run,
    part_ends: NDArray[np.int64],
    stretches: Sequence[tuple[int, int]],
    last: Sequence[int],
    needs: Collection[str],
) -> Iterator[tuple[tuple[int, int], Run]]:
    """Each stretch with the steps that are read for it and were not for one before it, with what they ``needs``, which
    is read while the stretch before is judged: to at least ``MARGIN_STEPS`` steps after it, and where a part ends.
    Those of the first begin with the first of ``last``.
    """
    steps = run.steps

    def load(low: int, high: int) -> Run:
        part = run.between(low, high + 1)
        part.load(needs)
        return part

    with ThreadPoolExecutor(1) as reader:
        ahead: list[tuple[tuple[int, int], Future[Run]]] = []
        low = _low(run, stretches[0][0], last) if stretches else 0
        for begin, end in stretches:
            high = int(steps[min(end + MARGIN_STEPS, len(steps)) - 1])
            ends = part_ends[(part_ends >= high) & (part_ends < high + STRETCH_STEPS)]
            high = int(ends[0]) if len(ends) else high
            ahead.append(((begin, end), reader.submit(load, low, high)))
            low = high + 1
            if len(ahead) > 1:
                bounds, loaded = ahead.pop(0)
                yield bounds, loaded.result()
        for bounds, loaded in ahead:
            yield bounds, loaded.result()


def _window(run: Run, begin: int, last: Sequence[int], loaded: Sequence[Run]) -> Run:
    """The steps from the first of ``last`` and ``MARGIN_STEPS`` before the ``begin``-th on, of which all is
    ``loaded``.
    """
    parts = [part for part in loaded if len(part.steps)]
    window = run.between(_low(run, begin, last), int(parts[-1].steps[-1]) + 1)
    window.take_loaded(parts)
    return window


def _stretch(run: Run, window: Run, begin: int, end: int, last: Sequence[int]) -> tuple[Stretch, Run]:
    """The steps from the ``begin``-th to before the ``end``-th, and the same with those from the first of ``last`` on,
    of what was ``window`` of them.
    """
    steps = run.steps
    low, high = max(begin - MARGIN_STEPS, 0), min(end + MARGIN_STEPS, len(steps)) - 1
    part, neighbours = (
        window.between(int(steps[first]), int(steps[at_last]) + 1) for first, at_last in ((begin, end - 1), (low, high))
    )
    reached = min([int(steps[begin]), *last])
    wider = part if reached == steps[begin] else window.between(reached, int(steps[end - 1]) + 1)
    return Stretch(run, part, neighbours), wider


def _num_settled(run: Run) -> int:
    """Number of the first steps that are taken for judged once they were."""
    return max(len(run.steps) - OPEN_STEPS, 0) // STRETCH_STEPS * STRETCH_STEPS


def _num_shown_at_once(run: Run) -> int:
    """Steps that are shown at once, by two numbers a parameter and twelve a group of parameters in each row, which
    beside these has some ninety.
    """
    row_bytes = 8 * (90 + max((2 * len(env.params) + 12 * len(env.groups) for env in run.env.values()), default=0))
    return max(
        min(STEPS_AT_ONCE, BYTES_AT_ONCE // row_bytes // max(len(run.ranks), 1)) // STRETCH_STEPS * STRETCH_STEPS,
        STRETCH_STEPS,
    )


def _followers(checks: Sequence[Check]) -> dict[str, Check]:
    """Checks that follow, by the name they are known under."""
    return {_name(check): check for check in checks if check.follows is not None}


def _name(check: Check) -> str:
    """What is known of a check is kept under its code; of those that add up the same, under the name of that."""
    return check.code if check.follows is None or isinstance(check.follows, ByStep) else check.follows.name


def _findings_of(run: Run, check: Check, state: Silent) -> list[Finding] | None:
    if check.follows is None or isinstance(check.follows, ByStep):
        return [] if state.judged else None
    return check.follows.conclude(run, state.carried)


def _stretches(
    run: Run, part_ends: NDArray[np.int64], first: int, kept_to: int, num_steps: int
) -> Iterable[tuple[int, int]]:
    """From the first step that is not judged to the last of ``num_steps``, in pieces that end where something is
    kept, and if they can where what is around them ends with a part.
    """
    in_front = np.searchsorted(run.steps, part_ends, side="right") - MARGIN_STEPS
    good_ends = np.unique(in_front // STRETCH_STEPS * STRETCH_STEPS)
    begin, together = first, _num_shown_at_once(run)
    while begin < num_steps:
        end = min(begin + together, kept_to) if begin < kept_to else num_steps
        good = good_ends[(good_ends > begin) & (good_ends < end)]
        end = int(good[-1]) if end < kept_to and len(good) else end
        yield begin, end
        begin = end


def _advance(stretch: Stretch, reached: Run, check: Check, so_far: Silent, end: int) -> Silent:
    """``so_far`` with the steps up to the ``end``-th."""
    follows = check.follows
    assert follows is not None
    lengths = dict(so_far.lengths)
    try:
        lengths = _lengths(stretch.part, check, so_far.lengths)
        if any(len(length) > 1 for length in lengths.values()):
            return Silent(spoke=True)
        if not isinstance(follows, ByStep):
            carried = follows.advance(stretch, so_far.carried)
            return Silent(spoke=True) if carried is None else Silent(end, lengths=lengths, carried=carried)
        if (follows.alone is not None and not follows.alone(reached)) or check.find(reached):
            return Silent(spoke=True)
        judged = True
    except CannotTell as error:
        if error.reason != "no-data" or not isinstance(follows, ByStep):
            return Silent(spoke=True)
        judged = False
    except Exception as error:  # whatever it is, the check meets it again when it is shown the whole Run
        _log.debug("%s does not follow: %s", check.code, error)
        return Silent(spoke=True)
    last = _last_measured(stretch.part, follows, so_far.last)
    return Silent(end, judged=judged or so_far.judged, last=last, lengths=lengths)


def _last_measured(part: Run, follows: ByStep, before: tuple[int, ...]) -> tuple[int, ...]:
    """The last steps, as many as ``reach``, that have any of the columns that verdicts go by."""
    if not follows.reach:
        return ()
    at_T = np.any([part.measured(column).any(axis=1) for column in follows.columns], axis=0)
    measured = sorted({*before, *part.steps[at_T].tolist()})
    return tuple(measured[-follows.reach :])


def _lengths(part: Run, check: Check, lengths_before: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """By column the lengths that its lists have had so far: of those about parameters that a check needs, and of all
    about groups where one that judges step by step needs any. Where they differ along time, no array holds the whole
    Run.
    """
    lengths: dict[str, tuple[int, ...]] = {}
    of_groups = isinstance(check.follows, ByStep) and any(name.startswith("group_") for name in check.needs)
    columns = (name for name in param_columns() if name in check.needs or (of_groups and name.startswith("group_")))
    for column in sorted(columns):
        lengths[column] = tuple(sorted({*lengths_before.get(column, ()), *_lengths_in(part, column)}))
    return lengths


@memoized
def _lengths_in(part: Run, column: str) -> list[int]:
    return part.lengths(column)


def _is_plain(run: Run) -> bool:
    """True if a stretch of the Run is judged as the whole is, and there is enough of it to judge in stretches."""
    if len(run.steps) < STRETCH_STEPS + OPEN_STEPS or not run.manifest.adapter or run.manifest.pieces or run.groups:
        return False
    return not any(
        env.talks_in_forward or env.whole or env.alike or env.local_updates or len(env.lists) > 1
        for env in run.env.values()
    )


def _identity(run: Run, checks: Sequence[Check], end_step: Any) -> str:
    """A digest of all that a judgement rests on besides values of rows: the program, what is known of the job and its
    ranks, and how many rows each rank has before ``end_step``. What ended a training is no part of it.
    """
    if not isinstance(end_step, int):
        return ""
    facts = [
        _program(tuple(sys.modules[check.find.__module__].__file__ or "" for check in checks)),
        run.manifest.model_dump_json(exclude={"notes"}),
        *(run.env[rank].model_dump_json(exclude={"raised", "raised_ns", "notes"}) for rank in sorted(run.env)),
        run.ranks,
        data_parallel_ranks(run),
        run.restarts,
        run.num_rows(before=end_step),
    ]
    return hashlib.sha256(repr(facts).encode()).hexdigest()


@cache
def _program(of_checks: tuple[str, ...]) -> str:
    """A digest of the sources that judge: of ``judge``, ``laws`` and the checks that other packages bring."""
    roots = (Path(__file__).parent, Path(*laws.__path__))
    files = sorted({file for root in roots for file in root.rglob("*.py")} | {*map(Path, of_checks)})
    return hashlib.sha256(b"".join(file.read_bytes() for file in files if file.is_file())).hexdigest()


def _silent(path: str, entry: Mapping[str, Any]) -> Silent:
    silent = Silent(
        int(entry["num_steps"]),
        spoke=bool(entry["spoke"]),
        judged=bool(entry["judged"]),
        last=tuple(map(int, entry["last"])),
        lengths={str(column): tuple(map(int, values)) for column, values in entry["lengths"].items()},
        carried={str(name): restored(path, *values) for name, values in entry["carried"].items()},
    )
    if silent.num_steps < 0 or silent.num_steps % STRETCH_STEPS:
        raise ValueError(silent.num_steps)
    return silent


def _document(path: str, silent: Silent) -> dict[str, Any]:
    return {
        "num_steps": silent.num_steps,
        "spoke": silent.spoke,
        "judged": silent.judged,
        "last": list(silent.last),
        "lengths": {column: list(array) for column, array in silent.lengths.items()},
        "carried": {name: stored(path, array) for name, array in silent.carried.items()},
    }
