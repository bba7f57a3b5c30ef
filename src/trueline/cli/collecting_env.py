"""What this machine and a job are, as ``trueline env collect`` writes it."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trueline.schema.errors import InputError
from trueline.schema.files.run_manifest import RankEnv


def collected_env(command: Sequence[str], configs: Sequence[str]) -> RankEnv:
    """The environment of a rank that would be started here. Raises ``InputError`` for configurations that are not
    there, or that cannot be read.
    """
    from trueline.capture.job.environment import flags, versions
    from trueline.capture.job.job_facts import collect_facts
    from trueline.store.job_files.config_files import read_config

    paths = [Path(config) for config in configs]
    for path in paths:
        if not path.is_file():
            raise InputError(f"There is no configuration '{path}'. Pass a file with --config.")
        read_config(path)
    device = _device()
    facts = collect_facts(device, command=command, files=paths)
    return RankEnv(
        hostname=socket.gethostname(),
        device=str(device),
        versions=versions(),
        flags=flags(),
        environ=dict(os.environ),  # of which RankEnv keeps some
        facts=facts,
    )


def _device() -> Any:
    import torch

    if torch.accelerator.is_available():
        return torch.device(torch.accelerator.current_accelerator())
    return torch.device("cpu")
