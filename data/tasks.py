"""Tasks that models are trained for: one entry each, which models, scores, cards and inference read."""

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import transformers

from vanillaformer.tokenization.options import MODEL_KINDS

TaskName = Literal[
    "translation",
    "causal",
    "masked",
    "mlm+nsp",
    "span",
    "infill",
    "denoise",
    "prefix",
    "ul2",
    "classification",
    "multi_label_classification",
    "regression",
    "token_classification",
    "image_classification",
    "masked_image",
]
Denoising = Literal["span", "infill", "denoise", "prefix", "ul2"]  # the tasks that pre-train an encoder-decoder
Objective = Literal["causal", "masked", "mlm+nsp", Denoising]  # the tasks of language models
ImageObjective = Literal["image_classification", "masked_image"]  # the tasks of image encoders
Prediction = Literal[
    "texts", "tokens", "next_tokens", "sentence_pairs", "classes", "labels", "values", "tags", "pixels"
]
"""Kinds of predictions, which decide the scores."""

MASK = "[MASK]"
MASK_TOKEN = "<mask>"  # of an encoder-decoder
IOBES = {"L-": "E-", "U-": "S-"}
"""The prefixes of tags that IOBES, which seqeval reads, calls otherwise than BILOU."""
KINDS: dict[str, str] = {**MODEL_KINDS, "vanilla_image_encoder": "image_encoder"}
"""The kinds of model by `model_type`; those of texts have tokenizers."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """A task."""

    program: str  # the program that trains for it, a subcommand of `vanillaformer`
    auto_class: Any  # the class that loads its models
    architectures: tuple[str, ...]  # how the names of classes end that do it, ours and others
    model_kinds: tuple[str, ...]  # the kinds of model that can be trained for it
    preset: str  # the preset of a new model where none is named
    generates: bool = False  # whether its models generate text
    predicts: tuple[Prediction, ...]  # what its models predict, which decides their scores
    columns: tuple[str, ...]  # the columns of its data
    # The option of `generate` that takes its inputs; empty where that does not use its models
    input_option: str = "text"
    # The option with the length of a row in tokens, if it has one; of a pair, that of the target
    length_option: str = ""
    pipeline_tag: str  # its name on the Hub
    does: str  # what a model does, for its card: "This model ..."
    limits: str  # what no model of this task can be relied on for
    example: str  # an input, for data of any kind
    embedded_example: str = ""  # an input for models of the embedded data; empty where a row of it is one
    use: str  # Python code that uses `tokenizer` and `model`, formatted with `example` and `decoder`
    # The call of transformers' pipeline `pipe`, formatted with `example`; empty where there is no pipeline
    pipe: str = ""

    @property
    def whole_texts(self) -> bool:
        """Return whether a row is a text, or a pair of texts, and not a block of running text."""
        return self.length_option != "block_size"

    @property
    def reads_images(self) -> bool:
        return "image" in self.columns


def seqeval_tag(tag: str) -> str:
    """Return a tag of a token as seqeval reads it."""
    return IOBES.get(tag[:2], tag[:2]) + tag[2:]


GENERATE = """inputs = tokenizer([{example!r}], return_tensors="pt")
print(tokenizer.batch_decode(model.generate(**inputs, max_new_tokens=32), skip_special_tokens=True))"""
# Tasks whose models differ in their outputs
classifying = partial(
    Task,
    program="train-classifier", auto_class=transformers.AutoModelForSequenceClassification,
    architectures=("ForSequenceClassification",), model_kinds=("encoder", "decoder"), preset="bert-tiny",
    length_option="max_length", pipeline_tag="text-classification",
)  # fmt: skip
language_model = partial(Task, program="train-language-model", columns=("text",), length_option="block_size")
filling_in = partial(
    language_model,
    model_kinds=("encoder",), preset="bert-tiny", pipeline_tag="fill-mask",
    example=f"A sentence with a {MASK} word.",
    embedded_example=f"import {MASK}",
)  # fmt: skip
denoising = partial(
    language_model,
    auto_class=transformers.AutoModelForSeq2SeqLM, architectures=(), model_kinds=("encoder_decoder",),
    preset="transformer-tiny", generates=True, predicts=("tokens",), pipeline_tag="text2text-generation",
    limits="As it is, it restores texts and does no other task: it is there to be fine-tuned "
    "(`train-translation --model_name_or_path`).",
    use=GENERATE,
)  # fmt: skip
reading_images = partial(
    Task,
    program="train-image-classifier", model_kinds=("image_encoder",),
    example="image.png",
    pipe="pipe({example!r})",
)  # fmt: skip

TASKS: dict[TaskName, Task] = {
    "translation": Task(
        program="train-translation", auto_class=transformers.AutoModelForSeq2SeqLM,
        architectures=("ForConditionalGeneration", "MTModel"), model_kinds=("encoder_decoder",),
        preset="transformer-tiny", generates=True, predicts=("texts",), columns=("source", "target"),
        length_option="max_target_length", pipeline_tag="translation",
        does="translates a text",
        limits="It can leave out, repeat or make up words and numbers: have translations that matter checked.",
        example="A sentence to translate.",
        use="""inputs = tokenizer([{example!r}], return_tensors="pt")
