"""The process beside a training that judges its Run while it is written and feeds the sinks: ``python -m
trueline.sinks.attached``, started by ``trueline.sinks.side_process`` on the first rank.

Its first line of input is ``Settings`` as JSON; a line ``end`` says that the job has closed its Run. What it prints is
for the training process: findings, numbers where they are wanted, and sentences for the log.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

from trueline.schema.errors import InputError, PlanError
from trueline.schema.files.plan_files import ask
from trueline.schema.finding import Finding
from trueline.schema.live import FindingVerdict, Numbers, finding_document, headline
from trueline.schema.plan import COMMAND
from trueline.schema.text.reading import why
from trueline.sinks.delivery import ROOM, Delivery
from trueline.sinks.jsonl import JsonLines
from trueline.sinks.look import Looks, News
from trueline.sinks.registry import opener
from trueline.sinks.side_process import Settings
from trueline.store.clean import write_clean

REST = 9
"""Times that a look took, for which the next one waits at least: a tenth of one core at most."""

LEAST_REST_S = 2.0
"""Seconds between two looks at least."""

CLOSING_S = 8.0
"""Seconds within which sinks take what is left when the job has ended."""

STRAGGLERS_S = 3.0
"""Seconds in which other ranks close their parts of the Run after the first one."""


def main() -> None:
    """Look until the job has ended, and once more."""
    settings = Settings(**json.loads(sys.stdin.readline()))
    os.nice(19)
    sys.stdout = os.fdopen(os.dup(1), "w", encoding="utf-8")  # a library that prints must not print into the pipe
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    parent = os.getppid()
    ended = threading.Event()
    threading.Thread(target=_listen, args=(ended,), daemon=True).start()
    wire = Wire()
    side = Side(settings, wire)
    rest_s = 0.0
    while not ended.wait(min(rest_s, 1.0)) and os.getppid() == parent:
        rest_s -= 1.0
        if rest_s <= 0:
            began = time.monotonic()
            side.take(side.looks.look())
            rest_s = max(LEAST_REST_S, REST * (time.monotonic() - began))
    side.finish()
    wire.close()
    os._exit(0)  # no library that hangs keeps this process


class Wire:
    """What this process prints, in a thread of its own: a callback that hangs over there keeps no sink waiting."""

    def __init__(self) -> None:
        self._printed = JsonLines(sys.stdout)
        self._waiting: queue.Queue[FindingVerdict | Sequence[Numbers] | str | None] = queue.Queue(ROOM)
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def put(self, item: FindingVerdict | Sequence[Numbers] | str | None) -> None:
        """Print it when it is its turn; lost where nobody reads."""
        with contextlib.suppress(queue.Full):
            self._waiting.put_nowait(item)

    say: Callable[[str], None] = put

    def close(self) -> None:
        """Wait until everything is printed, as far as somebody reads."""
        self.put(None)
        self._thread.join(CLOSING_S)

    def _work(self) -> None:
        with contextlib.suppress(OSError):  # the training process is gone
            while (item := self._waiting.get()) is not None:
                if isinstance(item, str):
                    self._printed.say(item)
                elif isinstance(item, FindingVerdict):
                    self._printed.verdict(item)
                else:
                    self._printed.numbers(item)


class Side:
    """Takes what each look adds to the sinks, to the training process and to the Plan."""

    def __init__(self, settings: Settings, wire: Wire) -> None:
        self.looks = Looks(settings.run, first=settings.first, say=wire.say)
        self._settings, self._wire = settings, wire
        self._acted = False
        self._deliveries = [
            Delivery(text.partition(":")[0], partial(opener(text), settings.run), say=wire.say)
            for text in self._openable(settings.sinks)
        ]

    def _openable(self, sinks: tuple[str, ...]) -> list[str]:
        usable: list[str] = []
        for text in sinks:
            try:
                opener(text)
            except InputError as error:
                self._wire.say(str(error))
            else:
                usable.append(text)
        return usable

    def take(self, news: News) -> None:
        """Pass on what is new."""
        if news.clean is not None:
            write_clean(self._settings.run, news.clean)
        for delivery in self._deliveries:
            if news.numbers:
                delivery.put(news.numbers)
            for finding in news.findings:
                delivery.put(finding)
        for finding in news.findings:
            self._wire.put(FindingVerdict(self._settings.run, finding, news.last_clean_step))
            if finding.is_grave and not self._acted:
                self._acted = True
                self._act(finding)
        if self._settings.sends_numbers and news.numbers:
            self._wire.put(news.numbers)

    def finish(self) -> None:
        """Look once more, when all ranks have closed the Run or have had time to, and close the sinks."""
        self._acted = True  # nobody is there to stop or to record
        deadline = time.monotonic() + STRAGGLERS_S
        news = self.looks.look()
        while not news.ended and time.monotonic() < deadline:
            self.take(news)
            time.sleep(0.1)
            news = self.looks.look()
        self.take(news)
        if not news.ended:
            self.take(self.looks.look(last=True))
        deadline = time.monotonic() + CLOSING_S
        for delivery in self._deliveries:
            delivery.close(within_s=max(deadline - time.monotonic(), 0.1))

    def _act(self, finding: Finding) -> None:
        """Ask all ranks, through the plan file, for what ``on_finding`` says."""
        action = self._settings.on_finding
        try:
            if action == "raise":
                ask(self._settings.run, stop=headline(finding))
            elif action is not None and action.startswith(COMMAND):
                self._start(action.removeprefix(COMMAND), finding)
            elif action == "record":
                ask(self._settings.run, preset="mix", next_steps=self._settings.when_steps)
        except (PlanError, OSError) as error:
            self._wire.say(f"on_finding = {action} could not be followed: {why(error)}")

    def _start(self, command: str, finding: Finding) -> None:
        """Start a command of the user's, which nobody waits for; the finding is its input, as a line of JSON."""
        environ = os.environ | {"TRUELINE_FINDING": headline(finding), "TRUELINE_FINDING_RUN": self._settings.run}
        process = subprocess.Popen(
            command,
            shell=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environ,
            start_new_session=True,
            text=True,
        )
        assert process.stdin is not None
        with contextlib.suppress(OSError), process.stdin:  # a command that reads nothing
            process.stdin.write(json.dumps(finding_document(finding)) + "\n")


def _listen(ended: threading.Event) -> None:
    for line in sys.stdin:
        if line.strip() == "end":
            break
    ended.set()


if __name__ == "__main__":
    main()
