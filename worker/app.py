"""The worker's composition root: builds the parts, loads the model, serves, stops."""

import asyncio
import contextlib
import hashlib
import importlib.metadata
import logging
import os
import socket
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import mlx.core as mx
import msgspec

from shared import __version__
from shared.errors import PublicError
from shared.launch import LaunchRecord, Public
from shared.sockets import SocketPathError, bind_private, is_own_peer, unlink_quietly
from shared.status import ExitCode, Failed, FailureKind, Memory, Progress, Ready, Status
from worker.adapters import Mounts
from worker.admin import Admin, loading
from worker.api.chat import Chat
from worker.api.completions import TextCompletions
from worker.api.decisions import DecisionsRoute
from worker.api.embeddings import EmbeddingsRoute
from worker.api.exchange import ClientGone, Exchange
from worker.api.messages import Messages
from worker.api.models import Models
from worker.api.responses import InputTokens, Responses
from worker.api.systemone import SystemOneRoute
from worker.completion import Completions
from worker.decisions import Decisions
from worker.embeddings import Embeddings
from worker.engine.activity import REQUEST_ID, Feed
from worker.engine.admission import Admission
from worker.engine.jobs import Jobs
from worker.engine.memory import bound_allocator, process_bytes, read_memory, working_set_bytes
from worker.engine.needs import Needs, Room, measure
from worker.engine.opening import make_embedder, most_scores, open_engine
from worker.engine.prompt_cache import PromptCache
from worker.engine.prompt_scores import PromptScorer
from worker.engine.prompt_state import PromptState
from worker.engine.rows import Report
from worker.engine.scoring import Scorer
from worker.engine.share import Share
from worker.engine.thread import Engine
from worker.model.adapters import Adapters
from worker.model.ahead import Ahead
from worker.model.failures import LoadError, explain
from worker.model.loading import Model, load
from worker.public import PublicPort
from worker.serving import WorkerServer
from worker.shard.ranks import Ranks, gather, no_shards

log = logging.getLogger(__name__)

Say = Callable[[Status], None]
Route = Callable[[Exchange], Awaitable[None]]

KEEP_ALIVE_S: Final = 120
"""Longer than the supervisor keeps idle connections, so that it never sends on one we are closing."""
STOP_GRACE_S: Final = 2.0
"""What open answers get after SIGTERM; the supervisor drains first and kills 3 s after the signal. One that
serves without a supervisor is told how long."""
_FAREWELL_S: Final = 0.5
"""What answers get to send the error they were ended with."""
_HEARTBEAT_S: Final = 1.0


