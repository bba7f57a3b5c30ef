"""The verbs of ``trueline trial`` that run a job again, each declared once.

A verb is a block below and the ``prepare`` of its ``module``. The command line, Python, messages and diagnoses read the
block, so that a new verb needs nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass

SHARED = ("code", "error", "runs", "steps", "timeout", "out", "seed", "keep", "engine")
"""Options of every verb that does not lack them."""


@dataclass(frozen=True)
class Option:
    """An option of the command line, and of Python by its ``name`` with underscores.

    ``default_text`` stands in the help for a default that is worked out. ``least`` is the smallest whole number that is
    taken. An option that is ``repeated`` makes a list. One of ``bool`` is a flag.
    """

    name: str
    kind: type[str] | type[int] | type[float] | type[bool]
    help: str
    metavar: str | None = None
    default: str | float | None = None
    default_text: str | None = None
    least: int | None = None
    required: bool = False
    repeated: bool = False


@dataclass(frozen=True)
class Verb:
    """A verb: its ``help``, what ``confirmed``, ``excluded`` and ``undecided`` mean ('': no such answer), its own
    ``options``, and the ``module`` of ``trueline.trials`` whose ``prepare`` makes the trial.

    It is ``about_run``, a Run with a finding, or takes the command alone. ``lacks`` are shared options that it does not
    take. Without ``--steps`` a run has ``steps`` (None: as many as that Run), without ``--runs`` there are ``most``.
    The command may stand without ``--`` where ``takes_bare_command``; without ``takes_command`` options have it.

    ``usual`` is the number of runs that it takes where each shows the finding (``benchmarks/trials``, and the rules of
    the verbs), and ``answers`` how many it may give, each as likely by a cause that is silent on them: of knobs the
    settings that a job usually has on, of the others the kinds of their tables. 0: it tells no cause from another.
    ``also`` is what its command must have besides.
    """

    name: str
    help: str
    _: KW_ONLY
    confirmed: str
    undecided: str
    module: str
    excluded: str = ""
    options: tuple[Option, ...] = ()
    about_run: bool = True
    lacks: frozenset[str] = frozenset()
    steps: int | None = None
    max_runs: int = 200
    usual: int = 0
    answers: int = 0
    also: str = ""
    takes_bare_command: bool = False
    takes_command: bool = True

    @property
    def means(self) -> Mapping[str, str]:
        """Each answer in words."""
        return {"confirmed": self.confirmed, "excluded": self.excluded, "undecided": self.undecided}

    @property
    def shared(self) -> tuple[Option, ...]:
        """Options that verbs have in common, without those that this one lacks."""
        engines = "Where runs take place: local, torchrun, ray or slurm, with options of these behind a colon."
        steps = "as many as RUN has" if self.steps is None else str(self.steps)
        seed = "Random seed of the order of the runs, and of a job that sets none."
        folder = "Folder of the trial; one that was begun with the same command goes on."
        error = "Probability of a wrong answer that is allowed, over all decisions."
        code = Option("code", str, "The finding that the trial is about.", "CODE", default_text="of the first incident")
        options = (
            code,
            Option("error", float, error, default=0.05),
            Option("runs", int, "Runs after which it is undecided.", default_text=str(self.max_runs), least=1),
            Option("steps", int, "Steps of each run.", "N", default_text=steps, least=1),
            Option("timeout", float, "Seconds after which a run of the command is stopped.", default=3600.0),
            Option("out", str, folder, default="", default_text=f"trials/{self.name}"),
            Option("seed", int, seed, default=0),
            Option("keep", bool, "Keep what every run left, not one of runs alike.", default=False),
            Option("engine", str, engines, "ENGINE[:OPTIONS]", default="local"),
        )
        return tuple(option for option in options if option.name not in self.lacks)

    def command(self, run: str) -> str:
        """Its command line, about ``run``."""
        words = ["trueline trial", self.name, *([run] if self.about_run else []), *filter(None, [self.also])]
        return " ".join([*words, *(["-- COMMAND"] if self.takes_command else [])])


_KNOBS = Verb(
    "knobs",
    """Run a training command with framework settings switched off, and say which of them a finding needs.

    confirmed: one setting, two together, or two of which each suffices; excluded: none of those that it has on. Exit
    code 0: one of these; 3: undecided.

    Example: trueline trial knobs runs/bad -- torchrun --nproc-per-node 2 train.py
    """,
    confirmed="the finding needs what is named below",
    excluded="the finding needs none of the settings that could be switched",
    undecided="which setting the finding needs cannot be told",
    options=(
        Option(
            "knob",
            str,
            "A setting of your own: NAME=VALUE (a variable and its off value), --flag (left out), --option=VALUE "
            "(off); may be given again.",
            "SETTING",
            repeated=True,
        ),
        Option("only", str, "Only this setting; may be given again.", "NAME", repeated=True),
    ),
    module="knobs.job",
    usual=12,
    answers=20,
)

_SYNC = Verb(
    "sync",
    """Run a training command with every operation waited for, slowed down, and with memory filled by a pattern, and say
    whether a finding is a race, memory that is read before it is written or after it is freed, or neither.

    confirmed: one of these; excluded: neither. Exit code 0: one of these; 3: undecided.

    Example: trueline trial sync runs/bad -- torchrun --nproc-per-node 2 train.py
    """,
    confirmed="the finding depends on order in time or on memory, as told below",
    excluded="it is neither a race between streams or threads nor memory that is read too early or too late",
    undecided="whether it is a race or of memory cannot be told",
    module="sync",
    usual=12,
    answers=4,
)

_RL = Verb(
    "rl",
    """Run a training of reinforcement learning with learning rate 0, with one token a response, without a cache, with
    one sequence at a time and in float32, the cheapest first and as far as needed, and say by what rollout engine and
    trainer disagree.

    confirmed: by updates of the weights, the cache, decoding, the batch, precision, or the models themselves. Exit code
    0: one of these; 3: undecided.

    Example: trueline trial rl runs/bad -- python grpo.py --lr 1e-5 --max-new-tokens 512
    """,
    confirmed="engine and trainer disagree by what is named below",
    undecided="by what engine and trainer disagree cannot be told",
    options=(
        Option(
            "way",
            str,
            "How an experiment is reached: NAME of lr-zero, one-token, no-cache, one-prompt or float32, then an "
            "option of the command and its value there (in capitals: a variable); may be given again.",
            "NAME=OPTION=VALUE",
            repeated=True,
        ),
    ),
    module="rollouts.tree",
    usual=12,
    answers=6,
)

_BISECT = Verb(
    "bisect",
    """Run a training command in checkouts of commits of the repository that it is in, and say since which of them it
    shows a finding. Your own files stay as they are. With --package it is releases of one package, each put before what
    is installed, without what it depends on.

    confirmed: a commit or release, or a few of which but the last cannot be run. Exit code 0: that; 3: undecided.

    Example: trueline trial bisect runs/bad --good v1.2 -- python train.py
    """,
    confirmed="the finding is there since the version below",
    undecided="since which version the finding is there cannot be told",
    options=(
        Option("good", str, "A commit, tag, branch or release without the finding.", "REV", required=True),
        Option("bad", str, "One that shows it.", "REV", default_text="HEAD, without changes to it; what is installed"),
        Option("package", str, "Try releases of this package, and not commits.", "NAME"),
    ),
    module="bisect.bisect",
    also="--good REV",
)

_SHRINK = Verb(
    "shrink",
    """Run a training command with fewer steps, ranks, layers, smaller batches and shorter sequences, and say how small
    it may be and still show the same finding.

    confirmed: so small; excluded: not smaller. Exit code 0: one of these; 3: undecided.

    Example: trueline trial shrink runs/bad -- torchrun --nproc-per-node 8 train.py --num-layers 24
    """,
    confirmed="a smaller job still shows it",
    excluded="no smaller job shows it",
    undecided="whether a smaller job shows it cannot be told",
    options=(
        Option(
            "axis",
            str,
            "An option of the command with a whole number that may be smaller; may be given again.",
            "OPTION",
            repeated=True,
        ),
        Option(
            "cured_by",
            str,
            "What makes the finding go away, as a setting of `trial knobs`: the last job is run with it, too.",
            "SETTING",
        ),
    ),
    module="shrink.shrink",
    max_runs=40,
)

_REMEDY = Verb(
    "remedy",
    """Run a training command as it is, with a remedy and with a sham that does the same elsewhere, from the same seeds,
    and say whether the remedy recovers the job, partly, or has no effect.

    confirmed: it recovers, or partly; excluded: no effect. Exit code 0: one of these; 3: undecided.

    Example: trueline trial remedy runs/bad --ref runs/good --remedy fp32:layers.3.mlp -- python train.py
    """,
    confirmed="the remedy makes the job better, as told below",
    excluded="the remedy has no effect",
    undecided="whether the remedy has an effect cannot be told",
    options=(
        Option(
            "remedy",
            str,
            "fp32:MODULE, cpu:MODULE, clip:MODULE=NORM, unfused, deterministic, or a setting as of trial knobs.",
            "REMEDY",
            required=True,
        ),
        Option(
            "ref",
            str,
            "A Run that is as it should be: what is wrong is how much lower its loss is.",
            "RUN",
            default_text="what is wrong are losses and gradients that are not finite",
        ),
        Option("pairs", int, "Seeds, each run three times: as it is, with the remedy, with a sham.", default=8),
    ),
    module="remedy.remedy",
    lacks=frozenset({"code"}),
    also="--remedy REMEDY",
)

_VOTE = Verb(
    "vote",
    """Run a training command with the same seeds on group after group of devices, compare the bits of its first steps,
    and say which device is in the minority; then swap it with others, as what follows the rank is no device's fault.

    confirmed: a device, or two; excluded: what differs follows the software, or nothing differed in as many runs as
    --rate takes. Exit code 0: one of these; 3: undecided.

    Example: trueline trial vote --devices 0-7 -- torchrun --nproc-per-node 2 train.py
    """,
    confirmed="a device makes something else of the same work",
    excluded="no device was found to make something else of the same work",
    undecided="whether a device makes something else of the same work cannot be told",
    options=(
        Option("devices", str, "Devices or machines to try, as 0-7 or node1,node2,node3.", "NAME,…", required=True),
        Option(
            "group",
            int,
            "Devices that one run of the command takes.",
            "N",
            default_text="--nproc-per-node of the command, or 1",
            least=1,
        ),
        Option(
            "variable",
            str,
            "The variable of the environment that tells the command its devices.",
            "NAME",
            default_text="CUDA_VISIBLE_DEVICES and its like, or {devices} in the command",
        ),
        Option("rate", float, "Share of its runs that a device spoils, for which it is to be seen.", "Q", default=0.3),
        Option("deterministic", bool, "Have torch take forms that repeat themselves, where it has any.", default=False),
        Option("at_once", int, "Groups that run at the same time, on devices of their own.", "N", default=1, least=1),
    ),
    module="vote.vote",
    about_run=False,
    lacks=frozenset({"code"}),
    steps=20,
    usual=27,
    answers=4,
    also="--devices NAME,…",
)

_REPEAT = Verb(
    "repeat",
    """Run a training command several times with the same seeds, record its first steps with fingerprints, and name the
    first call that makes something else of the same inputs. With --in-place run it once, call each operation of its
    first steps several times on copies of its inputs, and name all that do not return the same bits, and how often.

    confirmed: there is one, or something differs that no recorded call made; excluded: all bits are the same. Exit code
    0: one of these; 3: undecided.

    Example: trueline trial repeat -- torchrun --nproc-per-node 2 train.py
    """,
    confirmed="the job does not repeat itself",
    excluded="the job repeats itself",
    undecided="whether the job repeats itself cannot be told",
    options=(
        Option("again", int, "How many times it, or with --in-place each operation, is run again.", default=3, least=1),
        Option("in_place", bool, "Run it once, and call each operation again where it is.", default=False),
    ),
    module="repeat.repeat",
    about_run=False,
    lacks=frozenset({"code", "error", "runs"}),
    steps=2,
    usual=4,
    answers=3,
)

_RESUME = Verb(
    "resume",
    """Run a training command through, and again with a stop and a restart from its own checkpoint, all with the same
    seeds, and say what is not as if it had never been stopped: weights, buffers, states of the optimizer, learning
    rate, loss scale, samples, random streams.

    --at is an update after which the script saves; {folder} in the command stands for a folder of the run's own, the
    same for both starts of one. confirmed: something differs; excluded: all is the same, bit for bit. Exit code 0: one
    of these; 3: undecided.

    Example: trueline trial resume --at 20 --resume-with "--resume {folder}/last.pt" -- python train.py --save {folder}
    """,
    confirmed="the job after a restart is another",
    excluded="the job after a restart is the one that was never stopped",
    undecided="whether the job after a restart is the same cannot be told",
    options=(
        Option(
            "resume_with",
            str,
            "Words behind the command that make it resume; without, it does so by itself.",
            "ARGS",
            default="",
        ),
        Option(
            "at", int, "Updates after which it is stopped: one after which the script saves.", "N", default=10, least=1
        ),
    ),
    module="resume",
    about_run=False,
    lacks=frozenset({"code", "error", "runs"}),
    steps=10,
    usual=3,
)

_LAYOUTS = Verb(
    "layouts",
    """Run commands of one job in other layouts (numbers of ranks, accumulation, FSDP2, tensor, pipeline, context and
    expert parallelism), and say whether they agree, by more than rounding explains, or name the first place at which
    they do not: a module of the forward pass, the loss, the gradient of a parameter, a weight after updates.

    The first arm is the reference. Weights before the first update and samples must be the same; what rounding makes is
    measured, in two more runs of the reference. confirmed: an arm is apart; excluded: all agree. Exit code 0: one of
    these; 3: undecided.

    Example: trueline trial layouts --arm one="python train.py" --arm two="torchrun --nproc-per-node 2 train.py"
    """,
    confirmed="the layouts are not the same training",
    excluded="the layouts agree: rounding explains what differs",
    undecided="whether the layouts agree cannot be told",
    options=(
        Option(
            "arm",
            str,
            "A layout: its name and its whole command; given twice or more. The first is the reference.",
            "NAME=COMMAND",
            repeated=True,
        ),
        Option("ref", str, "The arm that the others are held to.", "NAME", default="", default_text="the first"),
    ),
    module="layouts.layouts",
    about_run=False,
    lacks=frozenset({"code", "error", "runs"}),
    steps=8,
    usual=4,
    also='--arm NAME="COMMAND" --arm NAME="COMMAND"',
    takes_command=False,
)

_DRILL = Verb(
    "drill",
    """Plant faults of known size into a training command, each in a short run of its own under the plan that the job
    would have, and say which of them would be seen, after how many steps and at which rank, and which never.

    The script stays as it is; {folder} in the command stands for a folder of the run's own. A fault that touched
    nothing was not planted, and counts neither as seen nor as not seen. confirmed: the table is there. Exit code 0:
    that; 3: undecided, as where no fault could be planted.

    Example: trueline trial drill -- torchrun --nproc-per-node 2 train.py
    """,
    confirmed="what this job can rely on is below",
    undecided="what this job can rely on cannot be told",
    options=(
        Option("plan", str, "A preset or file, as of `trueline run`, under which each run is watched.", "PLAN"),
        Option("at", int, "Updates after which a fault begins.", "N", default=20, least=1),
        Option("rank", int, "The rank that has a fault.", "R", default_text="the last one", least=0),
        Option("only", str, "Only this fault, by its name; may be given again.", "NAME", repeated=True),
    ),
    module="drill.drill",
    about_run=False,
    lacks=frozenset({"code", "error", "runs"}),
    steps=100,
)

_PHASES = Verb(
    "phases",
    """Run a training command with its weights fixed, with plain updates, with halves of the model frozen, and with the
    model or halves of it computed elsewhere, as far as needed, and say which phase of a step a finding needs.

    confirmed: code (whatever moves and wherever it is computed), kernels, the update, or weights that move, with the
    half. Exit code 0: one of these; 3: undecided.

    Example: trueline trial phases runs/bad -- torchrun --nproc-per-node 2 train.py
    """,
    confirmed="the finding needs what is named below",
    undecided="which phase of a step the finding needs cannot be told",
    module="phases.phases",
)

_MODULES = Verb(
    "modules",
    """Run a training command up to a step that a Run which is as it should be stored, give each module what it was
    given there (inputs, gradients, weights), and name all that make something else of it than rounding explains.

    There is no search: every module is judged by itself, forward and backward, in one pass.

    confirmed: some do, or code between modules does; excluded: none. Exit code 0: one of these; 3: undecided.

    Example: trueline trial modules --ref runs/good -- torchrun --nproc-per-node 2 train.py
    """,
    confirmed="what is named below makes something else of the same values",
    excluded="no module makes something else of what it was given",
    undecided="whether a module makes something else cannot be told",
    options=(
        Option("ref", str, "A Run that is as it should be, with stored values (depth = tensor).", "RUN", required=True),
        Option("step", int, "The step to look at.", "N", default_text="the first that it stored", least=0),
    ),
    module="modules.modules",
    about_run=False,
    lacks=frozenset({"code", "error", "runs", "steps"}),
    max_runs=2,
    also="--ref REF",
)

_BATCH = Verb(
    "batch",
    """Run a training command up to its first update, several times with batches or weights changed, and judge whether
    losses and gradients obey what must hold: the order of rows, splitting in halves and padding change nothing, and the
    gradient is the derivative of the loss.

    The command is run about twenty times, forty where the gradient is wrong, and does what it does before its first
    update, which it never makes.

    confirmed: a law is broken; excluded: all hold. Exit code 0: one of these; 3: undecided.

    Example: trueline trial batch -- torchrun --nproc-per-node 2 train.py
    """,
    confirmed="the first step breaks a law",
    excluded="the first step obeys the laws that were looked at",
    undecided="whether the first step obeys the laws cannot be told",
    options=(
        Option(
            "law",
            str,
            "Which laws, with commas: permute, halves, padding, gradient.",
            "LAW,…",
            default="permute,halves,padding,gradient",
        ),
    ),
    module="batch.batch",
    about_run=False,
    lacks=frozenset({"code", "error", "runs", "steps", "out", "keep"}),
    takes_bare_command=True,
)

VERBS: Mapping[str, Verb] = {
    verb.name: verb
    for verb in (
        _KNOBS,
        _SYNC,
        _RL,
        _BISECT,
        _SHRINK,
        _REMEDY,
        _VOTE,
        _REPEAT,
        _RESUME,
        _LAYOUTS,
        _DRILL,
        _PHASES,
        _MODULES,
        _BATCH,
    )
}
"""In the order in which messages name them."""
