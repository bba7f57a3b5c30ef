"""What to observe: a preset name or a TOML/JSON file, validated before anything starts."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, cast, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from trueline.schema.errors import PlanError
from trueline.schema.law import live_codes
from trueline.schema.text.reading import read_table, shortened, shown

Preset = Literal["workers", "laws", "audit", "modules", "ops", "mix", "bits", "monitor"]
Phase = Literal["fwd", "bwd", "param", "grad", "opt", "comm"]
Depth = Literal["structure", "stats", "fingerprint", "tensor"]

PRESETS: tuple[str, ...] = get_args(Preset)
WATCH_ONLY: tuple[str, ...] = ("workers", "laws", "audit")
"""Presets that record nothing of a step's inside."""
PHASES: tuple[Phase, ...] = get_args(Phase)
COMMAND = "command:"
"""What a plan says before a command that a finding starts."""


SKIP = "skip"
"""What a plan says where updates may be left out."""


def _action(value: str) -> str:
    is_command = value.startswith(COMMAND) and value.removeprefix(COMMAND).strip() != ""
    if value not in ("log", "raise", "record", SKIP) and not is_command:
        raise ValueError(f"expected log, raise, record, {SKIP} or {COMMAND}TEXT, a command for a shell")
    return value


OnFinding = Annotated[str, AfterValidator(_action)]

LIVE: tuple[str, ...] = (
    *("preset", "steps", "every", "names", "ranks", "phases", "between", "depth", "stacks", "first_rows"),
    *("exponents", "max_bytes", "when", "when_steps", "ring", "influence", "replay"),
    *("next_steps", "stop", "confirmed"),
)
"""Keys that may change while a job runs: none of them has a say in the length of what ranks exchange, or in who is
compared with whom.
"""

_WATCHED = {"names": "parameters", "steps": "steps"}
"""What keys are about where nothing is recorded."""

LAWS_AGE = 10
"""Steps from the first that is watched to the one at which the preset ``laws`` looks at influences.

What begins at zero hides them: a head at zero until its first update, a branch at zero in front of it (the last layer
of a residual block, of an adapter) until the one after, and so on, while a warm-up may begin with a learning rate of 0
and a gradient scaler leaves out the first few updates. The longest of these takes fewer than ten steps.
"""

REPLAY_EVERY = 100
"""Steps from one that preset ``audit`` does again to the next: three forward and two backward passes of one micro-batch
in so many steps."""

EARLY_STEPS = 300
"""The first steps of a job, in which checks need more samples than the budget of time allows (``capture/step``)."""

SHORT_S = 0.05
"""Steps shorter than this are of small models: what watching takes of them (benchmarks/overhead) is a large share."""

FALSE_ALARMS = 0.1
"""Expected false alarms per 10,000 healthy steps unless a plan asks for others (docs/decisions/0003)."""


def _or_text(schema: dict[str, Any]) -> None:
    """Let the value of a key also be a text."""
    pair = {name: schema.pop(name) for name in ("type", "prefixItems", "minItems", "maxItems")}
    schema["anyOf"] = [{"type": "string"}, pair]


