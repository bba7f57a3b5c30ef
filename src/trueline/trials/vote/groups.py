"""Groups of devices that each run the whole job, and how a run is told which devices it has, in which order."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from trueline.schema.errors import InputError
from trueline.schema.text.words import counted
from trueline.trials.frame.runs import Way

VARIABLE = "TRUELINE_DEVICES"
"""Always has the devices of a run, with commas between them."""
VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES")
"""What CUDA, ROCm and CANN look at: the first device named is number 0 of the processes, and so on."""
PLACEHOLDER = "{devices}"
LEAST_GROUPS = 3
"""Of two that differ, neither is in the minority."""

Group = tuple[str, ...]
"""Names of devices, in the order of the ranks that run on them."""


@dataclass(frozen=True)
class Groups:
    """``devices`` in groups of ``size``; a run has them in these ``variables`` of its environment and wherever the
    command has ``{devices}``. Raises ``InputError`` where they make no three groups.
    """

    devices: Sequence[str]
    size: int
    variables: Sequence[str]
    words: Sequence[str]

    def __post_init__(self) -> None:
        device_names = ", ".join(self.devices)
        if len({*self.devices}) != len(self.devices):
            raise InputError(f"--devices names one of them twice: {device_names}. Name each device once.")
        if self.size < 1 or len(self.devices) % self.size or self.count < LEAST_GROUPS:
            raise InputError(
                f"{counted(len(self.devices), 'device')} ({device_names}) are to be groups of {self.size}, which a run "
                f"of the command takes. A majority takes {LEAST_GROUPS} groups or more, all of that size: name as "
                "many with --devices, or another size with --group."
            )

    @property
    def count(self) -> int:
        """The number of groups."""
        return len(self.devices) // self.size

    def block(self, number: int, draw: random.Random) -> list[Group]:
        """All devices in groups, these in random order. The first block has them as they are named. In the second the
        c-th member of a group is c groups further on, so that two devices that shared a group do so no more (where
        groups are no larger than they are many), and has the next rank. Those after it are random.
        """
        at = [
            [(position + column * min(number, 1)) % self.count * self.size + column for column in range(self.size)]
            for position in range(self.count)
        ]
        order = list(range(len(self.devices)))
        if number > 1:
            draw.shuffle(order)
        # the second block turns ranks as well, so that device and rank part early
        turned = [row[number % self.size :] + row[: number % self.size] for row in at] if number == 1 else at
        groups = [tuple(self.devices[order[position]] for position in row) for row in turned]
        draw.shuffle(groups)
        return groups

    def way(self, arm: str, group: Group) -> Way:
        """The job on these devices."""
        device_names = ",".join(group)
        words = [word.replace(PLACEHOLDER, device_names) for word in self.words]
        return Way(arm, dict.fromkeys((VARIABLE, *self.variables), device_names), words)


def devices_named(text: str) -> tuple[str, ...]:
    """``0-3,7`` as ``0 1 2 3 7``; what is no number stands for itself. Raises ``InputError`` for an empty name."""
    names: list[str] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if dash and first.isdecimal() and last.isdecimal() and int(first) <= int(last):
            names += [str(number) for number in range(int(first), int(last) + 1)]
        else:
            names.append(part.strip())
    if not all(names):
        raise InputError(f"--devices is '{text}'; give names with commas between them, as 0,1,2,3 or 0-3.")
    return tuple(names)


def variables_of(devices: Sequence[str], words: Sequence[str], variable: str | None) -> tuple[str, ...]:
    """The variables of the environment by which a run is told its devices. Raises ``InputError`` without any."""
    if variable is not None:
        return (variable,)
    if any(PLACEHOLDER in word for word in words):
        return ()
    if not all(name.isdecimal() or name.startswith(("GPU-", "MIG-")) for name in devices):
        raise InputError(
            f"Nothing tells the command on which of {', '.join(devices)} it runs. Put {PLACEHOLDER} where the command "
            "names its machines (srun --nodelist={devices} …), or name the variable that it reads with --variable."
        )
    return VISIBLE
