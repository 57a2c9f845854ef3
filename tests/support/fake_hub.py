"""A Hugging Face hub on this machine: the endpoints that huggingface_hub needs to read and write models.

The client is the real library in a process of its own (`hub_environment`), which reads HF_ENDPOINT once.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from openai_server import running

TOKEN = "hf_abcdefghijklmnopqrstuvwxyz0123456789"
LARGE = 100_000  # bytes; larger files travel as LFS objects


@dataclass(slots=True)
class Repository:
    """Commits in order, each with all files, and names of commits."""

    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)
    private: bool = False
    gated: bool = False

    def commit(self, files: Mapping[str, bytes], branch: str = "main") -> str:
        """Add a commit with exactly these files. Returns its hash."""
        digest = hashlib.sha1(repr((len(self.commits), sorted(files))).encode())
        for content in files.values():
            digest.update(content)
        self.commits[digest.hexdigest()] = dict(files)
        self.refs[branch] = digest.hexdigest()
        return digest.hexdigest()


@dataclass(slots=True)
class Hub:
    url: str = ""
    repositories: dict[str, Repository] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)  # METHOD /path
    objects: dict[str, bytes] = field(default_factory=dict)  # LFS objects by sha256
    failing: int = 0  # status of every answer; 0: the hub works
    forbidden: set[str] = field(default_factory=set)  # organisations in which nobody may write

    def add(self, name: str, folder: Path, branch: str = "main") -> str:
        """Commit the files of a folder. Returns the hash of the commit."""
        files = {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
        return self.repositories.setdefault(name, Repository()).commit(files, branch)


def hub_environment(hub: Hub | None, home: Path, **more: str) -> dict[str, str]:
    """Environment of a process that uses `hub` (None: a port where nobody listens) and a cache in `home`."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    return {
        **inherited,
        "HF_ENDPOINT": hub.url if hub else "http://127.0.0.1:9",
        "HF_HOME": str(home),
        "HF_HUB_DISABLE_XET": "1",
        "OMP_NUM_THREADS": "1",
        **more,
    }


@contextmanager
def serving_hub() -> Iterator[Hub]:
    hub = Hub()

    @web.middleware
    async def record(request: web.Request, handler: Any) -> web.StreamResponse:
        hub.requests.append(f"{request.method} {request.path}")
        if hub.failing:
            return web.Response(status=hub.failing)
        answer: web.StreamResponse = await handler(request)
        return answer

    app = web.Application(client_max_size=1 << 28, middlewares=[record])
    serve = _Endpoints(hub)
    app.add_routes(
        [
            web.get("/api/whoami-v2", serve.whoami),
            web.post("/api/repos/create", serve.create),
            web.post("/api/validate-yaml", serve.validate),
            web.get("/api/models/{org}/{name}", serve.info),
            web.get("/api/models/{org}/{name}/revision/{revision}", serve.info),
            web.get("/api/models/{org}/{name}/tree/{revision}", serve.tree),
            web.post("/api/models/{org}/{name}/preupload/{revision}", serve.preupload),
            web.post("/api/models/{org}/{name}/commit/{revision}", serve.commit),
            web.post("/{org}/{name}.git/info/lfs/objects/batch", serve.batch),
            web.put("/lfs/{oid}", serve.put_object),
            web.get("/{org}/{name}/resolve/{revision}/{file:.+}", serve.resolve),  # HEAD too
        ]
    )
    with running(app) as port:
        hub.url = f"http://127.0.0.1:{port}"
        yield hub


def _refusal(status: int, code: str, message: str) -> web.Response:
    return web.json_response(
        {"error": message}, status=status, headers={"X-Error-Code": code, "X-Error-Message": message}
    )


