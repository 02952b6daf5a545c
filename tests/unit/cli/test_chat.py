"""Talking in the terminal, against a stand-in that streams as slowly as a test wants."""

import json
import os
import pty
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from shared.sockets import bind_private
from supervisor.home import Home
from tests.fixtures import nursery
from tests.unit.cli.test_client import Peer, http

ROOT = Path(__file__).parents[3]


class Public(ThreadingHTTPServer):
    """Streams what it is asked: `slow` until the client leaves, anything else as an echo."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.asked: list[Any] = []
        self.left = threading.Event()
        """A client went away in the middle of an answer."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Answer(BaseHTTPRequestHandler):
    server: Public
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(body)
        text = body["messages"][-1]["content"]
        if text == "busy":
            self._whole(429, {"error": {"message": "the queue is full"}})
            return
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            self._piece("role", "assistant")
            if text == "slow":
                for number in range(10_000):
                    self._piece("content", f"word{number} ")
                    time.sleep(0.01)
            if text == "broken":
                self._event({"error": {"message": "the worker died"}})
            else:
                self._piece("content", f"you said {text}\x1b[2J")
                self._chunk(b"data: [DONE]\n\n")
            self._chunk(b"")
        except ConnectionError:
            self.server.left.set()

    def _piece(self, name: str, text: str) -> None:
        self._event({"choices": [{"index": 0, "delta": {name: text}}]})

    def _event(self, event: Any) -> None:
        self._chunk(b"data: " + json.dumps(event).encode() + b"\n\n")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))

    def _whole(self, status: int, body: Any) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def public() -> Iterator[Public]:
    with Public() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def home(tmp_path: Path, public: Public) -> Iterator[Path]:
    home = Home.open(tmp_path / "h")
    models = [{"id": "a", "state": "ready", "problem": None}, {"id": "b", "state": None, "problem": None}]
    # One answer that holds what either question needs.
    answer = http(200, json.dumps({"url": public.url, "models": models}).encode())
    peer = Peer(bind_private(home.control_socket), answer)
    yield home.path
    peer.close()


def command(home: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "supervisor", "chat", "--home", str(home), *arguments]


def chat(home: Path, *arguments: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    return nursery.run("supervisor", "chat", "--home", str(home), *arguments, text=text or "", timeout=30)


def test_one_question(home: Path, public: Public) -> None:
    done = chat(home, "a", "-p", "hi", "--system", "be brief", "--temperature", "0", "--max-tokens", "5")
    assert (done.returncode, done.stdout, done.stderr) == (0, "you said hi\x1b[2J\n", "")
    assert public.asked == [
        {
            "model": "a",
            "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}],
            "stream": True,
            "temperature": 0.0,
            "max_tokens": 5,
        }
    ]


def test_a_pipe_is_the_question_and_the_loaded_model_answers(home: Path, public: Public) -> None:
    assert chat(home, text="from a pipe").stdout.startswith("you said from a pipe")
    assert public.asked[0]["model"] == "a"


@pytest.mark.parametrize(("text", "reason"), [("busy", "the queue is full"), ("broken", "the worker died")])
def test_what_went_wrong_is_a_sentence_and_exit_code_1(home: Path, text: str, reason: str) -> None:
    done = chat(home, "a", "-p", text)
    assert (done.returncode, done.stderr) == (1, f"mlx-supervisor: {reason}\n")


class Terminal:
    """The program on a terminal of its own."""

    def __init__(self, home: Path, *arguments: str) -> None:
        self._ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            command(home, *arguments),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=ROOT,
            env={**os.environ, "TERM": "dumb"},
        )
        os.close(theirs)
        self.seen = ""

    def read(self, until: str) -> str:
        """What is shown up to and with `until`."""
        end_s = time.monotonic() + 20
        while until not in self.seen:
            ready, _, _ = select.select([self._ours], [], [], max(0.0, end_s - time.monotonic()))
            assert ready, f"waited for {until!r}, got {self.seen!r}"
            self.seen += os.read(self._ours, 4096).decode()
        before, found, self.seen = self.seen.partition(until)
        return before + found

    def type(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def close(self) -> int:
        try:
            return self.process.wait(10)
        finally:
            self.process.kill()
            self.process.wait()
            os.close(self._ours)


def test_a_conversation(home: Path, public: Public) -> None:
    """Ctrl-C stops an answer and not the program; what was said stays said; Ctrl-D leaves."""
    terminal = Terminal(home, "a")
    terminal.read("> ")
    terminal.type("slow\n")
    terminal.read("word3 ")
    terminal.process.send_signal(signal.SIGINT)
    terminal.read("\r\n> ")
    assert public.left.wait(10), "the model goes on although nobody listens"
    terminal.process.send_signal(signal.SIGINT)
    terminal.read("\r\n> ")
    terminal.type("next\n")
    shown = terminal.read("\r\n> ").partition("next\r\n")[2]
    assert "you said next" in shown
    assert "\x1b" not in shown, "the model can drive the terminal"
    messages = public.asked[1]["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "user"]
    assert messages[1]["content"].startswith("word0 word1 word2 word3 ")
    terminal.type("busy\n")
    terminal.read("the queue is full\r\n> ")
    terminal.type("/clear\n")
    terminal.read("> ")
    terminal.type("fresh\n")
    terminal.read("\r\n> ")
    assert len(public.asked[-1]["messages"]) == 1
    terminal.type("\x04")
    assert terminal.close() == 0


def test_ctrl_c_of_a_single_question_ends_the_program(home: Path, public: Public) -> None:
    terminal = Terminal(home, "a", "-p", "slow")
    terminal.read("word3 ")
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.close() == 130
    assert public.left.wait(10)
