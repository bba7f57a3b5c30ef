"""An answer over HTTP: with an ETag, so that what has not changed is not sent."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from fastapi import Request, Response

from trueline.web.answers import ARRAYS, Arrays, as_json


def answer(request: Request, stamp: str, make: Callable[[], Any]) -> Response:
    """What ``make`` gives, unless the browser has it already: ``stamp`` is another one whenever that may differ."""
    wants_json = "application/json" in request.headers.get("accept", "")
    state = f"{request.url.path}?{request.url.query} {stamp} {wants_json}"
    tag = f'"{hashlib.blake2b(state.encode(), digest_size=12).hexdigest()}"'
    headers = {"etag": tag, "cache-control": "no-cache", "vary": "accept"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    facts = make()
    if isinstance(facts, Arrays) and not wants_json:
        return Response(facts.packed(), media_type=ARRAYS, headers=headers)
    return Response(as_json(facts), media_type="application/json", headers=headers)
