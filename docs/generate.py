"""mkdocs hook: pages and tables that are made from the source, so that they cannot disagree with it.

A check's page is the docstring of its file; a table or a law of `compare` replaces what stands between its
`<!-- generated: NAME -->` marker and `<!-- end -->`, which is what readers of the sources see, as on GitHub. Links to
the file of a check, or to a figure of a benchmark, become links to its page here.
Check files are read, not imported.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from trueline.judge.causes.library import known_causes
from trueline.judge.stats.alarm_budget import SHARES, AlarmBudget
from trueline.laws.unlike_workers.outliers import fewest_steps
from trueline.render.comparison.compare_rows import COLUMNS
from trueline.schema.column import Column
from trueline.schema.columns.records import RECORD_COLUMNS
from trueline.schema.columns.rollouts import ROLLOUT_COLUMNS, SYNC_COLUMNS
from trueline.schema.columns.table import worker_columns
from trueline.schema.plan import LIVE, Plan

ROOT = Path(__file__).parents[1]
MEASUREMENTS = (ROOT / "benchmarks", ROOT / "studies")
"""Those that are run again, and those that are finished."""
SOURCE = ROOT / "src" / "trueline"
LAWS = SOURCE / "laws"
DECISIONS = ROOT / "docs" / "decisions"
JUDGEMENT = SOURCE / "comparison" / "judgement"
HEADINGS = ("What it finds", "Why it matters", "How it decides", "What it may miss", "Example", "Wrong and right")
API = {
    "Watch": ("capture/watch.py", ("step", "loss", "save", "close")),
    "CheckReport": (
        "judge/check_run.py",
        ("verdict", "findings", "incidents", "judged", "checks_run", "checks_not_run", "notes", "exit_code", "to_json"),
    ),
    "TrainingFacts": ("judge/facts/training_facts.py", ("facts", "unknown", "to_json")),
    "Diagnosis": ("judge/causes/diagnosis.py", ("verdicts", "report", "of", "exit_code", "to_json")),
    "Comparison": (
        "comparison/result.py",
        ("findings", "first", "rows", "steps", "counts", "missing", "notes", "exit_code", "to_json"),
    ),
    "Clean": ("store/clean.py", ("is_open", "covers", "to_json")),
    "Listening": ("sinks/listening.py", ("close",)),
    "FindingVerdict": (
        "schema/live.py",
        ("rank", "ranks", "node", "device", "step", "false_alarm_bound", "to_json"),
    ),
    "Page": ("web/serve.py", ("url", "close")),
    "Tolerance": ("schema/files/tolerance.py", ("load", "save")),
    "Run": (
        "store/reader.py",
        (
            *(
                "manifest",
                "env",
                "ranks",
                "steps",
                "models",
                "problems",
                "table",
                "pivot",
                "records",
                "tensor",
                "query",
            ),
            *("to_pandas", "to_polars"),
        ),
    ),
    "SeedReport": ("capture/seeding.py", ("streams", "settings", "not_covered", "loader_generator")),
}
"""What the public functions return: the file of each class, and those of its members that may be relied on."""
MARKER = re.compile(r"<!-- generated: (\w+) -->.*?<!-- end -->", re.DOTALL)
CHECK_FILE = re.compile(r"\.\./src/trueline/laws/\w+/(\w+)\.py")
FIGURE = re.compile(r"\.\./(?:benchmarks|studies)/(\w+)/([\w-]+\.svg)")
BASES = {"Run": {"RecordedSteps": "store/records/recorded_steps.py"}}
"""Of a class, those that it inherits members from, with the file of each."""


@dataclass(frozen=True)
class CheckManual:
    """What the file of one check says about it; ``needs`` are columns of the workers table."""

    code: str
    first_line: str
    body: str
    needs: tuple[str, ...]


def check_manuals() -> Iterator[CheckManual]:
    """The manual of every check, by code; raises ValueError for one without docstring."""
    for path in sorted(LAWS.glob("*/[!_]*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        docstring = ast.get_docstring(tree)
        constants = {name: value for node in tree.body for name, value in _constant(node)}
        if "CODE" not in constants:
            continue
        if not docstring:
            raise ValueError(f"{path.name} has no docstring; the file of a check starts with its manual.")
        first_line, _, body = docstring.partition("\n")
        yield CheckManual(constants["CODE"], first_line, _with_headings(body), tuple(constants.get("NEEDS", ())))


def check_page(manual: CheckManual) -> str:
    """Markdown of the page of one check."""
    needs = ", ".join(f"`{column}`" for column in manual.needs) or "no column of the workers table"
    return (
        f"# {manual.code}\n\n{manual.first_line}\n\n{manual.body.strip()}\n\n"
        f"## What it reads\n\n{needs} (see [the workers table](../workers-table.md)).\n"
    )


def checks_table() -> str:
    """One line a check: its code and its first sentence."""
    rows = [f"| [`{manual.code}`](checks/{manual.code}.md) | {manual.first_line} |" for manual in check_manuals()]
    return "\n".join(["| code | what it finds |", "|---|---|", *rows])


def api() -> str:
    """The public functions and what they return, from their signatures and docstrings; raises KeyError for a name that
    is in no file.
    """
    functions = _definitions(ast.parse((SOURCE / "__init__.py").read_text(encoding="utf-8")).body)
    names = ast.literal_eval(functions["__all__"].value)  # type: ignore[union-attr]
    sections = [_documented(f"trueline.{name}", functions[name], level=2) for name in names]
    for name, (path, members) in API.items():
        found = _class(path, name)
        inside = _definitions(found.body)
        for base, file in BASES.get(name, {}).items():
            inside |= _definitions(_class(file, base).body)
        sections.append(f"## {name}\n\n{ast.get_docstring(found)}")
        sections += [_documented(f"{name}.{member}", inside[member], level=3) for member in members]
    return "\n\n".join(sections)


def _class(path: str, name: str) -> ast.ClassDef:
    found = _definitions(ast.parse((SOURCE / path).read_text(encoding="utf-8")).body)[name]
    assert isinstance(found, ast.ClassDef)
    return found


def plan_table() -> str:
    """The keys of a Plan with type, default and meaning."""
    rows: list[str] = []
    for key, schema in Plan.model_json_schema()["properties"].items():
        default = json.dumps(schema.get("default"))
        meaning = _cell(schema.get("description", ""))
        rows.append(f"| `{key}` | {_type(schema)} | {'unset' if default == 'null' else f'`{default}`'} | {meaning} |")
    return "\n".join(["| key | type | default | meaning |", "|---|---|---|---|", *rows])


def live_keys() -> str:
    """The keys of a Plan that can change while a job runs, in one line."""
    return ", ".join(f"`{key}`" for key in LIVE)


def columns_table(columns: Sequence[Column]) -> str:
    """Columns of a table of a Run with type, unit and meaning."""
    rows = [
        f"| `{column.name}` | `{column.type}` | {_cell(column.unit)} | {_cell(column.meaning)} |" for column in columns
    ]
    return "\n".join(["| column | type | unit | meaning |", "|---|---|---|---|", *rows])


def compare_columns_table() -> str:
    """The columns of the rows that `trueline compare` writes, with their meaning."""
    rows = [f"| `{column.name}` | {_cell(column.meaning)} |" for column in COLUMNS]
    return "\n".join(["| column | meaning |", "|---|---|", *rows])


WHOSE_SHARE = {
    "loss": "losses of workers",
    "norm": "gradient norms of workers",
    "norm-groups": "the same in each parameter group",
    "direction": "directions of workers",
    "direction-groups": "the same in each parameter group",
    "pairs": "pairs of workers that are too close",
    "sample-losses": "per-sample losses, too close or too far apart, and persistent differences of all workers",
    "tokens": "token counts",
}
SIZES = (2, 3, 4, 8, 32, 1024)
"""Numbers of workers that tables have a column for."""


def alarm_budget_table() -> str:
    """The share of each statistic, and the height at which one worker's detector alarms by default."""
    budget = AlarmBudget()
    rows = [
        f"| {WHOSE_SHARE[statistic]} | {Fraction(share).limit_denominator(100)} | "
        f"{budget.log_threshold(statistic, among=8):.1f} |"
        for statistic, share in SHARES.items()
    ]
    return "\n".join(
        [
            f"By default F = {budget.false_alarms:g}. ln(10,000 / (F · w)) is given for a share that is split over 8 "
            "detectors, as those of 8 workers.",
            "",
            "| statistic | share of the budget | natural logarithm of the threshold |",
            "|---|---|---|",
            *rows,
        ]
    )