print({decoder}.batch_decode(model.generate(**inputs), skip_special_tokens=True))""",
    ),
    "causal": language_model(
        auto_class=transformers.AutoModelForCausalLM, architectures=("ForCausalLM", "LMHeadModel"),
        model_kinds=("decoder",), preset="gpt-tiny", generates=True, predicts=("tokens", "next_tokens"),
        pipeline_tag="text-generation",
        does="continues a text of the kind that it was trained on",
        limits="It has been trained to continue text, not to follow instructions or to tell the truth, and can repeat "
        "training text word for word.",
        example="Once upon a time",
        embedded_example="def ",
        use=GENERATE,
        pipe="pipe({example!r}, max_new_tokens=32)",
    ),
    "masked": filling_in(
        auto_class=transformers.AutoModelForMaskedLM,
        architectures=("ForMaskedLM", "ForPreTraining"),  # BERT's: its token head is a masked language model's
        predicts=("tokens",),
        does="fills in the hidden tokens of a text; to be fine-tuned, a classifier can start from its weights",
        limits="As it is, it fills in hidden tokens and nothing more.",
        use="""text = {example!r}
inputs = tokenizer(text.replace("[MASK]", tokenizer.mask_token), return_tensors="pt")
logits = model(**inputs).logits[inputs["input_ids"] == tokenizer.mask_token_id]
print(tokenizer.batch_decode(logits.topk(5).indices.T))""",
        pipe="pipe({example!r}.replace('[MASK]', pipe.tokenizer.mask_token))",
    ),
    "mlm+nsp": filling_in(
        auto_class=transformers.AutoModelForPreTraining, architectures=(), predicts=("tokens", "sentence_pairs"),
        does="fills in the hidden tokens of a text and predicts whether one segment follows another; to be "
        "fine-tuned, a classifier can start from its weights",
        limits="As it is, it fills in hidden tokens and judges pairs of segments, and nothing more.",
        use="""text, second = {example!r}, "the next sentence"
inputs = tokenizer(text.replace("[MASK]", tokenizer.mask_token), second, return_tensors="pt")
outputs = model(**inputs)
logits = outputs.prediction_logits[inputs["input_ids"] == tokenizer.mask_token_id]
print(tokenizer.batch_decode(logits.topk(5).indices.T))
print("probability that it follows:", outputs.seq_relationship_logits.softmax(-1)[0, 0].item())""",
    ),
    "span": denoising(
        does="fills in the spans of a text that sentinels stand for",
        example="A sentence with <extra_id_0> in it.",
        embedded_example="import <extra_id_0>\nfrom <extra_id_1> import",
    ),
    "infill": denoising(
        does="restores a text in which spans are masked and the sentences are in another order",
        example=f"A sentence with {MASK_TOKEN} in it.",
        embedded_example=f"import {MASK_TOKEN}",
    ),
    "denoise": denoising(
        does="restores a text whose tokens were masked, deleted or rotated",
        example="A sentence with words in it.",
        embedded_example="import",
    ),
    "prefix": denoising(
        does="continues a text of the kind that it was trained on", example="Once upon a time", embedded_example="def "
    ),
    "ul2": denoising(
        does="fills in spans of a text ([NLU], [NLG]) or continues it ([S2S])",
        example="[S2S]Once upon a time<extra_id_0>",
        embedded_example="[S2S]def <extra_id_0>",
    ),
    "classification": classifying(
        predicts=("classes",), columns=("text", "label"),
        does="predicts which of {count} classes a text belongs to ({names})",
        limits="It always answers with one of its classes, even for a text that belongs to none of them.",
        example="A text to classify.",
        use="""inputs = tokenizer([{example!r}], return_tensors="pt")
