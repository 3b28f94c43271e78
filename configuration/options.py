"""The names of every switch: one word here, one class and one line in the part's dictionary, and it can be chosen.

`tests/configuration/test_options.py` keeps these names and the parts' dictionaries equal.
"""

from typing import Literal

Norm = Literal["layer_norm", "rms_norm"]
"""`modeling/parts/norms.py`: LayerNorm (Ba et al. 2016), RMSNorm (Zhang and Sennrich 2019)."""

NormPlacement = Literal[
    "post", "pre", "sandwich", "inside", "rezero", "deepnorm", "admin", "no_norm", "no_residual"
]  # fmt: skip
"""`modeling/parts/residual.py`: post-LN (Vaswani et al. 2017), pre-LN (GPT-2), sandwich (CogView, Ding et al. 2021),
norm of the output inside the residual (OLMo 2, 2025), ReZero (Bachlechner et al. 2020), DeepNorm (Wang et al. 2022),
Admin's scaled residual (Liu et al. 2020), the bare sum (T-Fixup, Huang et al. 2020), and the ablation
without the sum."""

BlockLayout = Literal["sequential", "parallel", "parallel_shared_norm"]
"""`modeling/block.py`: one sublayer after the other (Vaswani et al. 2017), all on the same input (GPT-NeoX), and that
behind one norm (GPT-J)."""

FeedForward = Literal["plain", "gated"]
"""`modeling/parts/feed_forward.py`: two layers (Vaswani et al. 2017), gated linear unit (Shazeer 2020)."""

PositionEmbedding = Literal["sinusoidal", "learned", "rotary", "alibi", "relative", "none"]
"""`modeling/parts/positions.py`: Vaswani et al. 2017, BERT and GPT, RoPE (Su et al. 2021), ALiBi (Press et al. 2022),
T5's relative bias (Raffel et al. 2020), none."""

SinusoidalLayout = Literal["interleaved", "halves", "tensor2tensor"]
"""Columns of a sinusoidal table: sine, cosine, sine, cosine ... (the paper); all sines first (Marian); the same with
wavelengths up to exactly 20000π (tensor2tensor, fairseq)."""

QueryKeyNorm = Literal["none", "head", "each_head", "full"]
"""`modeling/parts/attention.py`: no norm on queries and keys, one for each head with the same weight (Qwen 3) or with
weights of its own (Cohere, StableLM), one over all heads (OLMo 2)."""

LayerType = Literal["full_attention", "sliding_attention"]
"""What a layer sees: everything, or the tokens of a window (transformers' names)."""

Initialization = Literal[
    "normal", "gpt2", "xavier", "t5", "deepnorm", "t_fixup", "ds_init", "admin", "mimetic"
]  # fmt: skip
"""`modeling/parts/initialization.py`, which has the table of formulas and papers."""

Pooling = Literal["first", "mean", "max", "last"]
"""`modeling/parts/pooling.py`: how an encoder classifier turns token states into one vector."""
