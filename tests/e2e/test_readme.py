"""What README shows, run as it is shown, with the real starter model."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.harness import Service
from tests.fixtures.models import models_config
from tests.fixtures.nursery import ROOT
from tests.fixtures.starter import starter_model

pytestmark = pytest.mark.slow

README = (ROOT / "README.md").read_text()
MODEL = "smollm2-135m"


def block(language: str, having: str) -> str:
    """The code block in this language that has these words."""
    found = re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    [text] = [text for text in found if having in text]
    return str(text)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    home = tmp_path_factory.mktemp("readme") / "home"
    config = models_config(**{MODEL: starter_model()})
    with Service(home, config=config, arguments=("--model", MODEL)) as service:
        yield service


def run(service: Service, *command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_curl(service: Service) -> None:
    command = block("sh", "curl").replace("http://127.0.0.1:8080", service.url)
    assert "Paris" in run(service, "sh", "-c", command)


def test_the_official_sdk(service: Service) -> None:
    program = block("python", "OpenAI").replace("http://127.0.0.1:8080", service.url)
    assert "Paris" in run(service, sys.executable, "-c", program)


def test_chat_in_the_terminal(service: Service) -> None:
    asked = ("chat", MODEL, "-p", "What is the capital of France?", "--temperature", "0")
    assert "Paris" in service.cli(*asked, timeout=240).stdout


def test_the_log_has_no_word_of_it(service: Service) -> None:
    """Prompts and answers are nobody's business, not even the log's."""
    said = "xyzzy-secret-word"
    assert service.chat(MODEL, f"Say {said}", max_tokens=4).status_code == 200
    service.cli("chat", MODEL, "-p", said, "--max-tokens", "4", timeout=240)
    for path in Path(service.home).rglob("*"):
        if path.is_file():
            assert said.encode() not in path.read_bytes(), path
    assert said not in service.output()
