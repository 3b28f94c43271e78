"""Errors of the Hub and of saved files in one line that holds no token."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from traceback import walk_tb

from huggingface_hub import constants, errors

from vanillaformer.console.reporting import one_line, redact_tokens

LOGIN = "log in with `hf auth login`, or set HF_TOKEN (https://huggingface.co/settings/tokens)"


class HubError(ValueError):
    """A request that the Hub refuses, and why."""


@contextmanager
def hub_errors(repo: str, revision: str | None = None) -> Iterator[None]:
    """Turn what huggingface_hub raises about a repository into a `HubError`.

    Its own errors end here, for a traceback could hold the token of a header that cannot be sent.
    """
    try:
        yield
    except HubError:
        raise
    except Exception as error:
        if (reason := describe_hub_error(error, repo, revision)) is None:
            raise
        raise HubError(reason) from None


@contextmanager
def file_errors(what: str, folder: Path | None = None) -> Iterator[None]:
    """Turn whatever a stranger's files make a library raise into a ValueError, panics of Rust code included."""
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise  # an interruption
        raise ValueError(f"{what}: {one_line(error)}{damage(folder) if folder else ''}") from error


def damage(folder: Path) -> str:
    """Return the end of a message on a folder that cannot be loaded: which cached file is not what the Hub gave.

    The cache names a file by its ETag, which is a large file's SHA-256 and a small one's name in git; huggingface_hub
    itself compares sizes only. A cache without links (Windows) does not record what should be there.
    """
    for path in sorted(path for path in folder.rglob("*") if path.is_symlink() and path.is_file()):
        stored, digest = path.resolve(), ""
        with stored.open("rb") as file:
            if len(stored.name) == 64:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            elif len(stored.name) == 40:
                content = file.read()
                digest = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()  # as git does
        if digest not in ("", stored.name):
            name = path.relative_to(folder).as_posix()
            return f"; {name} is damaged, it is not what the Hub has: delete {stored} to fetch it again"
    return ""


def describe_hub_error(error: BaseException, repo: str, revision: str | None = None) -> str | None:
    """Return what an error says about a repository, `None` if it does not come from the Hub."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ValueError) and "README.md" in str(cause):  # more than the answer that it comes from
            return short_message(cause)
        for kind, text in KINDS.items():
            if isinstance(cause, kind):
                facts = {"repo": repo, "revision": revision, "login": LOGIN, "hub": constants.ENDPOINT}
                return text.format(**facts, error=short_message(cause))
        if (answer := getattr(cause, "response", None)) is not None:
            text = STATUS.get(answer.status_code, "the Hub does not do that for {repo}: {error}")
            return text.format(repo=repo, login=LOGIN, error=short_message(cause))
        if type(cause).__name__ == "LocalProtocolError" or isinstance(cause, UnicodeEncodeError):
            return f"the token has characters that no token has: {LOGIN}"
        if type(cause).__module__.startswith("httpx"):  # or httpx2: which one depends on huggingface_hub's version
            message = short_message(cause) or type(cause).__name__
            return f"the connection to the Hub ({constants.ENDPOINT}) failed: {message}"
        cause = cause.__cause__ or cause.__context__
    raised_in = [str(frame.f_globals.get("__name__")) for frame, _ in walk_tb(error.__traceback__)][-1:]
    if raised_in and raised_in[0].partition(".")[0] == "huggingface_hub":  # be it by the library that it uploads with
        return f"{repo}: {type(error).__name__}: {short_message(error)}"
    return None


def short_message(error: BaseException) -> str:
    """Return the first two lines of what an error says that say something, without a token."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return redact_tokens(" ".join(lines[:2]))


# By the kind of error, the most special first
KINDS: dict[type[BaseException], str] = {
    errors.OfflineModeIsEnabled: "HF_HUB_OFFLINE is set: the Hub is not asked, and {repo} is not, or not whole, in "
    "the cache",
    errors.LocalTokenNotFoundError: "no token found: {login}",
    errors.HFValidationError: "{repo!r} is not a repository name: {error}",
    errors.GatedRepoError: "{repo} is gated: ask for access at {hub}/{repo}, and {login}",
    errors.RepositoryNotFoundError: "the Hub has no {repo}, or one that is private and not yours: {login}",
    errors.RevisionNotFoundError: "{repo} has no revision {revision!r}",
}
# By the status of the answer
STATUS: dict[int, str] = {
    401: "the token is not (or no longer) valid: {login}",
    403: "the token has no right to do that in {repo}: it needs to be one that may write, of somebody who may",
    409: "{repo} is taken: {error}",
    412: "{repo} was changed while this was going on: do it again",
    413: "the Hub finds a file of {repo} too large: {error}",
}
