"""Which requests of browsers reach the Web UI. The same against a running `steer dev`: tests/hostile/test_web.py."""

import pytest

from steersman.cli.weborigin import OWN_NAMES, refusal

OWN = ("host", "127.0.0.1:8233")
ORIGIN = ("origin", "http://127.0.0.1:8233")


@pytest.mark.parametrize(
    ("method", "headers"),
    [
        ("GET", [OWN]),
        ("GET", [OWN, ORIGIN]),
        ("POST", [OWN, ORIGIN]),
        ("POST", [OWN, ("sec-fetch-site", "same-origin")]),
        ("POST", [("host", "LOCALHOST:9"), ("origin", "http://localhost:9")]),
        ("POST", [("host", "[::1]:9"), ("origin", "http://[::1]:9")]),
        ("POST", [("host", "ui.example"), ("origin", "https://ui.example")]),
    ],
)
def test_own_requests_pass(method: str, headers: list[tuple[str, str]]) -> None:
    assert refusal(method, "/api/v1/x", headers, OWN_NAMES | {"ui.example"}) is None


@pytest.mark.parametrize(
    ("method", "headers", "why"),
    [
        ("GET", [], "names"),
        ("GET", [OWN, OWN], "names"),
        ("GET", [("host", "evil.test")], "names"),
        ("GET", [("host", "127.0.0.1:8233\n")], "names"),
        ("GET", [("host", "127.0.0.1:x")], "names"),
        ("GET", [OWN, ("origin", "http://127.0.0.1:8234")], "origin"),
        ("GET", [OWN, ORIGIN, ("origin", "http://evil.test")], "origin"),
        ("POST", [OWN, ("origin", "")], "origin"),
        ("POST", [OWN, ORIGIN, ("sec-fetch-site", "cross-site")], "site"),
        ("POST", [OWN, ORIGIN, ("sec-fetch-site", "same-origin"), ("sec-fetch-site", "cross-site")], "site"),
        ("DELETE", [OWN], "must name"),
        ("PUT", [OWN, ("sec-fetch-site", "none")], "must name"),
    ],
)
def test_foreign_requests_do_not(method: str, headers: list[tuple[str, str]], why: str) -> None:
    assert why in str(refusal(method, "/api/v1/x", headers, OWN_NAMES))


def test_a_link_from_elsewhere_opens_a_page_and_nothing_of_the_api() -> None:
    page, api = "/namespaces/default/workflows", "/api/v1/namespaces"
    link = [("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "document")]
    assert refusal("GET", page, [OWN, *link], OWN_NAMES) is None
    assert refusal("GET", api, [OWN, *link], OWN_NAMES)
    assert refusal("GET", "/render", [OWN, *link], OWN_NAMES)
    assert refusal("GET", page, [OWN, *link[:2], ("sec-fetch-dest", "iframe")], OWN_NAMES)
    assert refusal("POST", page, [OWN, *link], OWN_NAMES)
