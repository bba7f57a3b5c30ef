"""write_report: one self-contained HTML file about one or several Runs."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from trueline.schema.errors import InputError, RunExistsError
from trueline.view.matrix import colour_rules
from trueline.view.page import Page, page_numbers, page_of
from trueline.view.report_data import RunReading, read_runs
from trueline.view.wording import visible

_TEMPLATE = "report.html.j2"


def write_report(
    runs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    overwrite: bool = False,
) -> Path:
    """Write the report on ``runs`` (paths; one may stand alone) to the HTML file ``out`` and return its path.

    The file loads nothing: its styles, script and numbers are inside and a Content-Security-Policy forbids the rest.
    Raises ``RunError`` where a path is no Run, ``RunExistsError`` where ``out`` exists and ``overwrite`` is not set,
    ``InputError`` where it cannot be written; an existing file is replaced whole or left alone.
    """
    paths = [runs] if isinstance(runs, str | os.PathLike) else list(runs)
    target = writable_target(out, overwrite=overwrite)
    save(target, render(read_runs(paths)))
    return target


def writable_target(out: str | os.PathLike[str], *, overwrite: bool) -> Path:
    """``out`` as a path that a report may be written to; raises before any Run is read."""
    target = Path(out)
    if target.is_dir():
        raise InputError(
            f"The report cannot be written to '{out}': that is a directory. Pass a file, as in report.html."
        )
    if target.exists() and not overwrite:
        raise RunExistsError(f"'{out}' exists already. Pass another file, or overwrite it with --overwrite.")
    if not target.parent.is_dir():
        raise InputError(
            f"The report cannot be written to '{out}': '{target.parent}' is no directory. Create it first."
        )
    return target


def render(readings: Sequence[RunReading]) -> str:
    """The HTML document about ``readings``."""
    page = page_of(readings)
    css = f"{_resource('report.css')}\n{colour_rules()}\n{_rank_rules(page)}"
    js = _resource("report.js")
    return _template().render(
        page=page,
        css=Markup(css),
        js=Markup(js),
        numbers=Markup(page_numbers(page, readings)),
        policy=_policy(css, js),
        version=_version(),
    )


def save(target: Path, text: str) -> None:
    """Put ``text`` at ``target``, whole or not at all. Raises ``InputError`` where it cannot be written."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8", newline="\n")
        os.replace(temporary, target)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        reason = error.strerror or str(error)
        raise InputError(f"The report cannot be written to '{target}': {reason}. Pass another place.") from None


@cache
def _template() -> Template:
    """The compiled template; compiling takes longer than filling it in."""
    environment = Environment(
        loader=PackageLoader("trueline.view", ""),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=visible,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(_TEMPLATE)


def _rank_rules(page: Page) -> str:
    """How many columns each matrix has, which CSS cannot count."""
    sizes = sorted({len(run.matrix.ranks) for run in page.runs if run.matrix is not None})
    return "\n".join(f".ranks{size}{{--n:{size}}}" for size in sizes)


def _policy(css: str, js: str) -> str:
    """Nothing may be loaded or sent, and no style or script may run but the two in the file."""
    return (
        f"default-src 'none'; style-src '{_hash(css)}'; script-src '{_hash(js)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _resource(name: str) -> str:
    return files("trueline.view").joinpath(name).read_text(encoding="utf-8")


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("trueline")
    except PackageNotFoundError:
        return ""
