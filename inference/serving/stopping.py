"""Stop sequences: an answer ends before the first of them, also where it is sent piece by piece."""

from collections.abc import Sequence
from typing import Any

from transformers import StoppingCriteria


def stop_sequences(body: dict[str, Any]) -> list[str]:
    """Return the stop sequences of a request."""
    stop = body.get("stop", [])
    return [stop] if isinstance(stop, str) else stop


def stopped(text: str, stops: Sequence[str]) -> str:
    """Return a text up to its first stop sequence."""
    return text[: min((text.find(stop) for stop in stops if stop in text), default=len(text))]


class StopText(StoppingCriteria):
    """Ends a generation once there is a stop sequence in the text after the prompt."""

    def __init__(self, stops: Sequence[str], tokenizer: Any, prompt_length: int):
        self.stops, self.tokenizer, self.prompt_length = stops, tokenizer, prompt_length

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        text = self.tokenizer.decode(input_ids[0, self.prompt_length :], skip_special_tokens=True)
        return input_ids.new_full((len(input_ids),), stopped(text, self.stops) != text).bool()


class StoppedAnswer:
    """One of transformers' managers for one answer, and the queue of its pieces.

    What could be the beginning of a stop sequence is held back until that is clear.
    """

    def __init__(self, manager: Any, stops: Sequence[str], config: Any):
        self.manager, self.stops, self.config = manager, stops, config
        self.held = ""
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
            self.config.max_new_tokens = None  # so that "length" is not why it ended
        return kept

    def released(self, piece: Any) -> Any:
        """Return what can be sent once a piece is there: text, or the end (`None`) and other objects as they are."""
        if type(piece) is not str:
            text, self.held = self.held, ""
            self.ready += [piece] if text else []
            return text or piece
        self.held += piece
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
