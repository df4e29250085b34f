"""A stand-in for a model hub on the loopback device: the few endpoints that push and pull need, all in memory."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

TOKEN = "a-token-of-the-test"
Files = dict[str, bytes]


@dataclass
class Repository:
    """Its commits, oldest first, each the whole content; the first is what a hub puts there itself."""

    private: bool = False
    commits: list[Files] = field(default_factory=lambda: [{".gitattributes": b""}])

    def sha(self, number: int = -1) -> str:
        return hashlib.sha1(repr(sorted(self.commits[number].items())).encode()).hexdigest()

    def at(self, revision: str) -> Files | None:
        """The content at a commit, or at the branch main."""
        if revision == "main":
            return self.commits[-1]
        return next((c for i, c in enumerate(self.commits) if self.sha(i) == revision), None)


@dataclass
class StandIn:
    """The hub's state, and the ways in which a test may make it misbehave.

    broken: paths that it answers with status 500. cut: files of which it sends one byte too few.
    """

    endpoint: str = ""
    repositories: dict[str, Repository] = field(default_factory=dict)
    large: Files = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    broken: set[str] = field(default_factory=set)
    cut: set[str] = field(default_factory=set)

    def files(self, name: str) -> Files:
        """What a repository holds now, without what the hub put there itself."""
        return {path: data for path, data in self.repositories[name].commits[-1].items() if path != ".gitattributes"}

    def hold(self, name: str, files: Files) -> None:
        self.repositories[name] = Repository(commits=[{".gitattributes": b"", **files}])


class Handler(BaseHTTPRequestHandler):
    hub: StandIn

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def answer(self, value: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        for key, text in {"Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(key, text)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def body(self) -> bytes:
        if "Content-Length" in self.headers:
            return self.rfile.read(int(self.headers["Content-Length"]))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def missing(self, code: str) -> None:
        self.answer({"error": "not here"}, 404, {"X-Error-Code": code})

    def serve(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append(f"{self.command} {path}")
        if any(part in path for part in self.hub.broken):
            self.body() if self.command in ("POST", "PUT") else None
            return self.answer({"error": "out of order"}, 500)
        if path == "/api/validate-yaml":
            return self.validate(json.loads(self.body())["content"])
        if path == "/api/repos/create":
            return self.create(json.loads(self.body()))
        if path.startswith("/large/"):
            self.hub.large[path.removeprefix("/large/")] = self.body()
            return self.answer({})
        if path.startswith("/api/models/"):
            owner, name, *rest = path.removeprefix("/api/models/").split("/")
            return self.of_repository(f"{owner}/{name}", rest)
        owner, name, *rest = path.strip("/").split("/")
        if name.endswith(".git"):
            return self.batch(json.loads(self.body()))
        return self.file(f"{owner}/{name}", rest[1], "/".join(rest[2:]))

    do_GET = do_HEAD = do_POST = do_PUT = serve  # noqa: N815

    def validate(self, content: str) -> None:
        well = content.startswith("---\n") and "\n---\n" in content
        self.answer({"errors": [] if well else [{"message": "no front matter"}], "warnings": []}, 200 if well else 400)

    def create(self, wanted: dict[str, Any]) -> None:
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self.answer({"error": "who are you?"}, 401)
        name = f"{wanted['organization']}/{wanted['name']}"
        if name in self.hub.repositories:
            return self.answer({"error": "exists", "url": f"{self.hub.endpoint}/{name}"}, 409)
        self.hub.repositories[name] = Repository(private=wanted.get("visibility") == "private" or "private" in wanted)
        return self.answer({"url": f"{self.hub.endpoint}/{name}"})

    def of_repository(self, name: str, rest: list[str]) -> None:
        repository = self.hub.repositories.get(name)
        if repository is None or (repository.private and self.headers.get("Authorization") != f"Bearer {TOKEN}"):
            self.body() if self.command == "POST" else None
            return self.missing("RepoNotFound")
        what, revision = rest[0] if rest else "revision", rest[1] if len(rest) > 1 else "main"
        content = repository.at(revision)
        if content is None:
            return self.missing("RevisionNotFound")
        if what == "revision":
            siblings = [{"rfilename": path} for path in content]
            sha = repository.sha() if revision == "main" else revision
            return self.answer({"id": name, "sha": sha, "private": repository.private, "siblings": siblings})
        if what == "tree":
            listed = [{"type": "file", "path": p, "size": len(d), "oid": "0" * 40} for p, d in content.items()]
            return self.answer(listed)
        if what == "preupload":
            asked = [file["path"] for file in json.loads(self.body())["files"]]
            kinds = {
                path: "lfs" if path.endswith((".safetensors", ".npz", ".parquet")) else "regular" for path in asked
            }
            return self.answer(
                {"files": [{"path": p, "uploadMode": kind, "shouldIgnore": False} for p, kind in kinds.items()]}
            )
        return self.commit(name, repository, [json.loads(line) for line in self.body().splitlines()])

    def batch(self, wanted: dict[str, Any]) -> None:
        objects = [
            {**one, "actions": {"upload": {"href": f"{self.hub.endpoint}/large/{one['oid']}"}}}
            for one in wanted["objects"]
        ]
        self.answer({"transfer": "basic", "objects": objects})

    def commit(self, name: str, repository: Repository, lines: list[dict[str, Any]]) -> None:
        content = dict(repository.commits[-1])
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                content[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                content[value["path"]] = self.hub.large[value["oid"]]
            elif line["key"] == "deletedFile":
                del content[value["path"]]
        repository.commits.append(content)
        url = f"{self.hub.endpoint}/{name}/commit/{repository.sha()}"
        self.answer({"commitUrl": url, "commitOid": repository.sha()})

    def file(self, name: str, revision: str, path: str) -> None:
        repository = self.hub.repositories.get(name)
        content = repository.at(revision) if repository else None
        if repository is None or content is None or path not in content:
            return self.missing("EntryNotFound")
        data = content[path]
        headers = {"ETag": f'"{hashlib.sha1(data).hexdigest()}"', "X-Repo-Commit": revision}
        if path in self.hub.cut:
            headers["X-Linked-Size"] = str(len(data))
            data = data[:-1]
        return self.answer(data, headers=headers)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """A hub that runs while the test does, with a token that it takes for a user's."""
    constants = pytest.importorskip("huggingface_hub.constants", reason="needs the extra 'hub'")
    # the chunked storage of the public hub is a protocol of its own; hubs without it take whole files
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    hub = StandIn()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"hub": hub}))
    hub.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield hub
    server.shutdown()
    server.server_close()
    thread.join()
