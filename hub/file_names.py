"""Names of the files in the folder of a saved model: files for loading, and files that are published."""

from collections.abc import Iterable
from pathlib import Path

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
SHARDS = f"model-{'[0-9]' * 5}-of-{'[0-9]' * 5}.safetensors"
EXPORT = "vanillaformer_export.json"
ADAPTER = "adapter_config.json"
CONFIG = "config.json"
GENERATION = "generation_config.json"
CARD = "README.md"
LICENSES = ("LICENSE", "LICENSE.md", "LICENSE.txt", "NOTICE")
# Pictures that a run draws of its model
PICTURES = ("loss_curve.png", "confusion_matrix.png", "cross_attention.png")

# Files of our tokenizers and those of native models: exact names, because other files may begin alike
TOKENIZER = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.json", "vocab.txt", "merges.txt", "target_vocab.json"),
    *("tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "source.spm", "target.spm"),
    *("chat_template.jinja", "chat_template.json", "additional_chat_templates/*.jinja"),  # with any names
)
IMAGE_PROCESSOR = "preprocessor_config.json"
TOKENIZERS = (*TOKENIZER, *(f"target_tokenizer/{name}" for name in TOKENIZER), IMAGE_PROCESSOR)
"""Files of tokenizers and image processors."""

# Files of a repository that loading needs
NEEDED = (CONFIG, GENERATION, WEIGHTS, INDEX, SHARDS, *TOKENIZERS)
CARRIED = (CARD, *LICENSES)
# Files pushed in addition to weights: those that loading needs, and files for people
PUSHED = (CONFIG, GENERATION, *TOKENIZERS, CARD, *LICENSES, *PICTURES, "all_results.json")
# Files of an earlier push that would be loaded with the new ones, or instead of them
STALE = (WEIGHTS, INDEX, SHARDS, EXPORT, ADAPTER)

# Never read by our programs
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl", "*.pickle")
CODE = "*.py"
UNSAFE = [*PICKLES, CODE]


# The code beside a saved model: the beginning of its files, and the environment variable that leaves it out
MARK = "# Generated: vanillaformer/"
SWITCH, OFF = "VANILLAFORMER_REMOTE_CODE", ("0", "false", "no", "off")


def saved_code(folder: Path) -> list[Path]:
    """Return the files in a folder that `hub/remote_code.py` wrote."""
    paths = [path for pattern in ("configuration_*.py", "modeling_*.py") for path in folder.glob(pattern)]
    return [path for path in paths if path.is_file() and path.read_bytes().startswith(MARK.encode())]


def matching_files(folder: Path, patterns: Iterable[str]) -> dict[str, Path]:
    """Return the files of a folder that match patterns, by their path in it."""
    return files_by_name(folder, (path for pattern in patterns for path in folder.glob(pattern)))


def files_by_name(folder: Path, paths: Iterable[Path]) -> dict[str, Path]:
    """Return the files among paths in a folder, by their path in it."""
    files, root = {}, folder.resolve()
    # In the Hub's cache all files are links to this folder
    roots = [root, *([root.parent.parent / "blobs"] if root.parent.name == "snapshots" else [])]
    for path in filter(Path.is_file, paths):
        name, real = path.relative_to(folder).as_posix(), path.resolve()
        if not any(real.is_relative_to(root) for root in roots):
            raise ValueError(f"{folder}: {name} is a link out of the folder, to {real}: put a copy in its place")
        files[name] = path
    return files
