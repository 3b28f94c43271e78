"""Malicious and broken repositories: one clear error, bounded memory, and nothing of theirs runs."""

import json
import os
import pickle
import random
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from refusals import refused
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, BertConfig, BertForPreTraining

from vanillaformer.hub.checks import read_headers
from vanillaformer.hub.file_names import INDEX, WEIGHTS
from vanillaformer.hub.loading import open_tokenizers, saved_folder
from vanillaformer.inference import tasks
from vanillaformer.modeling.parts.positions import SinusoidalPositions
from vanillaformer.scripts import generate
from vanillaformer.tokenization import train

from .conftest import edit
from .test_pull import upload

Change = Callable[[Path], object]
LIMIT = 2**30  # bytes that a program may take on top of what it is made of


def cut(folder: Path, size: int) -> None:
    os.truncate(folder / WEIGHTS, size)


def index(folder: Path, shard: object) -> None:
    (folder / WEIGHTS).rename(folder / "model-00001-of-00001.safetensors")
    (folder / INDEX).write_text(json.dumps({"weight_map": {"lm_head.weight": shard}}))


class Trap:
    """Something that leaves a file behind when it is unpickled."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def to_pickle(folder: Path) -> None:
    """Leave only weights that leave a file beside the folder when they are unpickled."""
    (folder / WEIGHTS).unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Trap(folder.parent / "trace"), protocol=2))


def fields(**values) -> Change:
    """A change of fields of the config."""
    return lambda folder: edit(folder, **values)


def tensors(change: Callable[[dict[str, torch.Tensor]], object]) -> Change:
    """A change of the weights."""

    def changed(folder: Path) -> None:
        values = load_file(folder / WEIGHTS)
        change(values)
        save_file(values, folder / WEIGHTS, {"format": "pt"})

    return changed


def text(content: str, file: str = "config.json") -> Change:
    """Another text in a file."""
    return lambda folder: (folder / file).write_text(content)


DOWN, SETTINGS = "model.layers.1.mlp.down_proj.weight", "generation_config.json"
BROKEN: dict[str, tuple[Change, str]] = {
    "pickle": (to_pickle, r"has no model.safetensors \(pytorch_model.bin is not read: a pickle can run code"),
    "cut in the data": (lambda folder: cut(folder, 9000), "has a damaged model.safetensors"),
    "empty": (lambda folder: cut(folder, 0), "has a damaged model.safetensors"),
    "shard elsewhere": (lambda folder: index(folder, "../model.safetensors"), "names '../model.safetensors'"),
    "shard name not text": (lambda folder: index(folder, 3), "names 3, which is not a safetensors file"),
    "deep index": (lambda folder: [(folder / WEIGHTS).unlink(), (folder / INDEX).write_text("[" * 10**6)],
                   "has a damaged model.safetensors.index.json"),
    "export": (text("{}", "vanillaformer_export.json"), "has an exported model"),
    "adapters": (text("{}", "adapter_config.json"), "has adapters .* merge them"),
    "shard missing": (lambda folder: index(folder, "b.safetensors"), "names 'b.safetensors', which is not there"),
    "config no JSON": (text("{"), "has a config.json that is not JSON"),
    "config no object": (text("[]"), "is not a JSON object, but a list"),
    "deep config": (text("[" * 10**6), "has a config.json that is not JSON"),
    "layers": (fields(num_hidden_layers=10**12), "num_hidden_layers=1,000,000,000,000 must be at most"),
    "layers, some": (fields(num_hidden_layers=9000), r"has num_hidden_layers=9,000 .* weights of \d+ tensors"),
    "layers, few": (fields(num_hidden_layers=20), r"has weights without model\.layers\.10\.mlp\.down_proj\.bias"),
    "layers, fewer": (fields(num_hidden_layers=1), r"has weights with model\.layers\.1\..* more, which a"),
    "width": (fields(hidden_size=10**9), "hidden_size=1,000,000,000 must be at most 1,048,576"),
    "width, some": (fields(hidden_size=2**16), "has hidden_size=65,536 in config.json, but weights of"),
    "inner width": (fields(intermediate_size=7000), r"has model.layers.0.mlp.down_proj.weight of shape \(16, 64\)"),
    "tensor missing": (tensors(lambda values: values.pop(DOWN)),
                       f"has weights without {DOWN}, which a VanillaDecoderForCausalLM has$"),
    "tensor too many": (tensors(lambda values: values.update(more=torch.ones(2))),
                        "has weights with more, which a VanillaDecoderForCausalLM does not have$"),
    "integers": (tensors(lambda values: values.update({DOWN: values[DOWN].to(torch.int8)})),
                 f"has {DOWN} of data type I8 in its weights, must be one of F64, F32, F16, BF16$"),
    "8 bits": (tensors(lambda values: values.update({DOWN: values[DOWN].to(torch.float8_e4m3fn)})),
               f"has {DOWN} of data type F8_E4M3 in its weights"),
    **{name: (tensors(lambda values, number=number: values[DOWN].view(-1)[-1:].fill_(number)),
              f"has {DOWN} with NaN or infinity in model.safetensors$")
       for name, number in {"not a number": float("nan"), "infinite": float("-inf")}.items()},
    "large config": (text(f'{{"a": "{"x" * 2**25}"}}'), "has a config.json of 33,554,441 bytes, at most 33,554,432"),
    "nested config": (text('{"a": ' * 900 + "1" + "}" * 900), "has an invalid config.json: "),
    "architecture of a number": (fields(architectures=[5]), r"has architectures=\[5\] in config.json: it must name"),
    "architecture of Python": (fields(architectures=["__builtins__"]), "has architectures=.'__builtins__'. in config"),
    "architecture of another": (fields(architectures=["VanillaEncoderForMaskedLM"]), "must name one of VanillaD"),
    "no architecture": (fields(architectures=None), "has architectures=None in config.json"),
    "encoder": (fields(is_encoder_decoder=True), "is_encoder_decoder=?.*True"),
    "data type": (fields(dtype="float8_e4m3fn"), "has dtype='float8_e4m3fn' in config.json: it must be one of float6"),
    "beams": (text('{"num_beams": 10000000}', SETTINGS), "num_beams=10000000 in .*: it must be an integer up to 256"),
    "beams in words": (text('{"num_beams": "many"}', SETTINGS), f"has num_beams='many' in {SETTINGS}"),
    "end": (text('{"eos_token_id": "x"}', SETTINGS), f"has eos_token_id='x' in {SETTINGS}, but the model has"),
    "start": (text('{"decoder_start_token_id": -5}', SETTINGS), f"decoder_start_token_id=-5 in {SETTINGS}, but the"),
    "settings of a list": (text("[1, 2]", SETTINGS), f"has a {SETTINGS} that is not a JSON object, but a list"),
    "vocabulary": (fields(vocab_size=10**15), "vocab_size=1,000,000,000,000,000 must be at most"),
    "labels": (fields(num_labels=10**12), "num_labels=1,000,000,000,000 must be at most"),
    "table": (fields(position_embedding_type="sinusoidal", max_position_embeddings=10**9),
              "a table of max_position_embeddings by hidden_size"),
    "kernel": (fields(attn_implementation="evil/kernel"), "attn_implementation='evil/kernel' .* kernels of the Hub"),
    "kernel of a part": (fields(model_type="gemma3", text_config={"_attn_implementation": {"": "evil/kernel"}}),
                         "evil/kernel.* kernels of the Hub are code"),
    "misspelled": (fields(norm_placment="post"), "has no field 'norm_placment'.*'norm_placement'"),
    "type": (fields(model_type="nothing", auto_map={}), "nothing"),
    "native": (fields(model_type="llama", num_hidden_layers=10**9), "num_hidden_layers=1,000,000,000"),
    "part of a native": (fields(model_type="gemma3", text_config={"num_hidden_layers": 10**9}),
                         "layers=1,000,000,000 must"),
    "part of a native, some": (fields(model_type="gemma3", text_config={"hidden_size": 2**19}), "hidden_size=524,288"),
    "native, some": (fields(model_type="qwen2", num_hidden_layers=9000), r"weights of \d+ tensors"),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_folder_has_one_error_that_says_what_is_broken(case, copy):
    change, message = BROKEN[case]
    change(copy)
    with pytest.raises(ValueError, match=message) as info:
        saved_folder(str(copy))
    assert str(info.value).startswith(f"--model {copy} has "), info.value
    assert len(str(info.value)) < 1500


def test_whole_folders_have_no_error_also_in_half_precision_and_several_files(copy, saved):
    assert saved_folder(str(copy)) == copy
    for kind in ("pair", "translator", "masked", "classifier"):
        saved_folder(str(saved(kind)))
    whole = AutoModelForCausalLM.from_pretrained(copy)
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        whole.to(dtype).save_pretrained(copy, max_shard_size="9KB")
        assert len(set(read_headers(copy).dtypes.values())) == 1
        assert saved_folder(str(copy)) == copy
        for path in copy.glob("model*"):
            path.unlink()


def test_native_weights_may_hold_more_than_the_model_and_nothing_less(tmp_path):
    """A pre-trained BERT's file has its next-sentence head, of which a masked language model has no use."""
    size = {"vocab_size": 20, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    BertForPreTraining(BertConfig(**size, num_attention_heads=1)).save_pretrained(tmp_path)
    edit(tmp_path, architectures=["BertForMaskedLM"])
    saved_folder(str(tmp_path))
    edit(tmp_path, architectures=["BertForQuestionAnswering"])
    refused(r"has weights without qa_outputs\.bias, qa_outputs\.weight, .* BertForQ", saved_folder, str(tmp_path))
    edit(tmp_path, architectures=["Tensor"])
    refused(r"architectures=\['Tensor'\] .* a class of transformers for a BertConfig", saved_folder, str(tmp_path))
    to_pickle(tmp_path)
    refused(BROKEN["pickle"][1], saved_folder, str(tmp_path))


def test_a_position_table_takes_no_memory_before_the_model_is_loaded(copy, monkeypatch):
    edit(copy, position_embedding_type="sinusoidal", max_position_embeddings=2**23)
    made, compute = [], SinusoidalPositions.initial_values

    def computed(positions: SinusoidalPositions) -> dict[str, torch.Tensor]:
        values = compute(positions)
        made.append(values["table"].device.type)
        return values

    monkeypatch.setattr(SinusoidalPositions, "initial_values", computed)
    refused(r"has weights with model\.embeddings\.positions\.embed_positions\.weight", saved_folder, str(copy))
    assert set(made) == {"meta"}


def test_tables_that_are_computed_have_limits_in_both_stacks(saved, tmp_path):
    copy = Path(shutil.copytree(saved("translator"), tmp_path / "model"))
    saved_folder(str(copy))
    rows = 2**22
    edit(copy, position_embedding_type="sinusoidal", max_position_embeddings=rows)
    width = json.loads((copy / "config.json").read_text())["hidden_size"]
    refused(rf"tables of {2 * rows * width:,} numbers .* at most 16,777,216 or", saved_folder, str(copy))


def test_a_flipped_bit_of_a_header_is_an_error_or_changes_no_size(copy):
    whole, generator = (copy / WEIGHTS).read_bytes(), random.Random(0)
    shapes = sorted(read_headers(copy).shapes.values())
    header, damaged = 8 + int.from_bytes(whole[:8], "little"), 0
    for _ in range(400):
        text, place = bytearray(whole), generator.randrange(header)
        text[place] ^= 1 << generator.randrange(8)
        (copy / WEIGHTS).write_bytes(text)
        try:
            assert sorted(read_headers(copy).shapes.values()) == shapes  # a letter of a name, a space
        except ValueError:
            damaged += 1
    assert damaged > 200


def test_a_tokenizer_is_refused_if_it_has_more_tokens_than_the_model(copy):
    config = AutoModelForCausalLM.from_pretrained(copy).config
    train(["the cat"] * 3, algorithm="word", kind="decoder", vocab_size=10).save_pretrained(copy)
    open_tokenizers(copy, config, "--model x")
    texts = [f"{one}{other} " * 3 for one in "abcdefghijkl" for other in "mnopqrstuvwxyz"]
    train(texts, algorithm="word", kind="decoder", vocab_size=400).save_pretrained(copy)
    message = r"--model x: the tokenizer makes 17\d tokens, but the model has vocab_size=\d\d$"
    refused(message, open_tokenizers, copy, config, "--model x")


@pytest.mark.parametrize("content", ["", "{}", '{"model": {"type": "BPE"}}', "[" * 100])
def test_a_broken_tokenizer_or_a_missing_library_is_one_error(content, copy):
    edit(copy, attn_implementation="flash_attention_2")
    arguments = generate.GenerateArguments(model_name_or_path=str(copy), text=["the cat"], device="cpu")
    refused("--model .*: the model cannot be loaded: .*[Ff]lash", tasks.load, arguments)
    (copy / "tokenizer.json").write_text(content)
    refused("--model x: the tokenizer cannot be loaded: ", open_tokenizers, copy, None, "--model x")


def test_a_tokenizer_that_makes_a_flood_of_a_text_is_refused_before_it_is_loaded(copy):
    step = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 1000}
    inner = {"type": "Sequence", "normalizers": [step]}
    edit(copy, "tokenizer.json", normalizer={"type": "Sequence", "normalizers": [step, inner]})
    message = "--model x: the replacements in tokenizer.json make up to 1,000,000 characters of one, at most 1,000 are"
    refused(message, open_tokenizers, copy, None, "--model x")
    edit(copy, "tokenizer.json", normalizer={"type": "Replace", "pattern": {"Regex": "a+"}, "content": "b" * 1000})
    source, _ = open_tokenizers(copy, None, "--model x")
    assert source.backend_tokenizer.normalizer.normalize_str("aac") == "b" * 1000 + "c"


