"""Who the page answers: nobody without the token, no other site, no other name, and nothing outside of its Runs."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from tests.synthetic_runs import write_run
from tests.web.served import TOKEN, JudgeHere, Served

from trueline.web.guard import Guard

SECRET = "what is beside the Run is nobody's business"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "secret.txt").write_text(SECRET)
    with Served([write_run(folder / "run", num_steps=4)], judge=JudgeHere(holding=True)) as page:
        yield page


def test_the_token_opens_everything_and_nothing_else_does(served: Served) -> None:
    for path in ("/", "/api/runs", "/api/runs/0/overview", "/api/events", "/openapi.json"):
        for token in (None, "", "wrong-token-wrong-token", TOKEN + "x"):
            answer = served.ask(path, token=token)
            assert (answer.status, b"token" in answer.read()) == (403, True), (path, token)
    assert served.ask(f"/?token={TOKEN}", token=None).status == 200
    assert served.ask("/api/runs").status == 200


def test_a_request_that_would_change_something_needs_the_token_too(served: Served) -> None:
    assert served.ask("/api/runs/0/record", method="POST", token=None).status == 403
    answer = served.ask("/api/runs/0/record", method="POST")
    assert (answer.status, "has not begun to train" in json.loads(answer.read())["error"]) == (404, True)


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "10.1.2.3", "", "[::1", "localhost.evil.example"],
)
def test_another_name_for_this_machine_is_refused(served: Served, host: str) -> None:
    assert served.ask("/api/runs", headers={"Host": host}).status == 421


def test_no_name_at_all_is_refused(served: Served) -> None:
    assert served.ask("/api/runs", headers={"Host": None}).status in (400, 421)


@pytest.mark.parametrize("host", ["localhost:9000", "127.0.0.1:1", "[::1]:8642", "LOCALHOST"])
def test_a_tunnel_may_end_at_any_port_of_this_machine(served: Served, host: str) -> None:
    assert served.ask("/api/runs", headers={"Host": host}).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_another_site_is_refused_whatever_it_knows(served: Served, headers: dict[str, str]) -> None:
    for method, path in (("GET", "/api/runs"), ("GET", "/assets/page.js"), ("POST", "/api/runs/0/record")):
        answer = served.ask(path, method=method, headers=headers)
        assert (answer.status, answer.read()) == (403, b"Requests from other sites are not answered.")


def test_its_own_page_may_ask(served: Served) -> None:
    own = f"{served.address.host}:{served.address.port}"
    headers = {"Origin": f"http://{own}", "Sec-Fetch-Site": "same-origin"}
    assert served.ask("/api/runs", headers=headers).status == 200


@pytest.mark.parametrize(
    "path",
    [
        "/assets/../secret.txt",
        "/assets/..%2f..%2fsecret.txt",
        "/assets/%2e%2e/%2e%2e/secret.txt",
        "/assets//etc/passwd",
        "/assets/%2Fetc%2Fpasswd",
        "/assets/..%5c..%5csecret.txt",
        "/assets/serve.py",
        "/../secret.txt",
        "/secret.txt",
        "/api/runs/..%2f..%2fsecret.txt/overview",
        "/api/runs/0/../../../secret.txt",
        "/api/runs/7/overview",
        "/api/runs/-1/overview",
        "/api/runs/0/heat?signal=../../secret.txt",
        "/api/runs/0/calls?step=0&rank=0&at=../../secret.txt",
    ],
)
def test_nothing_outside_of_the_runs_can_be_reached(served: Served, path: str) -> None:
    answer = served.ask(path)
    body = answer.read()

    assert answer.status in (404, 405, 422)
    assert SECRET.encode() not in body
    assert b"root:" not in body
    assert b"Traceback" not in body


def test_every_answer_forbids_to_load_from_elsewhere(served: Served) -> None:
    for path in ("/", "/assets/page.js", "/api/runs", "/nowhere"):
        answer = served.ask(path)
        answer.read()
        assert answer.headers["content-security-policy"].startswith("default-src 'none'; script-src 'self';")
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert "access-control-allow-origin" not in answer.headers
        assert "server" not in answer.headers


def test_a_host_that_others_reach_answers_addresses_and_its_own_names_only() -> None:
    async def nothing(*_: object) -> None: ...

    guard = Guard(nothing, TOKEN, "0.0.0.0")
    assert [guard.is_own(host) for host in ("10.1.2.3:80", "localhost", "evil.example")] == [True, True, False]
    named = Guard(nothing, TOKEN, "training-node-7")
    assert [named.is_own(host) for host in ("training-node-7:1", "training-node-8")] == [True, False]