class _Endpoints:
    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    def _find(self, request: web.Request) -> tuple[str, dict[str, bytes]] | web.Response:
        """(commit, files) of the revision in the URL, or the refusal that the real hub sends."""
        known = request.headers.get("Authorization") == f"Bearer {TOKEN}"
        name = "{org}/{name}".format(**request.match_info)
        repository = self._hub.repositories.get(name)
        if repository is None or (repository.private and not known):
            return _refusal(404 if known else 401, "RepoNotFound", "Repository not found")
        is_file = "/resolve/" in request.path  # the real hub shows the list of files of a gated repository
        if repository.gated and is_file and not known:
            return _refusal(401, "GatedRepo", f"Access to model {name} is restricted")
        revision = request.match_info.get("revision", "main")
        commit = repository.refs.get(revision, revision)
        if commit not in repository.commits:
            return _refusal(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return commit, repository.commits[commit]

    def _writer(self, request: web.Request, org: str) -> web.Response | None:
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return _refusal(401, "", "Invalid username or password.")
        if org in self._hub.forbidden:
            return _refusal(403, "", f"You don't have the rights to create a model under {org}")
        return None

    async def whoami(self, request: web.Request) -> web.Response:
        return self._writer(request, "") or web.json_response({"name": "me", "type": "user", "orgs": []})

    async def create(self, request: web.Request) -> web.Response:
        body = await request.json()
        if refusal := self._writer(request, body["organization"]):
            return refusal
        name = f"{body['organization']}/{body['name']}"
        if name in self._hub.repositories:
            return web.json_response({"error": "exists", "url": f"{self._hub.url}/{name}"}, status=409)
        private = body.get("visibility") == "private" or bool(body.get("private"))
        self._hub.repositories[name] = Repository(private=private)
        self._hub.repositories[name].commit({".gitattributes": b""})
        return web.json_response({"url": f"{self._hub.url}/{name}", "name": name})

    async def validate(self, request: web.Request) -> web.Response:
        content = (await request.json())["content"]
        errors = [] if content.startswith("---\n") else [{"message": "no metadata"}]
        return web.json_response({"errors": errors, "warnings": []}, status=400 if errors else 200)

    async def info(self, request: web.Request) -> web.Response:
        found = self._find(request)
        if isinstance(found, web.Response):
            return found
        commit, files = found
        name = "{org}/{name}".format(**request.match_info)
        siblings = [{"rfilename": file} for file in files]
        return web.json_response({"_id": "1", "id": name, "sha": commit, "siblings": siblings})

    async def tree(self, request: web.Request) -> web.Response:
        found = self._find(request)
        if isinstance(found, web.Response):
            return found
        return web.json_response(
            [
                {"type": "file", "path": name, "size": len(content), "oid": _etag(content)}
                for name, content in found[1].items()
            ]
        )

    async def resolve(self, request: web.Request) -> web.StreamResponse:
        found = self._find(request)
        if isinstance(found, web.Response):
            return found
        commit, files = found
        content = files.get(request.match_info["file"])
        if content is None:
            return _refusal(404, "EntryNotFound", "Entry not found")
        headers = {"X-Repo-Commit": commit, "ETag": f'"{_etag(content)}"'}
        return web.Response(body=content, headers=headers)

    async def preupload(self, request: web.Request) -> web.Response:
        if refusal := self._writer(request, request.match_info["org"]):
            return refusal
        body = await request.json()
        return web.json_response(
            {
                "files": [
                    {
                        "path": file["path"],
                        "uploadMode": "lfs" if file["size"] > LARGE else "regular",
                        "shouldIgnore": False,
                    }
                    for file in body["files"]
                ]
            }
        )

    async def batch(self, request: web.Request) -> web.Response:
        body = json.loads(await request.text())
        return web.json_response(
            {
                "transfer": "basic",
                "objects": [
                    {**thing, "actions": {"upload": {"href": f"{self._hub.url}/lfs/{thing['oid']}"}}}
                    for thing in body["objects"]
                ],
            },
            content_type="application/vnd.git-lfs+json",
        )

    async def put_object(self, request: web.Request) -> web.Response:
        content = await request.read()
        assert hashlib.sha256(content).hexdigest() == request.match_info["oid"]
        self._hub.objects[request.match_info["oid"]] = content
        return web.Response()

    async def commit(self, request: web.Request) -> web.Response:
        found = self._find(request)
        if isinstance(found, web.Response):
            return found
        files = dict(found[1])
        for line in (await request.text()).splitlines():
            entry = json.loads(line)
            value = entry["value"]
            if entry["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif entry["key"] == "lfsFile":
                files[value["path"]] = self._hub.objects[value["oid"]]
            elif entry["key"] == "deletedFile":
                del files[value["path"]]
        name = "{org}/{name}".format(**request.match_info)
        oid = self._hub.repositories[name].commit(files, request.match_info["revision"])
        return web.json_response(
            {"success": True, "commitOid": oid, "commitUrl": f"{self._hub.url}/{name}/commit/{oid}"}
        )


def _etag(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()
