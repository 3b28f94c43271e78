"""The names of every switch: one word here, one class and one line in the part's dictionary, and it can be chosen.

`tests/configuration/test_options.py` keeps these names and the parts' dictionaries equal.
"""

from typing import Literal

Norm = Literal["layer_norm", "rms_norm"]
"""`modeling/norms.py`: LayerNorm (Ba et al. 2016), RMSNorm (Zhang and Sennrich 2019)."""

NormPlacement = Literal["post", "pre", "no_residual"]
"""`modeling/residual.py`: post-LN (Vaswani et al. 2017), pre-LN (GPT-2), and the ablation without the sum."""

FeedForward = Literal["plain", "gated"]
"""`modeling/feed_forward.py`: two layers (Vaswani et al. 2017), gated linear unit (Shazeer 2020)."""

PositionEmbedding = Literal["sinusoidal", "learned", "rotary", "none"]
"""`modeling/positions.py`: Vaswani et al. 2017, BERT and GPT, RoPE (Su et al. 2021), none."""

SinusoidalLayout = Literal["interleaved", "halves"]
"""Order within a sinusoidal table: sine, cosine, sine, cosine ... (the paper), or all sines first (Marian)."""

Initialization = Literal["normal", "gpt2", "xavier"]
"""`modeling/initialization.py`: N(0, range²), GPT-2's depth-scaled normal, Xavier uniform (Glorot and Bengio 2010)."""

Pooling = Literal["first", "mean", "max", "last"]
"""`modeling/pooling.py`: how an encoder classifier turns token states into one vector."""
