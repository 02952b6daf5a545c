"""`start --in-process`: a worker on the public port, with nobody before it. Faults 30 and 34, too."""

import http.client
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from shared.responses.answer import CONTEXT_HEADER
from supervisor.home import Home
from tests.fixtures import nursery
from tests.fixtures.harness import CLI, chat_body
from tests.fixtures.models import write_fake_model
from tests.fixtures.nursery import ROOT
from tests.fixtures.tiny import tiny_model

SAYING: Any = [{"role": "user", "content": "Hello"}]


class Alone:
    """A program that serves one tiny model, and what it said."""

    def __init__(self, base: Path, config: str = "") -> None:
        self.home = base / "home"
        self.home.mkdir(mode=0o700)
        table = '[models.tiny]\nsource = "{}"\naliases = ["gpt-4o-mini", "claude-*"]\nset = {{ seed = 7 }}\n'
        (self.home / "config.toml").write_text(config + table.format(tiny_model()))
        self._errors = base / "stderr"
        with self._errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [*CLI, *start_of(self.home), "--in-process", "--model", "gpt-4o-mini"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=ROOT,
                env=os.environ | {"OPENAI_API_KEY": "not for workers"},
            )
        assert self.process.stdout is not None
        self.lines = []
        for line in self.process.stdout:
            self.lines.append(line)
            if line.startswith("serving on "):
                break
        assert self.lines and "serving on " in self.lines[-1], self.errors()
        self.url = self.lines[-1].split()[2].removesuffix("/v1")
        self.client = httpx.Client(base_url=self.url, timeout=240, trust_env=False, verify=False)

    def errors(self) -> str:
        return self._errors.read_text()

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return self.process.wait(15)

    def close(self) -> None:
        self.client.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(5)
        assert self.process.stdout is not None
        self.process.stdout.close()


def start_of(home: Path) -> tuple[str, ...]:
    return ("start", "--home", str(home), "--port", "0")


def refused(*arguments: str, code: int = 1) -> str:
    """The one sentence of a start that was refused."""
    ran = nursery.run("supervisor", *arguments, timeout=240)
    assert ran.returncode == code, ran.stderr
    assert code == 2 or ran.stderr.count("\n") == 1, ran.stderr
    return ran.stderr


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Alone]:
    base = tmp_path_factory.mktemp("alone")
    server = '[server]\nmax_body = "64 KiB"\ncors_origins = ["https://chat.example"]\n'
    another = '[models.big]\nsource = "nowhere"\naliases = ["claude-opus-*", "claude-big"]\n'
    alone = Alone(base, server + another)
    try:
        yield alone
    finally:
        alone.close()


def test_it_answers_by_its_aliases_and_tells_its_name(alone: Alone) -> None:
    with openai.OpenAI(base_url=f"{alone.url}/v1", api_key="none", max_retries=0, timeout=240) as client:
        answer = client.chat.completions.create(model="claude-x", messages=SAYING, max_tokens=8)
        stream = client.chat.completions.create(
            model="gpt-4o-mini", messages=SAYING, max_tokens=8, stream=True
        )
        said = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
        assert (answer.model, answer.choices[0].message.content) == ("tiny", said), "the seed is set"
        assert [model.id for model in client.models.list()] == ["tiny"]
        assert client.models.retrieve("gpt-4o-mini").id == "tiny"
        # Names that mean another model don't mean this one because that is not served.
        for other in ("other", "big", "claude-big", "claude-opus-4"):
            with pytest.raises(openai.NotFoundError, match="There is tiny alone"):
                client.models.retrieve(other)
        assert client.models.retrieve("claude-haiku").id == "tiny"


