"""What a page shows of a terminal is what its commands print, and what it shows of a file is in the file."""

import importlib.util
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import typer.main
from tests.forked_scripts import run_watched

from trueline.cli.main import app, main
from trueline.cli.plan_keys import key_and_value
from trueline.cli.run_end import watched
from trueline.schema.plan import WATCH_ONLY

ROOT = Path(__file__).parents[2]
TRUELINE = typer.main.get_command(app)
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("transcripts", ROOT / "docs/transcripts.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


transcripts = _load()


@pytest.mark.in_turn
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", transcripts.pages(), ids=lambda page: page.stem)
def test_page_shows_what_its_commands_print(page: Path, run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers may differ, as results of torch do between processors."""
    with tempfile.TemporaryDirectory() as root:  # a short path, which a screen does not break in two
        monkeypatch.chdir(transcripts.placed(page, Path(root)))
        now = transcripts.written(page, run).replace(root, transcripts.SHOWN)
        monkeypatch.undo()

    assert _words(now) == _words(page.read_text()), f"If the new words are right: python docs/transcripts.py {page}"


@pytest.mark.parametrize(
    "page", [page for page in PAGES if "\n## The fix\n" in page.read_text()], ids=lambda page: page.stem
)
def test_walkthrough_ends_with_a_sound_run(page: Path) -> None:
    found, fixed = page.read_text().split("\n## The fix\n")

    assert re.search(r"^(Fault found|Probable fault|Different):", found, re.MULTILINE)
    assert re.search(r"^(No fault found|The same)", fixed, re.MULTILINE)
    assert not re.search(r"^(Fault found|Probable fault|Different):", fixed, re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_that_a_page_names_exist(page: Path) -> None:
    """Each verb, and each option before the command that `trueline run` is given."""
    wrong: list[str] = []
    for command in re.findall(r"(?:`|^|\$ )trueline ([a-z][^`\n#|…]*)", page.read_text(), re.MULTILINE):
        # a word in quotes is one, whatever is in it
        unquoted = re.sub(r"\"[^\"]*\"", "…", command)
        words, verb = re.split(r" --(?: |$)", unquoted)[0].split(), TRUELINE
        while words and words[0] in getattr(verb, "commands", {}):
            verb = verb.commands[words.pop(0)]
        known = {text for option in verb.params for text in option.opts}
        options = {re.split(r"[=\]]", word)[0] for word in words if word.startswith("--")}
        if (words and hasattr(verb, "commands")) or options - known:
            wrong.append(command)
    assert wrong == []


def _words(text: str) -> list[str]:
    """Without what watching took, which is said where it was much."""
    text = re.sub(r"; watching took [^()]*\([^()]*\)", "", text)
    return re.sub(r"-?\d[\d.,]*(?:e[-+]?\d+)?", "#", text).split()


@pytest.fixture
def run(trained, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """What a command prints, without a process for it: scripts train in forked ranks, verbs run here."""
    monkeypatch.setenv("COLUMNS", str(transcripts.WIDTH))
    monkeypatch.setenv("NO_COLOR", "1")

    def run(command: str) -> str:
        words = shlex.split(command)
        if words[0] == "bash":
            launched = Path(words[1]).read_text().partition(" -- ")[2].partition("&")[0].replace("\\\n", "")
            argv = shlex.split(launched.replace("$node", "0").replace("$1", words[2]))
            return trained(*words[2:], world_size=4, argv=argv) + _ended(words[-1])  # one such line a launch, of two
        if "torchrun" in words:
            out, script = words[words.index("--out") + 1], words.index("--nproc-per-node") + 2
            plan = words[words.index("--plan") + 1] if "--plan" in words else None
            if "--set" in words:
                plan = {"preset": plan} | dict([key_and_value(words[words.index("--set") + 1])])
            num, argv = int(words[script - 1]), words[words.index("--") + 1 :]
            return trained(words[script], out, *words[script + 1 :], world_size=num, plan=plan, argv=argv)
        if words[-2:-1] == ["python"]:
            return trained(words[-1], words[words.index("--out") + 1], world_size=1, argv=words[-2:])
        monkeypatch.setattr(sys, "argv", words)
        with pytest.raises(SystemExit):
            main()
        printed = capsys.readouterr()
        return printed.out + printed.err

    return run


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Trains as a command says, and returns what that prints: once for pages that show the same training."""
    before: dict[object, tuple[str, Path]] = {}

    def trained(
        script: str,
        out: str,
        *words: str,
        world_size: int,
        plan: str | dict[str, object] | None = None,
        argv: tuple[str, ...] | list[str] = (),
    ) -> str:
        every = {"every": 2 if world_size == 4 else 1}  # which gradients are sampled otherwise follows from the clock
        asked = Path(plan).read_text() if isinstance(plan, str) and Path(plan).is_file() else str(plan)
        key = (Path(script).read_text(), words, world_size, asked)
        if key not in before:
            kept = tmp_path_factory.mktemp("trained") / "run"
            sampled = {"preset": plan} | every if str(plan) in WATCH_ONLY else plan or every
            printed = run_watched(
                Path(script).absolute(), *words, out=kept, plan=sampled, world_size=world_size, argv=argv
            )
            before[key] = printed[0], kept
        printed, kept = before[key]
        shutil.copytree(kept, out)
        return printed + _ended(out)

    return trained


def _ended(out: str) -> str:
    """What `trueline run` says at the end."""
    return f"trueline: {watched(out, before={})}\n"
