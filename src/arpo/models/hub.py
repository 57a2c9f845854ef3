"""Models of the Hugging Face hub: "ORG/NAME" or "ORG/NAME@REVISION" (a branch, a tag or a commit).

huggingface_hub downloads a model into its cache, once, and uploads exported models. Only weights in
safetensors and text files are downloaded: no pickles and no code. Every failure is a `UserError` with name
and remedy.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from arpo.config import Config
from arpo.config.recipe import load_recorded
from arpo.errors import UserError
from arpo.storage.run_folder import RECIPE

if TYPE_CHECKING:
    from huggingface_hub.errors import HfHubHTTPError  # slow to import: `arpo --help` does without it

WEIGHTS = ("*.safetensors",)
DESCRIPTION = ("*.json", "*.jinja", "*.txt", "LICENSE*", "NOTICE*")  # config, tokenizer, image settings
LOG_IN = "log in with `hf auth login`, or set HF_TOKEN"
# A file of an earlier upload with one of these names would be loaded with the new model.
_REPLACED = ("*.safetensors", "*.safetensors.index.json", "*.jinja")
_NAME = re.compile(r"(?P<repo>\w[\w.-]*/\w[\w.-]*)(@(?P<revision>[^@\s]+))?", re.ASCII)
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_COMMIT = re.compile("[0-9a-f]{40}")


@dataclass(frozen=True, slots=True, kw_only=True)
class HubModel:
    """A model repository. An empty revision is its default branch."""

    repo: str
    revision: str = ""

    def __str__(self) -> str:
        return f"{self.repo}@{self.revision}" if self.revision else self.repo

    @property
    def is_pinned(self) -> bool:
        """Whether the revision is a commit: its files never change."""
        return _COMMIT.fullmatch(self.revision) is not None


def parse_hub_model(path: str) -> HubModel | None:
    """The hub model that `path` names. None for "base", for everything that exists here, and for other paths.

    >>> parse_hub_model("ByteDance-Seed/UI-TARS-1.5-7B@main")
    HubModel(repo='ByteDance-Seed/UI-TARS-1.5-7B', revision='main')
    """
    found = _NAME.fullmatch(path)
    if found is None or Path(path).exists():
        return None
    return HubModel(repo=found["repo"], revision=found["revision"] or "")


def with_recorded_model(config: Config, recorded: Config) -> Config:
    """Replace model.path by the recorded commit if it names the same repository without a revision.

    "org/name" becomes "org/name@0123…" if a run has recorded that. "org/name@main" stays.
    """
    asked, known = parse_hub_model(config.model.path), parse_hub_model(recorded.model.path)
    if asked is None or known is None or asked != replace(known, revision=""):
        return config
    return replace(config, model=replace(config.model, path=recorded.model.path))


def download(model: HubModel, patterns: Sequence[str] = DESCRIPTION) -> Path:
    """The folder with the model's files of these patterns. Its name is the commit.

    Files in the cache are not downloaded again. A commit in the cache needs no network.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HTTPError, OfflineModeIsEnabled

    snapshot = partial(
        snapshot_download,
        model.repo,
        revision=model.revision or None,
        allow_patterns=list(patterns),
        ignore_patterns=["*/*"],  # folders have weights in other formats
        library_name="arpo",
    )
    if model.is_pinned and (cached := _find_in_cache(model, snapshot)) is not None:
        return cached
    with _reporting(str(model), partial(_explain_download, model)), _progress_bars():
        try:
            return Path(snapshot())
        except HfHubHTTPError:  # an answer of the hub
            raise
        except (HTTPError, OfflineModeIsEnabled):
            # No network. A commit in a cache of an older huggingface_hub, which kept no list of files.
            return Path(snapshot(local_files_only=True))


def _find_in_cache(model: HubModel, snapshot: Callable[..., str]) -> Path | None:
    """The folder of a commit if the cache has all wanted files. Shows no progress bar."""
    from huggingface_hub import get_cached_repo_tree
    from huggingface_hub.errors import CachedRepoTreeNotFoundError, LocalEntryNotFoundError

    try:
        get_cached_repo_tree(model.repo, revision=model.revision)  # without it, nobody misses a file
        return Path(snapshot(local_files_only=True))
    except (CachedRepoTreeNotFoundError, LocalEntryNotFoundError):
        return None


def pin_model(config: Config, run: Path | None = None, *, teaching: bool = False) -> Config:
    """Download the model of the recipe if it is on the hub, and replace model.path by its commit.

    A run records this path, so all its parts use the same weights, even if the repository changes. If the
    folder `run` has a recipe with a commit of the same repository, and model.path names no revision, that
    commit is used. `teaching`: the model learns from a chat server or a person, if they play: only its
    tokenizer is needed. Otherwise a chat server does without the model.
    """
    path = None if run is None else run / RECIPE
    recorded = load_recorded(path)[0] if path is not None and path.is_file() else config
    config = with_recorded_model(config, recorded)
    model = parse_hub_model(config.model.path)
    served = config.engine.name in ("openai", "person")
    if model is None or (served and not teaching):
        return config
    from arpo.models.loading import read_config  # here: it loads torch

    folder = download(model)
    read_config(folder)  # before gigabytes are downloaded
    pinned = replace(model, revision=folder.name)
    known = parse_hub_model(recorded.model.path)
    if known is not None and known.is_pinned and known.repo == pinned.repo and known != pinned:
        raise UserError(
            f"model.path = {str(model)!r}: is commit {pinned.revision}, but the run in {run} has {known}: to "
            f"resume it, use --model.path {known.repo}; else choose another --run.dir"
        )
    if config.model.weights == "load" and not served:
        download(pinned, WEIGHTS)
    return replace(config, model=replace(config.model, path=str(pinned)))


