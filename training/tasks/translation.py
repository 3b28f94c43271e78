"""Train an encoder-decoder to translate, from scratch or from a saved model.

Without arguments: a small model on embedded data.

Examples:
  vanillaformer train-translation --preset transformer-base --train_file pairs.csv --max_steps 20000
  vanillaformer train-translation --set norm=rms_norm norm_placement=pre --tokens_per_batch 25000
  vanillaformer train-translation settings.yaml --output_dir runs/second --learning_rate 5e-4
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
from datasets import DatasetDict
from transformers import DataCollatorForSeq2Seq, PreTrainedModel, Seq2SeqTrainingArguments

from vanillaformer.configuration.options import DECODING_CHOICES
from vanillaformer.console.limits import FINITE, POSITIVE_INT, check_limits, option
from vanillaformer.console.reporting import report, warn
from vanillaformer.data.arguments import MARKS, TranslationDataArguments
from vanillaformer.data.caching import TextColumn
from vanillaformer.data.loading import TaskData
from vanillaformer.data.order import LANGUAGE_TOKEN, sampled_rows
from vanillaformer.data.preprocessing.packing import fit_packing
from vanillaformer.data.preprocessing.tokenizing import encode_pairs, translation_rows
from vanillaformer.data.rows import GROUP
from vanillaformer.data.streaming import StreamedRows, TextStream
from vanillaformer.hub.loading import open_config, set_languages
from vanillaformer.modeling.heads import IGNORE_INDEX

from ..arguments import ModelArguments, TokenizerArguments
from ..metrics.compute import labels_and_predictions, translation_metrics
from ..metrics.scores import SCORES, load_metric, sacrebleu_signatures
from ..models import fit_decoding, set_generation
from ..report.baselines import TARGET_UNIGRAM, copied_source
from ..report.facts import example_row
from ..run_folder.run import Run
from ..trainer.losses import GuidedAttentionArguments, ScheduledSamplingArguments, TokenDropoutArguments
from ..trainer.trainer import TranslationTrainer
from ..training_arguments import EVALUATION, OUTPUT, SAMPLING_STRATEGIES, TRAINING, RunDefaults, best_checkpoint_help
from .base import (
    BFLOAT16,
    MUON,
    Default,
    HardwareFacts,
    LengthRule,
    Tokenizers,
    TrainingTask,
    add_tokens,
    names_of_training,
)

STREAMED = 1_000_000  # assumed pairs in a stream
# Hidden size, layers on each side: the core-seconds and pairs from which on it is the better one
MODELS = ((128, 4, 0, 0), (256, 4, 12_000, 100_000), (512, 6, 100_000, 1_000_000))
# Pairs up to which this dropout is the better one
DROPOUT = ((0.3, 60_000), (0.1, float("inf")))
HEAD = 32
LANGUAGE = re.compile(LANGUAGE_TOKEN.format(".*?"))


@dataclass
class TranslationTokenizerArguments(TokenizerArguments):
    """The tokenizers of source and target."""

    joint_vocabulary: bool = option(True, "Train one vocabulary for both languages", "Tokenizer")


@dataclass
class TranslationTrainingArguments(  # type: ignore[misc]  # a field has fewer values here
    ScheduledSamplingArguments, GuidedAttentionArguments, TokenDropoutArguments, RunDefaults, Seq2SeqTrainingArguments
):
    """Training arguments of `train-translation`."""

    HELP_GROUP = "Beam search"

    output_dir: str | None = option("runs/translation", "Folder of the run, resumed if unfinished", OUTPUT)
    metric_for_best_model: str | None = option("bleu", best_checkpoint_help("translation"), EVALUATION)
    metrics: list[str] = option([], "More scores: rouge1, rougeL, or evaluate's", EVALUATION)
    predict_with_generate: bool = option(True, "Translate the validation data to score it", EVALUATION)
    generation_num_beams: int | None = option(1, "Beam search: number of beams in evaluations", limit=POSITIVE_INT)
    num_beams: int = option(4, "Beam search: number of beams in test and use", limit=POSITIVE_INT)
    length_penalty: float = option(1.0, "Beam search: exponent of the length", limit=FINITE)
    early_stopping: bool = option(False, "Beam search: stop when num_beams are complete")
    train_sampling_strategy: str = option(
        "group_by_length", "Order of the rows", TRAINING, choices=SAMPLING_STRATEGIES
    )

    def __post_init__(self) -> None:
        check_limits(self, {"generation_max_length": POSITIVE_INT})
        if self.num_beams == 1 and (self.length_penalty != 1 or self.early_stopping):  # cannot be saved
            name = "early_stopping" if self.early_stopping else "length_penalty"
            raise ValueError(f"--{name} {getattr(self, name)} is for beam search: --num_beams must be more than 1")
        if not self.predict_with_generate:
            if self.metric_for_best_model not in ("bleu", "loss", "eval_loss"):
                raise ValueError(
                    f"--metric_for_best_model {self.metric_for_best_model} needs translations: not "
                    "--predict_with_generate False, with which loss is the only score"
                )
            self.metric_for_best_model = "loss"
        self.choose_by("translation")
        score = SCORES[str(self.metric_for_best_model).removeprefix("eval_")]
        if score.optional:
            self.metrics = list(dict.fromkeys((*self.metrics, score.name)))
        if self.metrics and not self.predict_with_generate:
            raise ValueError(f"--metrics {' '.join(self.metrics)}: not with --predict_with_generate False")
        for name in self.metrics:
            if name not in SCORES:
                load_metric(name)
            elif "texts" not in SCORES[name].compares or SCORES[name].function is None:
                raise ValueError(f"--metrics {name}: it does not score texts")
            elif SCORES[name].optional and find_spec("rouge_score") is None:
                raise ValueError(f"--metrics {name} needs rouge_score: pip install 'vanillaformer[rouge]'")
        super().__post_init__()

    def search(self) -> dict[str, Any]:
        """Return the search settings of the saved model, named as in its generation config."""
        return {name: getattr(self, name) for name in ("num_beams", "length_penalty", "early_stopping")}


class Translation(TrainingTask):
    """Pairs of texts for an encoder-decoder."""

    program = "train-translation"
    arguments = (ModelArguments, TranslationDataArguments, TranslationTokenizerArguments, TranslationTrainingArguments)
    auto_defaults = ("translation",)
    follow = "tokenizer, lengths, sizes, batch and optimizer"
    trainer_class = TranslationTrainer
    groups: Sequence[str] = ()  # tasks and languages with separate scores
    language_tokens: Sequence[str] = ()

    def check(self) -> None:
        self.baselines = copied_source(**self._bleu_options), TARGET_UNIGRAM
        if not self.data_args.is_embedded:
            texts = {"max_source_length": "sources", "max_target_length": "targets"}
            self.lengths = LengthRule(texts, longest=256, readable=64)
        marked = any(getattr(self.data_args, name) is not None for name in MARKS)
        if self.data_args.task_temperature != 1 and not marked:
            options = " or ".join(f"--{name}" for name in MARKS)
            raise ValueError(f"--task_temperature {self.data_args.task_temperature:g} needs {options}")

    def fit_to_model(self) -> None:
        if self.model_args.saved is not None and self.data_args.source_prefix is None:
            self.data_args.source_prefix = getattr(open_config(self.model_args.saved), "prefix", None)

    @property
    def _bleu_options(self) -> dict[str, Any]:
        return {"tokenize": self.data_args.bleu_tokenize, "lowercase": self.data_args.bleu_lowercase}

    def defaults(self, data: TaskData, hardware: HardwareFacts) -> list[Default]:
        if self.data_args.is_embedded:
            return []  # generated phrases, to which rules for natural texts do not apply
        source, target = (column.sample() for column in self.columns(data))
        pairs = len(data.splits["train"]) if data.stream is None else STREAMED
        size = text_size(source, target, pairs)
        decoding = str(self.model_args.config_overrides().get("decoding"))
        found = translator_defaults(pairs, size, hardware, decoding)
        return [entry for entry in found if data.stream is None or entry.option != "tokens_per_batch"]

    def complete(self, tokenizers: Tokenizers) -> None:
        add_tokens(tokenizers[0], self.language_tokens, self.model_args, "--target_lang_column")
        set_languages(tokenizers[0], self.data_args.source_lang, self.data_args.target_lang)

    def example(self, run: Run, data: TaskData) -> str:
        text = example_row(data.splits["validation"], "source")
        return text.removeprefix(self.data_args.source_prefix or "")  # `generate` adds it

    def columns(self, data: TaskData) -> list[Any]:
        train = data.splits["train"]
        if GROUP in train.column_names:
            found = {name: {*rows[GROUP]} for name, rows in data.splits.items()}
            self.groups = names_of_training(found, "task or language")
        if self.data_args.target_lang_column is not None:
            firsts = np.unique(train[GROUP][:], return_index=True)[1]
            tokens = (LANGUAGE.search(train[int(row)]["source"]) for row in firsts)
            self.language_tokens = sorted({token.group() for token in tokens if token})
            given: Any = self.tokenizer_args
            given.extra_special_tokens = list(dict.fromkeys((*given.extra_special_tokens, *self.language_tokens)))
        return [TextColumn(data.splits["train"], name) for name in ("source", "target")]

    def rows(self, data: TaskData) -> DatasetDict:
        splits, temperature = data.splits, self.data_args.task_temperature
        if temperature != 1:
            chosen = sampled_rows(splits["train"][GROUP][:], temperature, self.training_args.seed)
            splits = DatasetDict({**splits, "train": splits["train"].select(chosen)})
        return translation_rows(splits, self.tokenizers, self.data_args)

    def stream(self, texts: TextStream) -> StreamedRows:
        encode = encode_pairs(self.tokenizers, self.data_args)
        return StreamedRows(texts, encode, long_texts=self.data_args.long_texts)

    def fit_model(self, model: PreTrainedModel, run: Run) -> None:
        fit_decoding(model.config, self.training_args)
        if self.data_args.source_prefix is not None:
            model.config.prefix = self.data_args.source_prefix or None  # which pipelines and `generate` read
        if self.training_args.guided_attention and not run.finished:
            attend_eagerly(model)
        set_generation(model, "translation", length=self.data_args.max_target_length, **self.training_args.search())

    def collator(self, model: PreTrainedModel, rows: DatasetDict) -> Any:
        padded = DataCollatorForSeq2Seq(self.tokenizers[0], model=model)
        return fit_packing(model, self.data_args.packing, rows["train"], self.training_args, padded)

    def scoring(self, run: Run) -> dict[str, Any]:
        if not self.training_args.predict_with_generate:
            return {}
        run.details["groups"] = list(self.groups)
        options = self._bleu_options
        run.details["signatures"] = sacrebleu_signatures(**options)
        return {"compute_metrics": translation_metrics(self.tokenizers[1], self.training_args.metrics, **options)}

    def test_options(self) -> dict[str, Any]:
        return {"num_beams": self.training_args.num_beams}

    def records(self, run: Run, trainer: Any, rows: Any, output: Any, split: str) -> Any:
        ids, tokenizer = labels_and_predictions(output)[1], self.tokenizers[1]
        ids = np.where(ids == IGNORE_INDEX, tokenizer.pad_token_id, ids)
        predictions = tokenizer.batch_decode(list(ids), skip_special_tokens=True)
        for source, reference, prediction in zip(rows["source"], rows["target"], predictions):
            yield {"source": source, "reference": reference, "prediction": prediction}


def text_size(source: Sequence[str], target: Sequence[str], pairs: int) -> int:
    """Return the estimated bytes of `pairs` pairs, from a sample of them."""
    return sum(len(text.encode()) for text in (*source, *target)) * pairs // len(source)


def translator_defaults(
    pairs: int, size: int, hardware: HardwareFacts, decoding: str = "autoregressive"
) -> list[Default]:
    """Return the defaults of a new translator; docs/training.md has them as a table.

    `size` is the size of the training pairs in bytes, source and target together. An unknown `decoding` counts as
    autoregressive.
    """
    way = DECODING_CHOICES.get(decoding, DECODING_CHOICES["autoregressive"])
    compute = hardware.core_seconds
    width, layers = [model[:2] for model in MODELS if compute >= model[2] and pairs >= model[3]][-1]
    dropout = next(rate for rate, most in DROPOUT if pairs <= most)
    text = f"{pairs:,} pairs, {size / 1e6:.1f} MB of text"
    fields = {
        "hidden_size": width,
        "encoder_layers": layers,
        "num_hidden_layers": layers,
        "num_attention_heads": width // HEAD,
        "intermediate_size": 4 * width,
        "norm_placement": "pre",
        "position_embedding_type": "sinusoidal" if way.needs_table else "rotary",
        "dropout": dropout,
    }
    found = [
        Default("tokenizer_algorithm", "bpe", "frequent pieces of both languages"),
        Default("tokenizer_vocab_size", vocabulary_size(size), text),
        Default("overrides", [f"{name}={value}" for name, value in fields.items()], f"{text}; {hardware.words}"),
        Default("tokens_per_batch", 4_096, "little padding, and many steps"),
        *MUON,
        Default("lr_scheduler_type", "cosine", "best at its end"),
        Default("label_smoothing_factor", 0.1, "Vaswani et al. 2017"),
        Default("max_epochs", 60, "more passes than small data needs"),
        Default("early_stopping_patience", 5, "more passes than small data needs"),
        *([Default("bf16", True, BFLOAT16)] if hardware.bfloat16 else []),
    ]
    return [default for default in found if default.option not in way.excludes]


def vocabulary_size(size: int) -> int:
    """Return the size of the joint vocabulary for `size` bytes in both languages: 3,000 tokens for 1 MB."""
    return max(500, min(8_000, 100 * round(30 * (size / 1e6) ** 0.5)))


def attend_eagerly(model: PreTrainedModel) -> None:
    """Make a model compute its attention probabilities, and report the costs and risks of guided attention."""
    config: Any = model.config
    before = config._attn_implementation
    warn(
        "--guided_attention expects the target in the order of the source, as in transliteration, pronunciation or "
        "speech: most pairs of languages order their words differently."
    )
    if before != "eager":
        model.set_attn_implementation("eager")
        report(
            f"--guided_attention reads attention probabilities: attention is eager, not {before}, which costs time "
            "and memory for all probabilities of a batch."
        )
