"""Makes a release of what stands under "unreleased" in the changelog: `make release VERSION=0.2.0`.

Writes the version where it stands, dates the changelog, begins the next part, and prints the notes of the release.
Nothing is committed, tagged or published.
"""

from __future__ import annotations

import argparse
import datetime
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PLACES = {
    "src/trueline/__init__.py": r'(?m)^(__version__ = ")(.+)(")$',
    "CITATION.cff": r"(?m)^(version: )(.+)()$",
    "docs/ci.md": r"(trueline/trueline@v)([\d.]+\w*)()",
}
"""Files that name the version: what stands before it, itself, and behind."""
_UNRELEASED = re.compile(r"^## (\S+) \(unreleased\)\n\n(.*?)(?=^## |\Z)", re.DOTALL | re.MULTILINE)
_VERSION = re.compile(r"\d+\.\d+\.\d+((a|b|rc)\d+)?")


class ReleaseError(Exception):
    """Why there is no release, in one sentence."""


def release(root: Path, version: str, date: datetime.date) -> str:
    """The notes of the release, once it is written. Raises ``ReleaseError``; nothing was changed then."""
    if not _VERSION.fullmatch(version):
        raise ReleaseError(f"'{version}' is no version. Pass one as 0.2.0 or 0.2.0rc1.")
    changelog = root / "CHANGELOG.md"
    text = changelog.read_text(encoding="utf-8")
    part = _UNRELEASED.search(text)
    if part is None or not (notes := part[2].strip()):
        raise ReleaseError("CHANGELOG.md has nothing under '## VERSION (unreleased)'. Write there what changed.")
    if f"## {version} (" in text.replace(part[0], ""):
        raise ReleaseError(f"CHANGELOG.md has {version} already. Pass the next version.")
    dated = f"## {version} ({date.isoformat()})\n\n{notes}\n\n"
    texts = {changelog: text.replace(part[0], f"## {_following(version)} (unreleased)\n\n{dated}")}
    for name, place in PLACES.items():
        path = root / name
        texts[path], count = re.subn(place, rf"\g<1>{version}\g<3>", path.read_text(encoding="utf-8"))
        if count != 1:
            raise ReleaseError(f"{name} names the version {count} times, expected once. Mend it or tools/release.py.")
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")
    return notes


def _following(version: str) -> str:
    major, minor, patch = re.split(r"[ab]|rc", version)[0].split(".")
    return version.split("rc")[0] if "rc" in version else f"{major}.{minor}.{int(patch) + 1}"


def main() -> None:
    """Write the release, or say why there is none."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("version", metavar="VERSION")
    version = parser.parse_args().version
    try:
        notes = release(ROOT, version, datetime.datetime.now(datetime.UTC).date())
    except ReleaseError as error:
        sys.exit(f"release: {error}")
    sys.stdout.write(f"{notes}\n\nNext: make package, commit, `git tag v{version}`, and upload what is in dist/.\n")


if __name__ == "__main__":
    main()
