"""Real models behind one port, as the README promises: curl-like requests, the official SDK, kills."""

import contextlib
import os
import re
import signal
import stat
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest

from tests.fixtures.harness import Service, wait_until
from tests.fixtures.models import models_config
from tests.fixtures.starter import starter_model
from tests.fixtures.tiny import Tiny, tiny_model

STARTER = "smollm2-135m"
OTHER = Tiny(seed=1, context=10**6)
"""May go on for as long as a test wants."""
FRANCE = "What is the capital of France?"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    base = tmp_path_factory.mktemp("first-light")
    config = models_config(other=tiny_model(OTHER), tiny=tiny_model())
    # The last table is that of the tiny model. As its own draft it is always right.
    config += 'draft = "tiny"\n'
    template = base / "counted.jinja"
    template.write_text("{{ messages[0].content }}{% for _ in range(dots) %}.{% endfor %}")
    config += (
        f'[models.changed]\nsource = "{tiny_model()}"\nchat_template = "{template}"\n'
        "chat_template_kwargs = { dots = 7 }\nset = { max_tokens = 3 }\nstrip = ['stop']\n"
    )
    with Service(base / "home", config=config, arguments=("--no-spare",)) as service:
        yield service


def content(stream: Any) -> str:
    return "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)


@pytest.mark.slow
def test_the_starter_knows_the_capital_of_france(tmp_path: Path) -> None:
    config = models_config(**{STARTER: starter_model()})
    with Service(tmp_path / "home", config=config) as service:
        knows(service, STARTER, "Paris")


@pytest.mark.timeout(120)
def test_the_sdk_gets_one_answer_streamed_or_not(service: Service) -> None:
    knows(service, "other", "")


def knows(service: Service, model: str, word: str) -> None:
    """Ask twice, streamed and not, for what has `word` in it."""
    with openai.OpenAI(base_url=f"{service.url}/v1", api_key="none", max_retries=0, timeout=240) as sdk:
        asked(sdk, model, word)


