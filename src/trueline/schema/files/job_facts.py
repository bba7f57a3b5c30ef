"""What one process says of the job that it is part of: packages, sources, devices, configurations, the model's tree."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from trueline.schema.text.secrets import redacted, redacted_words


class SourceState(BaseModel):
    """The git state of a directory of sources: what is imported from it, or the script."""

    model_config = ConfigDict(extra="allow")

    commit: str = ""
    dirty: str = Field(default="", description="digest of what differs from the commit; '' where nothing does")


class ModulesAlike(BaseModel):
    """Modules of one class at the same place of repeated layers, in the order of the model's tree."""

    model_config = ConfigDict(extra="allow")

    name: str = Field(description="with '*' for the numbers of layers")
    kind: str = Field(description="class")
    count: int = 1


class JobFacts(BaseModel):
    """Collected without a change to the script: in a Run by its first rank, and by ``trueline env collect``."""

    model_config = ConfigDict(extra="allow")

    command: list[str] = Field(default_factory=list[str])
    packages: dict[str, str] = Field(
        default_factory=dict[str, str], description="installed packages and their versions"
    )
    sources: dict[str, SourceState] = Field(
        default_factory=dict[str, SourceState],
        description="of packages that are installed from a checkout, and of the script ('script')",
    )
    build: dict[str, Any] = Field(default_factory=dict[str, Any], description="how torch was built")
    devices: dict[str, Any] = Field(default_factory=dict[str, Any], description="accelerators and their driver")
    configs: dict[str, dict[str, Any]] = Field(
        default_factory=dict[str, dict[str, Any]],
        description="options by where they were found: objects of a framework",
    )
    files: dict[str, str] = Field(
        default_factory=dict[str, str], description="text of configurations that the command names, by name"
    )
    scripts: dict[str, str] = Field(
        default_factory=dict[str, str],
        description="text of the script, and of modules that were imported from beside it, by path, without what looks "
        "secret; in a Run alone",
    )
    modules: list[ModulesAlike] = Field(default_factory=list[ModulesAlike])
    tied: list[list[str]] = Field(default_factory=list[list[str]], description="names that are one parameter")
    left_out: list[str] = Field(default_factory=list[str], description="what could not be collected, and why")

    _no_secrets = field_validator("configs", "files", "build", "devices")(redacted)
    _no_secrets_said = field_validator("command")(redacted_words)
