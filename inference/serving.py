"""The server of one model: transformers' handlers, with requests checked first, and no other endpoints.

An answer ends before the first stop sequence, also when it is streamed.
"""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from contextvars import ContextVar
from typing import Any, cast

import torch
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from jinja2 import TemplateError
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware
from transformers import LogitsProcessor, LogitsProcessorList, StoppingCriteria, StoppingCriteriaList
from transformers.cli.serving import utils
from transformers.cli.serving.chat_completion import ChatCompletionHandler
from transformers.cli.serving.completion import CompletionHandler
from transformers.cli.serving.server import build_server

from vanillaformer.console.reporting import one_line
from vanillaformer.data.dialogue import CHAT_TEMPLATE

from .requests import Limits, RequestError, check_chat, check_completion, new_tokens

LOCAL = ("localhost", "127.0.0.1", "::1", "[::1]")

BODY: ContextVar[dict[str, Any]] = ContextVar("body")  # body of the request, with a list of stop sequences
GONE: ContextVar[threading.Event] = ContextVar("gone")


def stopped(text: str, stops: Sequence[str]) -> str:
    """Return a text up to its first stop sequence."""
    return text[: min((text.find(stop) for stop in stops if stop in text), default=len(text))]


class StopText(StoppingCriteria):
    """Ends a generation once the text after the prompt has a stop sequence, or once its client has gone."""

    def __init__(self, stops: Sequence[str], tokenizer: Any, prompt_length: int):
        self.stops, self.tokenizer, self.prompt_length = stops, tokenizer, prompt_length
        self.gone, self.ids = GONE.get(), cast("Any", [])

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        self.ids = input_ids[0, self.prompt_length :]
        ends = self.gone.is_set() or any(stop in self.text() for stop in self.stops)
        return input_ids.new_full((len(input_ids),), ends).bool()

    def text(self) -> str:
        return self.tokenizer.decode(self.ids, skip_special_tokens=True)


class SeedOnce(LogitsProcessor):
    """Sets the seed of a request when its generation starts: requests wait for each other, and share the generator."""

    def __init__(self, seed: int):
        self.seed: int | None = seed

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        if self.seed is not None:
            torch.manual_seed(self.seed)
            self.seed = None
        return scores


class StoppedAnswer:
    """Stands for a generation manager of transformers, and for its queue of pieces, for one answer.

    Text that could be the beginning of a stop sequence is held back until that is clear. The streamer does so with an
    incomplete character, and drops it at the end.
    """

    def __init__(self, manager: Any, criterion: StopText, config: Any):
        self.manager, self.criterion, self.stops, self.config = manager, criterion, criterion.stops, config
        self.held = self.received = ""
        self.ready: list[Any] = []

    def generate_streaming(self, *given: Any, **named: Any) -> tuple[Any, Any]:
        self.queue, self.streamer = self.manager.generate_streaming(*given, **named)
        return self, self.streamer

    async def generate_non_streaming(self, *given: Any, **named: Any) -> tuple[str, int, Any]:
        text, prompt_length, ids = await self.manager.generate_non_streaming(*given, **named)
        return self.cut(text), prompt_length, ids

    async def get(self) -> Any:
        return self.ready.pop(0) if self.ready else self.released(await self.queue.get())

    def get_nowait(self) -> Any:
        return self.ready.pop(0) if self.ready else self.released(self.queue.get_nowait())

    def cut(self, text: str) -> str:
        kept = stopped(text, self.stops)
        if kept != text:
            self.config.max_new_tokens = None  # so that the finish reason is not "length"
        return kept

    def released(self, piece: Any) -> Any:
        """Return what can be sent after a piece: text, or the end (`None`) and other objects unchanged."""
        if type(piece) is not str:
            whole = self.criterion.text() if piece is None else ""
            dropped = whole[len(self.received) :] if whole.startswith(self.received) else ""
            text, self.held = self.cut(self.held + dropped), ""
            self.ready += [piece] if text else []
            return text or piece
        self.held, self.received = self.held + piece, self.received + piece
        text = self.cut(self.held)
        if text != self.held:
            self.ready.append(None)
            self.streamer.cancel()
        else:
            starts = {stop[:size] for stop in self.stops for size in range(1, len(stop))}
            unclear = max((len(start) for start in starts if text.endswith(start)), default=0)
            text = text[: len(text) - unclear]
        self.held = self.held[len(text) :]
        return text


