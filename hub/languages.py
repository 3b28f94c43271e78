"""The languages of multilingual translators (mBART, M2M-100, NLLB): codes of a tokenizer, first tokens of outputs."""

from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from vanillaformer.configuration.options import DECODING_CHOICES

from .checks import few


def set_languages(tokenizer: PreTrainedTokenizerBase, source: str | None, target: str | None) -> None:
    """Set the languages that a multilingual tokenizer (mBART, M2M-100, NLLB) marks in sources and targets, by codes.

    One that was saved with both keeps them where none are given. Raises ValueError for codes that it does not have.
    """
    multilingual: Any = tokenizer
    known = list(getattr(tokenizer, "lang_code_to_id", tokenizer.extra_special_tokens))
    if not known or not (hasattr(tokenizer, "src_lang") and hasattr(tokenizer, "tgt_lang")):
        if source or target:
            raise ValueError(f"--source_lang {source} --target_lang {target}: the tokenizer has no codes of languages")
        return
    saved = tokenizer.init_kwargs.get("src_lang"), tokenizer.init_kwargs.get("tgt_lang")
    chosen = saved if all(saved) and source is None and target is None else (source, target)
    if not set(chosen) <= set(known):
        raise ValueError(
            f"--source_lang {source} --target_lang {target}: the tokenizer is multilingual, and both must be one of "
            f"its codes: {few(known)}"
        )
    multilingual.src_lang, multilingual.tgt_lang = chosen


def set_language(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Make a model translate into the target language of a multilingual tokenizer, by its generation config.

    mBART has the language at the end of a target, and starts from it; others write it first. A model that predicts all
    tokens at once takes no first one.
    """
    parallel = DECODING_CHOICES[getattr(model.config, "decoding", "autoregressive")].is_parallel
    if getattr(tokenizer, "tgt_lang", None) is None or parallel:
        return
    ids = tokenizer(text_target="")["input_ids"]
    if len(ids) < 2:  # FSMT's, which has no tokens of languages
        return
    *_, first, last = ids
    if last == tokenizer.eos_token_id:
        model.generation_config.forced_bos_token_id = first
    if last != tokenizer.eos_token_id or model.config.decoder_start_token_id is None:
        model.config.decoder_start_token_id = model.generation_config.decoder_start_token_id = last
