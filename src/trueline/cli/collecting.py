"""Copies the Run of `trueline run` to another place, in a process beside the command."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys

EVERY_S = 30.0
PATIENCE_S = 10.0
"""For the process to end, once the command has."""


class Collecting:
    """`trueline collect --follow OUT DST`, at the lowest priority, from when it is made until ``end``."""

    def __init__(self, run_path: str, destination: str) -> None:
        self._run_path, self._destination = run_path, destination
        words = [
            sys.executable,
            "-m",
            "trueline",
            "collect",
            "--follow",
            "--every",
            f"{EVERY_S:g}",
            run_path,
            destination,
        ]
        self._process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # a signal from the terminal is the command's
            preexec_fn=lambda: os.nice(19),
        )

    def end(self) -> str:
        """Copy what is left, and say in one line what is there."""
        from trueline.schema.errors import TruelineError
        from trueline.schema.text.reading import why
        from trueline.schema.text.secrets import without_credentials
        from trueline.store.collect import collect

        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(PATIENCE_S)
        self._process.kill()
        destination = shlex.quote(without_credentials(self._destination))
        again = f"Again: trueline collect {shlex.quote(self._run_path)} {destination}"
        try:
            return f"collected. {collect([self._run_path], self._destination).verdict}"
        except TruelineError as error:
            return f"not collected: {error} {again}"
        except OSError as error:
            return f"not collected to the end: {why(error)}. {again}"
