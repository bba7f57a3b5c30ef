"""One recorded operation on device after device, again and again: which of them returns other bits than most?

The stand-alone proof is run on each device by itself (``proof.bits_again``), all with the same inputs. What more than
half of all calls return is agreed. Where more than half of the devices also return something else, the operation does
not repeat itself, and nothing can be voted on; a device that is not among most is named with how often it differs. No
chance is in who is named: equal inputs have equal bits on sound devices of one kind.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trueline.schema.errors import CannotTell, InputError
from trueline.schema.text.words import counted, listed
from trueline.trials.frame.chance import Counts, least_rate, most_rate
from trueline.trials.frame.trial import Answer, Arm, TrialAnswer
from trueline.trials.op.stand_alone import FILES
from trueline.trials.vote.groups import LEAST_GROUPS, VARIABLE, devices_named, variables_of

QUESTION = "Does a device return other bits than most for this operation?"
_NEXT = (
    "Take it out of the job, and run its vendor's diagnosis (dcgmi diag -r 4, ascend-dmi -dg): a pass there is no "
    "proof of health.",
    "Is it software? Swap this device with another in the whole job: trueline trial vote.",
)
_NOT_DETERMINISTIC = "Ask for a deterministic form of the operation: torch.use_deterministic_algorithms(True)."


@dataclass(frozen=True)
class Stress:
    """``times`` calls on each of the ``devices``, which a process is told by ``variables`` of its environment."""

    devices: Sequence[str]
    variables: Sequence[str]
    times: int

    @classmethod
    def from_text(cls, text: str, *, times: int, variable: str | None) -> Stress:
        """From what a user asks, as ``0-3,7``. Raises ``InputError``."""
        devices = devices_named(text)
        if len({*devices}) < LEAST_GROUPS or len({*devices}) != len(devices):
            raise InputError(
                f"--devices is '{text}': a majority takes {LEAST_GROUPS} devices or more, each named once."
            )
        if times < 1:
            raise InputError(f"--again is {times}; give how often each device is to be asked, 1 or more.")
        return cls(devices, (VARIABLE, *variables_of(devices, (), variable)), times)


def stressed(
    folder: Path, stress: Stress, *, device: str, modules: Sequence[str] = (), timeout_s: float = 1800.0
) -> TrialAnswer:
    """Call the operation whose proof is in ``folder`` on each device by itself, as ``device`` of a process that sees
    this one alone.
    """
    command = [sys.executable, str(folder / FILES[0]), "--json", "--device", device, "--again", str(stress.times)]
    command += [word for module in modules for word in ("--import", module)]
    try:
        bits_by_device = {
            name: _bits(command, dict.fromkeys(stress.variables, name), name, timeout_s) for name in stress.devices
        }
    except CannotTell as why:
        return TrialAnswer("op", QUESTION, "undecided", (f"{str(why).capitalize()}.",), ())
    return voted(bits_by_device)


def voted(bits_by_device: Mapping[str, Mapping[str, int]]) -> TrialAnswer:
    """The answer to how often each device returned each set of bits."""
    all_bits = sum((Counter(bits) for bits in bits_by_device.values()), Counter[str]())
    agreed, num_agreed = all_bits.most_common(1)[0]
    counts = {
        name: Counts(sum(bits.values()), sum(bits.values()) - bits.get(agreed, 0))
        for name, bits in bits_by_device.items()
    }
    arms = tuple(Arm(name, device_counts.runs, device_counts.showed) for name, device_counts in counts.items())
    odd = [name for name, device_counts in counts.items() if device_counts.showed]
    if 2 * num_agreed <= all_bits.total() or 2 * len(odd) > len(bits_by_device):
        says = (
            f"The operation does not repeat itself here: {counted(all_bits.total(), 'call')} with the same inputs "
            f"returned {counted(len(all_bits), 'set')} of bits, on {counted(len(odd), 'device')} of "
            f"{len(bits_by_device)} something else than most. What differs everywhere cannot be voted on."
        )
        return TrialAnswer("op", QUESTION, "undecided", (says,), arms, (_NOT_DETERMINISTIC,))
    says = [
        f"Device {name} returns other bits in {counts[name].showed} of {counted(counts[name].runs, 'call')} (in "
        f"{least_rate(counts[name]):.2g} or more of them, 95 % confidence)."
        for name in odd
    ]
    clean = [name for name in counts if name not in odd]
    bound = max(most_rate(counts[name]) for name in clean)
    says.append(
        f"In {counted(min(counts[name].runs for name in clean), 'call')} or more on each, {listed(clean)} returned the "
        f"same bits: each spoils at most {bound:.2g} of them (95 % confidence). That is no proof of health."
    )
    answer: Answer = "confirmed" if odd else "excluded"
    return TrialAnswer("op", QUESTION, answer, tuple(says), arms, _NEXT if odd else (), tuple(odd))


def _bits(command: Sequence[str], variables: Mapping[str, str], name: str, timeout_s: float) -> Mapping[str, int]:
    try:
        process = subprocess.run(
            command, env={**os.environ, **variables}, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        raise CannotTell(f"on device {name} the calls took more than {timeout_s:g} s") from None
    try:
        return json.loads(process.stdout)["bits"]
    except (ValueError, KeyError, TypeError):
        last = (process.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise CannotTell(f"on device {name} the operation could not be called: {last}") from None
