"""A webhook: ``webhook:URL`` posts ``{"text": …}``, as Slack, Mattermost and others take it, for each finding that is
more than an info, and where watching broke off. ``$NAME`` in the URL is the environment variable.
"""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Sequence

from trueline.schema.finding import WATCH_DEGRADED, Finding
from trueline.schema.live import Numbers, headline, with_advice

LIBRARY = ""

TIMEOUT_S = 10.0
"""Seconds until a server that does not answer is given up for this finding."""


def open_sink(target: str, run: str) -> Webhook:
    """Posts to the URL ``target``. Raises ``ValueError``, without the URL, as that is a secret."""
    url = os.path.expandvars(target)
    if not url.startswith(("https://", "http://")):
        raise ValueError("its target is no http:// or https:// URL")
    return Webhook(url, run=run)


class Webhook:
    """One request a finding; a refused one raises."""

    def __init__(self, url: str, *, run: str) -> None:
        self._url, self._run = url, run

    def numbers(self, rows: Sequence[Numbers]) -> None:
        """Nothing: a channel is for what went wrong."""

    def finding(self, finding: Finding) -> None:
        if not finding.is_grave and finding.code != WATCH_DEGRADED:
            return
        text = f"{with_advice(headline(finding), finding)}\nRun: {self._run}"
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self._url, json.dumps({"text": text}).encode(), headers)
        urllib.request.urlopen(request, timeout=TIMEOUT_S).close()

    def close(self) -> None:
        """Nothing is left open."""
