"""Pipelines of encoder-decoders, which transformers 5 dropped: translation, summarization, text2text-generation.

Importing the package registers them for every model that `AutoModelForSeq2SeqLM` loads. This file needs only
transformers: a pushed model has a copy of it, named in its config, so that
`pipeline("translation", ID, trust_remote_code=True)` works where the package is not installed.
"""

import copy
from pathlib import Path
from typing import Any

from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, GenerationConfig, Pipeline, pipelines

NEW_TOKENS = 256  # maximum if neither the call nor the model gives one, as in transformers' other pipelines
TARGET_SUBFOLDER = "target_tokenizer"


class Text2TextGenerationPipeline(Pipeline):
    """Text to text by `generate()`: `pipe("A text")` is `[{"generated_text": "..."}]`.

    A list of texts gives a list with one such dictionary for each, or a list of them if each text has several
    (`num_return_sequences`); a dataset or generator gives them one by one. `batch_size` texts are processed at a time.

    Keywords, of the pipeline or of a call: `prefix` is put before each text ("summarize: "); `src_lang` and `tgt_lang`
    are codes of a multilingual tokenizer; `truncation=True` cuts texts to the tokenizer's `model_max_length`; all
    others are those of `generate()`.
    """

    tokenizer: Any
    model: Any
    _load_tokenizer: Any = True
    _load_processor: Any = False
    _load_image_processor = _load_video_processor = _load_feature_extractor = _load_processor
    _pipeline_calls_generate = True
    result_key = "generated_text"

    def __init__(self, model: Any, tokenizer: Any, target_tokenizer: Any = None, **kwargs: Any):
        longest = getattr(model.config, "max_position_embeddings", None) or NEW_TOKENS
        self._default_generation_config = GenerationConfig(max_new_tokens=min(NEW_TOKENS, max(1, longest - 1)))
        if target_tokenizer is None and TARGET_SUBFOLDER in tokenizer.init_kwargs:  # of two vocabularies
            place = {"subfolder": TARGET_SUBFOLDER, "revision": getattr(model.config, "_commit_hash", None)}
            target_tokenizer = AutoTokenizer.from_pretrained(tokenizer.name_or_path, **place)
        self.target_tokenizer = target_tokenizer or tokenizer
        super().__init__(model=model, tokenizer=tokenizer, **kwargs)
        of_task = (getattr(model.config, "task_specific_params", None) or {}).get(self.task, {})  # T5's
        self.prefix = self.prefix or of_task.get("prefix")

    def _sanitize_parameters(
        self,
        prefix: str | None = None,
        truncation: Any = None,
        src_lang: str | None = None,
        tgt_lang: str | None = None,
        **generate_kwargs: Any,
    ) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        read = {"prefix": prefix, "truncation": truncation, "src_lang": src_lang}
        if tgt_lang is not None:
            self.set_language(self.tokenizer, "tgt_lang", tgt_lang)
            *_, first, last = self.tokenizer(text_target="")["input_ids"]
            # If the tokenizer puts a target's language last, the model starts from it (mBART)
            is_first = last == self.tokenizer.eos_token_id
            language = {"forced_bos_token_id": first} if is_first else {"decoder_start_token_id": last}
            generate_kwargs = language | generate_kwargs
        return {name: value for name, value in read.items() if value is not None}, generate_kwargs, {}

    def set_language(self, tokenizer: Any, name: str, code: str) -> None:
        """Set `src_lang` or `tgt_lang` of a tokenizer; raise ValueError for a code that it does not have."""
        codes = getattr(tokenizer, "lang_code_to_id", None) or tokenizer.extra_special_tokens
        if not hasattr(tokenizer, name):
            raise ValueError(f"{name}={code!r}: the tokenizer ({type(tokenizer).__name__}) has no languages")
        if code not in codes:
            raise ValueError(f"{name}={code!r} must be one of the tokenizer's codes: {', '.join(map(str, codes))}")
        setattr(tokenizer, name, code)

    def preprocess(  # type: ignore[override]  # with named parameters
        self, text: str, prefix: str | None = None, truncation: Any = False, src_lang: str | None = None
    ) -> Any:
        """Return the tokens of a text (1, S)."""
        if not isinstance(text, str):
            raise ValueError(f"a text must be a string, got {type(text).__name__}: {text!r:.60}")
        before = getattr(self.tokenizer, "src_lang", None)
        tokenizer = self.tokenizer if before is not None else copy.copy(self.tokenizer)  # it cannot be reset to None
        if src_lang is not None:
            self.set_language(tokenizer, "src_lang", src_lang)
        prefix = self.prefix if prefix is None else prefix
        inputs = tokenizer((prefix or "") + text, truncation=truncation, return_tensors="pt")
        if src_lang is not None and before is not None:
            tokenizer.src_lang = before  # a later call may give none
        return {name: inputs[name] for name in ("input_ids", "attention_mask")}

    def _forward(self, inputs: Any, **generate_kwargs: Any) -> Any:  # type: ignore[override]  # by another name
        output = self.model.generate(**inputs, **self._prepare_generate_kwargs(generate_kwargs))
        texts = len(inputs["input_ids"])
        return {"output_ids": output.reshape(texts, len(output) // texts, -1)}  # (B, sequences of each text, T)

    def postprocess(self, outputs: Any) -> list[dict[str, str]]:  # type: ignore[override]  # without options
        """Return the texts of the sequences (1, N, T)."""
        texts = self.target_tokenizer.batch_decode(outputs["output_ids"][0], skip_special_tokens=True)
        return [{self.result_key: text} for text in texts]

    def save_pretrained(self, save_directory: Any, **kwargs: Any) -> None:
        super().save_pretrained(save_directory, **kwargs)
        if self.target_tokenizer is not self.tokenizer:
            self.target_tokenizer.save_pretrained(Path(save_directory) / TARGET_SUBFOLDER)

    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the results for one text or several."""
        results = super().__call__(inputs, *args, **kwargs)
        single = isinstance(inputs, list) and all(len(result) == 1 for result in results)
        return [result[0] for result in results] if single else results


class SummarizationPipeline(Text2TextGenerationPipeline):
    """Summaries: `pipe("A text")` is `[{"summary_text": "..."}]`; otherwise as `Text2TextGenerationPipeline`."""

    result_key = "summary_text"


class TranslationPipeline(Text2TextGenerationPipeline):
    """Translations: `pipe("Text")` is `[{"translation_text": "..."}]`; otherwise as `Text2TextGenerationPipeline`."""

    result_key = "translation_text"


PIPELINES: dict[str, type[Pipeline]] = {
    "text2text-generation": Text2TextGenerationPipeline,
    "summarization": SummarizationPipeline,
    "translation": TranslationPipeline,
}


def register_pipelines() -> None:
    """Make `transformers.pipeline` know the tasks."""
    for task, pipeline_class in PIPELINES.items():
        getattr(pipelines, "REMOVED_TASKS", {}).pop(task, None)  # it refuses these names before it looks them up
        if task not in pipelines.PIPELINE_REGISTRY.supported_tasks:
            pipelines.PIPELINE_REGISTRY.register_pipeline(task, pipeline_class, AutoModelForSeq2SeqLM, type="text")


def custom_pipelines(module: str) -> dict[str, Any]:
    """Return the entry of a config that names the pipelines of the tasks in a module beside it."""
    return {
        task: {"impl": f"{module}.{pipeline_class.__name__}", "pt": ["AutoModelForSeq2SeqLM"], "type": "text"}
        for task, pipeline_class in PIPELINES.items()
    }
