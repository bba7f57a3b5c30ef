"""Place of a finding: the line of the script, and the rank, machine and device that it names."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import cast

from trueline.schema.files.run_manifest import RankEnv
from trueline.schema.finding import Finding, Where
from trueline.store.reader import Run

_LINE = re.compile(r"(?P<file>[^\s:]+\.(?:py|ipynb)):(?P<line>\d+)")
"""As recorded stacks write a frame."""
_INSTALLED = ("site-packages", "dist-packages")


Calls = Mapping[str, Sequence[str]]
"""By kind of finding (``evidence["kind"]``; '' for any) the kinds of call that it is about, the most telling first."""


def where_of(finding: Finding, run: Run, calls: Calls) -> Where:
    """``calls`` are those of its check (the module's ``CALLS``); a finding of a recorded step has its own stack."""
    ranks = [rank for rank in finding.ranks if rank in run.env]
    envs = [run.env[rank] for rank in ranks] or list(run.env.values())
    file, line = (
        _of_stack(finding.evidence)
        or _of_calls(envs, calls.get(str(finding.evidence.get("kind")), calls.get("", ())))
        or (None, None)
    )
    hosts = {env.hostname for env in envs if env.hostname}
    rank = ranks[0] if len(ranks) == 1 else None
    device = run.env[rank].device or None if rank is not None else None
    return Where(file, line, hosts.pop() if len(hosts) == 1 else None, rank, device)


Machines = Mapping[int, tuple[str, str]]
"""Host and device by rank."""


def machines_of(run: Run) -> Machines:
    """Host and device of all ranks that left an environment."""
    return {rank: (env.hostname, env.device) for rank, env in run.env.items()}


def machine_text(ranks: Sequence[int], machines: Machines) -> str:
    """``on gpu-node-09, device 5`` of ranks of one machine among several; '' otherwise."""
    known_machines = [machines[rank] for rank in ranks if rank in machines]
    hosts = {host for host, _ in known_machines}
    if len(hosts) != 1 or len({host for host, _ in machines.values()}) < 2:
        return ""
    device = known_machines[0][1] if len(known_machines) == 1 else ""
    number = device.partition(":")[2] or ("" if device == "cpu" else device)
    return f"on {hosts.pop()}" + (f", device {number}" if number else "")


def _of_calls(envs: Sequence[RankEnv], calls: Sequence[str]) -> tuple[str, int] | None:
    # By kind before rank: the kinds of call come the most telling first.
    for kind in calls:
        for env in envs:
            for text in env.call_sites.get(kind, ())[:1]:
                file, _, line = text.rpartition(":")
                return file, int(line)
    return None


def _of_stack(evidence: Mapping[str, object]) -> tuple[str, int] | None:
    """The innermost frame of the user's own; of a call that a comparison names the line alone is known."""
    stack = evidence.get("stack") or evidence.get("where")
    frames = [stack] if isinstance(stack, str) else cast(Sequence[object], stack or ())
    for frame in map(str, frames):
        match = _LINE.search(frame)
        if match is not None and not any(part in frame for part in _INSTALLED):
            return match["file"], int(match["line"])
    return None
