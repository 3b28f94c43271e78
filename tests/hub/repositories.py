"""What a Hub holds: users' tokens, repositories, commits and files. No HTTP here."""

import hashlib
import threading
from dataclasses import dataclass, field
from fnmatch import fnmatch

LARGE = ("*.safetensors", "*.bin", "*.png", "*.gguf", "*.onnx", "*.onnx.data")  # what goes through LFS


class Refused(Exception):
    """An answer that is an error: status, code and message as the Hub gives them."""

    def __init__(self, status: int, message: str, code: str | None = None):
        super().__init__(message)
        self.status, self.code = status, code


@dataclass(frozen=True)
class Token:
    """Who a token belongs to, and what it may do: read or write, everywhere or to some namespaces."""

    user: str
    role: str = "write"
    organizations: tuple[str, ...] = ()


@dataclass(frozen=True)
class File:
    """A file of a commit."""

    data: bytes
    large: bool

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()

    @property
    def blob_id(self) -> str:
        """The id that git gives the file."""
        return hashlib.sha1(b"blob %d\0" % len(self.data) + self.data).hexdigest()


@dataclass(frozen=True)
class Commit:
    """A commit: its id, its summary and all files."""

    oid: str
    summary: str
    files: dict[str, File]


@dataclass
class Repository:
    """A model repository."""

    private: bool = False
    gated: bool = False  # whether only its owners get its files
    commits: dict[str, Commit] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    requests: dict[str, str] = field(default_factory=dict)
    stored: dict[str, bytes] = field(default_factory=dict)  # large files, by SHA-256, committed or not

    def __post_init__(self) -> None:
        self.branches["main"] = self.add("", "initial commit", {})

    def add(self, before: str, summary: str, files: dict[str, File]) -> str:
        """Commit all files after a commit; return the new id."""
        listing = "".join(f"{name} {file.blob_id}\n" for name, file in sorted(files.items()))
        oid = hashlib.sha1(f"{before}\n{summary}\n{listing}".encode()).hexdigest()
        self.commits[oid] = Commit(oid, summary, files)
        return oid

    def at(self, revision: str) -> Commit:
        """Return the commit of a branch, tag, pull request or id."""
        names = self.branches | self.tags | self.requests
        oid = names.get(revision.removeprefix("refs/heads/"), revision)
        if oid not in self.commits:
            raise Refused(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return self.commits[oid]

    def change(self, revision: str, summary: str, changes: dict[str, File | None], request: bool) -> tuple[str, str]:
        """Commit files (`None` deletes one); return the commit and the branch or pull request it is on."""
        before = self.at(revision)
        files = {name: file for name, file in (before.files | changes).items() if file is not None}
        after = self.add(before.oid, summary, files)
        if request:
            revision = f"refs/pr/{len(self.requests) + 1}"
        elif revision not in self.branches | self.requests:
            raise Refused(400, f"{revision} is no branch: nothing can be committed to it")
        (self.branches if revision in self.branches else self.requests)[revision] = after
        return after, revision


class Hub:
    """All of it, and who may do what."""

    def __init__(self, tokens: dict[str, Token]):
        self.tokens, self.lock = tokens, threading.RLock()
        self.repositories: dict[str, Repository] = {}
        self.large = True  # whether files like `LARGE` go through LFS

    def is_large(self, name: str) -> bool:
        return self.large and any(fnmatch(name, pattern) for pattern in LARGE)

    def put(self, name: str, files: dict[str, bytes], private: bool = False, revision: str = "main") -> str:
        """Commit files to a repository, made if need be, behind the users' back; return the commit."""
        repository = self.repositories.setdefault(name, Repository(private))
        changes = {path: File(data, self.is_large(path)) for path, data in files.items()}
        repository.stored |= {file.sha256: file.data for file in changes.values() if file.large}
        return repository.change(revision, "put", dict(changes), request=False)[0]

    def files(self, name: str, revision: str = "main") -> dict[str, bytes]:
        return {path: file.data for path, file in self.repositories[name].at(revision).files.items()}

    def who(self, token: str | None) -> Token | None:
        if token is not None and token not in self.tokens:
            raise Refused(401, "Invalid credentials in Authorization header")
        return None if token is None else self.tokens[token]

    @staticmethod
    def owns(user: Token | None, name: str) -> bool:
        return user is not None and name.split("/")[0] in (user.user, *user.organizations)

    def readable(self, user: Token | None, name: str) -> Repository:
        """Return a repository that a user may see; the Hub hides from the others that there is one."""
        repository = self.repositories.get(name)
        if repository is None or (repository.private and not self.owns(user, name)):
            raise Refused(401 if user is None else 404, "Repository not found", "RepoNotFound")
        return repository

    def writable(self, user: Token | None, name: str, request: bool = False) -> Repository:
        """Return a repository that a user may commit to, or open a pull request for."""
        repository = self.readable(user, name)
        self.check_rights(user, name, request)
        return repository

    def check_rights(self, user: Token | None, name: str, request: bool = False) -> None:
        if user is None:
            raise Refused(401, "Invalid username or password.")
        if user.role != "write" or not (request or self.owns(user, name)):
            raise Refused(403, f"You don't have the rights to write to {name.split('/')[0]!r} with this token")

    def create(self, user: Token | None, name: str, private: bool) -> None:
        self.check_rights(user, name)
        if name in self.repositories:
            raise Refused(409, "You already created this model repo")
        self.repositories[name] = Repository(private)