def test_a_pattern_that_never_ends_is_one_error(copy):
    """The library gives up by a panic, which is no Exception in Python."""
    pattern = {"type": "Split", "pattern": {"Regex": "(a+)+$x"}, "behavior": "Isolated", "invert": False}
    edit(copy, "tokenizer.json", pre_tokenizer=pattern)
    arguments = generate.GenerateArguments(model_name_or_path=str(copy), text=["a" * 30 + "b"], device="cpu")
    loaded, *_ = tasks.load(arguments)
    refused("the model's tokenizer cannot encode these texts: .*retry-limit-in-match", loaded.encode, arguments.text)


LANGUAGE = shlex.split("--max_train_samples 2 --max_validation_samples 1 --block_size 8 --use_cpu --max_steps 1")


def runs(name: str, folder: Path) -> dict[str, list[str]]:
    """Return the command line of every program that opens a model."""
    return {
        "generate": ["--model", name, "--text", "the cat"],
        "convert": [name, str(folder / "converted")],
        "export": [name, str(folder / "exported"), "--engine", "ctranslate2"],
        "train_language_model": ["--model_name_or_path", name, "--output_dir", str(folder / "trained"), *LANGUAGE],
    }


@pytest.mark.parametrize("case", [
    *("pickle", "cut in the data", "layers", "layers, some", "width, some", "labels", "type"),
    *("tensor missing", "integers", "not a number", "nested config", "adapters"),
])  # fmt: skip
def test_every_program_refuses_in_bounded_memory(case, client, server, copy, tmp_path):
    change, message = BROKEN[case]
    change(copy)
    name = f"ann/broken-{list(BROKEN).index(case)}"
    upload(server, name, copy)
    programs = [*runs(name, tmp_path).items(), ("push", [str(copy), "ann/refused"])]
    if case == "pickle":
        programs += runs(str(copy), tmp_path).items()
    for program, argv in programs:
        answer = client(program, *argv, memory=LIMIT)
        assert answer.error, program
        assert answer.kind in (None, "ValueError"), answer.everything
        assert re.search(message, answer.error), (program, answer.error)
    assert "ann/refused" not in server.hub.repositories
    assert not [path for path in tmp_path.iterdir() if path.name not in ("model", "trained")], "or it was unpickled"
    assert not [file for file in server.downloaded() if file.endswith((".bin", ".py"))]