def check_shared(first: Any, asked: Any) -> None:
    """Raise RequestError for what transformers would ignore in continuous batching, where requests share settings."""
    for name in ("frequency_penalty", "logit_bias"):
        if BODY.get().get(name):
            raise RequestError(f"{name} is not supported with --continuous-batching")

    def sampling(config: Any) -> dict[str, float]:
        given = {name: value for name, value in vars(config).items() if value is not None}
        return {name: given.get(name, 1.0) for name in ("temperature", "top_p") if given.get("do_sample")}

    if sampling(asked) != sampling(first):
        words = [", ".join(f"{name} {value}" for name, value in sampling(each).items()) for each in (first, asked)]
        kept, other = (text or "greedy search" for text in words)
        raise RequestError(f"--continuous-batching serves all requests as the first one, with {kept}, not {other}")


class Limited:
    """Applies the limits, stop sequences and model name of a request, in the handlers of both endpoints."""

    limits: Limits
    model_manager: Any

    def _resolve_model(self, body: dict[str, Any]) -> tuple[str, Any, Any]:
        _, model, processor = super()._resolve_model(body)  # type: ignore[misc]
        return self.model_manager.force_model, model, processor  # as clients know it, without a revision

    def _build_generation_config(self, body: dict[str, Any], *given: Any, **named: Any) -> Any:
        config = super()._build_generation_config(body, *given, **named)  # type: ignore[misc]
        if {"temperature", "top_p"} & body.keys():  # a model that is greedy by default would ignore them
            config.do_sample = body.get("temperature") != 0
        return config

    def _limited(self, given: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
        """Return the arguments of `_streaming` or `_non_streaming`, with the limits of the request."""
        request_id, model, processor, model_id, inputs, generation_config, *more = given
        ids, batched = inputs["input_ids"], isinstance(inputs["input_ids"], list)
        prompt = len(ids) if batched else ids.shape[-1]
        positions = getattr(model.config, "max_position_embeddings", None)
        largest = model.config.get_text_config().vocab_size - 1
        if unknown := [token for token in BODY.get().get("logit_bias", {}) if int(token) > largest]:
            raise RequestError(f"logit_bias={unknown[0]!r:.80}: the model has tokens from 0 to {largest:,}")
        generation_config.max_new_tokens = new_tokens(BODY.get(), prompt, positions, self.limits)
        if stops := BODY.get()["stop"]:
            generation_config.stop_strings = None  # they would also find what begins in the prompt
        criterion = StopText(stops, processor, prompt)
        holder: Any
        holder, key = (named, "gen_manager") if "gen_manager" in named else (more, 0)
        if batched:
            check_shared(holder[key]._cb.generation_config, generation_config)
        holder[key] = StoppedAnswer(holder[key], criterion, generation_config)
        seed = BODY.get().get("seed")
        if not batched:  # continuous batching takes no criteria
            seeds = LogitsProcessorList([] if seed is None else [SeedOnce(seed)])
            inputs = {**inputs, "stopping_criteria": StoppingCriteriaList([criterion]), "logits_processor": seeds}
        elif seed is not None:
            torch.manual_seed(seed)
        return (request_id, model, processor, model_id, inputs, generation_config, *more)

    def _streaming(self, *given: Any, **named: Any) -> Any:
        return super()._streaming(*self._limited(given, named), **named)  # type: ignore[misc]

    async def _non_streaming(self, *given: Any, **named: Any) -> Any:
        return await super()._non_streaming(*self._limited(given, named), **named)  # type: ignore[misc]


class LimitedChat(Limited, ChatCompletionHandler):
    """Answers /v1/chat/completions."""

    def _resolve_model(self, body: dict[str, Any]) -> tuple[str, Any, Any]:
        name, model, processor = super()._resolve_model(body)
        if processor.chat_template is None:
            raise RequestError("the model has no chat template: use /v1/completions")
        if processor.chat_template == CHAT_TEMPLATE:  # or transformers would parse Qwen's answers by Qwen's template
            utils._RESPONSE_TEMPLATE_FALLBACKS.clear()
        return name, model, processor

    def _build_completion(self, request_id: str, content: str, *given: Any, **named: Any) -> Any:
        content = stopped(content, BODY.get()["stop"])  # parsed again if the model has a response template
        return super()._build_completion(request_id, content, *given, **named)


class LimitedCompletion(Limited, CompletionHandler):
    """Answers /v1/completions."""


def builder(limits: Limits, host: str) -> Callable[..., FastAPI]:
    """Return a function that builds the app in place of transformers' `build_server`, with the same arguments.

    On a local address, other host names are refused, so that no web page reaches the server by pointing its own name
    to this machine (DNS rebinding).
    """

    def build(manager: Any, chat_handler: Any, *handlers: Any, **named: Any) -> FastAPI:
        app = build_server(manager, chat_handler, *handlers, **named)
        app.router.routes = [route for route in app.router.routes if getattr(route, "path", None) == "/health"]
        chat = LimitedChat(manager, chat_handler.generation_state, chat_handler.chat_template_kwargs)
        completion = LimitedCompletion(manager, chat_handler.generation_state)
        chat.limits = completion.limits = limits
        add_endpoint(app, "/v1/chat/completions", chat, check_chat)
        add_endpoint(app, "/v1/completions", completion, check_completion)
        started = int(time.time())
        shut_down, state = manager.shutdown, chat_handler.generation_state
        manager.shutdown = lambda: (state.shutdown(), shut_down())  # or continuous batching would not let it end

        @app.post("/load_model")  # `transformers chat` requests it first
        async def ready(request: Request) -> Response:
            model = (await json_body(request, limits.max_body_bytes)).get("model")
            if model != manager.force_model:
                raise RequestError(f"model={model!r:.80}: this server serves only {manager.force_model}", 404)
            return Response('data: {"status": "ready", "cached": true}\n\n', media_type="text/event-stream")

        @app.get("/v1/models")
        def models() -> dict[str, Any]:
            model = {"id": manager.force_model, "object": "model", "created": started, "owned_by": "local"}
            return {"object": "list", "data": [model]}

        app.add_exception_handler(RequestError, lambda _, error: refusal(one_line(error), error.status))
        app.add_exception_handler(HTTPException, lambda _, error: refusal(str(error.detail), error.status_code))
        app.add_exception_handler(Exception, lambda *_: refusal("the server failed: see its log", 500))
        if host in LOCAL:
            app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(LOCAL), www_redirect=False)
        return app

    return build