def test_health_and_what_names_a_request(alone: Alone) -> None:
    answer = alone.client.get("/health", headers={"x-request-id": "mine"})
    assert (answer.status_code, answer.json()["status"]) == (200, "ok")
    assert answer.headers["x-request-id"] == "mine"
    assert alone.client.head("/").status_code == 200
    assert alone.client.head("/v1/models").status_code == 200
    wrong = alone.client.get("/v1/chat/completions")
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/models", "/health", "/admin/health"])
def test_pages_of_others_may_not_ask(alone: Alone, path: str, headers: dict[str, str]) -> None:
    answer = alone.client.post(path, json=chat_body("tiny", "Hello"), headers=headers)
    assert answer.status_code == 403, answer.text


def test_a_page_that_is_allowed(alone: Alone) -> None:
    page = {"origin": "https://chat.example"}
    asked = {**page, "access-control-request-method": "POST"}
    ahead = alone.client.options("/v1/chat/completions", headers=asked)
    assert (ahead.status_code, ahead.headers["access-control-allow-methods"]) == (204, "POST")
    answer = alone.client.post("/v1/chat/completions", json=chat_body("tiny", "Hello"), headers=page)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == page["origin"]


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize(
    "path",
    [
        "/admin/health",
        "//admin/health",
        "/admin//health",
        "/admin/health/",
        "/%61dmin/health",
        "/admin%2Fhealth",
        "/ADMIN/health",
        "/v1/../admin/health",
        "/v1/%2e%2e/admin/health",
        "/admin/health?x=/v1/models",
        "http://127.0.0.1/admin/health",
        "/admin/requests/x/cancel",
        "/admin/drain",
        "/admin/memory/complete",
        "/engine",
        "/engine/",
        "/%65ngine",
        "/api/status",
        "/nowhere",
    ],
)
def test_nothing_else_is_there_however_it_is_spelled(alone: Alone, method: str, path: str) -> None:
    connection = http.client.HTTPConnection(alone.url.removeprefix("http://"), timeout=60)
    try:
        connection.request(method, path, b"{}" if method == "POST" else None)
        answer = connection.getresponse()
        assert (answer.status, json.load(answer)["error"]["code"]) == (404, "not_found")
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b'{"model":"gpt-4","messages":[]}', 404, "model_not_found"),
        (b'{"messages":[]}', 400, "missing_field"),
        (b'{"model":"tiny","model":"gpt-4"}', 400, "duplicate_field"),
        (b"[1]", 400, "invalid_body"),
        (b'{"model":"tiny","messages":"\xff"}', 400, "invalid_json"),
        (b'{"model":"tiny","messages":"' + b"x" * 70_000 + b'"}', 413, "body_too_large"),
    ],
    ids=["unknown", "none", "two", "list", "not UTF-8", "large"],
)
def test_what_is_wrong_with_a_body(alone: Alone, body: bytes, status: int, code: str) -> None:
    answer = alone.client.post("/v1/chat/completions", content=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    in_pieces = alone.client.post("/v1/chat/completions", content=iter([body[:9], body[9:]]))
    assert (in_pieces.status_code, in_pieces.json()["error"]["code"]) == (status, code)


def test_responses_are_not_kept(alone: Alone) -> None:
    asked = {"model": "tiny", "input": "Hello", "max_output_tokens": 16, "store": True}
    answer = alone.client.post("/v1/responses", json=asked)
    assert (answer.status_code, answer.json()["store"], answer.json()["model"]) == (200, False, "tiny")
    for field, value in (
        ("previous_response_id", "resp_1"),
        ("conversation", "conv_1"),
        ("background", True),
    ):
        wrong = alone.client.post("/v1/responses", json=asked | {field: value})
        assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, field)
    # Only a supervisor may tell a worker what a response goes on from.
    told = alone.client.post("/v1/responses", json=asked, headers={CONTEXT_HEADER.decode(): "{"})
    assert told.status_code == 200
    assert alone.client.get(f"/v1/responses/{answer.json()['id']}").status_code == 404