def test_a_limit_on_memory_is_one(client, saved, tmp_path):
    lines = tmp_path / "lines"
    lines.write_text("the cat\n" * 2_000_000)
    answer = client("generate", "--model", saved("decoder"), "--input_file", lines, memory=2**23)
    assert answer.kind == "MemoryError", answer.everything


@pytest.mark.parametrize("where", ["hub", "folder"])
@pytest.mark.parametrize("model_type", ["vanilla_decoder", "unknown"])
def test_no_program_runs_code_of_a_repository(model_type, where, client, server, copy, tmp_path):
    trace = tmp_path / "trace"
    for path in (*copy.glob("*.py"), copy / "evil.py"):
        with path.open("a") as module:
            module.write(f"\nopen({str(trace)!r}, 'w').close()\n")
    if model_type == "unknown":
        edit(copy, model_type="unknown", auto_map={"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"})
    evil = {"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": ["evil.Evil", None]}}
    edit(copy, "tokenizer_config.json", **evil)
    upload(server, f"ann/trapped-{model_type}", copy)
    name = f"ann/trapped-{model_type}" if where == "hub" else str(copy)
    answers = {program: client(program, *argv) for program, argv in runs(name, tmp_path).items()}
    client("push", copy, "ann/trapped-again")
    assert not trace.exists()
    if model_type == "unknown":
        for program, answer in answers.items():
            assert "trust_remote_code" in answer.error, (program, answer.everything)
    assert not [file for file in server.downloaded() if file.endswith(".py")]


@pytest.mark.parametrize("large", [True, False])
@pytest.mark.parametrize("name", [WEIGHTS, "tokenizer.json"])
def test_a_download_that_is_damaged_and_cannot_be_loaded_is_named(name, large, client, server, copy):
    server.hub.large = large
    repo = f"ann/flipped-{large}-{name.split('.')[0]}"
    upload(server, repo, copy)
    wanted = client.ok("generate", "--model", repo, "--text", "the cat")
    (stored,) = (path.resolve() for path in client.home.rglob(f"models--{repo.replace('/', '--')}/snapshots/*/{name}"))
    content = bytearray(stored.read_bytes())
    content[8 if name == WEIGHTS else 0] ^= 1  # a bit in the header, in the first brace
    stored.write_bytes(content)
    for program in ("generate", "export"):
        answer = client(program, *runs(repo, copy)[program])
        assert f"; {name} is damaged, it is not what the Hub has: delete {stored}" in answer.error
    stored.unlink()
    assert client.ok("generate", "--model", repo, "--text", "the cat") == wanted
