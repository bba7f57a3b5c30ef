"""Watch 64 real ranks that write to eight disks, write what thousands leave, collect both, and rewrite README.md.

    python -m benchmarks.many_ranks [--part cost|real|simulated] [--quick]

With ``--part`` or ``--quick`` (few ranks) what was measured is printed, and README.md left as it is.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.many_ranks import cost, real, simulated
from benchmarks.page import arguments, head, write

PARTS = {"cost": cost.measure, "real": real.measure, "simulated": simulated.measure}


def main() -> None:
    """Measure one part after the other."""
    parser = arguments(__doc__)
    parser.add_argument("--part", choices=[*PARTS], help="only this one")
    parser.add_argument("--quick", action="store_true", help="few ranks")
    chosen = parser.parse_args()
    title = head("Many ranks", command="python -m benchmarks.many_ranks")
    found = []
    for name in [chosen.part] if chosen.part else PARTS:
        with tempfile.TemporaryDirectory(prefix="trueline-many-ranks-") as folder:
            found.append(PARTS[name](Path(folder), quick=chosen.quick))
        print(found[-1], flush=True)
    if not (chosen.part or chosen.quick):
        write(__file__, title, *found)


if __name__ == "__main__":
    main()
