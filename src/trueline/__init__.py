"""Trueline tells when, where and why a distributed PyTorch training run stops being numerically right."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from pathlib import Path

    import torch
    from torch import nn

    from trueline.capture.seeding import SeedReport
    from trueline.capture.watch import Watch
    from trueline.comparison.match.names import NameMap
    from trueline.comparison.result import Comparison
    from trueline.judge.causes.diagnosis import Diagnosis
    from trueline.judge.check_run import CheckReport
    from trueline.judge.facts.training_facts import TrainingFacts
    from trueline.same_job.diff import JobDiff
    from trueline.schema.files.tolerance import Tolerance
    from trueline.schema.finding import Severity
    from trueline.schema.live import Callback, VerdictCallback
    from trueline.schema.plan import OnFinding, Plan
    from trueline.schema.roles import Guard
    from trueline.sinks.listening import Listening
    from trueline.store.clean import Clean
    from trueline.store.collect import Collected
    from trueline.store.reader import Run
    from trueline.trials.frame.trial import TrialAnswer
    from trueline.web.serve import Page

from trueline import rl as rl

__version__ = "0.1.0"
__all__ = [
    "calibrate",
    "check",
    "clean",
    "collect",
    "compare",
    "diagnose",
    "diff",
    "facts",
    "on_finding",
    "open_run",
    "report",
    "seed_all",
    "trial",
    "view",
    "watch",
]


def __dir__() -> list[str]:
    """What is public: a shell completes these alone."""
    return sorted([*__all__, "__version__", "rl"])


def watch(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None = None,
    *,
    out: str | os.PathLike[str],
    plan: Any = None,
    process_group: Any = None,
    overwrite: bool = False,
    resume: bool = False,
    step: int | None = None,
    name: str = "",
    averages: Any = (),
    sinks: Sequence[str | Callback] = (),
    on_finding: OnFinding | None = None,
) -> Watch:
    """Watch ``model`` while it trains and write a Run to ``out`` (one directory, shared by all ranks).

    Where groups of ranks average apart from each other, the group of rank 0 writes to ``out`` and every other one to
    ``out`` with ``.ranks-<its first rank>`` behind; ``check`` and ``report`` of ``out`` cover them all.

    A further model of this process with the same ``out`` (a discriminator, a critic) writes a Run of its own, under
    ``out/models/`` and its ``name`` (by default that of its class), which ``check`` and ``report`` cover.

    With ``resume`` a job that is started again, from a checkpoint, goes on with the Run that it left (and begins one
    where there is none): from its first step on the Run is its own. ``step`` is the number of that step; by default
    that which the optimizer counts, if its state was loaded before and has a count (that of Adam has, that of SGD has
    not), else the one after the last recorded. ``plan`` and ``trueline plan --set`` hold on.

    ``model`` may be DDP, FSDP2 (``fully_shard``), an engine of DeepSpeed, Megatron-core's DDP, a plain module whose
    gradients you average yourself, or one process; call it on every rank, after wrapping. ``plan`` is a preset name, a
    TOML or JSON file, a dict or a ``Plan``.

    ``averages`` are averages of the weights that the script keeps (EMA, SWA, a momentum teacher), which are then to be
    e' = d e + (1 - d) p: each a module, a mapping from names to tensors, or a list of tensors in the order of the
    parameters; or a tuple of one of these and of the module that it follows, where that is not ``model``, and of its
    decay d, where that is the same after every update. torch's ``AveragedModel`` is seen without.

    With ``sinks`` or ``on_finding`` (both may stand in the plan) the Run is judged while it is written, by a process
    beside the first rank. A sink is ``"NAME:TARGET"``, or a function that is called with each ``Finding`` and each
    ``Numbers`` of ``trueline.schema.live``, in a thread of its own. ``on_finding`` is what the first error or warning
    does: ``"log"``; ``"raise"``, by which every rank raises ``TrainingStopped`` at the same step; ``"record"``; or
    ``"skip"``, by which all ranks leave out updates whose gradient is not finite or jumps (``most_skips`` in the plan).

    Training is bitwise the same with and without. Raises ``PlanError``, ``CaptureError`` (nothing to watch)
    or ``InputError`` (``out`` exists or cannot be written; with ``resume``, is of another job), on all ranks alike.

    Example, on every rank:

        model = DistributedDataParallel(model)
        watch = trueline.watch(model, optimizer, out="runs/job")
        for batch in loader:
            model(**batch).loss.backward()
            optimizer.step()  # a step ends here
            optimizer.zero_grad()
        watch.close()

    Then ``trueline check runs/job``, or ``trueline.check("runs/job")`` in Python, says what is wrong.
    """
    from trueline.capture.model.model_names import name_of
    from trueline.capture.watch import Watch as Handle
    from trueline.capture.watch import further_run
    from trueline.schema.plan import Plan
    from trueline.store.writer import Destination

    folder = os.fspath(out)
    full_plan, callbacks = _with_sinks(Plan.load(plan), sinks, on_finding)
    # A second model that is trained in the same process has a Run of its own beside the first.
    second_name = Handle.further_name(folder, model, name or name_of(model))
    if second_name is not None:
        folder, name, overwrite = further_run(folder, second_name), second_name, False
    handle = Handle(
        model,
        optimizer,
        make_sink=Destination(folder, overwrite=overwrite, resume=resume).open,
        run_path=folder,
        plan=full_plan,
        process_group=process_group,
        version=__version__,
        step=step,
        name=name,
        averages=averages,
        make_guard=_guard,
    )
    if second_name is None:
        _report_live(handle, callbacks)
    return handle


def _with_sinks(
    plan: Plan, sinks: Sequence[str | Callback], on_finding: OnFinding | None
) -> tuple[Plan, list[Callback]]:
    """The Plan with further ``sinks``, and those that are functions. Raises ``InputError`` for what is neither."""
    from trueline.sinks.registry import at_home, require_sinks

    names = [at_home(sink) for sink in (*plan.sinks, *sinks) if isinstance(sink, str)]
    require_sinks(names)
    changes = {"sinks": tuple(names), "on_finding": on_finding or plan.on_finding}
    return type(plan).load(plan.model_dump() | changes), [sink for sink in sinks if not isinstance(sink, str)]


def _guard(plan: Plan) -> Guard:
    """What says before an update that it is to be left out, where the Plan asks for that."""
    return importlib.import_module("trueline.laws.jumps.norm_guard").NormGuard(plan.false_alarms)


def _report_live(watch: Watch, callbacks: Sequence[Callback]) -> None:
    """Have a process beside the first rank judge the Run while it is written, where the Plan or a callback asks."""
    plan, folder = watch.plan, watch.folder
    if not watch.leads or folder is None:
        return
    from trueline.sinks.listening import report as report_to
    from trueline.sinks.side_process import Settings
    from trueline.store.clean import remove_clean

    remove_clean(folder)
    settings = Settings(
        run=os.path.abspath(folder),
        first=watch.first_step,
        sinks=plan.sinks,
        on_finding=plan.on_finding,
        when_steps=plan.when_steps,
        sends_numbers=bool(callbacks),
    )
    report_to(watch, settings, callbacks)


def on_finding(
    callback: VerdictCallback,
    *,
    run: str | os.PathLike[str] | None = None,
    severities: Collection[Severity] | None = None,
) -> Listening:
    """Call ``callback`` with each new error and warning while a job runs, or with findings of other ``severities``.

    In the process that trains, leave ``run`` out: the callback is for all that this process watches, before or after,
    also where `trueline run` watches it. It is called on the first rank. In a controller (Ray's driver, an agent that
    restarts workers, a scheduler), ``run`` is the place of the Run, which need not have begun, also in an object store;
    nothing there imports torch.

    The callback gets a ``FindingVerdict`` (``trueline.schema.live``): code, severity, rank and ranks, node, device,
    step, ``last_clean_step``, ``false_alarm_bound``, and the whole ``finding``. A start of the job that goes on with
    the Run and shows the same again is told again. It is called in a thread of its own, at once after the look that
    found it: looks are at least 2 seconds apart, and nine times as long as a look takes. What it raises is said in the
    log, and where it hangs, nobody waits for longer than 5 seconds.

    ``close()`` of what is returned ends it, and where ``run`` is given, looks once more before. Raises ``RunError`` for
    a ``run`` where no Run can come, ``InputError`` for an unknown severity.
    """
    from trueline.schema.errors import InputError, NoRunYet
    from trueline.schema.finding import SEVERITIES
    from trueline.sinks.listening import Listening, listen

    severities = ("error", "warning") if severities is None else severities
    unknown = [severity for severity in severities if severity not in SEVERITIES]
    if unknown or isinstance(severities, str):
        raise InputError(f"severities = {severities!r} cannot be. Take some of {', '.join(SEVERITIES)}, in a tuple.")
    if not callable(callback):
        raise InputError(f"on_finding was given {type(callback).__name__}, which cannot be called. Pass a function.")
    if run is None:
        from trueline.capture.child_env import CHANGES, TRIAL

        # A trial plants faults, or runs the job with one thing changed: nobody is to act on what that shows.
        in_trial = os.environ.get(CHANGES) or os.environ.get(TRIAL)
        return Listening(callback, severities) if in_trial else listen(callback, severities)
    path = os.fspath(run)
    with contextlib.suppress(NoRunYet):
        open_run(path)
    listening = Listening(callback, severities)
    listening.follow(path if "://" in path else os.path.abspath(path))
    return listening


def clean(run: str | os.PathLike[str], *, judge: bool = True) -> Clean:
    """Up to which step ``run`` is known to be clean, for who is about to keep a checkpoint.

    Of a job that is judged while it runs (``sinks``, ``on_finding``) this reads ``clean.json``, which takes no longer
    than any small file, and is a few seconds behind. Where there is none the Run is judged now, as ``check`` does, but
    not in a process that writes it, nor without ``judge``: nothing is known yet. Raises ``RunError`` where there is no
    Run that could be judged.
    """
    from trueline.store.clean import Clean, read_clean

    path = os.fspath(run)
    clean_steps = read_clean(path)
    if clean_steps is not None:
        return clean_steps
    capture = sys.modules.get("trueline.capture.watch")  # not imported here: reading needs no torch
    if not judge or (capture is not None and capture.is_watched(path)):
        from trueline.schema.plan import FALSE_ALARMS

        return Clean(path, None, None, FALSE_ALARMS)
    whole = open_run(path)
    clean_of = importlib.import_module("trueline.judge.clean_steps").clean_of
    return clean_of(check(whole), whole, int(whole.steps[-1]) if whole.steps.size else -1)


def open_run(path: str | os.PathLike[str]) -> Run:
    """The Run at ``path``, finished or still being written. Raises ``RunError`` where there is none."""
    return importlib.import_module("trueline.store.reader").Run(os.fspath(path))


def check(
    run: str | os.PathLike[str] | Run,
    *,
    ref: str | os.PathLike[str] | Run | None = None,
    strict: bool = False,
) -> CheckReport:
    """Run every check that ``run`` has data for, and compare it with ``ref`` where that is given; ``facts`` of the
    report are what the training did. Where it is ``strict``, what is to confirm counts as found. Raises ``RunError``
    where there is no Run.
    """
    return importlib.import_module("trueline.judge.check_run").check(run, ref=ref, strict=strict)


def facts(run: str | os.PathLike[str] | Run) -> TrainingFacts:
    """What the training of ``run`` did, a line a fact, and what the Run does not tell. Raises ``RunError`` where there
    is no Run.
    """
    return importlib.import_module("trueline.judge.facts.training_facts").read_facts(run)


def diagnose(
    run: str | os.PathLike[str] | Run,
    *,
    ref: str | os.PathLike[str] | Run | None = None,
    trials: Sequence[str | os.PathLike[str]] = (),
) -> Diagnosis:
    """What most likely caused what is wrong with ``run``, for each incident, with what speaks for and against it; with
    ``ref`` as of ``check``. The answers in ``trials``, folders of trials about this Run, count, and only they confirm a
    cause. Raises ``RunError`` where there is no Run, ``InputError`` where there is no trial.
    """
    judge = importlib.import_module("trueline.judge.causes.diagnosis").diagnose
    return judge(run, ref=ref, trials=trials)


def trial(
    verb: str,
    run: str | os.PathLike[str] | None,
    command: Sequence[str],
    *,
    code: str | None = None,
    error: float = 0.05,
    runs: int | None = None,
    steps: int | None = None,
    timeout_s: float = 3600.0,
    out: str | os.PathLike[str] = "",
    seed: int = 0,
    keep: bool = False,
    engine: str = "local",
    **more: Any,
) -> TrialAnswer:
    """Run ``command`` again, with one thing changed at a time, to settle what ``run`` shows, as `trueline trial` does:
    "knobs", "sync", "bisect", "shrink", "rl", "remedy"; or, with None for ``run``, what the job does by itself: "vote",
    "repeat", "batch". ``more`` are the options of the verb, by their names with underscores (``knob`` and ``axis`` and
    ``way`` are lists); ``out`` is by default ``trials/VERB``. Raises ``InputError`` for what cannot be.
    """
    question = importlib.import_module("trueline.trials.frame.asked").Asked(
        *(verb, tuple(command), "" if run is None else os.fspath(run)),
        *(code, error, runs, steps, timeout_s, os.fspath(out), seed, keep, engine),
    )
    return importlib.import_module("trueline.trials.start").prepared(question, **more).trial.answer()


def collect(
    sources: Sequence[str | os.PathLike[str]], dst: str | os.PathLike[str], *, max_bytes_per_s: float | None = None
) -> Collected:
    """Bring together in one Run at ``dst``, a directory or fsspec URL, what the ranks of one job wrote to ``sources``:
    disks of their own, say. Only what is new is copied, at most ``max_bytes_per_s`` bytes a second; it may be called
    again while the job runs, and changes nothing at ``sources``. Raises ``InputError`` where these are of different
    jobs, ``RunError`` where one cannot be read, ``OSError`` where ``dst`` does not keep what it is given.
    """
    gather = importlib.import_module("trueline.store.collect").collect
    return gather(sources, os.fspath(dst), max_bytes_per_s=max_bytes_per_s)


def compare(
    run: str | os.PathLike[str] | Run,
    ref: str | os.PathLike[str] | Run,
    *,
    tolerance: str | os.PathLike[str] | Tolerance | None = None,
    names: str | os.PathLike[str] | NameMap | None = None,
    steps: Collection[int] | None = None,
    ranks: Collection[int] | None = None,
    max_bytes: int | None = None,
) -> Comparison:
    """Where ``run`` first differs from the reference ``ref`` by more than rounding explains, and every value judged.

    ``tolerance`` is a file that ``trueline calibrate`` wrote, ``names`` a map of names as ``--map`` takes it; ``steps``
    and ``ranks`` choose; ``max_bytes`` of memory are taken to compare stored values, however large (256 MiB unless
    given). Raises ``RunError`` where there is no Run, ``InputError`` for a file that cannot be used, ``CannotTell`` or
    ``AlignmentError`` where nothing of the two can be compared.
    """
    options: dict[str, Any] = {} if max_bytes is None else {"max_bytes": max_bytes}
    if isinstance(tolerance, (str, os.PathLike)):
        options["tolerance"] = importlib.import_module("trueline.schema.files.tolerance").Tolerance.load(tolerance)
    elif tolerance is not None:
        options["tolerance"] = tolerance
    judge = importlib.import_module("trueline.comparison.compare").compare
    return judge(run, ref, names=_name_map(names), steps=steps, ranks=ranks, **options)


def diff(run: Any, ref: Any) -> JobDiff:
    """What differs between two jobs that should be the same, what most likely explains other numbers first.

    Each is a Run, a file of ``trueline env collect``, a configuration of any framework, a directory of these, or a pack
    of msProbe's ConfigChecker; or a configuration as it is held in memory: a mapping, a dataclass, a namespace of
    ``argparse`` (Megatron's ``get_args()``), ``TrainingArguments``, OmegaConf, or DeepSpeed's configuration or engine.
    Raises ``InputError`` for what is none of them, ``CannotTell`` where the two have nothing in common that can be
    compared.
    """
    return importlib.import_module("trueline.judge.facts.apart").diff_trainings(_job_of(run), _job_of(ref))


def _job_of(job: Any) -> Any:
    """What ``diff`` takes: an object that holds options as a job of these."""
    if isinstance(job, str | os.PathLike) or type(job).__name__ in ("Run", "Job"):
        return job
    options = importlib.import_module("trueline.capture.job.configs_in_sight").options_of(job)
    if not options:
        errors = importlib.import_module("trueline.schema.errors")
        raise errors.InputError(
            f"diff was given {type(job).__name__}, which holds no options. Pass a path, a Run, or a configuration: a "
            "mapping, a dataclass, a namespace of argparse, or an object with to_dict()."
        )
    return importlib.import_module("trueline.store.job_files.job").job_of_options(type(job).__name__, options)


def calibrate(
    runs: Sequence[str | os.PathLike[str] | Run],
    *,
    names: str | os.PathLike[str] | NameMap | None = None,
    steps: Collection[int] | None = None,
    ranks: Collection[int] | None = None,
) -> Tolerance:
    """The rounding floor of a job, from two or more ``runs`` of it that should agree; ``save`` makes it a file.

    Arguments as of ``compare``. Raises ``RunError`` where there is no Run, ``InputError`` for Runs that do not belong
    together, ``CannotTell`` or ``AlignmentError`` where nothing was measured in common.
    """
    measure = importlib.import_module("trueline.comparison.calibrate").calibrate
    return measure(runs, names=_name_map(names), steps=steps, ranks=ranks)


def report(
    runs: Sequence[str | os.PathLike[str]] | str, out: str | os.PathLike[str], *, overwrite: bool = False
) -> Path:
    """Write one self-contained HTML file about one or several Runs and return its path.

    Raises ``RunError`` where a path is no Run, ``InputError`` where ``out`` cannot be written, or exists and
    ``overwrite`` is not set.
    """
    from trueline.render.output import save, writable_target

    target = writable_target(out, overwrite=overwrite)
    watched = importlib.import_module("trueline.web.watched_run").judged_runs(runs)
    save(target, importlib.import_module("trueline.web.page_file").page_file(watched)[0])
    return target


def view(
    runs: Sequence[str | os.PathLike[str]] | str | os.PathLike[str],
    *,
    ref: str | os.PathLike[str] | None = None,
    host: str = "127.0.0.1",
    port: int = 8642,
    token: str | None = None,
) -> Page:
    """Serve the page about one or several Runs, also while they are written, and return at once: ``url`` is what a
    browser opens, ``close()`` ends it, and in a notebook it shows itself as a link.

    Arguments as of ``trueline view``: with ``ref`` the Run is compared with it, port 0 is any free one. Verdicts are
    made in a process of its own, so a script calls this below ``if __name__ == "__main__":``. Raises ``RunError`` where
    a path is no Run, ``InputError`` for a host or token that cannot be, or where the packages of ``trueline[view]`` are
    missing.
    """
    importlib.import_module("trueline.web.required").require_packages()
    paths = [runs] if isinstance(runs, (str, os.PathLike)) else runs
    serve = importlib.import_module("trueline.web.serve")
    return serve.Page(
        [os.fspath(path) for path in paths],
        ref=None if ref is None else os.fspath(ref),
        host=host,
        port=port,
        token=token,
    )


def seed_all(
    seed: int = 1234,
    *,
    deterministic: bool | Literal["warn"] = False,
    dropout: bool | None = None,
    per_rank: bool = False,
) -> SeedReport:
    """Seed every random stream of this process, and report what was set and what may differ all the same.

    Seeded are Python's ``random``, NumPy's global stream, torch on the CPU and on every device, and through torch the
    workers of a ``DataLoader``. ``deterministic`` makes torch use deterministic algorithms: an operation that has none
    raises, or with ``"warn"`` warns. ``dropout=False`` turns dropout off in this thread whatever model calls it, until
    ``dropout=True``. Every rank gets the same streams, as it takes for equal initial weights; with ``per_rank`` each
    gets those of ``seed`` plus its global rank. Raises ``InputError`` for what cannot be a seed.
    """
    from trueline.capture.seeding import seed_all as seed_here

    return seed_here(seed, deterministic=deterministic, dropout=dropout, per_rank=per_rank)


def _name_map(names: str | os.PathLike[str] | NameMap | None) -> NameMap | None:
    """``names`` as a map: of a file, the name of a built-in one, or text."""
    if isinstance(names, (str, os.PathLike)):
        return importlib.import_module("trueline.comparison.match.names").NameMap.load(names)
    return names
