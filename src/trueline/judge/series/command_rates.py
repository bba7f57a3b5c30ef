"""Learning rates that stand in the command of a job."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence

_OPTION = re.compile(r"(?:-{1,2}|\+{0,2})(?:[\w-]+\.)*(lr|learning[-_]rate|base[-_]lr|peak[-_]lr|max[-_]lr)", re.I)


def rates_of_command(command: Sequence[str]) -> Iterator[tuple[str, float]]:
    """Options of the command that hold a learning rate, as they stand there, with the number."""
    for word, following in itertools.zip_longest(command[1:], command[2:], fillvalue=""):
        option, equals, value = word.partition("=")
        # without a dash only `optim.lr=0.1`, as Hydra has it: the word lr may be anything, as a name of a file
        if not _OPTION.fullmatch(option) or (not equals and not option.startswith("-")):
            continue
        try:
            yield f"{option}={value}" if equals else f"{option} {following}", float(value if equals else following)
        except ValueError:
            continue