def refusal(message: str, status: int) -> JSONResponse:
    """Return an error in the format of the protocol."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return JSONResponse({"error": {"message": message, "type": kind, "param": None, "code": None}}, status)


def add_endpoint(app: FastAPI, path: str, handler: Any, check: Callable[[dict[str, Any], Limits], None]) -> None:
    """Add an endpoint whose requests are checked before the handler sees them."""

    @app.post(path)
    async def endpoint(request: Request) -> Response:
        body = await json_body(request, handler.limits.max_body_bytes)
        check(body, handler.limits)
        stop = body.get("stop", [])
        BODY.set({**body, "stop": [stop] if isinstance(stop, str) else stop})
        body.pop("max_new_tokens", None)  # unknown to the handlers; the limits cover it
        body.pop("seed", None)  # the handlers would set it during the answer to another request
        try:
            return await answered(request, handler.handle_request(body, request.state.request_id))
        except RequestError:
            raise
        except (ValueError, TemplateError) as error:  # the template rejects such messages, or is missing
            raise RequestError(one_line(error)) from error


async def json_body(request: Request, largest: int) -> dict[str, Any]:
    """Return the fields of a request that are not null.

    Raises RequestError if the body is too large, not a JSON object, or not declared as JSON: a web page cannot send
    that without asking (CORS).
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise RequestError(f"content-type {kind!r}: it must be application/json", 415)
    collected = bytearray()
    async for part in request.stream():
        collected += part
        if len(collected) > largest:
            raise RequestError(f"the body has more than {largest:,} bytes", 413)
    try:
        body = json.loads(bytes(collected))
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the body is not JSON: {str(error)[:200]}") from error
    if not isinstance(body, dict):
        raise RequestError(f"the body must be a JSON object, got a {type(body).__name__}")
    return {name: value for name, value in body.items() if value is not None}


async def answered(request: Request, work: Coroutine[Any, Any, Response]) -> Response:
    """Return a handler's answer; if the client disconnects before, make the handler stop generating."""
    gone = threading.Event()
    GONE.set(gone)
    task = asyncio.create_task(work)
    watch = asyncio.ensure_future(request.receive())  # after the body, only a disconnect arrives
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            gone.set()  # and wait: the thread that generates reports to the task
        return await task
    finally:
        watch.cancel()
