"""A Hub on this machine: speaks the protocol of huggingface_hub over HTTP, and breaks connections when told to."""

import base64
import json
import re
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import yaml

from .repositories import File, Hub, Refused, Repository, Token

ID = r"(?P<id>[^/]+/[^/]+)"
MODELS = rf"/api/models/{ID}"


@dataclass(frozen=True)
class Seen:
    """A request that came, and the bytes of its body that arrived."""

    method: str
    path: str
    received: int


class Server(ThreadingHTTPServer):
    """Serves a `Hub`; `faults` are paths of requests whose connection breaks, once, `seen` the requests that came."""

    daemon_threads = True

    def __init__(self, hub: Hub):
        super().__init__(("127.0.0.1", 0), Handler)
        self.hub, self.faults, self.seen = hub, list[str](), list[Seen]()
        self.url, self.errors = f"http://127.0.0.1:{self.server_port}", list[str]()
        self.watch: Callable[[str], None] | None = None  # is told of each request before it is answered

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Keep what went wrong here for the tests to see; clients that are gone are none of that."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            self.errors.append(traceback.format_exc())

    def downloaded(self) -> list[str]:
        """Return the files whose content was asked for."""
        paths = [seen.path for seen in self.seen if seen.method == "GET" and "/resolve/" in seen.path]
        return [path.split("/resolve/")[1].split("/", 1)[1] for path in paths]

    def uploaded(self) -> list[int]:
        """Return the sizes of the large files that arrived."""
        return [seen.received for seen in self.seen if seen.method == "PUT"]


@contextmanager
def serve(tokens: dict[str, Token]) -> Iterator[Server]:
    """Run a server in a thread."""
    server = Server(Hub(tokens))
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


