"""msProbe's ``TrainerMon`` over Trueline's preset ``monitor``: its configuration, of version 1 or 2, becomes a Plan."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

import trueline
from trueline.capture.watch import Watch
from trueline.compat.msprobe.config import flag, numbers, read_config, require_known
from trueline.schema.errors import InputError
from trueline.schema.plan import PHASES, Phase, Plan
from trueline.schema.text.reading import shown
from trueline.schema.text.words import counted

OPS = ("norm", "min", "max", "zeros", "nans", "mean", "shape", "dtype")
"""msProbe's statistics that every row has, or that follow from it: ``norm`` is the root of ``sum_sq``."""

SCHEDULE = ("start_step", "step_interval", "collect_times", "stop_step")
KINDS: Mapping[str, tuple[Phase, ...]] = {
    "xy_distribution": ("fwd", "bwd"),
    "wg_distribution": ("bwd", "grad"),
    "mv_distribution": ("opt",),
    "ur_distribution": ("opt",),
    "param_distribution": ("param",),
}
"""Flags of version 1, and where their values are."""
MONITORS: Mapping[str, tuple[Phase, ...]] = {
    "module": ("fwd", "bwd"),
    "weight_grad": ("bwd", "grad"),
    "optimizer": ("opt",),
    "param": ("param",),
    "cc": ("comm",),
}
"""Monitors of version 2."""

NO_MATTER = (
    *("ops", "format", "ndigits", "eps", "async_write", "patch_optimizer_step", "framework"),
    *("step_count_per_record", "squash_name", "monitor_mbs_grad", "print_struct", "all_xy"),
    *("micro_batch_number", "grad_acc_steps"),
)
"""Fields that change nothing here: rows have all statistics, unrounded, of every micro-batch, and are written in the
background into one Run.
"""

INSTEAD = {
    "alert": "Leave it out: trueline check judges gradients, within a budget of false alarms and without thresholds.",
    "append_output": "Leave it out; trueline.watch(resume=True) goes on with a Run.",
    "dynamic_on": "Leave it out: trueline plan RUN --set changes what is monitored while the job runs.",
    "l2_targets": "Record the calls inside of these modules with preset 'mix'.",
    "mg_direction": "Leave it out; the direction of gradients against momentum is not measured.",
    "recording_l2_features": "Leave it out; features of attention, routers and linear layers are not measured.",
    "sa_order": "Leave it out; features of attention are not measured.",
    "stack_info": "Record call stacks with preset 'modules'.",
}
"""Fields that msProbe knows and this does not, and what to do."""

METHODS = ("adhoc_check", "generate_wgrad_metrics", "generate_xy_metrics", "monitor_gnorm_with_ad", "reload_xy")


class TrainerMon:
    """Monitors a training as the configuration at ``config_file_path`` asks; the Run is its ``output_dir``, or what the
    variable MONITOR_OUTPUT_DIR names, by default ``./monitor_output``. ``plan`` is what was understood.

    Without ``step_interval`` steps are chosen by the budget of the Plan. ``process_group`` is that of the ranks whose
    gradients are averaged; the other arguments are taken and not needed. Raises ``InputError`` for a field or value
    that is not supported.
    """

    def __init__(
        self,
        config_file_path: str,
        process_group: Any = None,
        params_have_main_grad: bool = True,
        opt_ty: str | None = None,
        fr: str | None = None,
    ) -> None:
        config = read_config(config_file_path)
        self.plan: Plan = plan_of_monitor(config)
        self._output = str(config.get("output_dir") or os.environ.get("MONITOR_OUTPUT_DIR") or "./monitor_output")
        self._group = process_group
        self._watch: Watch | None = None

    def set_monitor(
        self,
        model: nn.Module | list[nn.Module],
        optimizer: torch.optim.Optimizer | None = None,
        grad_acc_steps: int = 1,
        tp_group: Any = None,
        dp_group: Any = None,
        start_iteration: int = 0,
    ) -> None:
        """Begin to monitor ``model``; a step ends at ``optimizer.step()``, however many micro-batches it has. Groups
        of tensor parallelism are found by themselves. Raises ``InputError`` where there are several models, or the Run
        exists.
        """
        models = model if isinstance(model, list) else [model]
        if len(models) != 1:
            raise InputError(
                f"set_monitor() was given {counted(len(models), 'model')}. Monitor each with a TrainerMon of its own."
            )
        group = self._group if dp_group is None else dp_group
        self._watch = trueline.watch(
            models[0], optimizer, out=self._output, plan=self.plan, process_group=group, step=start_iteration or None
        )

    def start(self, model: nn.Module, optimizer: torch.optim.Optimizer | None = None, **context: Any) -> None:
        """As ``set_monitor``, by its name in version 2."""
        self.set_monitor(model, optimizer)

    def step(self) -> None:
        """Nothing: steps are counted by updates."""

    def stop(self) -> None:
        """Write what is left and close the Run; at exit it is closed by itself."""
        if self._watch is not None:
            self._watch.close()

    def __getattr__(self, name: str) -> Any:
        """Say of msProbe's other methods that they are not there."""
        if name in METHODS:
            raise InputError(f"TrainerMon.{name} is not supported. Read what was recorded with trueline.open_run.")
        raise AttributeError(f"'TrainerMon' has no attribute '{name}'")