def asked(sdk: openai.OpenAI, model: str, word: str) -> None:
    messages: Any = [{"role": "user", "content": FRANCE}]
    answer = sdk.chat.completions.create(model=model, messages=messages, temperature=0, max_tokens=24)
    assert word in (answer.choices[0].message.content or "")
    assert answer.choices[0].finish_reason == ("stop" if word else "length")
    assert answer.model == model
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    stream = sdk.chat.completions.create(
        model=model,
        messages=messages,
        temperature=0,
        max_tokens=24,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert content(chunks) == answer.choices[0].message.content
    usage = chunks[-1].usage
    assert usage is not None and not chunks[-1].choices
    assert (usage.prompt_tokens, usage.total_tokens) == (
        answer.usage.prompt_tokens,
        answer.usage.total_tokens,
    )
    assert usage.prompt_tokens_details is not None
    assert all(chunk.usage is None for chunk in chunks[:-1])


@pytest.mark.timeout(120)
def test_two_models_are_two_processes_on_private_sockets(service: Service) -> None:
    with ThreadPoolExecutor(2) as threads:
        answers = list(threads.map(service.chat, ("other", "tiny")))
    assert [answer.status_code for answer in answers] == [200, 200]
    workers = [service.worker("other"), service.worker("tiny")]
    pids = {worker["pid"] for worker in workers if worker}
    assert len(pids) == 2 and service.pid not in pids
    for worker in workers:
        assert worker is not None and worker["state"] == "ready"
        path = Path(worker["socket"])
        assert stat.filemode(path.stat().st_mode) == "srw-------"
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    listed = {card["id"] for card in service.client.get("/v1/models").json()["data"]}
    assert listed == {"other", "tiny", "changed"}


@pytest.mark.timeout(120)
def test_a_draft_is_found_by_its_name_and_tells_what_it_was_good_for(service: Service) -> None:
    usage = service.chat("tiny", max_tokens=60).json()["usage"]
    details = usage["completion_tokens_details"]
    assert usage["completion_tokens"] == 60
    assert details["accepted_prediction_tokens"] > 30
    assert details["rejected_prediction_tokens"] == 0


@pytest.mark.timeout(120)
def test_the_first_model_goes_on_while_a_second_is_started(service: Service) -> None:
    assert service.worker("changed") is None, "it would not be started"
    with service.stream("other", "Count to one hundred.", max_tokens=800) as stream:
        next(stream)
        assert service.chat("changed").status_code == 200
        assert list(stream)[-1] == "[DONE]"


@pytest.mark.timeout(120)
def test_kill_9_of_a_real_worker_mid_stream(service: Service) -> None:
    """Fault 1 with the real worker: an error event, no clean end, and the model comes back."""
    service.chat("tiny"), service.chat("other")
    victim = service.worker("other")
    assert victim is not None
    with service.stream("other", "Write a long story.", max_tokens=10**5) as stream:
        next(stream), next(stream)
        os.kill(victim["pid"], signal.SIGKILL)
        killed_at = time.monotonic()
        *_, last = stream
        assert time.monotonic() - killed_at < 10
    assert isinstance(last, dict) and last["error"]["code"] == "engine_unavailable"
    assert service.chat("tiny").status_code == 200
    assert service.chat("other").status_code == 200
    assert service.client.get("/health").status_code == 200


@pytest.mark.slow
def test_a_disconnect_stops_the_generation(tmp_path: Path) -> None:
    """Fault 25 with the real worker: streaming, not streaming, and during a long prefill."""
    config = models_config(**{STARTER: starter_model()})
    with Service(tmp_path / "home", config=config) as service:
        disconnects(service)


def disconnects(service: Service) -> None:
    service.chat(STARTER)
    story = "Once upon a time there was a river. " * 100
    for fields in ({"stream": True, "max_tokens": 2000}, {"max_tokens": 2000}):
        for text in ("Count to two thousand.", story):
            with contextlib.suppress(httpx.TimeoutException):
                service.client.post(
                    "/v1/chat/completions",
                    json={"model": STARTER, "messages": [{"role": "user", "content": text}], **fields},
                    timeout=0.4,
                )
    wait_until(lambda: service.worker(STARTER)["in_flight"] == 0, "a row is held")  # type: ignore[index]


@pytest.mark.timeout(120)
def test_equal_seeds_give_equal_text_and_no_seed_does_not(service: Service) -> None:
    """Fault 42: alone or in a batch, and two unseeded requests at the same instant differ."""

    def sample(seed: int | None) -> str:
        fields = {} if seed is None else {"seed": seed}
        answer = service.chat("tiny", "Tell me a story.", temperature=1.0, max_tokens=16, **fields)
        text: str = answer.json()["choices"][0]["message"]["content"]
        return text

    alone = sample(7)
    with ThreadPoolExecutor(5) as threads:
        first, second, *rest = list(threads.map(sample, (7, 7, None, None, None)))
    assert alone == first == second
    assert len(set(rest)) == 3


def test_top_shows_who_generates_and_how_fast(service: Service) -> None:
    with service.stream("tiny", "Count.", max_tokens=4000, ignore_eos=True) as stream:
        next(stream)
        shown = service.cli("top", "--once", "--interval", "0.5").stdout
    line = next(line.split() for line in shown.splitlines() if line.startswith("tiny"))
    assert line[1] == "ready" and float(line[6]) > 0, shown
    assert "/v1/chat/completions" in shown and "generates" in shown


def test_a_scraper_and_a_watcher_see_the_tokens(service: Service) -> None:
    """Workers tell of their requests: how many tokens, of them how many computed before, and how fast."""

    def value(name: str) -> float:
        text = service.client.get("/metrics").text
        found = re.search(rf'^mlx_supervisor_{name}{{model="tiny"}} (\S+)$', text, re.MULTILINE)
        return float(found[1]) if found else 0.0

    def is_told(answer: httpx.Response) -> bool:
        told = service.client.get("/stats", params={"request": answer.headers["x-request-id"]}).json()
        return told.get("tokens_out") is not None

    def is_at_rest() -> bool:
        workers = service.client.get("/stats").json()["workers"]
        return all(worker["admission"] and worker["admission"]["in_flight"] == 0 for worker in workers)

    # A worker tells in order: with this one's tokens those of all earlier requests are there.
    wait_until(is_at_rest, "a request before this test is still running")
    last = service.chat("tiny", "Hello", max_tokens=1)
    wait_until(lambda: is_told(last), "its tokens were not told")
    before = value("completion_tokens_total")
    usage = service.chat("tiny", "Hello", max_tokens=9, ignore_eos=True).json()["usage"]
    assert usage["completion_tokens"] == 9
    wait_until(lambda: value("completion_tokens_total") == before + 9, "the tokens were not counted")
    assert value("prompt_tokens_total") >= usage["prompt_tokens"]
    assert value("time_to_first_token_seconds_count") >= 1


BAD: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "messages"),
    ({"messages": "hello"}, "messages"),
    ({"messages": None}, "messages"),
    ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": -5}, "max_tokens"),
    ({"max_tokens": "many"}, "max_tokens"),
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": 2.1}, "temperature"),
    ({"top_p": 1.5}, "top_p"),
    ({"stream": "yes"}, "stream"),
    ({"model": 5}, "model"),
]


