"""One self-contained HTML document: its template, its styles and script, and the policy that forbids all else."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from trueline.render.wording import visible
from trueline.schema.site import SITE_FORM


@cache
def template(name: str) -> Template:
    """The compiled template; compiling takes longer than filling it in."""
    environment = Environment(
        loader=PackageLoader("trueline.render", ""),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=visible,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["site_form"] = SITE_FORM
    return environment.get_template(name)


def policy(css: str, js: str) -> str:
    """Nothing may be loaded or sent, and no style or script may run but the two in the file."""
    return (
        f"default-src 'none'; style-src '{_hash(css)}'; script-src '{_hash(js)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def resource(name: str) -> str:
    """The text of a file in the folder of this one."""
    return files("trueline.render").joinpath(name).read_text(encoding="utf-8")


def version() -> str:
    """Trueline's version, "" where it is not installed."""
    from importlib import metadata

    try:
        return metadata.version("trueline")
    except metadata.PackageNotFoundError:
        return ""


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
