"""Programs that load a saved model and use it once, for its card."""

from pathlib import Path

from vanillaformer.data.tasks import TASKS, TaskName

CHAT = """turns = [{{"role": "user", "content": {example!r}}}]
inputs = tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=True, return_tensors="pt")
reply = model.generate(**inputs, max_new_tokens=32)[0, inputs["input_ids"].shape[1] :]
print(tokenizer.decode(reply, skip_special_tokens=True))"""
CHAT_PIPE = """pipe([{{"role": "user", "content": {example!r}}}], max_new_tokens=32)"""
LOAD = """{package}from transformers import {auto_class}, AutoTokenizer

folder = {folder!r}
tokenizer = AutoTokenizer.from_pretrained(folder{trust})
{target}model = {auto_class}.from_pretrained(folder{trust})
{use}"""
LOAD_IMAGES = """{package}{torch}from PIL import Image
from transformers import AutoImageProcessor, {auto_class}

folder = {folder!r}
processor = AutoImageProcessor.from_pretrained(folder)
model = {auto_class}.from_pretrained(folder{trust})
{use}"""
PACKAGE = "import vanillaformer  # makes the Auto classes know the model\n"
TRUST = ", trust_remote_code=True"
TARGET = 'target_tokenizer = AutoTokenizer.from_pretrained(folder, subfolder="target_tokenizer"{trust})\n'
PIPE = """from transformers import pipeline

pipe = pipeline({task!r}, model={folder!r}{trust})
print({call})"""


def loading_code(
    task: TaskName,
    folder: str | Path,
    example: str,
    *,
    separate_target: bool = False,
    package: bool = True,
    ours: bool = True,
    chat: bool = False,
) -> str:
    """Return a program that loads a saved model and uses it once.

    Args:
        task: What the model does.
        folder: Where it is saved (a folder or a Hub id).
        example: An input for it.
        separate_target: Whether the target has a tokenizer of its own.
        package: Use this package; otherwise the code that was saved with the model.
        ours: Whether the model is one of this package; those of transformers need no code in their repository.
        chat: Whether the model answers in dialogues, and the example is what is said to it.
    """
    description, trust = TASKS[task], "" if package or not ours else TRUST
    if not package and description.pipe:
        call = (CHAT_PIPE if chat else description.pipe).format(example=example)
        return PIPE.format(task=description.pipeline_tag, folder=str(folder), call=call, trust=trust)
    decoder = "target_tokenizer" if separate_target else "tokenizer"
    if description.reads_images:
        use = description.use.format(example=example)
        names = {"auto_class": description.auto_class.__name__, "folder": str(folder), "trust": trust, "use": use}
        return LOAD_IMAGES.format(
            package=PACKAGE if package else "", torch="import torch\n" if "torch." in use else "", **names
        )
    return LOAD.format(
        package=PACKAGE if package else "",
        auto_class=description.auto_class.__name__,
        folder=str(folder),
        target=TARGET.format(trust=trust) if separate_target else "",
        trust=trust,
        use=(CHAT if chat else description.use).format(example=example, decoder=decoder),
    )
