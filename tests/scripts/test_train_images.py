"""A classifier of images from the program to the pipeline: what it leaves, fine-tuning, `generate`, bad files."""

import json
import re
import shutil
from pathlib import Path

import pytest
from refusals import ends, refused
from script_runs import answers, edit, generated, json_lines, picture, train, weights
from transformers import AutoImageProcessor, pipeline

from vanillaformer.scripts import export, generate, train_image_classifier


def test_an_export_and_the_pipeline_give_the_same_labels(trained, tmp_path: Path, capsys) -> None:
    pytest.importorskip("onnxscript", reason="pip install 'vanillaformer[onnx]'")
    folder, exported = trained("image_classification"), tmp_path / "export"
    lines = json_lines(folder / "predictions_test.jsonl")
    assert (len(lines), set(lines[0])) == (20, {"image", "reference", "prediction", "probability"})
    capsys.readouterr()
    export.main([str(folder), str(exported), "--engine", "onnx"])
    assert "logits of 8 images equal" in capsys.readouterr().out
    image = "--image", folder / "example.png"
    lines = answers(capsys, "--model", folder, *image)
    same = generated(capsys, "--model", folder, *image, "--engine", "auto")
    assert (same.out.split("\n")[:-1], same.err) == (lines, "--engine auto: torch, which runs images\n")
    for name in ("onnx", "onnxruntime"):
        assert answers(capsys, "--model", exported, "--engine", name, *image) == lines
    (best, *_) = pipeline("image-classification", model=str(folder))(str(folder / "example.png"))
    assert lines == [f"{best['label']}\t{best['score']:.4f}"]
    for options, message in (
        ([exported, "--text", "hello"], "classifies images: give --image"),
        ([folder, "--image", "x.png"], "x.png does not exist"),
        (
            [folder, "--image", "x", "--source_lang", "a", "--target_lang", "b"],
            "--image and --source_lang: images are",
        ),
        ([folder, "--text", "x"], "give --image"),
    ):
        ends(message, generate.main, "--model", *options)


def test_a_masked_image_model_is_fine_tuned(trained, tmp_path: Path, capsys) -> None:
    pytest.importorskip("peft", reason="pip install 'vanillaformer[peft]'")
    pretrained = shutil.copytree(trained("masked_image"), tmp_path / "old")
    edit(pretrained / "preprocessor_config.json", resample=3, image_processor_type="BitImageProcessor")
    options = ["--model_name_or_path", str(pretrained), "--output_dir", str(tmp_path / "run"), "--max_steps", "1"]
    options += ["--max_train_samples", "60", "--learning_rate", "0", "--lora_rank", "2", "--baseline", "--use_cpu"]
    run = train_image_classifier.train(options)
    assert "are resized to 8, bilinear, without do_center_crop=True, resample=3." in capsys.readouterr().err
    assert (run.folder / "adapter" / "adapter_model.safetensors").is_file()
    assert run.details["baselines"]["linear classifier of pixels"]["test_accuracy"] > 0.3
    one, other = weights(pretrained), weights(run.folder)
    shared = [name for name in other if name.startswith("model.layers")]
    assert len(shared) > 5
    assert all((one[name] == other[name]).all() for name in shared)
    ours, theirs = (AutoImageProcessor.from_pretrained(path) for path in (run.folder, pretrained))
    assert ours.image_mean == theirs.image_mean
    options += ["--image_size", "16", "--overwrite_output_dir"]
    refused("--image_size 16: the model has image_size=8", train_image_classifier.train, options)


def test_a_folder_of_images_and_generate_with_bad_files(tmp_path: Path, capsys) -> None:
    photos = tmp_path / "photos"
    for number in range(16):
        path = photos / ("dark", "bright")[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture(number, 12, 20))
    run = train("image_classification", tmp_path / "run", "--train_file", str(photos), "--max_steps", "2")
    model = json.loads((run.folder / "config.json").read_text())
    assert (model["image_size"], model["patch_size"]) == (20, 4)
    (photos / "dark" / "x.png").write_bytes((photos / "dark" / "0.png").read_bytes()[:60])
    capsys.readouterr()
    output = tmp_path / "labels.jsonl"
    options = "--output_format", "jsonl", "--batch_size", "5", "--output_file", output
    ends("1 of 17 images cannot be read", generate.main, "--model", run.folder, "--image", photos, *options)
    assert re.search(r"dark/x.png cannot be read: ", capsys.readouterr().err)
    records = json_lines(output)
    assert len(records) == 17
    assert [record["image"] for record in records if "error" in record] == [str(photos / "dark" / "x.png")]
    assert {record["label"] for record in records if "label" in record} <= {"dark", "bright"}
