"""The documentation names everything there is, builds without a warning, and loads nothing from elsewhere."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import typer.main

import trueline
from trueline.schema.columns.records import RECORD_COLUMNS
from trueline.schema.columns.table import worker_columns
from trueline.schema.law import installed_laws
from trueline.schema.plan import Plan
from trueline.schema.trial_verbs import SHARED, VERBS

ROOT = Path(__file__).parents[2]
REGISTERED_CHECKS = {code: law.module_of(code) for law in installed_laws() for code in law.checks}
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
FENCED = re.compile(r"^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    pytest.importorskip("mkdocs", reason="mkdocs is not installed (pip install '.[docs]')")
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs/generate.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["generate"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs", reason="mkdocs is not installed (pip install '.[docs]')")
    built = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(built)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return built


def blocks(language: str) -> list:
    found = [(page, text) for page in PAGES for kind, text in FENCED.findall(page.read_text()) if kind == language]
    assert found, f"no {language} block was found: this test would prove nothing"
    return [pytest.param(text, id=f"{page.name}-{index}") for index, (page, text) in enumerate(found)]


@pytest.fixture(scope="module")
def manuals(generate: ModuleType) -> dict:
    return {manual.code: manual for manual in generate.check_manuals()}


def test_every_check_file_is_registered_under_its_code(manuals: dict) -> None:
    assert set(manuals) == set(REGISTERED_CHECKS)
    files = {code: module.rpartition(".")[2] for code, module in REGISTERED_CHECKS.items()}
    assert files == {code: code.replace("-", "_") for code in manuals}


@pytest.mark.parametrize("code", sorted(REGISTERED_CHECKS))
def test_every_check_is_its_own_manual(generate: ModuleType, manuals: dict, code: str) -> None:
    manual = manuals[code]

    missing = [heading for heading in generate.HEADINGS if f"## {heading}\n" not in manual.body]
    assert not missing, f"{code} lacks the headings {missing}"
    wrong, right, *further = FENCED.findall(manual.body)
    assert wrong != right
    for language, snippet in (wrong, right, *further):
        assert language == "python"
        compile(snippet, code, "exec")
    unknown = set(manual.needs) - {column.name for column in worker_columns()}
    assert not unknown, f"{code} needs columns that do not exist: {unknown}"


def test_every_registered_check_has_a_page(site: Path) -> None:
    assert {page.parent.name for page in site.glob("checks/*/index.html")} >= set(REGISTERED_CHECKS)


def test_every_plan_key_and_column_is_explained(site: Path) -> None:
    plan = (site / "plan/index.html").read_text()
    workers = (site / "workers-table/index.html").read_text()
    records = (site / "records-table/index.html").read_text()

    assert [key for key in Plan.model_fields if f"<code>{key}</code></td>" not in plan] == []
    assert [key for key, field in Plan.model_fields.items() if not field.description] == []
    assert [column.name for column in worker_columns() if f"<code>{column.name}</code></td>" not in workers] == []
    assert [column.name for column in RECORD_COLUMNS if f"<code>{column.name}</code></td>" not in records] == []


def test_every_public_name_has_its_signature(site: Path, generate: ModuleType) -> None:
    page = (site / "api/index.html").read_text()
    names = [f"trueline.{name}" for name in trueline.__all__]
    names += [f"{name}.{member}" for name, (_, members) in generate.API.items() for member in members]

    assert [name for name in names if f">{name}<a" not in page] == []
    assert "None</p>" not in page, "a docstring is missing"


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    loading = re.compile(
        r"<(?:script|img|iframe|source)[^>]+src=\"(?:https?:)?//[^\"]+|<link[^>]+href=\"(?:https?:)?//[^\"]+"
    )
    imports = re.compile(r"@import[^;]*//|url\((?:\"|')?(?:https?:)?//")
    pages = list(site.rglob("*.html"))
    assert len(pages) > len(REGISTERED_CHECKS)

    found = [(page.name, loading.findall(page.read_text())) for page in pages if loading.search(page.read_text())]
    found += [(sheet.name, "css") for sheet in site.rglob("*.css") if imports.search(sheet.read_text())]
    assert found == []


def test_every_verb_and_option_is_documented() -> None:
    from trueline.cli.main import app

    page = (ROOT / "docs/contract.md").read_text()
    texts = re.findall(r"^\| `trueline ([^`]*)`", page, re.MULTILINE)
    (shared,) = re.findall(r"^`\[…\]` of `trueline trial` stands for `([^`]*)`", page, re.MULTILINE)
    assert set(re.findall(r"--([a-z-]+)", shared)) == {*SHARED, "dry-run"}
    rows = {re.match(r"[a-z]+(?: [a-z][a-z-]*)*", text)[0]: text for text in texts}
    verbs = dict(_verbs(typer.main.get_command(app)))

    assert set(rows) == set(verbs)
    for name, verb in verbs.items():
        options = {text for option in verb.params for text in option.opts if text.startswith("--")}
        told = set(re.findall(r"--[a-z0-9-]+", rows[name]))
        if "[…]" in rows[name]:
            lacks = VERBS[name.removeprefix("trial ")].lacks
            told |= {f"--{each}" for each in (*SHARED, "dry-run") if each not in lacks}
        assert options - {"--help", "--json", "--max-bytes", "--page"} == told, name


def _verbs(group, before=""):
    for name, verb in group.commands.items():
        if hasattr(verb, "commands"):
            yield from _verbs(verb, f"{before}{name} ")
        else:
            yield before + name, verb


@pytest.mark.parametrize("text", blocks("json"))
def test_json_examples_parse(text: str) -> None:
    json.loads(text)


@pytest.mark.parametrize("text", blocks("toml"))
def test_plan_examples_are_valid_plans(text: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(text)

    Plan.load(path)


@pytest.mark.parametrize("text", blocks("python"))
def test_python_examples_compile(text: str) -> None:
    compile(text, "example", "exec")


@pytest.mark.parametrize("text", blocks("bash"))
def test_shell_scripts_are_shell(text: str) -> None:
    subprocess.run(["bash", "-n", "-c", text], check=True)


def test_targets_of_make_that_pages_name_exist() -> None:
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    named = {name for page in PAGES for name in re.findall(r"(?:`|^)make ([a-z]+)", page.read_text(), re.MULTILINE)}

    assert "demo" in named
    assert named <= set(targets)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_of_a_page_lead_somewhere_in_the_sources(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    links = re.findall(r"\]\((?!https?://|#)([^)#\s]+)", text)

    assert [link for link in links if not (page.parent / link).exists()] == []