print(model.config.id2label[model(**inputs).logits.argmax(-1).item()])""",
        pipe="pipe({example!r})",
    ),
    "multi_label_classification": classifying(
        predicts=("labels",), columns=("text", "labels"),
        does="predicts which of {count} labels a text has ({names}), any number of them",
        limits="It knows no other labels, and decides about each by itself.",
        example="A text to label.",
        use="""inputs = tokenizer([{example!r}], return_tensors="pt")
chosen = (model(**inputs).logits[0].sigmoid() > 0.5).nonzero().flatten().tolist()
print([model.config.id2label[number] for number in chosen])""",
        pipe="pipe({example!r}, top_k=None)",
    ),
    "regression": classifying(
        predicts=("values",), columns=("text", "score"),
        does="estimates a number for a text",
        limits="Its estimates lie about where the numbers of the training data do, whatever the text.",
        example="A text to score.",
        use="""inputs = tokenizer([{example!r}], return_tensors="pt")
print(model(**inputs).logits.item())""",
        pipe="pipe({example!r}, function_to_apply='none')",
    ),
    "token_classification": Task(
        program="train-token-classifier", auto_class=transformers.AutoModelForTokenClassification,
        architectures=("ForTokenClassification",), model_kinds=("encoder",), preset="bert-tiny", predicts=("tags",),
        columns=("tokens", "tags"), length_option="max_length", pipeline_tag="token-classification",
        does="finds which words of a text are of one of {count} kinds ({names})",
        limits="It was trained on words separated by spaces, and finds no other kinds than these.",
        example="A text with names in it .",
        use="""inputs = tokenizer([{example!r}], return_tensors="pt")
tags = [model.config.id2label[number] for number in model(**inputs).logits[0].argmax(-1).tolist()]
print(list(zip(tokenizer.convert_ids_to_tokens(inputs["input_ids"][0]), tags)))""",
        pipe="pipe({example!r}, aggregation_strategy='first')",
    ),
    "image_classification": reading_images(
        auto_class=transformers.AutoModelForImageClassification, architectures=("ForImageClassification",),
        preset="vitc-mini", predicts=("classes",), columns=("image", "label"), input_option="image",
        pipeline_tag="image-classification",
        does="predicts which of {count} classes an image belongs to ({names})",
        limits="It always answers with one of its classes, even for an image that belongs to none of them.",
        use="""inputs = processor(Image.open({example!r}).convert("RGB"), return_tensors="pt")
print(model.config.id2label[model(**inputs).logits.argmax(-1).item()])""",
    ),
    "masked_image": reading_images(
        auto_class=transformers.AutoModelForMaskedImageModeling, architectures=("ForMaskedImageModeling",),
        preset="vit-mini", predicts=("pixels",), columns=("image",), input_option="",
        pipeline_tag="image-feature-extraction",
        does="fills in the hidden patches of an image; to be fine-tuned, a classifier of images can start from its "
        "weights",
        limits="As it is, it fills in hidden patches and nothing more.",
        use="""inputs = processor(Image.open({example!r}).convert("RGB"), return_tensors="pt")
hidden = torch.rand(1, model.config.num_patches) < 0.6
print(model(**inputs, bool_masked_pos=hidden).reconstruction.shape)""",
    ),
}  # fmt: skip
