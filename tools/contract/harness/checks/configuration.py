"""Configurations: the checks of transformers' `ConfigTester` one by one, each a test of its own."""

from typing import Any

# One value unlike the default for each field that every config carries; the source distribution lacks the table.
config_common_kwargs = {
    "return_dict": False,
    "output_hidden_states": True,
    "dtype": "float16",
    "chunk_size_feed_forward": 3,
    "architectures": ["SomeModel"],
    "id2label": {0: "neg", 1: "pos", 2: "other"},
    "label2id": {"neg": 0, "pos": 1, "other": 2},
    "problem_type": "regression",
    "name_or_path": "some/where",
}


class ConfigurationChecks:
    """Defaults, labels, and the ways through JSON and `from_pretrained`."""

    config_tester: Any

    def test_config_common_properties(self) -> None:
        self.config_tester.create_and_test_config_common_properties()

    def test_config_arguments_init(self) -> None:
        self.config_tester.check_config_arguments_init()

    def test_config_can_be_init_without_params(self) -> None:
        self.config_tester.check_config_can_be_init_without_params()

    def test_config_with_num_labels(self) -> None:
        self.config_tester.create_and_test_config_with_num_labels()

    def test_config_to_json_string(self) -> None:
        self.config_tester.create_and_test_config_to_json_string()

    def test_config_to_json_file(self) -> None:
        self.config_tester.create_and_test_config_to_json_file()

    def test_config_from_and_save_pretrained(self) -> None:
        self.config_tester.create_and_test_config_from_and_save_pretrained()

    def test_config_from_and_save_pretrained_subfolder(self) -> None:
        self.config_tester.create_and_test_config_from_and_save_pretrained_subfolder()

    def test_config_from_and_save_pretrained_composite(self) -> None:
        self.config_tester.create_and_test_config_from_and_save_pretrained_composite()

    def test_config_from_pretrained_custom_kwargs(self) -> None:
        self.config_tester.create_and_test_config_from_pretrained_custom_kwargs()
