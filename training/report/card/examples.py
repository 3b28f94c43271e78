"""Inputs to try a model with, for the card, which is public, and for the terminal; programs that use a model once."""

from datasets import Dataset

from vanillaformer.data.arguments import DataArguments
from vanillaformer.data.tasks import MASK, TASKS, TaskName

from .facts import CardFacts

GREETING = "Hello, how are you?"
"""For models of dialogues."""
WIDTH = 100
"""Most characters of an example, of running text fewer."""
LOOKED_THROUGH = 100
"""Rows that an example is chosen from."""
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


def example_row(rows: Dataset, column: str) -> str:
    """Return a text of modest length that stands for the data: of the first rows that are one short line, the median.

    Without any, it is the first text that is not blank.
    """
    texts = [text.strip() for text in rows[:LOOKED_THROUGH][column] if text.strip()]
    short = sorted((text for text in texts if len(text) <= WIDTH and len(text.splitlines()) == 1), key=len)
    return short[len(short) // 2] if short else next(iter(texts), "")


def card_example(data_args: DataArguments, task: TaskName, row: str = "") -> str:
    """Return the example input in a model's card: never a row of the user's data, unless `--card_example` gives one.

    Args:
        data_args: The data arguments.
        task: What the model does.
        row: An input from the data, which is used if the data is embedded.

    Raises:
        ValueError: `--card_example` cannot be an input of such a model.
    """
    if data_args.card_example is not None:
        if not data_args.card_example.strip():
            raise ValueError("--card_example is empty")
        if MASK in TASKS[task].example and MASK not in data_args.card_example:
            raise ValueError(f"--card_example {data_args.card_example!r} needs a {MASK}, which the model fills in")
        return data_args.card_example
    if data_args.is_embedded and not TASKS[task].reads_images:
        return TASKS[task].embedded_example or row
    return TASKS[task].example if data_args.turns_column is None else GREETING


def terminal_example(data_args: DataArguments, task: TaskName, row: str = "") -> str | None:
    """Return the input of the command that a run ends with: the beginning of a row; None for a model to chat with."""
    if data_args.turns_column is not None:
        return None
    description = TASKS[task]
    if description.reads_images:
        return row or description.example
    if description.embedded_example and data_args.is_embedded:
        return description.embedded_example
    beginning = first_words(row, WIDTH if description.whole_texts else 40)
    if MASK in description.example:
        before, _, last = beginning.rpartition(" ")
        return f"{before} {MASK}" if before and last else description.example
    return beginning or description.example


def first_words(text: str, width: int) -> str:
    """Return the first words of a text in one line of at most `width` characters; a longer word is cut."""
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width + 1].rpartition(" ")[0] or line[:width]


def loading_code(facts: CardFacts, *, package: bool) -> str:
    """Return a program that loads a model and uses it once, with this package or with the code saved beside it."""
    task, trust = TASKS[facts.task], "" if package or not facts.is_ours else TRUST
    separate_target = facts.training["separate_target"]
    if not package and task.pipe:
        call = (CHAT_PIPE if facts.chats else task.pipe).format(example=facts.example)
        return PIPE.format(task=task.pipeline_tag, folder=facts.place, call=call, trust=trust)
    decoder = "target_tokenizer" if separate_target else "tokenizer"
    use = (CHAT if facts.chats else task.use).format(example=facts.example, decoder=decoder)
    return (LOAD_IMAGES if task.reads_images else LOAD).format(
        package=PACKAGE if package else "",
        torch="import torch\n" if "torch." in use else "",
        auto_class=task.auto_class.__name__,
        folder=facts.place,
        target=TARGET.format(trust=trust) if separate_target else "",
        trust=trust,
        use=use,
    )
