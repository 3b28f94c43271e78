r"""Use a trained model: translate lines, continue prompts, classify texts or fill in masked tokens.

What is done follows from the model: an encoder-decoder translates, a causal language model continues, a masked one
fills every [MASK], a classifier prints label and probability. Input is `--text ...`, the lines of `--input_file`, or
those of standard input. Several texts make one line of output each (a line break within one is written `\n`).

With `--chat`, a model of dialogues answers turn by turn, each line of input being a turn, and remembers what was said.

A folder that `vanillaformer export` has made runs on the engine that it was made for, with the same options.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from transformers import set_seed

import vanillaformer  # noqa: F401 - makes the Auto classes know the models
from vanillaformer.conversion.exports import EngineModel
from vanillaformer.inference.arguments import GenerateArguments, check_arguments
from vanillaformer.inference.chat import Chat
from vanillaformer.inference.tasks import continue_prompts, load, run
from vanillaformer.inference.text_files import (
    STANDARD_INPUT,
    at_terminal,
    file_lines,
    hint,
    output_stream,
    prompted,
    standard_input,
)
from vanillaformer.scripts.console import program
from vanillaformer.training.machine import use_machine_well
from vanillaformer.training.parsing import parse

RESET, QUIT = "/reset", "/quit"


def read_texts(arguments: GenerateArguments) -> list[str]:
    """Return the texts to work on.

    Raises:
        ValueError: There are none, or one has nothing in it, or the file does not exist.
    """
    if arguments.text and arguments.input_file:
        raise ValueError(f"give --text or --input_file {arguments.input_file}, not both")
    texts, where = arguments.text, "--text"
    if arguments.input_file is not None:
        where = f"--input_file {arguments.input_file}"
        texts = file_lines(Path(arguments.input_file), "--input_file")
    elif not texts:
        if at_terminal():
            hint("Type texts, one per line; Ctrl-D on an empty line ends the input.")
        texts, where = list(standard_input()), STANDARD_INPUT
    if not any(text.strip() for text in texts):
        raise ValueError(f"{where} has no text in it")
    return texts


def chat_with(arguments: GenerateArguments) -> Chat:
    """Return a dialogue with the model.

    Raises:
        ValueError: A model is no causal language model of dialogues, or the two have different tokens.
    """
    loaded, function, _ = load(arguments)
    if function is not continue_prompts or isinstance(loaded.model, EngineModel):
        raise ValueError(f"--chat: --model {arguments.model_name_or_path} is no causal language model run by torch")
    reranker = None
    if arguments.rerank_model is not None:
        judge, function, _ = load(replace(arguments, model_name_or_path=arguments.rerank_model, revision=None))
        if function is not continue_prompts or judge.tokenizer.get_vocab() != loaded.tokenizer.get_vocab():
            raise ValueError(
                f"--rerank_model {arguments.rerank_model}: it must be a language model with the tokens of --model"
            )
        reranker = judge.model
    own = (arguments.max_history, arguments.candidates, reranker, arguments.options())
    return Chat(loaded.model, loaded.tokenizer, *own)


def converse(chat: Chat, turns: Iterable[str]) -> Iterator[str]:
    """Yield the reply to each turn."""
    for turn in turns:
        if turn.strip() == QUIT:
            return
        if turn.strip() == RESET:
            chat.reset()
        elif turn.strip():
            yield chat.reply(turn.strip())


def talk(arguments: GenerateArguments) -> None:
    """Answer turn by turn."""
    given = read_texts(arguments) if arguments.text or arguments.input_file else None
    chat = chat_with(arguments)
    turns: Iterable[str] = given or standard_input()
    if given is None and at_terminal():
        hint(f"Chatting with {arguments.model_name_or_path}: {RESET} forgets the dialogue, {QUIT} or Ctrl-D ends it.")
        turns = prompted(turns)
    set_seed(arguments.seed)
    with output_stream(arguments.output_file) as stream:
        for reply in converse(chat, turns):
            print(reply, file=stream, flush=True)


@program
def main(argv: Sequence[str] | None = None) -> None:
    """Run the program."""
    (arguments,) = parse(GenerateArguments, argv, description=__doc__)
    check_arguments(arguments)
    use_machine_well()
    if arguments.chat:
        return talk(arguments)
    texts = read_texts(arguments)
    loaded, function, _ = load(arguments)
    options = arguments.options()
    if "max_new_tokens" in options:
        options["max_length"] = None  # saved with the model; of both, transformers warns at every batch
    set_seed(arguments.seed)
    results = run(loaded, function, texts, arguments.batch_size, **options)
    with output_stream(arguments.output_file) as stream:
        for result in results:
            print(result if len(texts) == 1 else result.replace("\n", "\\n"), file=stream, flush=True)


if __name__ == "__main__":
    main()
