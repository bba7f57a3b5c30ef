"""Where and when a benchmark ran, as every page of results says it."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess


def head(title: str, *, command: str) -> str:
    """Title, command, machine, commit and date, as Markdown."""
    told = facts(command)
    lines = [f"command: `{told['command']}`", f"machine: {told['machine']}", f"commit {told['commit']}, {told['date']}"]
    return "\n".join([f"# {title}", "", *(f"- {line}" for line in lines)])


def facts(command: str) -> dict[str, str]:
    """Command, machine, commit and date: as they are now, so ask before the work begins."""
    import torch

    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    machine = f"{os.cpu_count()} cores {platform.machine()} (load average {os.getloadavg()[0]:.0f})"
    return {
        "command": command,
        "machine": f"{machine}, CPU only, torch {torch.__version__}",
        "commit": commit.stdout.strip(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }
