"""One self-contained HTML document: the policy that forbids all but its own styles and script."""

from __future__ import annotations

import base64
import hashlib


def policy(css: str, js: str) -> str:
    """Nothing may be loaded or sent, and no style or script may run but the two in the file."""
    return (
        f"default-src 'none'; style-src '{_hash(css)}'; script-src '{_hash(js)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def version() -> str:
    """Trueline's version, "" where it is not installed."""
    from importlib import metadata

    try:
        return metadata.version("trueline")
    except metadata.PackageNotFoundError:
        return ""


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