def fewest_steps_table() -> str:
    """How many steps it takes at least until a worker's loss can alarm, by default."""
    needed = [fewest_steps(AlarmBudget().log_threshold("loss", among=n), num_workers=n) for n in SIZES]
    return "\n".join(
        [
            f"| workers | {' | '.join(f'{n:,}' for n in SIZES)} |",
            f"|---|{'---|' * len(SIZES)}",
            f"| steps until a loss can alarm | {' | '.join(map(str, needed))} |",
        ]
    )


def causes_table() -> str:
    """Every known cause with what it brings and what settles it."""
    rows = [
        f"| `{cause.slug}` | {_cell(cause.says)} | {', '.join(f'`{code}`' for code in cause.codes)} | "
        f"{_cell(cause.settles)} |"
        for cause in known_causes()
    ]
    return "\n".join(["| cause | in a sentence | findings | what settles it |", "|---|---|---|---|", *rows])


def decisions_table() -> str:
    """One line a decision: its number and its title."""
    rows: list[str] = []
    for page in sorted(DECISIONS.glob("0*.md")):
        number, title = re.findall(r"\A# (?:Decision )?(\d+)[:.] (.*)", page.read_text(encoding="utf-8"))[0]
        rows.append(f"| [{number}]({page.name}) | {_cell(title[:1].upper() + title[1:])} |")
    return "\n".join(["| number | decision |", "|---|---|", *rows])


