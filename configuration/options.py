"""Every value of every option, described once: validation, cards, citations, docs and exports read it here.

A value is a name in a `Literal`, by which configs are validated, an entry below it, and a class in `modeling/parts`.
`tests/configuration/test_options.py` checks that the three agree.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args


@dataclass(frozen=True)
class Choice:
    """One value of an option."""

    words: str  # description in a model card. In formulas x is the residual stream, f the sublayer, φ the activation.
    papers: tuple[str, ...] = ()  # papers that introduced it, as keys of `training/report/card/references.bib`
    seen_in: str = ""  # well-known models that use it
    # Config fields that are only read with the values that list them: with others they must keep their default
    fields: tuple[str, ...] = ()
    # The same for sizes that every config has: with other values they have no effect
    sizes: tuple[str, ...] = ()


@dataclass(frozen=True)
class NormChoice(Choice):
    """Description of a norm."""

    has_bias: bool = False  # default of `norm_bias`


Norm = Literal["layer_norm", "rms_norm"]
NORM_CHOICES: dict[str, NormChoice] = {
    "layer_norm": NormChoice("LayerNorm", papers=("ba2016layer",), has_bias=True),
    "rms_norm": NormChoice("RMSNorm", papers=("zhang2019root",), seen_in="T5, Llama"),
}


@dataclass(frozen=True)
class PlacementChoice(Choice):
    """Description of a placement of norm and residual sum around a sublayer."""

    # Values of `block_layout` that it fits: parallel sublayers need a sum at the end, and a shared norm needs a single
    # norm, before them
    layouts: tuple[str, ...] = ("sequential",)
    initialization: str | None = None  # the one it was published with, its default


NormPlacement = Literal[
    "post", "pre", "sandwich", "inside", "rezero", "deepnorm", "admin", "no_norm", "no_residual"
]  # fmt: skip
SUMMED = ("sequential", "parallel")
PLACEMENT_CHOICES: dict[str, PlacementChoice] = {
    "post": PlacementChoice("norm(x + f(x))", papers=("vaswani2017attention",), seen_in="BERT"),
    "pre": PlacementChoice(
        "x + f(norm(x))", papers=("xiong2020layer",), seen_in="GPT-2, Llama", layouts=(*SUMMED, "parallel_shared_norm")
    ),
    "sandwich": PlacementChoice(
        "x + norm′(f(norm(x)))", papers=("ding2021cogview",), seen_in="CogView, Gemma 2", layouts=SUMMED
    ),
    "inside": PlacementChoice("x + norm(f(x))", papers=("olmo2025furious",), seen_in="OLMo 2", layouts=SUMMED),
    "rezero": PlacementChoice(
        "x + α f(x), α trained from 0 (ReZero)", papers=("bachlechner2021rezero",), layouts=SUMMED
    ),
    "deepnorm": PlacementChoice(
        "norm(α x + f(x)), α by depth (DeepNorm)", papers=("wang2022deepnet",), initialization="deepnorm"
    ),
    "admin": PlacementChoice(
        "norm(ω ⊙ x + f(x)), ω measured, then trained (Admin)",
        papers=("liu2020understanding",),
        initialization="admin",
    ),
    "no_norm": PlacementChoice(
        "x + f(x), no norm (T-Fixup)", papers=("huang2020improving",), layouts=SUMMED, initialization="t_fixup"
    ),
    "no_residual": PlacementChoice("f(norm(x)), no residual sum"),
}

BlockLayout = Literal["sequential", "parallel", "parallel_shared_norm"]
LAYOUT_CHOICES: dict[str, Choice] = {
    "sequential": Choice("one sublayer after another"),
    "parallel": Choice("all sublayers of a block on the same input", papers=("black2022gptneox",), seen_in="GPT-NeoX"),
    "parallel_shared_norm": Choice(
        "all sublayers of a block on the same input, after one norm", papers=("wang2021gptj",), seen_in="GPT-J, Phi"
    ),
}

FeedForward = Literal["plain", "gated"]
FEED_FORWARD_CHOICES: dict[str, Choice] = {
    "plain": Choice("W₂ φ(W₁ x)"),
    "gated": Choice("W₂ (φ(W_g x) ⊙ W₁ x)", papers=("shazeer2020glu",), seen_in="Llama, Gemma"),
}


@dataclass(frozen=True)
class PositionChoice(Choice):
    """Description of a position scheme."""

    # Whether positions are rows of a table of `max_position_embeddings` rows: longer inputs are an error
    has_table: bool = False
    is_biased: bool = False  # whether it adds a bias to the attention scores
    has_stages: bool = True  # whether it fits stages of different widths


PositionEmbedding = Literal["sinusoidal", "learned", "rotary", "alibi", "relative", "none"]
# Images have schemes by rows and columns, too
ImagePosition = Literal[
    "sinusoidal", "learned", "rotary", "alibi", "relative", "none",
    "sinusoidal_2d", "rotary_2d", "window_relative", "grid_relative",
]  # fmt: skip
POSITION_CHOICES: dict[str, PositionChoice] = {
    "sinusoidal": PositionChoice(
        "sines and cosines, added", papers=("vaswani2017attention",),
        fields=("sinusoidal_layout", "position_offset"), sizes=("max_position_embeddings",), has_table=True,
    ),
    "learned": PositionChoice(
        "a learned vector per position, added", papers=("gehring2017convolutional",), seen_in="BERT, GPT-2",
        fields=("position_offset",), sizes=("max_position_embeddings",), has_table=True,
    ),
    "rotary": PositionChoice(
        "rotary: queries and keys are rotated", papers=("su2021roformer",), seen_in="Llama",
        fields=("rope_parameters", "rope_interleaved", "rotary_layers"), sizes=("max_position_embeddings",),
    ),
    "alibi": PositionChoice(
        "ALiBi: scores fall with the distance", papers=("press2022train",), seen_in="BLOOM", is_biased=True,
        has_stages=False,
    ),
    "relative": PositionChoice(
        "T5's relative bias on the scores", papers=("raffel2020exploring",), seen_in="T5",
        fields=("relative_attention_per_layer",),
        sizes=("relative_attention_num_buckets", "relative_attention_max_distance"), is_biased=True,
        has_stages=False,
    ),
    "none": PositionChoice("none"),
    "sinusoidal_2d": PositionChoice(
        "sines and cosines of row and column, added", papers=("he2022masked",), seen_in="MAE",
    ),
    "rotary_2d": PositionChoice(
        "rotary by row and column (images)", papers=("heo2024rotary",), fields=("rope_2d_theta",),
    ),
    "window_relative": PositionChoice(
        "a bias per distance in rows and columns inside a window (images)", papers=("liu2021swin",),
        seen_in="Swin", is_biased=True,
    ),
    "grid_relative": PositionChoice(
        "a bias per distance in rows and columns (images)", papers=("bao2022beit",), seen_in="BEiT",
        fields=("relative_attention_per_layer",), is_biased=True, has_stages=False,
    ),
}  # fmt: skip

SEQUENCE_POSITION_CHOICES = {name: POSITION_CHOICES[name] for name in get_args(PositionEmbedding)}

SinusoidalLayout = Literal["interleaved", "halves", "tensor2tensor"]
SINUSOIDAL_CHOICES: dict[str, Choice] = {
    "interleaved": Choice("columns are sine, cosine, sine, cosine ..., as in the paper"),
    "halves": Choice("all sines come first", seen_in="Marian"),
    "tensor2tensor": Choice(
        "all sines come first, with wavelengths up to exactly 20000π", seen_in="tensor2tensor, fairseq, M2M-100"
    ),
}


@dataclass(frozen=True)
class QueryKeyNormChoice(Choice):
    """Description of a norm of queries and keys."""

    # Whether norm or weight involve several heads: attention cannot then be split by heads as usual
    spans_heads: bool = False


QueryKeyNorm = Literal["none", "head", "each_head", "full"]
QUERY_KEY_NORM_CHOICES: dict[str, QueryKeyNormChoice] = {
    "none": QueryKeyNormChoice(""),
    "head": QueryKeyNormChoice("per head", papers=("henry2020query",), seen_in="Qwen 3"),
    "each_head": QueryKeyNormChoice(
        "per head, each with its own weight", papers=("henry2020query",), seen_in="Cohere, StableLM", spans_heads=True
    ),
    "full": QueryKeyNormChoice(
        "over all heads", papers=("henry2020query", "olmo2025furious"), seen_in="OLMo 2", spans_heads=True
    ),
}

LayerType = Literal["full_attention", "sliding_attention"]
LAYER_TYPE_CHOICES: dict[str, Choice] = {
    "full_attention": Choice("a token sees everything"),
    "sliding_attention": Choice(
        "a token sees a window", papers=("beltagy2020longformer",), seen_in="Mistral, Gemma 2, ModernBERT"
    ),
}


@dataclass(frozen=True)
class InitializationChoice(Choice):
    """Description of an initialization."""

    placements: tuple[str, ...] = ()  # values of `norm_placement` that it is for; empty: all


Initialization = Literal[
    "normal", "gpt2", "xavier", "t5", "deepnorm", "t_fixup", "dt_fixup", "ds_init", "admin", "mimetic", "gradinit",
    "mup", "zero_output",
]  # fmt: skip
INITIALIZATION_CHOICES: dict[str, InitializationChoice] = {
    "normal": InitializationChoice("N(0, initializer_range²)", seen_in="BERT"),
    "gpt2": InitializationChoice(
        "as `normal`, output projections smaller by depth", papers=("radford2019language",), seen_in="GPT-2"
    ),
    "xavier": InitializationChoice(
        "uniform by fan in and fan out, embeddings N(0, 1/D)", papers=("glorot2010understanding",)
    ),
    "t5": InitializationChoice("N(0, 1/fan in), embeddings N(0, 1)", papers=("raffel2020exploring",), seen_in="T5"),
    "deepnorm": InitializationChoice("as `xavier`, values smaller by depth", papers=("wang2022deepnet",)),
    "t_fixup": InitializationChoice(
        "as `xavier`, values and embeddings smaller by depth", papers=("huang2020improving",)
    ),
    "dt_fixup": InitializationChoice(
        "as `xavier`, values smaller by depth and by inputs measured on a batch",
        papers=("xu2021optimizing",),
        placements=("no_norm",),
    ),
    "ds_init": InitializationChoice("as `xavier`, each layer smaller by its index", papers=("zhang2019improving",)),
    "admin": InitializationChoice(
        "as `xavier`, residual factors measured on a batch", papers=("liu2020understanding",), placements=("admin",)
    ),
    "mimetic": InitializationChoice(
        "as `normal`, attention like that of trained models", papers=("trockman2023mimetic",)
    ),
    "gradinit": InitializationChoice(
        "as `xavier`, with a scale per tensor learned on 100 batches", papers=("zhu2021gradinit",)
    ),
    "mup": InitializationChoice("N(0, 1/fan in), embeddings N(0, 1/base_width)", papers=("yang2021tensor",)),
    "zero_output": InitializationChoice(
        "as `xavier`, the sublayers' output projections 0",
        papers=("zhang2019fixup",),
        placements=("post", "pre", "sandwich", "inside", "deepnorm", "admin", "no_norm"),  # else gradients are 0
    ),
}

Parametrization = Literal["standard", "mup"]
PARAMETRIZATION_CHOICES: dict[str, Choice] = {
    "standard": Choice("learning rates and factors are the same for every width"),
    "mup": Choice(
        "scores by 8/K, logits by base_width/D, rates of the layers' matrices by base_width/D (Muon: its root)",
        papers=("yang2021tensor",),
        fields=("base_width",),
    ),
}

Pooling = Literal["first", "mean", "max", "last"]
POOLING_CHOICES: dict[str, Choice] = {
    "first": Choice("the first token's state", papers=("devlin2019bert",), seen_in="BERT"),
    "mean": Choice("the mean over the tokens", seen_in="ModernBERT"),
    "max": Choice("the maximum over the tokens"),
    "last": Choice("the last token's state"),
}

PatchEmbedding = Literal["convolution", "linear", "early_convolutions"]
PATCH_CHOICES: dict[str, Choice] = {
    "convolution": Choice("a convolution whose kernel and stride are a patch", papers=("dosovitskiy2021image",)),
    "linear": Choice("a linear layer on a patch's pixels as one vector"),
    "early_convolutions": Choice("several convolutions of 3 by 3 pixels with stride 2", papers=("xiao2021early",)),
}

ImagePooling = Literal["first", "mean", "first_and_mean"]
IMAGE_POOLING_CHOICES: dict[str, Choice] = {
    "first": Choice("the class token's state", papers=("dosovitskiy2021image",), seen_in="ViT, DeiT"),
    "mean": Choice("the mean over the patches", seen_in="Swin, BEiT, I-JEPA"),
    "first_and_mean": Choice("both, concatenated", papers=("oquab2024dinov2",), seen_in="DINOv2"),
}

OutputDistribution = Literal["softmax", "pointer_generator"]
OUTPUT_CHOICES: dict[str, Choice] = {
    "softmax": Choice("softmax of the logits"),
    "pointer_generator": Choice(
        "softmax of the logits, mixed with copies of source tokens by a learned gate", papers=("see2017get",)
    ),
}

Cell = Literal["rnn", "lstm", "gru"]
CELL_CHOICES: dict[str, Choice] = {
    "rnn": Choice("plain cells, h′ = tanh(W x + U h)", papers=("elman1990finding",)),
    "lstm": Choice("long short-term memory", papers=("hochreiter1997long",), seen_in="GNMT"),
    "gru": Choice("gated recurrent units", papers=("cho2014learning",)),
}

CrossAttentionScore = Literal["none", "dot", "general", "additive"]
CROSS_ATTENTION_CHOICES: dict[str, Choice] = {
    "none": Choice("none: the decoder starts from the encoder's last states", papers=("sutskever2014sequence",)),
    "dot": Choice("global, score h · e", papers=("luong2015effective",)),
    "general": Choice("global, score h W e", papers=("luong2015effective",)),
    "additive": Choice("global, score v · tanh(W h + U e)", papers=("bahdanau2015neural",), seen_in="GNMT"),
}

RecurrentInitialization = Literal["orthogonal", "uniform"]
RECURRENT_INITIALIZATION_CHOICES: dict[str, Choice] = {
    "orthogonal": Choice("recurrent matrices orthogonal", papers=("saxe2014exact", "jozefowicz2015empirical")),
    "uniform": Choice("uniform by the width, as in `torch.nn`", seen_in="the tutorials of PyTorch"),
}


@dataclass(frozen=True)
class DecodingChoice(Choice):
    """Description of how a text is made from a decoder's outputs."""

    is_parallel: bool = False  # whether all positions are predicted at once
    needs_table: bool = False  # whether decoder inputs differ only by the positions added to them
    upsamples: bool = False  # whether the decoder has `ctc_upsampling` positions for each source token
    # Options of a training program that need a prefix of the target, or a label for each position
    excludes: tuple[str, ...] = ()
    options: tuple[str, ...] = ()  # options of `generate` that only such models have