@pytest.mark.parametrize("in_pieces", [False, True])
def test_a_head_without_end_is_cut(alone: Alone, in_pieces: bool) -> None:
    host, _, port = alone.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        head = b"GET /health HTTP/1.1\r\nhost: localhost\r\nx: " + b"y" * 40_000
        if in_pieces:
            connection.sendall(head[:20_000])
            time.sleep(0.05)  # so that they arrive as two
            connection.sendall(head[20_000:])
        else:
            connection.sendall(head + b"\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 400 ")


def test_trailers_are_no_headers(alone: Alone) -> None:
    """They come when the head has been judged, and are neither kept nor in the way of the next request."""
    host, _, port = alone.url.removeprefix("http://").partition(":")
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
    body = json.dumps(chat_body("tiny", "Hello")).encode()
    trailers = b"".join(b"x-%d: y\r\n" % number for number in range(200))
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(head + b"%x\r\n%s\r\n0\r\n%s\r\n" % (len(body), body, trailers))
        connection.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        answers = b"".join(iter(lambda: connection.recv(65536), b""))
    assert answers.count(b"HTTP/1.1 200 OK") == 2 and answers.endswith(b'{"status":"ok","reasons":[]}')


def test_the_state_folder_and_the_port_are_taken(alone: Alone) -> None:
    told = refused(*start_of(alone.home))
    assert f"another supervisor (pid {alone.process.pid}, version" in told
    assert "another supervisor" in refused(*start_of(alone.home), "--in-process", "--model", "tiny")
    assert "--in-process" in refused("status", "--home", str(alone.home))


def test_ctrl_c_ends_it_with_0(alone: Alone) -> None:
    assert alone.end(signal.SIGINT) == 0
    assert "Traceback" not in alone.errors()
    with httpx.Client(trust_env=False, verify=False) as client, pytest.raises(httpx.ConnectError):
        client.get(f"{alone.url}/health")
    assert not [path for path in (alone.home / "run").iterdir() if path.name != "lock"]
    Home.open(alone.home).lock().close()


def test_a_start_that_can_t_be(tmp_path: Path) -> None:
    home = Home.open(tmp_path / "home")
    home.config.write_text(f'[models.tiny]\nsource = "{tiny_model()}"\n[server]\nfallback_model = "tiny"\n')
    start = ("start", "--home", str(home.path), "--in-process")
    assert "--model" in refused(*start, code=2)
    assert "--model tinny: The model 'tinny' does not exist here." in refused(*start, "--model", "tinny")
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = str(holder.getsockname()[1])
        assert f"port {port} on 127.0.0.1 is taken" in refused(*start, "--model", "tiny", "--port", port)


@pytest.mark.slow
def test_a_model_that_can_t_be_loaded(tmp_path: Path) -> None:
    home = Home.open(tmp_path / "home")
    write_fake_model(home.models / "fake")
    told = refused(*start_of(home.path), "--in-process", "--model", "fake")
    assert told.startswith("mlx-supervisor: fake can't be loaded: ")


@pytest.mark.slow
def test_answers_under_way_are_finished_at_the_stop(tmp_path: Path) -> None:
    """`stop` finds it by the lock of its state folder, and it drains as a supervisor does."""
    alone = Alone(tmp_path)
    try:
        body = chat_body("tiny", "Hello", stream=True) | {"max_tokens": 600}
        with alone.client.stream("POST", "/v1/chat/completions", json=body) as response:
            lines = response.iter_lines()
            first = next(lines)
            stop = subprocess.Popen(
                [*CLI, "stop", "--home", str(alone.home)], cwd=ROOT, stdout=subprocess.PIPE
            )
            rest = [line for line in lines if line]
        assert first.startswith("data: ") and rest[-1] == "data: [DONE]"
        assert '"finish_reason":"length"' in "".join(rest)
        told, _ = stop.communicate(timeout=20)
        assert (told, stop.returncode, alone.process.wait(10)) == (b"stopped\n", 0, 0)
    finally:
        alone.close()
