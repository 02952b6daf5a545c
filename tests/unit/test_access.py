"""Who may ask: the table of the access policy. Fault 34."""

import pytest

from shared.access import Access, host_name, preflight
from shared.errors import PublicError
from shared.headers import fields_of
from supervisor.settings import ServerSettings


def verdict(server: ServerSettings, method: str = "POST", **headers: str) -> int:
    """Status of the refusal, 200 if there is none, 204 if the page gets CORS headers."""
    fields = {name.replace("_", "-").encode(): value.encode("latin-1") for name, value in headers.items()}
    try:
        return 204 if Access(server).check(method, fields) else 200
    except PublicError as error:
        return error.status


PLAIN = ServerSettings()
NAMED = ServerSettings(
    host="192.168.1.5",
    allowed_hosts=("Mac.local",),
    cors_origins=("https://chat.example", "tauri://localhost", "http://localhost:3000"),
)
OPEN = ServerSettings(host="0.0.0.0")


@pytest.mark.parametrize(
    ("server", "host", "status"),
    [
        (PLAIN, "127.0.0.1:8080", 200),
        (PLAIN, "127.0.0.1", 200),
        (PLAIN, "127.8.9.10:1", 200),
        (PLAIN, "localhost:8080", 200),
        (PLAIN, "LOCALHOST", 200),
        (PLAIN, "localhost.:8080", 200),
        (PLAIN, "[::1]:8080", 200),
        (PLAIN, "[::1]", 200),
        (PLAIN, "", 400),
        (PLAIN, "evil.example", 403),
        (PLAIN, "localhost.evil.example", 403),
        (PLAIN, "127.0.0.1.evil.example", 403),
        (PLAIN, "evil.example:127.0.0.1", 403),
        (PLAIN, "user@localhost", 403),
        (PLAIN, "localhost:8080:9", 403),
        (PLAIN, "localhost:x", 403),
        (PLAIN, "[::1", 403),
        (PLAIN, "[::1]8080", 403),
        (PLAIN, "::1", 403),
        (PLAIN, "localhost, evil.example", 403),
        (PLAIN, "192.168.1.5:8080", 403),
        (PLAIN, "mac.local:8080", 403),
        (PLAIN, "h\xe4ss.example", 403),
        (NAMED, "192.168.1.5:8080", 200),
        (NAMED, "mac.LOCAL:8080", 200),
        (NAMED, "localhost", 200),
        (NAMED, "192.168.1.6:8080", 403),
        (OPEN, "192.168.1.6:8080", 200),
        (OPEN, "[fe80::1]:8080", 200),
        (OPEN, "evil.example:8080", 403),
    ],
)
def test_hosts(server: ServerSettings, host: str, status: int) -> None:
    assert verdict(server, host=host) == status


@pytest.mark.parametrize(
    ("server", "host", "origin", "status"),
    [
        (PLAIN, "localhost:8080", "http://localhost:8080", 200),
        (PLAIN, "LocalHost:8080", "http://localhost:8080", 200),
        (PLAIN, "localhost", "http://localhost:80", 200),
        (PLAIN, "localhost:80", "http://localhost", 200),
        (PLAIN, "localhost", "https://localhost", 200),
        (PLAIN, "[::1]:8080", "http://[::1]:8080", 200),
        (PLAIN, "localhost:8080", "http://localhost:3000", 403),
        (PLAIN, "localhost:8080", "http://127.0.0.1:8080", 403),
        (PLAIN, "localhost:8080", "https://evil.example", 403),
        (PLAIN, "localhost:8080", "http://localhost:8080.evil.example", 403),
        (PLAIN, "localhost:8080", "null", 403),
        (PLAIN, "localhost:8080", "", 403),
        (PLAIN, "localhost:8080", "localhost:8080", 403),
        (PLAIN, "localhost:8080", "chrome-extension://localhost:8080", 403),
        (NAMED, "localhost:8080", "https://chat.example", 204),
        (NAMED, "localhost:8080", "https://Chat.Example", 204),
        (NAMED, "localhost:8080", "tauri://localhost", 204),
        (NAMED, "localhost:8080", "http://localhost:3000", 204),
        (NAMED, "localhost:8080", "http://chat.example", 403),
        (NAMED, "evil.example", "https://chat.example", 403),
    ],
)
def test_origins(server: ServerSettings, host: str, origin: str, status: int) -> None:
    assert verdict(server, host=host, origin=origin) == status


@pytest.mark.parametrize(
    ("method", "site", "mode", "dest", "status"),
    [
        ("GET", "none", "navigate", "document", 200),
        ("GET", "same-origin", "cors", "empty", 200),
        ("POST", "same-site", "cors", "empty", 200),
        ("GET", "cross-site", "no-cors", "image", 403),
        ("POST", "cross-site", "no-cors", "empty", 403),
        # A link on another page that leads here shows nothing to that page, and changes nothing.
        ("GET", "cross-site", "navigate", "document", 200),
        ("GET", "cross-site", "navigate", "iframe", 403),
        ("POST", "cross-site", "navigate", "document", 403),
    ],
)
def test_sites(method: str, site: str, mode: str, dest: str, status: int) -> None:
    headers = {"sec_fetch_site": site, "sec_fetch_mode": mode, "sec_fetch_dest": dest}
    assert verdict(PLAIN, method, host="localhost", **headers) == status


def test_a_page_that_is_allowed_gets_its_own_name_back() -> None:
    headers = dict(Access(NAMED).check("POST", {b"host": b"localhost", b"origin": b"https://Chat.example"}))
    assert headers[b"access-control-allow-origin"] == b"https://Chat.example"
    assert headers[b"vary"] == b"origin"
    assert b"access-control-allow-credentials" not in headers


def test_preflight_allows_what_was_asked_for() -> None:
    asked = {
        b"access-control-request-headers": b"authorization, x-stainless-os",
        b"access-control-request-private-network": b"true",
    }
    headers = dict(preflight(asked, "POST"))
    assert headers[b"access-control-allow-headers"] == b"authorization, x-stainless-os"
    assert headers[b"access-control-allow-methods"] == b"POST"
    assert headers[b"access-control-allow-private-network"] == b"true"
    assert b"access-control-allow-private-network" not in dict(preflight({}, "POST"))


@pytest.mark.parametrize("name", [b"host", b"origin", b"content-type", b"sec-fetch-site"])
def test_what_decides_must_not_come_twice(name: bytes) -> None:
    with pytest.raises(PublicError) as caught:
        fields_of([(name, b"a"), (b"x", b"y"), (name, b"b")])
    assert caught.value.status == 400
    assert fields_of([(b"x", b"1"), (b"x", b"2"), (name, b"a")])[name] == b"a"


def test_errors_show_no_control_characters() -> None:
    for headers in ({"host": "evil\x1b[31m" + "x" * 5000}, {"host": "localhost", "origin": "\x1b" * 5000}):
        fields = {name.encode(): value.encode() for name, value in headers.items()}
        with pytest.raises(PublicError) as caught:
            Access(PLAIN).check("GET", fields)
        assert "\x1b" not in caught.value.message
        assert len(caught.value.message) < 300


def test_host_name() -> None:
    assert host_name("a.b:80") == "a.b"
    assert host_name("[::1]:80") == "::1"
    assert host_name("a:") == "a"
    assert host_name(":80") is None
    assert host_name("a:٣") is None
