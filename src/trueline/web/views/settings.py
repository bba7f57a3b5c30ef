"""How the job was set up: what all ranks share, what differs between them, and what differs by nature."""

from __future__ import annotations

from dataclasses import dataclass

from trueline.render.report.environment_table import Differing
from trueline.web.views.incident import about_settings, environment_of
from trueline.web.watched_run import WatchedRun


@dataclass(frozen=True, slots=True)
class Section:
    """Facts that all ranks share: (name, value)."""

    name: str
    facts: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Settings:
    """``missing`` says that no rank left a description of itself, ``found`` what findings say of settings."""

    common: tuple[Section, ...]
    within: tuple[Differing, ...]
    by_nature: tuple[Differing, ...]
    missing: bool
    found: tuple[str, ...]


def settings_of(watched: WatchedRun) -> Settings:
    """All facts of the ranks of a Run."""
    environment = environment_of(watched.run)
    common = tuple(Section(name, facts) for name, facts in environment.common)
    report = watched.judgement.report
    claims = about_settings(() if report is None else report.findings)
    return Settings(common, environment.within, environment.by_nature, missing=not watched.run.env, found=claims)