class Handler(BaseHTTPRequestHandler):
    """Answers requests; the methods at the end are the endpoints."""

    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, format: str, *args: Any) -> None:
        """Keep quiet."""

    def answer_request(self) -> None:
        address = urlsplit(self.path)
        self.query = {name: values[0] for name, values in parse_qs(address.query).items()}
        self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        try:
            for fault in [fault for fault in self.server.faults if fault in address.path]:
                self.server.faults.remove(fault)
                raise ConnectionError(f"planted: {fault}")
            self.dispatch(address.path)
        except Refused as error:
            self.refuse(error)
        except ConnectionError:
            self.close_connection = True
            self.connection.close()
        finally:
            self.server.seen.append(Seen(self.command, unquote(address.path), len(self.body)))

    do_GET = do_HEAD = do_POST = do_PUT = answer_request

    def dispatch(self, path: str) -> None:
        if self.server.watch:
            self.server.watch(path)
        for method, pattern, endpoint in ENDPOINTS:
            if self.command in method.split() and (match := re.fullmatch(pattern, path)):
                header = self.headers.get("Authorization")
                self.user = self.server.hub.who(header.removeprefix("Bearer ") if header else None)
                with self.server.hub.lock:
                    found = endpoint(self, **{name: unquote(value) for name, value in match.groupdict().items()})
                return found() if callable(found) else self.send_json(200, found)
        raise Refused(404, f"this server has no {self.command} {path}")

    def send(self, status: int, body: bytes, headers: dict[str, Any]) -> None:
        self.send_response(status)
        for name, value in ({"Content-Length": len(body)} | headers).items():
            self.send_header(name, str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
            self.wfile.flush()

    def send_json(self, status: int, content: Any, **headers: Any) -> None:
        self.send(status, json.dumps(content).encode(), {"Content-Type": "application/json", **headers})

    def refuse(self, error: Refused) -> None:
        headers = {"X-Error-Message": str(error)} | ({"X-Error-Code": error.code} if error.code else {})
        self.send_json(error.status, {"error": str(error)}, **headers)

    @property
    def hub(self) -> Hub:
        return self.server.hub

    def content(self) -> Any:
        return json.loads(self.body or b"{}")

    def whoami(self) -> Any:
        assert self.user is not None
        organizations = [{"name": name} for name in self.user.organizations]
        token = {"type": "access_token", "accessToken": {"displayName": "test", "role": self.user.role}}
        return {"type": "user", "name": self.user.user, "orgs": organizations, "auth": token}

    def create(self) -> Any:
        asked = self.content()
        owner = asked.get("organization") or (self.user.user if self.user else "nobody")
        name = f"{owner}/{asked['name']}"
        answer = {"url": f"{self.server.url}/{name}", "name": name}
        try:
            self.hub.create(self.user, name, asked.get("visibility") == "private")
        except Refused as error:
            if error.status != 409:
                raise
            taken = answer | {"error": str(error)}
            return lambda: self.send_json(409, taken)
        return answer

    def validate_yaml(self) -> Any:
        found = re.match(r"---\n(.*?)\n---(\n|$)", self.content()["content"], re.DOTALL)
        header = yaml.safe_load(found[1]) if found else {}
        if isinstance(header, dict):
            return {"errors": [], "warnings": [] if header else [{"message": "empty or missing yaml metadata"}]}
        return lambda: self.send_json(400, {"errors": [{"message": f"no mapping: {header}"}], "warnings": []})

    def preupload(self, id: str, revision: str) -> Any:
        files = self.hub.writable(self.user, id, "create_pr" in self.query).at(revision).files
        return {"files": [self.mode_of(entry["path"], files) for entry in self.content()["files"]]}

    def mode_of(self, path: str, files: dict[str, File]) -> Any:
        mode = {"path": path, "uploadMode": "lfs" if self.hub.is_large(path) else "regular", "shouldIgnore": False}
        if path in files:
            mode["oid"] = files[path].sha256 if files[path].large else files[path].blob_id
        return mode

    def batch(self, id: str) -> Any:
        repository, objects = self.hub.readable(self.user, id), []
        self.hub.check_rights(self.user, id, request="ref" not in self.content())
        for entry in self.content()["objects"]:
            upload = {"upload": {"href": f"{self.server.url}/storage/{id}/{entry['oid']}", "header": {}}}
            objects.append(entry | ({} if entry["oid"] in repository.stored else {"actions": upload}))
        return {"transfer": "basic", "objects": objects}

    def store(self, id: str, oid: str) -> Any:
        if File(self.body, True).sha256 != oid:
            raise Refused(400, "the content has another SHA-256")
        self.hub.repositories[id].stored[oid] = self.body
        return {}

    def commit(self, id: str, revision: str) -> Any:
        request = "create_pr" in self.query
        repository = self.hub.writable(self.user, id, request)
        header, *lines = [json.loads(line) for line in self.body.splitlines()]
        parent = header["value"].get("parentCommit")
        if parent is not None and parent != repository.at(revision).oid:
            raise Refused(412, "A commit has happened since. Please refresh and try again.")
        changes = self.changes(repository, repository.at(revision).files, lines)
        oid, name = repository.change(revision, header["value"]["summary"], changes, request)
        answer = {"commitOid": oid, "commitUrl": f"{self.server.url}/{id}/commit/{oid}", "success": True}
        number = name.rsplit("/", 1)[1] if request else None
        return answer | ({"pullRequestUrl": f"{self.server.url}/{id}/discussions/{number}"} if request else {})

    @staticmethod
    def changes(repository: Repository, files: dict[str, File], lines: list[Any]) -> dict[str, File | None]:
        found: dict[str, File | None] = {}
        for key, value in ((line["key"], line["value"]) for line in lines):
            path = value["path"]
            if key == "file":
                found[path] = File(base64.b64decode(value["content"]), False)
            elif key == "lfsFile":
                if value["oid"] not in repository.stored:
                    raise Refused(400, f"{path} was not uploaded")
                found[path] = File(repository.stored[value["oid"]], True)
            else:
                assert (key, path in files) == ("deletedFile", True)
                found[path] = None
        return found

    def info(self, id: str, revision: str = "main") -> Any:
        repository = self.hub.readable(self.user, id)
        found = repository.at(revision)
        siblings = [{"rfilename": path} for path in found.files]
        return {"id": id, "sha": found.oid, "private": repository.private, "siblings": siblings, "tags": []}

    def tree(self, id: str, revision: str, folder: str = "") -> Any:
        files = self.hub.readable(self.user, id).at(revision).files
        prefix = f"{folder}/" if folder else ""
        inside = {path: file for path, file in files.items() if path.startswith(prefix)}
        if folder and not inside:
            raise Refused(404, f"{folder} does not exist on {revision!r}", "EntryNotFound")
        return [self.entry(path, file) for path, file in inside.items()]

    @staticmethod
    def entry(path: str, file: File) -> dict[str, Any]:
        large = {"lfs": {"oid": file.sha256, "size": len(file.data), "pointerSize": 130}} if file.large else {}
        return {"type": "file", "path": path, "oid": file.blob_id, "size": len(file.data)} | large

    def refs(self, id: str) -> Any:
        repository = self.hub.readable(self.user, id)
        kinds = {"branches": ("refs/heads/", repository.branches), "tags": ("refs/tags/", repository.tags)}
        kinds["pullRequests"] = ("", repository.requests)
        listed = {
            kind: [{"name": name, "ref": prefix + name, "targetCommit": oid} for name, oid in names.items()]
            for kind, (prefix, names) in kinds.items()
        }
        return listed | {"converts": []}

    def branch(self, id: str, name: str) -> Any:
        repository = self.hub.writable(self.user, id)
        repository.branches[name] = repository.at(self.content().get("startingPoint", "main")).oid
        return {}

    def may_write(self, id: str) -> Any:
        self.hub.writable(self.user, id)
        return {}

    def resolve(self, id: str, revision: str, path: str) -> Any:
        repository = self.hub.readable(self.user, id)
        if repository.gated and not self.hub.owns(self.user, id):
            raise Refused(401 if self.user is None else 403, "Access to this model is restricted", "GatedRepo")
        commit = repository.at(revision)
        headers = {"X-Repo-Commit": commit.oid}
        if path not in commit.files:
            error = {"X-Error-Code": "EntryNotFound", "X-Error-Message": "Entry not found"}
            return lambda: self.send_json(404, {"error": "Entry not found"}, **headers, **error)
        file = commit.files[path]
        headers["ETag"] = f'"{file.sha256 if file.large else file.blob_id}"'
        return lambda: self.send(200, file.data, headers)


ENDPOINTS: list[tuple[str, str, Callable[..., Any]]] = [
    ("GET", r"/api/whoami-v2", Handler.whoami),
    ("POST", r"/api/repos/create", Handler.create),
    ("POST", r"/api/validate-yaml", Handler.validate_yaml),
    ("POST", rf"{MODELS}/preupload/(?P<revision>[^/]+)", Handler.preupload),
    ("POST", rf"{MODELS}/commit/(?P<revision>[^/]+)", Handler.commit),
    ("POST", rf"/{ID}\.git/info/lfs/objects/batch", Handler.batch),
    ("PUT", rf"/storage/{ID}/(?P<oid>[0-9a-f]+)", Handler.store),
    ("GET", MODELS, Handler.info),
    ("GET", rf"{MODELS}/revision/(?P<revision>[^/]+)", Handler.info),
    ("GET", rf"{MODELS}/tree/(?P<revision>[^/]+)", Handler.tree),
    ("GET", rf"{MODELS}/tree/(?P<revision>[^/]+)/(?P<folder>.+)", Handler.tree),
    ("GET", rf"{MODELS}/refs", Handler.refs),
    ("POST", rf"{MODELS}/branch/(?P<name>[^/]+)", Handler.branch),
    ("GET", rf"{MODELS}/auth-check/write", Handler.may_write),
    ("GET HEAD", rf"/{ID}/resolve/(?P<revision>[^/]+)/(?P<path>.+)", Handler.resolve),
]
