"""Train a language model: it predicts the next token, hidden ones, or a text that was corrupted.

Without arguments: a small decoder on the source text of Python's standard library. `--objective masked` trains an
encoder, from which `train-classifier` can start; `--objective mlm+nsp` does so as BERT was trained, on pairs of
segments. `span`, `infill`, `denoise`, `prefix` and `ul2` pre-train an encoder-decoder, from which `train-translation`
can start. With `--turns_column` the texts are dialogues, and `vanillaformer generate --chat` talks with the model.

Examples:
  vanillaformer train-language-model --train_file input.txt --preset gpt2 --block_size 1024
  vanillaformer train-language-model --objective masked --preset bert-base --train_file a.csv
  vanillaformer train-language-model --train_file dialogues.jsonl --turns_column turns
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset, DatasetDict
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainingArguments, set_seed
from transformers.trainer_utils import PredictionOutput

from vanillaformer.console.limits import BETWEEN, option
from vanillaformer.console.parsing import was_given
from vanillaformer.console.reporting import optional
from vanillaformer.data.arguments import LanguageModelDataArguments
from vanillaformer.data.caching import TextColumn
from vanillaformer.data.dialogue import SEPARATOR, end_at_separator, reverse_dialogues, set_chat_template
from vanillaformer.data.loading import TaskData
from vanillaformer.data.preprocessing.denoising import DENOISING, Denoising, DenoisingArguments
from vanillaformer.data.preprocessing.language_model import (
    block_cutter,
    check_stride,
    frame_size,
    language_model_collator,
    language_model_rows,
)
from vanillaformer.data.preprocessing.packing import check_attention, check_packing
from vanillaformer.data.streaming import StreamedRows, TextStream
from vanillaformer.data.tasks import TASKS, Objective
from vanillaformer.modeling.heads import IGNORE_INDEX

from ..arguments import ModelArguments, TokenizerArguments
from ..metrics import compute
from ..models import set_generation
from ..report.baselines import UNIGRAM
from ..report.facts import example_row
from ..run_folder.files import SAMPLES, write_lines
from ..run_folder.run import Run
from ..trainer.losses import ScheduledSamplingArguments
from ..trainer.trainer import RunTrainer
from ..training_arguments import EPOCHS, EVALUATION, SAMPLING_STRATEGIES, TRAINING, RunDefaults, best_checkpoint_help
from .base import BFLOAT16, MUON, Default, HardwareFacts, Tokenizers, TrainingTask, add_tokens

STREAMED = 100_000_000  # assumed bytes of text in a stream
BYTES_PER_CORE_SECOND = 15_000  # speed of the smallest model on a processor core
# Hidden size, layers: the core-seconds and bytes of text from which on it is the better one. Ten minutes of two cores
# are 1,200. The compute-optimal number of parameters grows with the root of the compute (Hoffmann et al. 2022), and
# more of them than a text can determine memorize it.
MODELS = ((192, 4, 0, 0), (256, 4, 4_000, 500_000), (384, 6, 16_000, 3_000_000), (512, 8, 64_000, 30_000_000))
# Passes over the text in the time, from which on this dropout is the better one
DROPOUT = ((0.0, 0), (0.1, 3), (0.2, 8))
BLOCK = 256
SAMPLES_WRITTEN, SAMPLE_TOKENS = 8, 64
HEAD = 64


@dataclass
class LanguageModelTrainingArguments(  # type: ignore[misc]
    DenoisingArguments, ScheduledSamplingArguments, RunDefaults, TrainingArguments
):
    """Training arguments of `train-language-model`."""

    HELP_GROUP = TRAINING

    objective: Objective = option("causal", "Training objective")
    mlm_probability: float = option(0.15, "Fraction of hidden tokens (masked, mlm+nsp)", limit=BETWEEN)
    num_train_epochs: float = option(1.0, EPOCHS)
    per_device_train_batch_size: int = option(16, "Blocks per batch and process")
    metric_for_best_model: str | None = option("loss", best_checkpoint_help("causal", "masked", "mlm+nsp"), EVALUATION)
    train_sampling_strategy: str = option("random", "Order of the rows", choices=SAMPLING_STRATEGIES)

    def __post_init__(self) -> None:
        self.check_denoising(self.objective)
        if self.scheduled_sampling != "none" and self.objective != "causal":
            raise ValueError(
                f"--scheduled_sampling {self.scheduled_sampling}: --objective {self.objective} feeds itself no tokens"
            )
        if self.output_dir is None:
            self.output_dir = f"runs/{self.objective.replace('+', '_')}_language_model"
        self.choose_by(self.objective)
        super().__post_init__()


class LanguageModel(TrainingTask):
    """Texts or dialogues for a decoder, texts for an encoder or an encoder-decoder."""

    program = "train-language-model"
    arguments = (ModelArguments, LanguageModelDataArguments, TokenizerArguments, LanguageModelTrainingArguments)
    auto_defaults = ("causal",)
    follow = "vocabulary, blocks, sizes, batch and optimizer (causal)"
    baselines = (UNIGRAM,)

    def check(self) -> None:
        data_args, tokenizer_args, objective = self.data_args, self.tokenizer_args, self.name
        assert tokenizer_args is not None
        if data_args.turns_column is not None:
            if objective != "causal" or data_args.streaming:
                what = "--streaming" if data_args.streaming else f"--objective {objective}"
                raise ValueError(f"--turns_column {data_args.turns_column} does not go with {what}")
            data_args.packing = True
            if SEPARATOR not in tokenizer_args.extra_special_tokens:
                tokenizer_args.extra_special_tokens = [*tokenizer_args.extra_special_tokens, SEPARATOR]
        data_args.choose_sampling(objective)
        if self.denoises:
            tokens = dict.fromkeys((*tokenizer_args.extra_special_tokens, *self.special_tokens()))
            tokenizer_args.extra_special_tokens = list(tokens)
        pairs = objective == "mlm+nsp"
        if data_args.packing and pairs:
            raise ValueError("--packing is not for --objective mlm+nsp, whose rows are pairs of segments")
        if data_args.block_stride is not None:
            if data_args.packing or pairs:
                other = f"--objective {objective}" if pairs else "--packing, which --turns_column implies"
                raise ValueError(f"--block_stride is for blocks cut from the stream of all texts, not for {other}")
            check_stride(data_args.block_stride, data_args.block_size - frame_size(self.training_args.objective))
        if data_args.streaming and pairs:
            raise ValueError("--streaming is not for --objective mlm+nsp, which draws from all documents")

    @property
    def denoises(self) -> bool:
        """Return whether the task pre-trains an encoder-decoder."""
        return self.name in DENOISING

    def special_tokens(self) -> list[str]:
        """Return the tokens that stand for corrupted text, or name the kind of corruption."""
        return DENOISING[self.name].tokens(self.training_args, self.data_args.block_size)

    def complete(self, tokenizers: Tokenizers) -> None:
        if self.denoises:
            option = f"--objective {self.name} --block_size {self.data_args.block_size}"
            add_tokens(tokenizers[0], self.special_tokens(), self.model_args, option)

    def predicted_share(self) -> float:
        if self.denoises:
            return DENOISING[self.name].predicted
        return self.training_args.mlm_probability if self.name in ("masked", "mlm+nsp") else 1.0

    def defaults(self, data: TaskData, hardware: HardwareFacts) -> list[Default]:
        given = self.data_args
        size = sum(len(text.encode()) for text in TextColumn(data.splits["train"], "text"))
        return language_model_defaults(
            size if data.stream is None else STREAMED,
            hardware,
            block=given.block_size if was_given(given, "block_size") else BLOCK,
            overlap=not given.packing and given.turns_column is None and data.stream is None,
        )

    def example(self, run: Run, data: TaskData) -> str:
        return example_row(data.splits["validation"], "text")[:1_000]

    def columns(self, data: TaskData) -> list[Any]:
        separator = None if self.data_args.turns_column is None else SEPARATOR
        return [TextColumn(data.splits["train"], "text", separator)]

    def rows(self, data: TaskData) -> DatasetDict:
        texts = reverse_dialogues(data.splits) if self.data_args.reverse_turns else data.splits
        if self.data_args.turns_column is not None:
            set_chat_template(self.tokenizers[0])
        return language_model_rows(texts, self.tokenizers[0], self.data_args, self.training_args)

    def stream(self, texts: TextStream) -> StreamedRows:
        return StreamedRows(texts, *block_cutter(self.tokenizers[0], self.data_args, self.training_args.objective))

    def fit_model(self, model: PreTrainedModel, run: Run) -> None:
        set_generation(model, self.name, length=self.data_args.block_size)
        turns = self.data_args.turns_column
        if turns is not None:
            end_at_separator(model, self.tokenizers[0])
        decoding = getattr(model.config, "decoding", "autoregressive")
        if self.denoises and decoding != "autoregressive":
            raise ValueError(f"--objective {self.name} is for decoding=autoregressive, not {decoding}")
        if self.data_args.packing and self.denoises:
            check_packing(model, self.training_args)
        elif self.data_args.packing:
            check_attention(model, "--packing" if turns is None else f"--turns_column {turns}")

    def collator(self, model: PreTrainedModel, rows: DatasetDict) -> Any:
        return language_model_collator(model, self.tokenizers[0], self.data_args.block_size, self.training_args)

    def scoring(self, run: Run) -> dict[str, Any]:
        causal = self.name == "causal"
        metrics: Any = compute.language_model_metrics(self.tokenizers[0] if causal else None)
        preprocess: Any = compute.token_scores(causal=causal)
        if self.name == "mlm+nsp":
            metrics, preprocess = compute.pretraining_metrics, compute.pretraining_scores
        return {
            "processing_class": self.tokenizers[0],
            "compute_metrics": metrics,
            "preprocess_logits_for_metrics": preprocess,
        }

    def records(self, run: Run, trainer: Any, rows: Any, output: Any, split: str) -> Any:
        return None if self.name == "causal" else filled_in(output, self.tokenizers[0])

    def add_samples(self, run: Run, trainer: Any, rows: DatasetDict) -> None:
        if TASKS[self.name].generates and "validation" in rows:
            with optional(SAMPLES, run.failed):
                write_samples(run.folder, trainer, rows["validation"], self.tokenizers[0])


def filled_in(output: PredictionOutput, tokenizer: PreTrainedTokenizerBase) -> Iterator[dict[str, Any]]:
    """Yield, for rows with masked tokens, their positions, the tokens there and the predicted ones."""
    scores: Any = output.predictions
    labels: Any = output.label_ids
    labels = labels[0] if isinstance(labels, tuple) else labels
    for wanted, predicted in zip(labels, scores[0]):
        kept = wanted != IGNORE_INDEX
        pieces = [tokenizer.convert_ids_to_tokens(ids[kept].tolist()) for ids in (wanted, predicted)]
        yield {"positions": np.flatnonzero(kept).tolist(), "reference": pieces[0], "prediction": pieces[1]}


def prompts(rows: Dataset, collator: Any) -> Iterator[tuple[list[int], list[int]]]:
    """Yield prompt and continuation of each row: its halves, or its corrupted text and the target that restores it."""
    for row in rows:
        starts = [index for index, number in enumerate(row.get("position_ids", [])) if index and not number]
        ids = row["input_ids"][: starts[0] if starts else None]  # the first of packed texts
        if isinstance(collator, Denoising):
            with collator.evaluation():
                pair = collator.pair(ids)
            yield pair["input_ids"], pair["labels"]
        else:
            half = (len(ids) + 1) // 2
            yield ids[:half], ids[half:]


def write_samples(folder: Path, trainer: RunTrainer, rows: Dataset, tokenizer: PreTrainedTokenizerBase) -> None:
    """Write samples of how the model continues, or restores, some rows, unless it is divided among processes."""
    if not trainer.is_world_process_zero() or trainer.args.parallel is not None:
        return
    model: Any = trainer.accelerator.unwrap_model(trainer.model)
    model.eval()
    set_seed(trainer.args.seed)
    records = []
    start = 1 if model.config.is_encoder_decoder else None  # the new text follows the decoder's start token
    for prompt, whole in prompts(rows.select(range(min(SAMPLES_WRITTEN, len(rows)))), trainer.data_collator):
        rest = whole[:SAMPLE_TOKENS]
        if not rest:
            continue
        inputs = torch.tensor([prompt], device=model.device)
        with torch.inference_mode():
            options = {"max_new_tokens": len(rest), "max_length": None}
            output = model.generate(inputs, attention_mask=torch.ones_like(inputs), **options)[0]
        new = output[start or len(prompt) :].tolist()
        texts = [tokenizer.decode(part, skip_special_tokens=True) for part in (prompt, rest, new)]
        records.append(dict(zip(("prompt", "reference", "prediction"), texts)))
    write_lines(folder / SAMPLES, records)


def vocabulary_size(size: int) -> int:
    """Return the vocabulary size for a text of `size` bytes: 2,000 tokens for 1 MB."""
    return max(500, min(8_000, 100 * round(20 * (size / 1e6) ** 0.7)))


def language_model_defaults(
    size: int, hardware: HardwareFacts, *, block: int = BLOCK, overlap: bool = True
) -> list[Default]:
    """Return the defaults of a new causal language model; docs/training.md has them as a table.

    `size` is the number of UTF-8 bytes; `overlap` tells whether blocks are cut from one text and may overlap.
    """
    compute = hardware.core_seconds
    width, layers = [model[:2] for model in MODELS if compute >= model[2] and size >= model[3]][-1]
    cost = (width / MODELS[0][0]) ** 2 * layers / MODELS[0][1]
    passes = compute * BYTES_PER_CORE_SECOND / cost / max(1, size)
    dropout = [value for value, least in DROPOUT if passes >= least][-1]
    amount, often = f"{size / 1e6:.1f} MB of text", f"about {passes:.2g} passes over the text in the time"
    # A decoder like Llama, with tied embeddings
    fields = {
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": width // HEAD,
        "intermediate_size": 64 * round(width * 8 / 3 / 64),
        "feed_forward": "gated",
        "hidden_act": "silu",
        "norm": "rms_norm",
        "position_embedding_type": "rotary",
        "max_position_embeddings": block,
        "attention_bias": "false",
        "mlp_bias": "false",
        "dropout": dropout,
    }
    made = [f"{name}={value}" for name, value in fields.items()]
    found = [
        Default("tokenizer_vocab_size", vocabulary_size(size), amount),
        Default("overrides", made, f"{amount}, {hardware.words}; {often}"),
        Default("block_size", block, "a context of some hundred characters"),
        Default("per_device_train_batch_size", 8, "many small steps"),
        *MUON,
    ]
    if overlap and passes >= 2:
        found.append(Default("block_stride", max(1, block // 4), f"each token is seen in four contexts: {often}"))
    if hardware.bfloat16:
        found.append(Default("bf16", True, BFLOAT16))
    return found
