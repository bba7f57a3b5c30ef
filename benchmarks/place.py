"""Where and when a benchmark ran, as every page of results says it."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess


def head(title: str, *, command: str) -> str:
    """Title, command, machine, commit and date, as Markdown."""
    import torch

    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    machine = f"{os.cpu_count()} cores {platform.machine()} (load average {os.getloadavg()[0]:.0f})"
    return "\n".join(
        [
            f"# {title}",
            "",
            f"- command: `{command}`",
            f"- machine: {machine}, CPU only, torch {torch.__version__}",
            f"- commit {commit.stdout.strip()}, {date}",
        ]
    )
