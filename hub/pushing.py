"""Pushing saved models to the Hub: the files to upload, checks before the upload, one commit."""

import json
import warnings
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
from huggingface_hub.errors import RevisionNotFoundError
from huggingface_hub.utils import get_token, validate_repo_id
from transformers.dynamic_module_utils import get_relative_import_files

from vanillaformer.console.reporting import report

from .card_merging import card_to_push, read_card, write_card
from .checks import LOGIN, HubError, check_folder, hub_errors, read_config, read_json, weight_files
from .engines import EXPORTED_FILES
from .file_names import CARD, CONFIG, EXPORT, INDEX, PUSHED, STALE, WEIGHTS, files_by_name, matching_files, saved_code
from .seq2seq_pipelines import __file__ as pipelines_file
from .seq2seq_pipelines import custom_pipelines

# Files of an earlier push, besides `STALE`, that would be loaded with a new tokenizer
STALE_WITH_TOKENIZER = (
    *("target_tokenizer/*", "chat_template.*", "additional_chat_templates/*"),
    *("special_tokens_map.json", "added_tokens.json"),
)
# The pipelines of encoder-decoders, for users who have only transformers
PIPELINES = Path(pipelines_file).name


class Pushed(NamedTuple):
    """The repository of a push, and the address of its commit or pull request."""

    repo: str
    url: str


