"""Write the code of a model as two files: all that it needs of this package, to read or to start research from.

The files configuration_<type>.py and modeling_<type>.py import torch and transformers. They are the package's source,
reduced to what the model's or preset's config uses, and are saved beside every model, too. The folder also gets its
config.json, so that `AutoModel.from_config(AutoConfig.from_pretrained(folder, trust_remote_code=True),
trust_remote_code=True)` builds the model, in programs that do not import vanillaformer.

Examples:
  vanillaformer eject gpt2 my-gpt
  vanillaformer eject runs/translation code-of-my-translator
  vanillaformer eject bert-base my-bert --set norm=rms_norm position_embedding_type=rotary
"""

from collections.abc import Sequence

from transformers import PreTrainedConfig

from vanillaformer.configuration import PRESETS, VanillaConfig, preset
from vanillaformer.console.program import CommandParser, program
from vanillaformer.hub.atomic_files import new_folder
from vanillaformer.hub.loading import open_config, saved_folder
from vanillaformer.training.arguments import ModelArguments


def build_parser() -> CommandParser:
    parser = CommandParser(__doc__, "MODEL FOLDER [--option value ...]")
    model = parser.add_argument_group("Model")
    words = f"Folder or Hub id of a saved model, or a preset: {', '.join(PRESETS)}"
    model.add_argument("model", metavar="MODEL", help=words)
    model.add_argument("--revision", help="Branch, tag or commit of MODEL on the Hub")
    fields = parser.add_argument_group("Configuration")
    words = "Config fields that override those of a preset"
    fields.add_argument("--set", nargs="+", default=[], metavar="FIELD=VALUE", help=words)
    parser.add_argument_group("Output").add_argument("folder", metavar="FOLDER", help="New folder")
    return parser


@program
def main(argv: Sequence[str] | None = None) -> None:
    parser = build_parser()
    arguments = parser.parse_args(argv)
    config: PreTrainedConfig
    if arguments.model in PRESETS:
        config = preset(arguments.model, **ModelArguments(overrides=arguments.set).config_overrides())
    elif arguments.set:
        parser.error("--set only applies to a preset")
    else:
        config = open_config(saved_folder(arguments.model, arguments.revision, "MODEL"))
    if not isinstance(config, VanillaConfig):
        raise ValueError(f"MODEL {arguments.model} is a {config.model_type} of transformers, which has its own code")
    with new_folder(arguments.folder) as folder:
        config.save_pretrained(folder)
        for path in sorted(folder.glob("*.py")):
            print(f"{path.name}: {len(path.read_text(encoding='utf-8').splitlines()):,} lines")
    print(f"written: {arguments.folder}")


if __name__ == "__main__":
    main()
