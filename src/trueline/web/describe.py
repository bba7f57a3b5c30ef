"""The OpenAPI document of the page's answers, from which its client takes their types: ``python -m`` this."""

from __future__ import annotations

import json
import sys

from trueline.web.application import application


def main() -> None:
    """Write the document to standard output. The version is left out: another one changes no type."""
    document = application([]).openapi()
    document["info"]["version"] = ""
    json.dump(document, sys.stdout, indent=1, sort_keys=True)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
