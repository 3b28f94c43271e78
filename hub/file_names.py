"""Names of the files in the folder of a saved model: what loading reads, and what is published."""

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
SHARDS = f"model-{'[0-9]' * 5}-of-{'[0-9]' * 5}.safetensors"
EXPORT = "vanillaformer_export.json"
ADAPTER = "adapter_config.json"
CONFIG = "config.json"
GENERATION = "generation_config.json"
CARD = "README.md"
LICENSES = ("LICENSE", "LICENSE.md", "LICENSE.txt", "NOTICE")
# What a run draws of its model
PICTURES = ("loss_curve.png", "confusion_matrix.png", "cross_attention.png")

# Files of our tokenizers and those of native models: exact names, for other files may begin alike
TOKENIZER = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.json", "vocab.txt", "merges.txt", "target_vocab.json"),
    *("tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "source.spm", "target.spm"),
    *("chat_template.jinja", "chat_template.json", "additional_chat_templates/*.jinja"),  # a template has any name
)
TOKENIZERS = (*TOKENIZER, *(f"target_tokenizer/{name}" for name in TOKENIZER))

# What loading needs of a repository
NEEDED = (CONFIG, GENERATION, WEIGHTS, INDEX, SHARDS, *TOKENIZERS)
CARRIED = (CARD, *LICENSES)

# Never read by our programs
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl", "*.pickle")
CODE = "*.py"
UNSAFE = [*PICKLES, CODE]