def law(module: str) -> str:
    """The docstring of a module of ``comparison/judgement``, without what is for readers of its code."""
    source = next(JUDGEMENT.rglob(f"{module}.py")).read_text(encoding="utf-8")
    title, *paragraphs = (ast.get_docstring(ast.parse(source)) or "").split("\n\n")
    body = "\n\n".join(text for text in paragraphs if not text.startswith("Letters:"))
    return f"**{title}**\n\n{body}".replace("``", "`")


def measured(benchmark: str) -> str:
    """What ``benchmark`` wrote last, without its title, as sections of the page that it is put on."""
    pages = [page for folder in MEASUREMENTS if (page := folder / benchmark / "README.md").exists()]
    if not pages:
        return "None is kept yet."
    page = pages[0]
    text = page.read_text(encoding="utf-8")
    text = re.sub(r"(!\[[^\]]*\]\()([\w-]+\.svg\))", rf"\1img/{benchmark}-\2", text)
    return re.sub(r"\A# .*\n+|^(?=#)", lambda found: "" if found[0] else "#", text, flags=re.MULTILINE)


TABLES: dict[str, Callable[[], str]] = {
    "api": api,
    "plan": plan_table,
    "live_keys": live_keys,
    "workers": partial(columns_table, worker_columns()),
    "records": partial(columns_table, RECORD_COLUMNS),
    "rollouts": partial(columns_table, ROLLOUT_COLUMNS),
    "syncs": partial(columns_table, SYNC_COLUMNS),
    "checks": checks_table,
    "causes": causes_table,
    "decisions": decisions_table,
    "overhead": partial(measured, "overhead"),
    "recording": partial(measured, "recording"),
    "monitor": partial(measured, "monitor"),
    "compare_columns": compare_columns_table,
    "compare": partial(measured, "compare"),
    "paper": partial(measured, "paper"),
    "frameworks": partial(measured, "frameworks"),
    "gpt2": partial(measured, "gpt2"),
    "judgement": partial(measured, "judgement"),
    "rounding": partial(measured, "rounding"),
    "spikes": partial(measured, "spikes"),
    **{
        module: partial(law, module)
        for module in ("argument_differences", "loss_gap", "own_history", "parameter_continuity")
    },
    "alarm_budget": alarm_budget_table,
    "fewest_steps": fewest_steps_table,
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the checks, and the figures that benchmarks drew."""
    for manual in check_manuals():
        files.append(File.generated(config, f"checks/{manual.code}.md", content=check_page(manual)))
    for figure in sorted(path for folder in MEASUREMENTS for path in folder.glob("*/*.svg")):
        name = f"img/{figure.parent.name}-{figure.name}"
        files.append(File.generated(config, name, content=figure.read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put every table in the place of its marker, and link to pages of the site where the text links to sources."""
    markdown = MARKER.sub(lambda found: TABLES[found[1]](), markdown)
    markdown = CHECK_FILE.sub(lambda found: f"checks/{found[1].replace('_', '-')}.md", markdown)
    return FIGURE.sub(r"img/\1-\2", markdown)


def _definitions(body: Sequence[ast.stmt]) -> dict[str, ast.stmt]:
    """What stands in ``body``, by name; the text behind an attribute becomes its ``description``."""
    found: dict[str, ast.stmt] = {}
    for node, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found[node.name] = node
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            node.description = ast.literal_eval(after.value) if _is_text(after) else ""  # type: ignore[union-attr]
            found[ast.unparse(target)] = node
    return found


def _is_text(node: ast.stmt | None) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _documented(name: str, node: ast.stmt, *, level: int) -> str:
    """A heading, the signature or type, and the docstring."""
    if isinstance(node, ast.AnnAssign):
        text = f"`{ast.unparse(node.annotation)}`" + (f": {node.description}" if node.description else "")
    elif isinstance(node, ast.FunctionDef) and any("property" in ast.unparse(each) for each in node.decorator_list):
        text = f"`{ast.unparse(node.returns)}`: {ast.get_docstring(node)}"
    else:
        text = f"```python\n{_signature(name, node)}\n```\n\n{ast.get_docstring(node)}"
    return f"{'#' * level} {name}\n\n{text}"


def _signature(name: str, node: ast.FunctionDef) -> str:
    arguments = [each for each in ast.unparse(node.args).split(", ") if each not in ("self", "cls")]
    arguments = [re.sub(r"^(\w+: [^=]+)=", r"\1 = ", each) for each in arguments]
    end = f") -> {ast.unparse(node.returns)}"
    line = f"{name}({', '.join(arguments)}{end}"
    return line if len(line) <= 88 else f"{name}(\n" + "".join(f"    {each},\n" for each in arguments) + end


def _constant(node: ast.stmt) -> Iterator[tuple[str, Any]]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    for target in targets:
        if isinstance(target, ast.Name) and target.id in ("CODE", "NEEDS"):
            yield target.id, ast.literal_eval(node.value)


def _with_headings(body: str) -> str:
    names = "|".join(HEADINGS)
    return re.sub(rf"^(?:#+ *)?({names}):?[ \t]*(?:\n[-=~]{{3,}})?$", r"\n## \1\n", body, flags=re.MULTILINE)


def _type(schema: dict[str, Any]) -> str:
    kinds = schema.get("anyOf") or [schema]
    return " or ".join(_kind(kind) for kind in kinds if kind.get("type") != "null")


def _kind(schema: dict[str, Any]) -> str:
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    if schema["type"] == "array":
        items = schema.get("prefixItems")
        if items:
            return " and ".join(_type(item) for item in items)
        return "list of " + re.sub("^(list|whole number|number)", r"\1s", _kind(schema["items"]))
    bounds = [
        f"{sign} {schema[key]:g}"
        for key, sign in (("minimum", "≥"), ("exclusiveMinimum", ">"), ("maximum", "≤"))
        if key in schema
    ]
    kind = {"integer": "whole number", "number": "number", "boolean": "true or false", "string": "text"}[schema["type"]]
    return " ".join([kind, ", ".join(bounds)]).strip()


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("[", "\\[")