class App:
    """One worker: the ASGI application and everything behind it."""

    def __init__(
        self,
        record: LaunchRecord,
        say: Say,
        bound: Callable[[Path], None],
        engine: Engine,
        ahead: Ahead,
    ) -> None:
        self.record = record
        self._ahead = ahead
        self._say = say
        self._bound = bound
        self._feed = Feed()
        options = record.options
        self._admission = Admission(rows=options.max_concurrency, queue=options.queue)
        self._engine = engine
        engine.attach(self)
        self._jobs = Jobs(self._engine, self._admission, self._feed)
        self._model: Model | None = None
        self._models: Models | None = None
        self._state: PromptState | None = None
        self._share: Share | None = None
        self._completions: Completions | None = None
        self._progress = Progress("weights")
        self._ranks: Ranks | None = None
        """The other machines that compute this model, when there are any."""
        self._died: BaseException | None = None
        self._ending = asyncio.Event()
        self._working_set_bytes = working_set_bytes()
        self._readings = 0
        admin = self._admin = Admin(
            record=record,
            engine=self._engine,
            admission=self._admission,
            feed=self._feed,
            jobs=self._jobs,
            read_memory=self._read_memory,
        )
        self._routes: dict[str, dict[str, Route]] = {
            "/admin/health": {"GET": admin.health},
            "/admin/lease": {"POST": admin.lease},
            "/admin/drain": {"POST": admin.drain},
            "/admin/memory": {"GET": admin.memory},
            "/admin/cache": {"GET": admin.cache},
            "/admin/memory/trim": {"POST": admin.trim},
            "/admin/memory/limit": {"POST": admin.limit},
            "/admin/memory/complete": {"POST": admin.complete},
            "/admin/events": {"GET": admin.events},
            "/admin/adapters": {"POST": admin.adapters},
            "/v1/models": {"GET": self._not_loaded},
            "/v1/chat/completions": {"POST": self._not_loaded},
            "/v1/completions": {"POST": self._not_loaded},
            "/v1/decisions": {"POST": self._not_loaded},
            "/v1/embeddings": {"POST": self._not_loaded},
            "/v1/messages": {"POST": self._not_loaded},
            "/v1/messages/count_tokens": {"POST": self._not_loaded},
            "/v1/responses": {"POST": self._not_loaded},
            "/v1/responses/input_tokens": {"POST": self._not_loaded},
            "/v1/systemone": {"POST": self._not_loaded},
        }

    def stop(self) -> None:
        """End gracefully; may be called from a signal handler of the loop."""
        self._ending.set()

    @property
    def open_replies(self) -> int:
        """Replies whose rows are not out of the engine yet."""
        return 0 if self._completions is None else self._completions.open_replies

    async def run(self) -> int:
        """Serve until told to stop. Returns the exit code."""
        if self.record.public is not None:
            return await self._serve_on(self._public_server(self.record.public))
        path = Path(self.record.socket)
        try:
            listener = bind_private(path)
        except SocketPathError as error:
            return self._fail(FailureKind.SOCKET, str(error))
        self._bound(path)
        try:
            return await self._serve_on(
                WorkerServer(self, listener, keep_alive_s=KEEP_ALIVE_S, accept=_is_ours)
            )
        finally:
            unlink_quietly(path)

    async def _serve_on(self, server: WorkerServer) -> int:
        await server.start()
        try:
            return await self._serve()
        finally:
            await server.stop(grace_s=_FAREWELL_S)
            self._engine.stop()

    def _public_server(self, public: Public) -> WorkerServer:
        """On the port that we were given, with the access policy before the routes of the APIs."""
        posted = (path for path, methods in self._routes.items() if "POST" in methods)
        port = PublicPort(
            self,
            public,
            model=self.record.model,
            paths=frozenset(path.encode() for path in posted if path.startswith("/v1/")),
            models=self._listed,
            is_stopping=self._ending.is_set,
        )
        return WorkerServer(
            port,
            socket.socket(fileno=public.listener),
            keep_alive_s=KEEP_ALIVE_S,
            accept=lambda _: True,
            is_public=True,
        )

    def _listed(self) -> Models:
        if self._models is None:
            raise loading()
        return self._models

    async def _serve(self) -> int:
        ending = asyncio.create_task(self._ending.wait())
        loading_model = asyncio.create_task(self._load())
        try:
            await asyncio.wait({ending, loading_model}, return_when=asyncio.FIRST_COMPLETED)
            if loading_model.done():
                loading_model.result()
            await ending
            if self._died is not None and self._model is None:
                died = self._died
                raise died if isinstance(died, LoadError) else LoadError(FailureKind.OTHER, str(died))
        except LoadError as error:
            return self._fail(error.kind, str(error))
        finally:
            ending.cancel()
            loading_model.cancel()
        if self._died is not None:
            return ExitCode.ENGINE
        await self._finish_answers()
        return ExitCode.OK

    async def _finish_answers(self) -> None:
        """Let open answers end by themselves for a while, then with an error of their own."""
        idle = asyncio.Event()
        self._admission.drain(idle.set)
        public = self.record.public
        grace_s = STOP_GRACE_S if public is None else public.drain_s
        ends_at = time.monotonic() + max(grace_s, STOP_GRACE_S)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await idle.wait()
        if self._state is not None and idle.is_set():
            # Drained before it was told to stop, it has nothing left to save.
            await self._state.save(ends_at - time.monotonic())
        stopping = PublicError(503, "stopping", "This model is being stopped; try again.", retry_after_s=1)
        self._jobs.fail_all(stopping)
        if self._completions is not None:
            self._completions.fail_all(stopping)
            self._completions.close()

    async def _load(self) -> None:
        """Load on the engine's thread, generate one token, and open the routes. Raises LoadError."""
        record, started = self.record, time.monotonic()
        beat = asyncio.create_task(self._beat())
        try:
            self._ranks = ranks = await gather(record, self._engine, self._lose)
            if ranks is not None:
                self._jobs.refusal = no_shards("This")
            model = await self._engine.call(
                lambda: load(Path(record.directory), record.options, self._note_progress, self._ahead)
            )
            self._note_progress(Progress("warmup"))
            state = await self._keep_state(model)
            embedder = make_embedder(model, record.options)
            assert self._share is not None
            # What is on the disk is looked at meanwhile.
            await asyncio.gather(
                self._engine.open(
                    lambda: open_engine(model, record.options, state.cache, embedder, self._ranks)
                ),
                self._open_saved(model, state),
            )
            self._bound_scores(model, self._share)
            mounts = await self._mount(model, state)
        except LoadError:
            raise
        except Exception as error:
            log.exception("the first token failed")
            raise explain(error, "the first token failed") from error
        finally:
            beat.cancel()
        self._model = model
        completions = self._completions = self._admin.completions = Completions(
            model_id=record.model,
            model=model,
            engine=self._engine,
            admission=self._admission,
            feed=self._feed,
            state=state,
            sampling=record.options.sampling,
            mounts=mounts,
            thinking=record.options.thinking,
            template_arguments=record.options.chat_template_kwargs,
        )
        self._state = self._admin.state = state
        self._engine.chore = state.chore
        self._jobs.make_room = lambda: state.make_room(self._admission.rows_bytes)
        chat = Chat(completions, _fingerprint(record))
        models = self._models = Models(
            record.model, created=int(time.time()), context_window=model.context_window
        )
        self._routes["/v1/chat/completions"] = {"POST": chat}
        messages = Messages(completions)
        self._routes["/v1/messages"] = {"POST": messages}
        self._routes["/v1/messages/count_tokens"] = {"POST": messages.count}
        step = record.options.prefill_step
        prompt_scorer = PromptScorer(model.network, prefill_step=step, prompts=state.cache)
        texts = TextCompletions(completions, self._jobs, _fingerprint(record), prompt_scorer)
        self._routes["/v1/completions"] = {"POST": texts}
        scorer = Scorer(model.network, prefill_step=step, prompts=state.cache)
        decisions = Decisions(completions, self._jobs, scorer)
        self._routes["/v1/decisions"] = {"POST": DecisionsRoute(decisions)}
        self._routes["/v1/systemone"] = {"POST": SystemOneRoute(decisions)}
        embeddings = None
        if model.embedding is not None and embedder is not None:
            embeddings = Embeddings(completions, self._jobs, model.embedding, embedder)
        self._routes["/v1/embeddings"] = {"POST": EmbeddingsRoute(embeddings, model_id=record.model)}
        self._routes["/v1/models"] = {"GET": models}
        self._routes["/v1/responses"] = {"POST": Responses(completions)}
        self._routes["/v1/responses/input_tokens"] = {"POST": InputTokens(completions)}
        self._say(
            Ready(
                socket=record.socket,
                model=record.model,
                pid=os.getpid(),
                capabilities=model.capabilities,
                context_window=model.context_window,
                memory=self._read_memory(),
                load_s=time.monotonic() - started,
            )
        )

    def _bound_scores(self, model: Model, share: Share) -> None:
        """Let steps compute with what the share leaves for that, whenever it changes."""

        def bound(room: Room) -> None:
            self._engine.bound_scores(most_scores(model, room.pass_bytes))

        share.on_room = bound
        bound(share.room)

    async def _mount(self, model: Model, state: PromptState) -> Mounts:
        """Load the adapters that the record names. Raises LoadError."""
        adapters = Adapters(model.network)

        def forget(identity: str) -> None:
            self._engine.call(lambda: state.cache.forget(identity))

        mounts = Mounts(adapters, self._engine, self._admission, forget)
        for name, path in self.record.options.adapters.items():
            try:
                await mounts.mount(name, path)
            except PublicError as error:
                # Nobody else changes what is mounted now: the folder is what is wrong.
                raise LoadError(FailureKind.UNUSABLE, f"adapter {name!r}: {error.message}") from error
        self._engine.select = adapters.select
        if self._ranks is not None:
            mounts.refusal = no_shards("Mounting an adapter")
        return mounts

    def _lose(self, loss: LoadError) -> None:
        """A rank is gone. At our own end they all go."""
        if self._died is None and not self._ending.is_set():
            self.on_death(loss)

    def _note_progress(self, progress: Progress) -> None:
        """From the engine's thread: only the last one matters."""
        self._progress = progress

    async def _beat(self) -> None:
        """Progress, at once and every second: a sign of life while native code loads."""
        while True:
            self._say(self._progress)
            await asyncio.sleep(_HEARTBEAT_S)

    def _fail(self, kind: FailureKind, message: str) -> int:
        self._say(Failed(kind, message))
        return ExitCode.FAILED

    def on_report(self, report: Report) -> None:
        """The engine took a step."""
        assert self._completions is not None
        self._completions.on_report(report)

    def on_death(self, error: BaseException) -> None:
        """The engine's thread is gone; nothing can be answered any more."""
        log.error("the engine died", exc_info=error)
        log.error("the engine died: %s: %s", type(error).__name__, error)
        self._died = error
        dead = PublicError(502, "engine_unavailable", "The engine died; it is being restarted.")
        self._jobs.fail_all(dead)
        if self._completions is not None:
            self._completions.fail_all(dead)
        self._ending.set()

    def _read_memory(self) -> Memory:
        model, share = self._model, self._share
        self._readings += 1
        return read_memory(
            weights_bytes=0 if model is None else model.weights_bytes,
            draft_bytes=0 if model is None or model.draft is None else model.draft.weights_bytes,
            kv_bytes=self._engine.kv_bytes,
            prompt_cache_bytes=0 if self._state is None else self._state.nbytes,
            reserved_bytes=0 if share is None else share.reserved_bytes,
            wanted_bytes=0 if share is None else share.wanted_bytes,
            wanted_to_go_on=self._admission.wants_to_go_on,
            stalled=self._admission.stalled,
            number=self._readings,
            working_set=self._working_set_bytes,
        )

    async def _keep_state(self, model: Model) -> PromptState:
        """Find out how much there may be of rows and of what is kept of them."""
        options = self.record.options

        def prepare() -> tuple[Needs, int]:
            bound_allocator(self._working_set_bytes)
            needs = measure(model.network) if model.writes else Needs()
            draft = None if model.draft is None else measure(model.draft.network)
            return msgspec.structs.replace(needs, draft=draft), process_bytes()

        needs, beside_bytes = await self._engine.call(prepare)
        share = self._share = self._admin.share = Share(
            self._admission,
            needs,
            options,
            weights_bytes=model.weights_bytes + (0 if model.draft is None else model.draft.weights_bytes),
            working_set_bytes=self._working_set_bytes,
            keeps_prompts=model.writes,
            process_bytes=beside_bytes,
        )
        self._admission.on_want = self._feed.nudge
        prompt_bytes = share.room.prompt_bytes if model.writes else 0
        cache = PromptCache(prompt_bytes) if self._ranks is None else self._ranks.cache(prompt_bytes)
        state = PromptState(self._engine, cache, room_bytes=share.room.kv_bytes, cuttable=needs.cuttable)
        share.state = state
        return state

    async def _open_saved(self, model: Model, state: PromptState) -> None:
        """Find out what is on the disk of earlier prompts, unless nothing is to be kept there."""
        options = self.record.options
        if options.saved_state is not None and model.writes and self._ranks is None:
            computed = f"{mx.default_device()} {model.weights_bytes}"
            await state.open(
                Path(options.saved_state), Path(self.record.directory), computed, options.saved_state_bytes
            )

    async def _not_loaded(self, exchange: Exchange) -> None:
        raise loading()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """The ASGI application."""
        exchange = Exchange(scope, receive, send)
        REQUEST_ID.set(exchange.header(b"x-request-id"))
        try:
            await self._dispatch(exchange)
        except ClientGone:
            log.debug("%s %s: the client went away", exchange.method, exchange.path)
        except PublicError as error:
            await exchange.fail(error)
        except Exception:
            log.exception("%s %s failed", exchange.method, exchange.path)
            await exchange.fail(PublicError(500, "internal_error", "Something in the worker went wrong."))

    async def _dispatch(self, exchange: Exchange) -> None:
        methods = self._routes.get(exchange.path)
        if methods is None:
            head, _, action = exchange.path.rpartition("/")
            parent, _, request_id = head.rpartition("/")
            if parent == "/admin/requests" and action == "cancel" and request_id:
                methods = {"POST": lambda exchange: self._admin.cancel(exchange, request_id)}
        if methods is None:
            raise PublicError(404, "not_found", "There is no such route.")
        route = methods.get(exchange.method)
        if route is None:
            allow = ", ".join(methods).encode()
            raise PublicError(
                405,
                "method_not_allowed",
                f"{exchange.method} is not allowed here.",
                headers=((b"allow", allow),),
            )
        await route(exchange)


def _is_ours(connection: Any) -> bool:
    """Whether to serve a connection: the socket's mode is the first wall, this the second."""
    if is_own_peer(connection):
        return True
    log.warning("refused a connection of another user")
    return False


def _fingerprint(record: LaunchRecord) -> str:
    """Equal as long as equal seeds give equal text: same model, versions and backend."""
    mlx = importlib.metadata.version("mlx")
    parts = (record.model, record.directory, __version__, mlx, str(mx.default_device()))
    return "fp_" + hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]