Decoding = Literal["autoregressive", "mask_predict", "ctc"]
DECODING_CHOICES: dict[str, DecodingChoice] = {
    "autoregressive": DecodingChoice("one token after another"),
    "mask_predict": DecodingChoice(
        "all tokens at once, after the length; the least certain ones are predicted again, several times",
        papers=("ghazvininejad2019mask",),
        fields=("max_length_difference",),
        is_parallel=True,
        needs_table=True,
        excludes=("r_drop", "scheduled_sampling"),
        options=("refinement_steps", "length_scale"),
    ),
    "ctc": DecodingChoice(
        "all tokens at once, on more positions than needed; repetitions and blanks are dropped",
        papers=("libovicky2018end", "graves2006connectionist"),
        fields=("ctc_upsampling",),
        is_parallel=True,
        upsamples=True,
        excludes=("r_drop", "scheduled_sampling", "guided_attention", "label_smoothing_factor", "num_beams"),
    ),
}

OPTIONS: dict[str, Mapping[str, Choice]] = {
    "norm": NORM_CHOICES,
    "norm_placement": PLACEMENT_CHOICES,
    "block_layout": LAYOUT_CHOICES,
    "feed_forward": FEED_FORWARD_CHOICES,
    "position_embedding_type": POSITION_CHOICES,
    "sinusoidal_layout": SINUSOIDAL_CHOICES,
    "qk_norm": QUERY_KEY_NORM_CHOICES,
    "layer_types": LAYER_TYPE_CHOICES,
    "initialization": INITIALIZATION_CHOICES,
    "parametrization": PARAMETRIZATION_CHOICES,
    "classifier_pooling": POOLING_CHOICES,
    "patch_embedding": PATCH_CHOICES,
    "image_pooling": IMAGE_POOLING_CHOICES,
    "output_distribution": OUTPUT_CHOICES,
    "cell": CELL_CHOICES,
    "cross_attention": CROSS_ATTENTION_CHOICES,
    "recurrent_initialization": RECURRENT_INITIALIZATION_CHOICES,
    "decoding": DECODING_CHOICES,
}
"""The values of every option, by the config field."""


def readers(fields: str) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Return, for each field listed in an attribute of the choices, the option and its values that read the field."""
    found: dict[str, tuple[str, tuple[str, ...]]] = {}
    for option, choices in OPTIONS.items():
        for value, choice in choices.items():
            for field in getattr(choice, fields):
                found[field] = (option, (*found.get(field, (option, ()))[1], value))
    return found


FIELD_READERS = readers("fields")
"""Fields that must keep their default except with some values of an option: that option and those values."""
SIZE_READERS = readers("sizes")
"""Fields that have no effect except with some values of an option: that option and those values."""