def plan_of_monitor(config: Mapping[str, Any]) -> Plan:
    """The Plan that a configuration of either version asks for. Raises ``InputError`` as ``TrainerMon``."""
    recorded = _of_version_2(config) if "monitors" in config else _of_version_1(config)
    first = _number(config, "start_step", 0)
    interval = _number(config, "step_interval", None)
    times, end = _number(config, "collect_times", None), _number(config, "stop_step", None)
    if end is None and times is not None and times < 10**8:
        end = first + times * (interval or 1)
    keys: dict[str, Any] = {"preset": "monitor", "every": interval, "steps": (first, end), **recorded}
    return Plan.load(keys)


def _of_version_1(config: Mapping[str, Any]) -> dict[str, Any]:
    only = {"forward_only": "bwd", "backward_only": "fwd"}
    valid = (*SCHEDULE[:3], *KINDS, *only, "targets", "module_ranks", "cc_distribution", *NO_MATTER)
    _require(config, valid, "")
    left_out = {phase_left_out for name, phase_left_out in only.items() if flag(config, name, default=False)}
    phases = {
        phase
        for name, kind_phases in KINDS.items()
        if flag(config, name, default=False)
        for phase in kind_phases
        if name != "xy_distribution" or phase not in left_out
    }
    collectives = config.get("cc_distribution") or {}
    _require(collectives, ("enable",), "cc_distribution.")
    if flag(collectives, "enable", default=False):
        phases.add("comm")
    targets = config.get("targets") or {}
    if not isinstance(targets, dict):
        raise InputError(f"Field 'targets' is {shown(targets)}. Expected an object of modules.")
    return _recorded_keys(phases, [*targets], config.get("module_ranks"), "module_ranks")


def _of_version_2(config: Mapping[str, Any]) -> dict[str, Any]:
    _require(config, (*SCHEDULE, "monitors", "output_dir", "rank", *NO_MATTER), "")
    monitors = config["monitors"]
    if not isinstance(monitors, dict):
        raise InputError(f"Field 'monitors' is {shown(monitors)}. Expected an object of monitors.")
    _require(monitors, tuple(MONITORS), "monitors.")
    phases: set[Phase] = set()
    targets: list[str] = []
    for name, settings in monitors.items():
        extra_fields = (
            ("mv_distribution",) if name == "optimizer" else ("param_distribution",) if name == "param" else ()
        )
        _require(settings, ("enabled", "targets", *extra_fields, *NO_MATTER), f"monitors.{name}.")
        if flag(settings, "enabled", default=name == "module") and all(
            flag(settings, o, default=True) for o in extra_fields
        ):
            phases.update(MONITORS[name])
            targets += settings.get("targets") or []
    rank = config.get("rank")
    return _recorded_keys(phases, targets, [rank] if isinstance(rank, int) else rank, "rank")


def _recorded_keys(phases: set[Phase], targets: list[str], ranks: object, field: str) -> dict[str, Any]:
    """Keys of a Plan: what is recorded of which modules, with all that is inside of them, on which ranks."""
    if not phases:
        raise InputError(f"The configuration monitors nothing. Set one of {', '.join((*KINDS, *MONITORS))}.")
    rank_numbers = numbers(field, ranks)
    names = [glob for target in targets if target for glob in (target, f"{target}.*")]
    return {
        "phases": [phase for phase in PHASES if phase in phases],
        "names": names if names and all(targets) else ["*"],
        "ranks": None if rank_numbers is None else sorted(rank_numbers),
    }


def _require(fields: Mapping[str, Any], valid: tuple[str, ...], prefix: str) -> None:
    for name in INSTEAD.keys() & fields.keys():
        value = fields[name]
        if value and not (isinstance(value, dict) and not any(value.values())):
            raise InputError(f"Field '{prefix}{name}' is not supported. {INSTEAD[name]}")
    require_known({name: value for name, value in fields.items() if name not in INSTEAD}, valid, prefix)
    ops = fields.get("ops") or []
    for op in ops if isinstance(ops, list) else [ops]:
        if op not in OPS:
            raise InputError(f"Field '{prefix}ops' has {shown(op)}, which is not measured. Valid are {', '.join(OPS)}.")


def _number(config: Mapping[str, Any], name: str, default: int | None) -> Any:
    value = config.get(name, default)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
        raise InputError(f"Field '{name}' is {shown(value)}. Expected a whole number.")
    return value
