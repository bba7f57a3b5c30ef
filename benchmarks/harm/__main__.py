"""Run random jobs by themselves and watched, and count what watching changed; rewrite README.md beside this.

    python -m benchmarks.harm [--jobs 2000] [--first 0] [--workers 2]

A job that fails by itself too is one in which watching must fail it in the same way. Those that took more than 1.3
times as long and 0.2 s are counted; on a busy machine that says little.
"""

from __future__ import annotations

import collections
import multiprocessing
import os
import shutil
import tempfile
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"

from benchmarks.page import arguments, facts, table, write
from tests.harm.generator import PRESETS, draw
from tests.harm.running import Both, both, prepare

ABOUT = """\
A job is a script: one of many shapes of models, wrapped or not, trained with what people do around a training (hooks,
modes, functions of torch replaced, threads, forks, exceptions caught, evaluation, copies). It runs by itself and
watched, in ranks forked from one process; exit status and what it prints must be the same, among it the bits of losses,
weights, gradients, buffers, states of the optimizer and of the generator. The job of a number:
`tests.harm.generator.draw(number)`."""


def main() -> None:
    """Run all and write the page."""
    parser = arguments(__doc__, jobs=2000, first=0, workers=2)
    parser.add_argument("--keep", action="store_true", help="print only; leave the page as it is")
    chosen = parser.parse_args()
    command = f"python -m benchmarks.harm --jobs {chosen.jobs} --first {chosen.first} --workers {chosen.workers}"
    now = facts(command)
    prepare()
    numbers = range(chosen.first, chosen.first + chosen.jobs)
    ran: list[tuple[int, Both]] = []
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    workers = [
        context.Process(target=_work, args=(numbers[part :: chosen.workers], results)) for part in range(chosen.workers)
    ]
    for worker in workers:
        worker.start()
    for _ in numbers:
        number, one = results.get()
        ran.append((number, one))
        if len(ran) % 25 == 0:
            print(len(ran), "jobs,", sum(bool(job.harm) for _, job in ran), "changed or ended", flush=True)
        if one.harm or "not watching" in "".join(one.watched.errors):
            print(number, one.job.preset, one.job.traits, one.harm[:400] or "not watched", flush=True)
    for worker in workers:
        worker.join()
    lines = [f"- command: `{command}`", f"- machine: {now['machine']}", f"- commit {now['commit']}, {now['date']}"]
    head = "\n".join(["# Jobs that watching changes", "", *lines])
    if not chosen.keep:
        write(__file__, head, ABOUT, _counts(ran), _harmed(ran))


def _work(numbers: range, results: multiprocessing.SimpleQueue[tuple[int, Both]]) -> None:
    memory = Path("/dev/shm")  # a Run is synced many times, and what a disk does is no matter here
    # A TemporaryDirectory would be removed at the exit of the first rank.
    folder = tempfile.mkdtemp(dir=memory if memory.is_dir() else None)
    for number in numbers:
        results.put((number, both(draw(number), Path(folder) / "job")))
    shutil.rmtree(folder)


def _counts(ran: list[tuple[int, Both]]) -> str:
    of = collections.defaultdict(list)
    for _, one in ran:
        of[one.job.preset].append(one)
    rows = [
        (
            f"`{preset}`",
            len(of[preset]),
            sum(set(one.bare.status) != {0} for one in of[preset]),
            sum(one.bare.status != one.watched.status for one in of[preset]),
            sum(bool(one.harm) and one.bare.status == one.watched.status for one in of[preset]),
            sum(one.watched.wall_s > 1.3 * one.bare.wall_s + 0.2 for one in of[preset]),
        )
        for preset in PRESETS
    ]
    header = ("preset", "jobs", "fail by themselves", "ended", "changed", "over 1.3 times and 0.2 s")
    return table(header, rows, right={1, 2, 3, 4, 5})


def _harmed(ran: list[tuple[int, Both]]) -> str:
    harmed = [f"- {number}, `{one.job.preset}`: {', '.join(one.job.traits)}" for number, one in ran if one.harm]
    return "\n".join(["## Changed or ended", "", *(harmed or ["None."])])


if __name__ == "__main__":
    main()