@pytest.mark.parametrize(("fields", "param"), BAD, ids=[f"{f}" for f, _ in BAD])
def test_bad_input_is_a_400_that_names_the_field(
    service: Service, fields: dict[str, Any], param: str
) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "x"}], **fields}
    answer = service.client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error" and error["param"] == param


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000, b'{"model": "tiny", "messages": NaN}'],
    ids=["empty", "cut", "array", "null", "not-utf8", "deep", "nan"],
)
def test_a_body_that_is_not_json_is_a_400(service: Service, raw: bytes) -> None:
    answer = service.client.post(
        "/v1/chat/completions", content=raw, headers={"content-type": "application/json"}
    )
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_an_unknown_model_is_a_404_with_near_names(service: Service) -> None:
    answer = service.chat("othr")
    assert answer.status_code == 404
    error = answer.json()["error"]
    assert error["code"] == "model_not_found" and "other" in error["message"]


def test_a_prompt_beyond_the_context_is_a_400_with_both_numbers(service: Service) -> None:
    answer = service.chat("tiny", "word " * 20_000)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["code"] == "context_length_exceeded"
    window = service.client.get("/v1/models/tiny").json()["context_window"]
    assert str(window) in error["message"]


@pytest.mark.slow
def test_kill_9_of_the_supervisor_ends_real_workers_also_while_they_compute(tmp_path: Path) -> None:
    """Fault 3: no worker alive 2 s later, also one that is inside a long native call."""
    config = models_config(**{STARTER: starter_model()})
    with Service(tmp_path / "home", config=config) as service, ThreadPoolExecutor(1) as threads:
        service.chat(STARTER, max_tokens=1)
        answer = threads.submit(service.chat, STARTER, "one two three " * 1500)
        worker = psutil.Process(service.worker(STARTER)["pid"])  # type: ignore[index]
        before = sum(worker.cpu_times()[:2])
        wait_until(lambda: sum(worker.cpu_times()[:2]) > before + 0.5, "the prefill runs")
        service.kill()
        wait_until(lambda: not service.processes(), "a worker outlived its supervisor")
        assert isinstance(answer.exception(), httpx.TransportError)
        service.start()
        assert service.chat(STARTER, FRANCE, temperature=0).status_code == 200


@pytest.mark.timeout(120)
def test_a_model_with_its_own_template_and_fields(service: Service) -> None:
    """The template is the settings', a request's arguments for it count first, and its fields are changed."""
    usage = service.chat("changed", "Hello", max_tokens=50, stop=["bad", 7]).json()["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (len("Hello......."), 3)
    usage = service.chat("changed", "Hello", chat_template_kwargs={"dots": 1}).json()["usage"]
    assert usage["prompt_tokens"] == len("Hello.")