class Plan(BaseModel):
    """Which steps and ranks are watched, how deeply, and what it may cost.

    ``every`` is the interval, in optimizer steps, of the gradient signals; ``None`` lets the recorder choose the
    smallest one that keeps its own time under ``budget`` (fraction of step time). Losses and sample digests are
    taken at every step: coverage cannot be judged from a sample of it.

    The preset ``laws`` watches as ``workers`` does, and looks at influences once, early: see ``looks_at``. ``audit``
    does that too, and does some work again: see ``replays_at``. The presets
    ``modules``, ``ops`` and ``mix`` also record what the steps compute: inputs, outputs, parameters and
    gradients of modules, of every call at the torch API level, or of both. ``bits`` takes a fingerprint alone of every
    value of all calls, for runs that should be equal bit by bit. ``monitor`` records what ``modules`` does,
    and states and updates of the optimizer, at the steps whose gradients are sampled and within the same budget. The
    keys from ``ranks`` on are about recording.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    preset: Preset = Field(default="workers", description="what the other keys start from")
    steps: tuple[int, int | None] = Field(
        default=(0, None),
        description="FIRST:END, the first step and the one after the last, or one step; or a list of both",
        json_schema_extra=_or_text,
    )
    every: int | None = Field(
        default=None,
        ge=1,
        description="gradient signals (unset: by budget) and records (unset: every step) every so many steps",
    )
    params_every: int = Field(
        default=25,
        ge=1,
        description="parameter and buffer digests every so many steps; more often at the start and after a finding",
    )
    matrix_every: int = Field(default=50, ge=1, description="keep the sketches (N x N cosines) every so many steps")
    exact: bool = Field(default=False, description="exact cosines by gathering gradients: costs a copy of them")
    budget: float = Field(default=0.01, gt=0, le=1, description="fraction of step time")
    names: tuple[str, ...] = Field(
        default=("*",), description="globs over the names of watched parameters; where steps are recorded, of sites"
    )
    influence: int | None = Field(
        default=None,
        ge=0,
        description="step at which more backward passes look whether logits depend on tokens that they are to predict, "
        "and what is returned for a sample on others of its batch or on padding; unset: none, or with preset "
        f"`laws` the one {LAWS_AGE} steps after the first",
    )
    replay: int | None = Field(
        default=None,
        ge=0,
        description="the first micro-batch of every so many steps is run again, forward and backward, and its bits are "
        f"compared; 0: of none; unset: none, or with preset `audit` every {REPLAY_EVERY} steps",
    )
    dataset_size: int | None = Field(default=None, ge=1, description="samples in one epoch over all workers, if known")
    rng: Literal["equal", "different"] | None = Field(default=None, description="what RNG streams over ranks should be")
    max_groups: int = Field(default=16, ge=1, le=256, description="parameter groups that get a norm and sketch each")
    false_alarms: float = Field(
        default=FALSE_ALARMS,
        gt=0,
        allow_inf_nan=False,
        description="expected false alarms per 10,000 healthy steps: of all checks that compare workers together, and "
        "as many again of the checks of jumps over time",
    )
    worker_groups: tuple[tuple[int, ...], ...] = Field(
        default=(),
        description="groups of global ranks that are meant to be alike and are compared among themselves only, as "
        'lists or as ranges ("0-76,78-127"); a rank in none is compared with no one. Empty: all are alike',
    )
    local_updates: bool = Field(
        default=False,
        description="replicas update by themselves and are averaged now and then, on purpose (local SGD, DiLoCo, model "
        "averaging): neither their values nor their gradients need be equal. Averagers and hooks of torch that do so "
        "are recognised",
    )
    ranks: tuple[int, ...] | None = Field(default=None, description="global ranks that record; unset: all")
    phases: tuple[Phase, ...] = Field(default=PHASES, min_length=1, description="which phases are recorded")
    between: tuple[str, str] | None = Field(
        default=None, description="globs over site names: record from the first to the last call that match, inclusive"
    )
    depth: Depth = Field(
        default="stats",
        description="structure: what was called; stats: and statistics of every value; fingerprint: and one of its "
        "bits; tensor: statistics and the values themselves. Preset `bits` takes a fingerprint alone",
    )
    stacks: bool = Field(default=True, description="keep the call stack of every op, user code only")
    first_rows: int | None = Field(default=None, ge=1, description="store only so many rows of a tensor's first dim")
    exponents: bool = Field(default=False, description="keep a histogram of the exponents of every value")
    max_bytes: int = Field(
        default=10 * 2**30, ge=1, description="bytes of stored tensors a rank, after which only statistics are kept"
    )
    when: tuple[str, ...] = Field(
        default=(), description="record nothing until one of these findings is seen, then the next `when_steps` steps"
    )
    when_steps: int = Field(default=3, ge=1, description="steps that are recorded after a finding of `when`")
    ring: int | None = Field(
        default=None,
        ge=1,
        description="keep the latest so many recorded steps in memory, and write them only when a finding of `when` is "
        "seen, training raises, or a change of the Plan unsets this",
    )
    next_steps: int | None = Field(
        default=None,
        ge=1,
        description="record so many steps from the one at which this is taken up, whatever `steps` says",
    )
    sinks: tuple[str, ...] = Field(
        default=(),
        description="where findings and dispersion go while the job runs, each as NAME:TARGET; not written to the Run",
    )
    most_skips: int | None = Field(
        default=None,
        ge=1,
        description='updates that `on_finding = "skip"` leaves out at most in one start of a job; all others are made',
    )
    on_finding: OnFinding | None = Field(
        default=None,
        description="what the first error or warning does while the job runs: log: a line in the log; raise: and every "
        "rank stops at the same step; record: and the next `when_steps` steps are recorded with preset `mix`; "
        "command:TEXT: and a shell starts TEXT, with the finding as a line of JSON on its standard input; skip: and "
        "each update whose gradient is not finite on a rank, or whose norm jumps, is left out on all ranks, at most "
        "`most_skips` of them",
    )
    fail_on_error: bool = Field(
        default=False,
        description="`trueline run` ends with exit code 4 where the command ended with 0 and the Run shows an error",
    )
    stop: str = Field(
        default="",
        description="every rank raises `TrainingStopped` with this sentence, at the same step; empty: none does",
    )

    confirmed: tuple[str, ...] = Field(
        default=(), description="ids of things to confirm that are meant: `check` says nothing of them"
    )

    @property
    def bits_alone(self) -> bool:
        """Whether of every value a fingerprint is taken and nothing else, of all calls."""
        return self.preset == "bits"

    @property
    def records(self) -> bool:
        """Whether what the steps compute is recorded."""
        return self.preset not in WATCH_ONLY

    def looks_at(self, step: int, *, age: int) -> bool:
        """Whether influences are looked at in this step, ``age`` steps after the first that is watched."""
        looks = self.preset in ("laws", "audit") and age == LAWS_AGE
        return step == self.influence if self.influence is not None else looks

    def replays_at(self, step: int, *, age: int) -> bool:
        """Whether work of this step is done again, ``age`` steps after the first that is watched: not of the first ten,
        in which libraries still choose their kernels (``LAWS_AGE``).
        """
        every = REPLAY_EVERY if self.replay is None and self.preset == "audit" else self.replay
        return bool(every) and age >= LAWS_AGE and (age - LAWS_AGE) % every == 0

    def kept(self) -> dict[str, Any]:
        """What is written of it to a Run: all but ``sinks``, whose targets may be secret, as that of a webhook is, and
        but for a command of ``on_finding``.
        """
        is_command = self.on_finding is not None and self.on_finding.startswith(COMMAND)
        return self.model_dump(mode="json", exclude={"sinks", *(["on_finding"] if is_command else [])})

    @property
    def param_names(self) -> tuple[str, ...]:
        """Globs over the parameters whose gradients are watched: all of them where ``names`` is about sites."""
        return ("*",) if self.records else self.names

    def records_on(self, rank: int) -> bool:
        """Whether this global rank takes part in recording."""
        return self.records and (self.ranks is None or rank in self.ranks)

    @field_validator("steps", mode="before")
    @classmethod
    def _from_text(cls, steps: Any) -> Any:
        """First step and end of ``120:123``, of ``120:``, or of one step."""
        if not isinstance(steps, str):
            return steps
        first, colon, end = steps.partition(":")
        return [first or 0, end or None] if colon else [steps, _after(steps)]

    @field_validator("steps")
    @classmethod
    def _ascending(cls, steps: tuple[int, int | None]) -> tuple[int, int | None]:
        """Refuse a range that holds no step."""
        first, end = steps
        if first < 0:
            raise ValueError(f"the first step is {first}; steps count from 0")
        if end is not None and end <= first:
            raise ValueError(f"no step lies from {first} up to, and not including, {end}")
        return steps

    @field_validator("depth", "exponents")
    @classmethod
    def _is_no_more_than_bits(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse statistics or values beside a preset that takes bits alone."""
        if value not in ("stats", False) and info.data.get("preset") == "bits":
            raise ValueError("preset 'bits' takes one fingerprint of every value and nothing else; use mix or ops")
        return value

    @field_validator("when")
    @classmethod
    def _has_something_to_start(cls, when: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        """Refuse findings that start no recording, and any where the preset records nothing."""
        triggers = list(live_codes().values()) if when else []
        if when and not set(when).issubset(triggers):
            raise ValueError(f"each should be {' or '.join(map(repr, triggers))}")
        if when and info.data.get("preset") in WATCH_ONLY:
            raise ValueError(
                f"it starts a recording, and preset '{info.data['preset']}' records nothing; use modules, ops, mix, "
                "bits or monitor"
            )
        return when

    @field_validator("on_finding")
    @classmethod
    def _is_bounded(cls, on_finding: str | None, info: ValidationInfo) -> str | None:
        """Refuse to leave out any number of updates, and to compare those of ranks that update by themselves."""
        if on_finding != SKIP:
            return on_finding
        if info.data.get("most_skips") is None:
            raise ValueError("set most_skips too, how many updates may be left out at most")
        if info.data.get("local_updates"):
            raise ValueError("with local_updates each rank updates by itself, and none can be left out on all")
        return on_finding

    @field_validator("ring")
    @classmethod
    def _fits_into_memory(cls, ring: int | None, info: ValidationInfo) -> int | None:
        """Refuse to keep the values of whole steps in memory, and a ring of nothing."""
        if ring is not None and info.data.get("preset") in WATCH_ONLY:
            raise ValueError(
                f"it keeps recorded steps, and preset '{info.data['preset']}' records nothing; use monitor or modules"
            )
        if ring is not None and info.data.get("depth") == "tensor":
            raise ValueError("it keeps steps in memory, for which depth 'tensor' takes too much; use stats")
        return ring

    @field_validator("worker_groups", mode="before")
    @classmethod
    def _from_ranges(cls, groups: Any) -> Any:
        """A group may be a text of ranges: ``"0-76,78-127"``."""
        if not isinstance(groups, list | tuple):
            return groups
        return [_ranks_of(group) if isinstance(group, str) else group for group in cast(Sequence[Any], groups)]

    @field_validator("worker_groups")
    @classmethod
    def _disjoint(cls, groups: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
        """Refuse a rank that stands twice, a group that has nobody to compare, and what cannot be a rank."""
        ranks_seen: set[int] = set()
        for group in groups:
            if len(group) < 2:
                raise ValueError(f"group {list(group)} has {len(group)} of the at least 2 ranks that can be compared")
            for rank in group:
                if rank < 0:
                    raise ValueError(f"rank {rank} in group {list(group)} is negative; ranks count from 0")
                if rank in ranks_seen:
                    raise ValueError(f"rank {rank} stands twice; a rank belongs to one group at most")
                ranks_seen.add(rank)
        return groups

    @classmethod
    def load(cls, source: str | Path | Plan | dict[str, Any] | None) -> Plan:
        """The Plan that ``source`` names: a preset, a TOML or JSON file, a dict, or None for the default.

        Raises ``PlanError`` that names the key or value and lists what would be valid.
        """
        if source is None:
            return cls()
        if isinstance(source, Plan):
            return source
        if isinstance(source, dict):
            return cls._validated(source, "the plan")
        if str(source) in PRESETS:
            return cls(preset=cast(Any, str(source)))
        return cls._validated(_read_plan_file(Path(source)), f"plan file '{source}'")

    def revised(self, changes: Mapping[str, Any], where: str) -> Plan:
        """This Plan, which is in force, with other values for the keys in ``changes``; ``where`` says who asks.

        Raises ``PlanError`` as ``load`` does, and for a change that cannot be made while a job runs.
        """
        new = Plan._validated(self.model_dump(mode="json") | dict(changes), where)
        values = new.model_dump(mode="json")
        for key, now in self.model_dump(mode="json").items():
            if values[key] == now:
                continue
            if key not in LIVE:
                raise PlanError(
                    f"Key '{key}' in {where} has the value {values[key]!r}, but it is {now!r} and cannot change while "
                    f"a job runs. Start a new Run for that. Keys that can change are {', '.join(LIVE)}."
                )
            if key in _WATCHED and not new.records:
                raise PlanError(
                    f"Key '{key}' in {where} has the value {values[key]!r}: with preset '{new.preset}' it chooses the "
                    f"{_WATCHED[key]} that are watched, which cannot change while a job runs. Set preset to modules, "
                    "ops or mix too, or start a new Run."
                )
        if new.bits_alone != self.bits_alone:
            raise PlanError(
                f"Key 'preset' in {where} has the value '{new.preset}', but it is '{self.preset}': bits are taken from "
                "the start of a job to its end, or not at all. Start a new Run for that."
            )
        return new

    @classmethod
    def _validated(cls, content: dict[str, Any], where: str) -> Plan:
        try:
            return cls.model_validate(content)
        except RecursionError:
            raise PlanError(f"{where} is nested too deeply. Expected a table of keys.") from None
        except ValidationError as error:
            first = error.errors()[0]
            key = shortened(".".join(str(part) for part in first["loc"])) or "content"
            valid = sorted(cls.model_fields)
            if first["type"] == "extra_forbidden":
                near = difflib.get_close_matches(key, valid, n=1)
                hint = f"did you mean '{near[0]}'? " if near else ""
                raise PlanError(f"Unknown key '{key}' in {where}: {hint}Valid keys are {', '.join(valid)}.") from None
            why = first["msg"].lower().removeprefix("value error, ")
            raise PlanError(f"Key '{key}' in {where} has the value {shown(first['input'])}: {why}.") from None


_DIGITS = 19
"""Fewer make an int64; Python refuses to read thousands."""


def _after(step: str) -> int | str:
    return int(step) + 1 if step.isdecimal() and len(step) < _DIGITS else step


def _read_plan_file(path: Path) -> dict[str, Any]:
    if not os.path.isfile(path):  # pathlib raises where a text is too long for a path
        raise PlanError(
            f"Plan '{shortened(str(path))}' is neither a preset ({', '.join(PRESETS)}) nor a file. "
            "Pass one of these, or a TOML or JSON file."
        )
    return read_table(str(path), f"Plan file '{path}'", "Expected TOML, or JSON in a .json file.", error=PlanError)


def _ranks_of(ranges: str) -> list[int]:
    """``0-2,5`` as [0, 1, 2, 5]. Raises ``ValueError`` for what is no such text."""
    ranks: list[int] = []
    for part in ranges.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or (dash and int(last) < int(first)):
            raise ValueError(f"'{part.strip()}' in '{ranges}' is no rank and no range of ranks; write 0-76,78-127")
        ranks += range(int(first), int(last or first) + 1)
    return ranks