def require_login(name: str) -> None:
    """Refuse an upload to a bad name, or without a token."""
    from huggingface_hub import get_token

    if (found := _NAME.fullmatch(name)) is None or found["revision"]:
        raise UserError(f"--push {name}: must be the name of a hub repository: ORG/NAME")
    if get_token() is None:
        raise UserError(f"--push {name}: you are not logged in to the hub: {LOG_IN}")


def create_repository(name: str, *, private: bool) -> None:
    """Create the model repository ORG/NAME unless it exists. `private` applies to a new one."""
    from huggingface_hub import HfApi

    with _reporting(f"--push {name}", _explain_upload):
        HfApi(library_name="arpo").create_repo(name, private=private, exist_ok=True)


def upload(folder: Path, name: str, message: str) -> str:
    """Upload a model folder as one commit of an existing repository. Returns the URL of the repository."""
    from huggingface_hub import HfApi

    api = HfApi(library_name="arpo")
    with _reporting(f"--push {name}", _explain_upload), _progress_bars():
        api.upload_folder(
            repo_id=name, folder_path=folder, commit_message=message, delete_patterns=list(_REPLACED)
        )
    return f"{api.endpoint}/{name}"


@contextmanager
def _progress_bars() -> Iterator[None]:
    """Show the hub's progress bars, which `loading` disables, unless the user has disabled them."""
    from huggingface_hub import constants
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    hidden = are_progress_bars_disabled() and constants.HF_HUB_DISABLE_PROGRESS_BARS is None
    if hidden:
        enable_progress_bars()
    try:
        yield
    finally:
        if hidden:
            disable_progress_bars()


@contextmanager
def _reporting(subject: str, explain: Callable[[BaseException], str]) -> Iterator[None]:
    """Convert the errors of huggingface_hub, of the network and of the disk to a UserError."""
    from huggingface_hub.errors import HTTPError, LocalEntryNotFoundError

    try:
        yield
    except (HTTPError, OSError, RuntimeError) as error:
        cause: BaseException = error
        # A file missing in the cache, and an upload's RuntimeError, have the real error as their cause.
        while isinstance(cause, (LocalEntryNotFoundError, RuntimeError)) and (
            deeper := cause.__cause__ or cause.__context__
        ):
            cause = deeper
        raise UserError(f"{subject}: {explain(cause)}") from error


def _explain_download(model: HubModel, error: BaseException) -> str:
    """Reason and remedy."""
    from huggingface_hub import constants, errors

    url, cache = f"{constants.ENDPOINT}/{model.repo}", constants.HF_HUB_CACHE
    nowhere = f"neither a folder here nor complete in the cache {cache}"
    if isinstance(error, errors.GatedRepoError):
        return f"the repository is gated: accept its conditions on {url}, then {LOG_IN}"
    if isinstance(error, errors.RepositoryNotFoundError):
        return (
            f"neither a folder here nor a repository on {constants.ENDPOINT} that you may read: check the "
            f"name; for a private repository, {LOG_IN}"
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return f"the repository has no branch, tag or commit {model.revision!r}: see {url}/tree/main"
    if isinstance(error, errors.HfHubHTTPError):
        return _explain_status(error)
    if isinstance(error, OSError) and error.errno in _FULL:
        return f"{cache}: {error.strerror}: free some space, or set HF_HOME to a folder on another disk"
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}: set HF_HOME to a folder that you may write to"
    if constants.HF_HUB_OFFLINE:
        return f"{nowhere}, and HF_HUB_OFFLINE forbids downloads: unset it, or name a model folder"
    return f"{nowhere}, and {_unreachable(error)}: check the network, or name a model folder"


def _explain_upload(error: BaseException) -> str:
    """Reason and remedy."""
    from huggingface_hub import constants, errors

    if isinstance(error, errors.RepositoryNotFoundError):
        return f"the hub does not accept your token, or the organisation does not exist: {LOG_IN}"
    if isinstance(error, errors.HfHubHTTPError):
        return _explain_status(error)
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE forbids uploads: unset it"
    return f"{_unreachable(error)}: check the network, then run the same command again"


def _explain_status(error: HfHubHTTPError) -> str:
    """The refusal of the hub, by its status."""
    status, phrase = error.response.status_code, error.response.reason_phrase
    if status in (401, 403):
        reason = _single_line(error.server_message or phrase)
        return f"the hub refuses ({status}: {reason}): check the rights of your token, or {LOG_IN}"
    if status < 500 and status != 429:
        return f"the hub refuses ({status}: {_single_line(error.server_message or phrase)})"
    return f"the hub answers {status} {phrase}: try again later"


def _unreachable(error: BaseException) -> str:
    from huggingface_hub import constants

    return f"{constants.ENDPOINT} cannot be reached ({_single_line(str(error)) or type(error).__name__})"


def _single_line(text: str) -> str:
    return " ".join(text.split())[:300]