def files_to_push(folder: Path) -> dict[str, Path]:
    """Return the files of a saved model that belong on the Hub, by their path there.

    All other files are left out: optimizers, checkpoints, records that hold paths of this machine, pickles. Raises
    ValueError if the folder has no model, a pickle instead of safetensors, damaged files or links out of it.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a directory")
    if (folder / EXPORT).is_file():
        more = matching_files(folder, (EXPORT, *EXPORTED_FILES))
    else:
        try:
            check_folder(folder)
        except ValueError as error:
            raise ValueError(f"{folder} {error}") from error
        paths = [*weight_files(folder), *code_files(folder)]  # the files that loading reads
        more = files_by_name(folder, [*paths, folder / INDEX] if folder / WEIGHTS not in paths else paths)
        if "AutoModelForSeq2SeqLM" in (read_config(folder).get("auto_map") or {}):
            more[PIPELINES] = Path(pipelines_file)
    return dict(sorted((matching_files(folder, PUSHED) | more).items()))


def config_with_pipelines(path: Path) -> bytes:
    """Return a config.json with the entry by which transformers finds the pipelines in the file beside it."""
    fields = read_json(path)
    fields["custom_pipelines"] = custom_pipelines(Path(PIPELINES).stem) | (fields.get("custom_pipelines") or {})
    return (json.dumps(fields, indent=2, sort_keys=True) + "\n").encode()


def code_files(folder: Path) -> list[Path]:
    """Return the modules that a folder's config names, those that they import, and copies of the package's modules."""
    auto_map = read_config(folder).get("auto_map")
    entries = list(auto_map.values()) if isinstance(auto_map, dict) else []
    pipelines = read_config(folder).get("custom_pipelines")
    entries += [entry.get("impl") for entry in pipelines.values()] if isinstance(pipelines, dict) else []
    modules = {entry.split(".")[0] for entry in entries if isinstance(entry, str)}
    # Identifiers: neither a path that leads elsewhere nor another repository's module
    named = [folder / f"{module}.py" for module in modules if module.isidentifier()]
    named = [path for path in named if path.is_file()]
    needed = [Path(path) for module in named for path in get_relative_import_files(module)]
    return sorted({*named, *needed, *saved_code(folder)})


def left_out(folder: Path, files: dict[str, Path]) -> list[str]:
    """Return the other files of a folder, and its folders with a slash."""
    top = {name.split("/")[0] for name in files}
    return sorted(f"{path.name}/" if path.is_dir() else path.name for path in folder.iterdir() if path.name not in top)


def check_name(repo: str) -> None:
    """Raise HubError for an invalid name of a repository."""
    with hub_errors(repo):
        validate_repo_id(repo)
    if repo.count("/") > 1:
        raise HubError(f"{repo!r} is not a repository name: write user/name, or name for your own account")


def api_for(token: str | None) -> HfApi:
    """Return a client of the Hub; raise HubError if no token is given or stored."""
    if token is None:
        with hub_errors("the Hub"):
            token = get_token()
    if not token:
        raise HubError(f"no token found: {LOGIN}")
    return HfApi(token=token, library_name="vanillaformer")


def claim(api: HfApi, repo: str, private: bool | None = None) -> str:
    """Make sure that a repository exists and the token may write to it, and return its full name.

    Raises HubError if the token is invalid or may not write, or if a repository to be private is public already.
    """
    check_name(repo)
    with hub_errors(repo):
        user = api.whoami()
        repo = repo if "/" in repo else f"{user['name']}/{repo}"
        if user.get("auth", {}).get("accessToken", {}).get("role") == "read":
            raise HubError(f"the token may only read; pushing to {repo} needs a write token: {LOGIN}")
    with hub_errors(repo):
        api.create_repo(repo, private=private, exist_ok=True)
        api.auth_check(repo, write=True)  # an existing one may be somebody else's
        if private and not api.repo_info(repo).private:
            raise HubError(f"{repo} exists already and is public: make it private on its page, or choose another name")
    return repo


def push_folder(
    folder: Path,
    repo: str,
    *,
    token: str | None = None,
    revision: str | None = None,
    private: bool | None = None,
    pull_request: bool = False,
    claimed: bool = False,
    message: str = "Upload model",
    files: dict[str, Path] | None = None,
) -> Pushed:
    """Push a saved model to a repository in one commit; files that are there already are not sent again.

    A person's edits of the card there stay (`card_merging`), and the folder gets the card that was pushed. Repository
    and branch (`revision`) are created if they do not exist, except for a pull request, which may be to somebody
    else's. The default of `token` is that of HF_TOKEN or `hf auth login`, the default of `files` is
    `files_to_push(folder)`. With `claimed`, `claim` was called before: the Hub limits the number of requests.
    """
    files = files_to_push(folder) if files is None else files
    check_name(repo)
    api = api_for(token)
    if not (pull_request or claimed):
        repo = claim(api, repo, private)
    with hub_errors(repo, revision):
        head = head_of(api, repo, revision, make=not pull_request)
        there = api.list_repo_files(repo, revision=head)
        card = None
        if CARD in files:
            local = read_card(files[CARD], f"in {files[CARD].parent}")
            fetched = Path(api.hf_hub_download(repo, CARD, revision=head)) if CARD in there else None
            card = card_to_push(local, read_card(fetched, f"of {repo}") if fetched else None, repo)
        contents: dict[str, Any] = files | ({} if card is None else {CARD: card.encode()})
        if PIPELINES in files:
            contents[CONFIG] = config_with_pipelines(files[CONFIG])
        changes: list[Any] = [CommitOperationAdd(name, content) for name, content in contents.items()]
        stale = (*STALE, *(STALE_WITH_TOKENIZER if "tokenizer_config.json" in files else ()))
        for name in there:
            if name not in files and any(fnmatch(name, pattern) for pattern in stale):
                changes.append(CommitOperationDelete(name))
        where: dict[str, Any] = {"revision": revision, "create_pr": pull_request, "parent_commit": head}
        with warnings.catch_warnings(action="ignore"):  # about the card's metadata, which the run has written
            done = api.create_commit(repo, changes, commit_message=message, **where)
    if card is not None:
        try:
            write_card(files[CARD], card)
        except OSError as error:  # the push is done
            report(f"The card that was pushed could not be written to {files[CARD]}: {error}")
    return Pushed(repo, done.pr_url or done.commit_url)


def head_of(api: HfApi, repo: str, revision: str | None, make: bool) -> str:
    """Return the head commit of a branch, which is created from main if it does not exist."""
    try:
        head = str(api.repo_info(repo, revision=revision).sha)
    except RevisionNotFoundError:
        if not make or revision is None or revision.startswith("refs/"):
            raise
        api.create_branch(repo, branch=revision)
        return str(api.repo_info(repo, revision=revision).sha)
    if revision is not None and not revision.startswith("refs/"):
        branches = [branch.name for branch in api.list_repo_refs(repo).branches]
        if revision not in branches:
            raise HubError(f"{revision!r} is a tag or commit of {repo}: push to a branch ({', '.join(branches)})")
    return head
