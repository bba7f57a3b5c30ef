"""msProbe's ``PrecisionDebugger``, ``TrainerMon``, ``seed_all`` and ``ConfigChecker``: change the import, keep the
script and its JSON.

from trueline.compat.msprobe import PrecisionDebugger, TrainerMon, seed_all
"""

from __future__ import annotations

from typing import Any

from trueline.compat.msprobe.config_checker import ConfigChecker
from trueline.compat.msprobe.debugger import PrecisionDebugger
from trueline.compat.msprobe.monitor import TrainerMon
from trueline.compat.msprobe.seeding import seed_all
from trueline.schema.errors import InputError

__all__ = ["ConfigChecker", "PrecisionDebugger", "TrainerMon", "seed_all"]

_INSTEAD = {
    "module_dump": "Record one module with its FQN in 'list' at level L0.",
    "module_dump_end": "Record one module with its FQN in 'list' at level L0.",
    "random_save": "Print the report that trueline.seed_all returns.",
    "acl_save": "It needs an NPU graph.",
    "AclGraphDumper": "It needs an NPU graph.",
}


def __getattr__(name: str) -> Any:
    """Say of msProbe's other names that they are not there, and what is."""
    if name in _INSTEAD:
        raise InputError(f"msProbe's '{name}' is not supported by trueline.compat.msprobe. {_INSTEAD[name]}")
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
