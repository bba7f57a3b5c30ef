"""Weights & Biases: ``wandb:PROJECT`` makes a run of its own, with the name of the Run, beside that of the training;
``WANDB_MODE=offline`` writes files only.
"""

from __future__ import annotations

import netrc
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trueline.schema.errors import InputError
from trueline.schema.finding import Finding
from trueline.schema.live import Numbers, headline

LIBRARY = "wandb"
_IN_VARIABLES = ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "WANDB_ANONYMOUS")
_WITHOUT_SERVER = ("offline", "dryrun", "disabled")
_IN_SETTINGS = ("api_key", "anonymous", *_WITHOUT_SERVER)
"""Words of a settings file of W&B (`wandb offline` and `wandb login` write such)."""


def require_ready() -> None:
    """Raise ``InputError`` where W&B surely has no key of the user: nothing is asked of its server."""
    if os.environ.get("WANDB_MODE", "").lower() in _WITHOUT_SERVER or any(map(os.environ.get, _IN_VARIABLES)):
        return
    if not (_in_netrc(os.environ) or _in_settings(os.environ)):
        raise InputError(
            "W&B is not logged in: run `wandb login`, or set WANDB_API_KEY (WANDB_MODE=offline writes files only)."
        )


def _in_netrc(environ: Mapping[str, str]) -> bool:
    """True if a .netrc has a key as W&B writes it: of the login ``user``. One that cannot be read may have."""
    netrc_path = environ.get("NETRC")
    paths = [Path(netrc_path)] if netrc_path else [Path.home() / name for name in (".netrc", "_netrc")]
    try:
        files = [netrc.netrc(str(path.expanduser())) for path in paths if path.expanduser().exists()]
    except (OSError, netrc.NetrcParseError):
        return True
    return any(login == "user" for file in files for login, _, _ in file.hosts.values())


def _in_settings(environ: Mapping[str, str]) -> bool:
    """True if a settings file has a key, or says that nothing is sent."""
    system = Path(environ.get("WANDB_CONFIG_DIR") or Path.home() / ".config" / "wandb")
    for path in (system / "settings", Path(environ.get("WANDB_DIR") or ".") / "wandb" / "settings"):
        try:
            text = path.read_text(encoding="utf-8")
        except OSError:
            continue
        if any(word in text for word in _IN_SETTINGS):
            return True
    return False


def open_sink(target: str, run: str) -> WandB:
    """A run in the project ``target``, or ``ENTITY/PROJECT``."""
    import wandb

    entity, _, project = target.rpartition("/")
    for name in ("WANDB_RUN_ID", "WANDB_NAME", "WANDB_RESUME"):  # those of the training's own run
        os.environ.pop(name, None)
    wandb_run = wandb.init(
        project=project,
        entity=entity or None,
        name=os.path.basename(run),
        job_type="trueline",
        config={"trueline_run": run},
        settings=wandb.Settings(console="off", silent=True),
    )
    wandb_run.define_metric("trueline/step")
    wandb_run.define_metric("trueline/*", step_metric="trueline/step")
    return WandB(wandb_run)


class WandB:
    """Logs series over ``trueline/step``; a finding is an alert and an entry of the summary."""

    def __init__(self, run: Any) -> None:
        self._run = run

    def numbers(self, rows: Sequence[Numbers]) -> None:
        for step_numbers in rows:
            self._run.log(
                {"trueline/step": step_numbers.step}
                | {f"trueline/{k}": value for k, value in step_numbers.values.items()}
            )

    def finding(self, finding: Finding) -> None:
        """An alert, which W&B sends on as the user has set it up there, if it is an error or a warning."""
        text = headline(finding)
        self._run.summary[f"trueline/{finding.code}"] = text
        if finding.is_grave:
            level = "ERROR" if finding.severity == "error" else "WARN"
            self._run.alert(title=f"trueline: {finding.code}", text=text, level=level)

    def close(self) -> None:
        """Send or write what is left: W&B's own process does that, and is waited for."""
        import wandb

        self._run.finish()
        wandb.teardown()
