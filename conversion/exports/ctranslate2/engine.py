"""Our exports on CTranslate2: generation, scores, and the states that our own heads classify."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from ..engine import Engine, Rows, Search, StatesOfEngine, exported_model, model_class_of, padded, read_record

HEAD = "head.safetensors"  # the weights after the stack of a classifier or a masked language model
RUNNERS = {"encoder_decoder": "Translator", "decoder": "Generator", "encoder": "Encoder"}
ALIBI_STEP = 2048
"""Tokens by which the engine extends its table of ALiBi's biases, once per call; its answers are wrong beyond that."""


class CTranslate2Engine(Engine):
    """Runs all model types; beam search stops with `num_beams` finished texts, as with `early_stopping=True`."""

    def __init__(self, ctranslate2: Any, folder: Path, device: str = "cpu"):
        super().__init__(*exported_model(folder))
        self.ctranslate2 = ctranslate2
        self.model_options = {"model_path": str(folder), "device": device}
        self.threads = torch.get_num_threads()
        self.runners: dict[bool, Any] = {}
        self.close()
        self.source, self.target = read_vocabularies(folder)
        self.generates = not (folder / HEAD).is_file()
        self.start = self.start_token()  # fixed in the engine's files
        # ALiBi is prepared in one thread
        self.divides = self.generates and device == "cpu" and self.config.position_embedding_type != "alibi"
        self.runner(self.divides)
        if not self.generates:
            with torch.device("meta"):
                self.head = model_class_of(read_record(folder))(self.config)
            self.head.model = StatesOfEngine(self.states)
            self.head.load_state_dict(load_file(folder / HEAD), assign=True)
            self.head.eval()

    def close(self) -> None:
        """Drop the loaded model and its prepared biases; it is loaded again when it is needed."""
        self.runners.clear()
        self.prepared = 0

    def runner(self, divided: bool) -> Any:
        """Return the loaded model, whose threads divide the rows, or else each product.

        Generated tokens are small products: two threads that divide the rows take about half of the time, two that
        divide each product often take more than a single one.
        """
        if divided not in self.runners:
            shape = (self.threads, 1) if divided else (1, self.threads)
            options = self.model_options | dict(zip(("inter_threads", "intra_threads"), shape))
            self.runners[divided] = getattr(self.ctranslate2, RUNNERS[self.kind])(**options)
            torch.set_num_threads(self.threads)  # the engine has changed it for the whole process
        return self.runners[divided]

    def generate_rows(self, prompts: Rows, search: Search) -> list[list[int]]:
        if search.early_stopping == "never" and search.num_beams > 1:
            raise ValueError("early_stopping='never': CTranslate2 stops as soon as num_beams texts are finished")
        options: dict[str, Any] = {
            "beam_size": search.num_beams,
            "length_penalty": search.length_penalty,
            "end_token": self.end_tokens(),
            "sampling_topk": 1,
            "suppress_sequences": [[self.target[token]] for token in search.suppress_tokens] or None,
        }
        if search.do_sample:
            options |= {"sampling_topp": search.top_p, "sampling_temperature": search.temperature}
            options["sampling_topk"] = search.top_k if search.top_k < len(self.target) else 0  # 0 is all
            if search.seed is not None:  # it is read when a thread of the engine draws for the first time
                self.ctranslate2.set_random_seed(search.seed)
                self.close()
        divided = self.divides and not search.do_sample
        if divided:
            options["max_batch_size"] = math.ceil(len(prompts) / self.threads)
        if self.kind == "decoder":
            self.prepare(prompts)
            return self.continue_prompts(prompts, search.max_new_tokens, divided, options)
        if (start := self.start_token()) != self.start:  # of another language (mBART)
            raise ValueError(f"decoder_start_token_id={start}: this CTranslate2 model always starts from {self.start}")
        begun = [] if search.forced_bos_token_id is None else [self.target[search.forced_bos_token_id]]
        results = self.run(
            "translate_batch",
            token_names(self.source, prompts),
            target_prefix=[begun] * len(prompts) if begun else None,
            divided=divided,
            max_decoding_length=search.max_new_tokens,
            min_decoding_length=0,  # 1 by default: no empty translation
            max_input_length=0,  # by default the source is cut
            **options,
        )
        ids = {token: token_id for token_id, token in enumerate(self.target)}
        return [[ids[token] for token in result.hypotheses[0]] for result in results]

    def continue_prompts(
        self, prompts: Rows, max_new_tokens: int, divided: bool, options: dict[str, Any]
    ) -> list[list[int]]:
        """Return the continuations of prompts, in groups that the engine continues correctly.

        It miscounts distances after a prompt that it reads at once: with a relative bias it reads token by token.
        """
        continuations: dict[int, list[int]] = {}
        whole = self.config.position_embedding_type == "relative"
        for numbers in groups(prompts, whole, options["beam_size"]):
            batch = token_names(self.source, [prompts[number] for number in numbers])
            length = max_new_tokens + (len(batch[0]) - 1 if whole else 0)
            options |= {"max_length": length, "include_prompt_in_result": whole}
            results = self.run("generate_batch", batch, divided=divided, **options)
            for number, result in zip(numbers, results):
                continuations[number] = list(result.sequences_ids[0])[len(prompts[number]) if whole else 0 :]
        return [continuations[number] for number in range(len(prompts))]

    def prepare(self, rows: Rows) -> None:
        """Let the engine extend its biases for the longest row, in steps that it computes correctly."""
        longest = max(rows, key=len)
        while self.config.position_embedding_type == "alibi" and len(longest) >= self.prepared + ALIBI_STEP:
            self.runner(False).forward_batch([longest[: self.prepared + 1]])
            self.prepared += ALIBI_STEP

    def run(self, method: str, *arguments: Any, divided: bool = False, **options: Any) -> Any:
        """Call the engine; its errors are reported as errors of the input."""
        try:
            return getattr(self.runner(divided), method)(*arguments, **options)
        except RuntimeError as error:  # mostly a text longer than the position table
            limit = self.config.max_position_embeddings
            raise ValueError(f"CTranslate2: {error} (max_position_embeddings={limit})") from error

    def on_host(self, view: Any) -> np.ndarray:
        """Return an array of the engine in float32."""
        view = view.to_device(self.ctranslate2.Device.cpu)
        return np.array(view.to(self.ctranslate2.DataType.float32))

    def score(self, prompts: Rows, continuations: Rows) -> list[list[float]]:
        if self.kind == "decoder":
            rows = [[*prompt, *more] for prompt, more in zip(prompts, continuations)]
            self.prepare(rows)
            scores = self.on_host(self.run("forward_batch", rows, return_log_probs=True))
            return [
                [float(row[len(prompt) - 1 + position, token]) for position, token in enumerate(more)]
                for row, prompt, more in zip(scores, prompts, continuations)
            ]
        pairs = token_names(self.source, prompts), token_names(self.target, continuations)
        results = self.run("score_batch", *pairs, max_input_length=0)
        return [list(result.log_probs)[: len(more)] for result, more in zip(results, continuations)]

    def classify_rows(self, rows: Rows, token_type_ids: Rows | None) -> np.ndarray:
        ids, mask = padded(rows, self.config.pad_token_id or 0)
        batch = {"input_ids": ids, "attention_mask": mask}
        if token_type_ids is not None:
            batch["token_type_ids"] = padded(token_type_ids, 0)[0]
        with torch.no_grad():
            out = self.head(**batch)
        return (out.prediction_logits if "prediction_logits" in out else out.logits).numpy()

    def states(self, rows: Rows, token_type_ids: Rows | None = None) -> np.ndarray:
        """Return the stack's states (B, T, D); those of padding are undefined."""
        rows = [list(row) for row in rows]
        if self.kind == "decoder":
            if token_type_ids is not None:
                raise ValueError("token_type_ids: CTranslate2 has none in a decoder")
            self.prepare(rows)
            return self.on_host(self.run("forward_batch", rows))
        types = [list(row) for row in token_type_ids] if token_type_ids is not None else None
        if types is None and self.config.type_vocab_size:
            types = [[0] * len(row) for row in rows]
        return self.on_host(self.run("forward_batch", rows, token_type_ids=types).last_hidden_state)


def groups(prompts: Rows, by_word: bool, num_beams: int) -> list[list[int]]:
    """Return the numbers of the prompts that the engine continues correctly in one batch.

    A prompt of a single token makes it repeat parts of the others, and beams do not end at once after a prompt that
    is longer than another.
    """
    numbers = range(len(prompts))
    if by_word:
        return [[number] for number in numbers]
    kinds = [len(prompt) if num_beams > 1 else len(prompt) == 1 for prompt in prompts]
    return [[number for number in numbers if kinds[number] == kind] for kind in dict.fromkeys(kinds)]


def read_vocabularies(folder: Path) -> tuple[list[str], list[str]]:
    """Return the names of the tokens of source and target."""
    for names in (["vocabulary"], ["shared_vocabulary"], ["source_vocabulary", "target_vocabulary"]):
        paths = [folder / f"{name}.json" for name in names]
        if all(path.is_file() for path in paths):
            found = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
            return found[0], found[-1]
    raise ValueError(f"{folder} has no vocabulary file of CTranslate2")


def token_names(names: list[str], rows: Rows) -> list[list[str]]:
    """Return the names of tokens, the engine's input."""
    return [[names[token] for token in row] for row in rows]
