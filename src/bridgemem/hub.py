"""Hub: run folders to and from a model hub, whole or not at all; needs the extra `hub`."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bridgemem.errors import BridgeMemError, NotFoundError, RunError, SettingsError
from bridgemem.progress import SILENT, Progress
from bridgemem.residuals.selection import SELECTION_FILTERS
from bridgemem.runs import Run
from bridgemem.storage.known_files import RUN_FILE, refuse_links
from bridgemem.storage.whole import whole_folder

if TYPE_CHECKING:
    from huggingface_hub import HfApi

# every run has them
MARKS = ("config.toml", "model.safetensors", "selection.json")
# hubs put it into every repository themselves
IGNORED = (".gitattributes",)


@dataclass(frozen=True)
class Pushed:
    """Where a run went: the repository, the commit that holds it, and how many files it has there."""

    repository: str
    commit: str
    files: int


def push(
    folder: Path | str, repository: str, *, endpoint: str | None = None, public: bool = False, message: str = ""
) -> Pushed:
    """Put a run into a repository of a hub, in one commit; what an earlier push left there and this run lacks goes.

    A repository that holds anything but a run is refused, and stays as it is.
    A new repository is private unless `public`: a run on own data carries all of its events. The endpoint is the hub's
    address; left out, huggingface_hub takes it from HF_ENDPOINT. The token comes from HF_TOKEN or an earlier login.
    """
    run = Run(folder)
    check_run(run)
    names = run_files(run.folder)
    with _hub(repository, endpoint) as api:
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        api.create_repo(repository, private=not public, exist_ok=True)
        left = set(_replaceable(api.list_repo_files(repository), repository)) - set(names)
        operations: list[CommitOperationAdd | CommitOperationDelete] = [
            CommitOperationAdd(path_in_repo=name, path_or_fileobj=run.folder / name) for name in names
        ]
        operations += [CommitOperationDelete(path_in_repo=name) for name in sorted(left)]
        done = api.create_commit(repository, operations, commit_message=message or "A run of bridgemem")
        return Pushed(repository, done.oid, len(names))


def pull(
    repository: str,
    folder: Path | str,
    *,
    revision: str | None = None,
    endpoint: str | None = None,
    replace: bool = False,
    progress: Progress = SILENT,
) -> Run:
    """Fetch a run from a hub; the folder appears when everything is there and was checked, and else not at all.

    A repository that holds anything but the files of a run is refused before the first of them is fetched.
    """
    folder = Path(folder)
    with whole_folder(folder, replace) as aside:
        with _hub(repository, endpoint) as api:
            info = api.model_info(repository, revision=revision)
            names = checked([one.rfilename for one in info.siblings or []], repository)
            with progress.task("fetching", total=len(names)) as advance:
                for name in names:
                    # the commit, not the branch: all files are of one push, whatever happens on the hub meanwhile
                    api.hf_hub_download(repository, name, revision=info.sha, local_dir=aside)
                    advance(1)
        shutil.rmtree(aside / ".cache", ignore_errors=True)  # what the download noted for itself
        try:
            run_files(aside)
            check_run(Run(aside))
        except BridgeMemError as problem:
            reason = str(problem).replace(str(aside), repository)
            raise RunError(f"{repository} does not hold a complete run, and nothing was kept: {reason}") from None
    return Run(folder)


def run_files(folder: Path) -> list[str]:
    """The files of a run folder, refused if there is any that is not of a run, or a link to somewhere else."""
    refuse_links(folder)
    found = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir())
    return checked(list(found), str(folder))


def checked(names: list[str], where: str) -> list[str]:
    """The names that are files of a run, refused if there is any other among them."""
    kept = sorted(name for name in names if name not in IGNORED)
    foreign = next((name for name in kept if not RUN_FILE.fullmatch(name)), None)
    if foreign is not None:
        raise RunError(f"{where} holds {foreign!r}, which is no file of a run; remove it from there.")
    if lacking := next((name for name in MARKS if name not in kept), None):
        raise RunError(f"{where} holds no run: it has no {lacking}.")
    return kept


def _replaceable(names: list[str], repository: str) -> list[str]:
    """The files of a repository that a push may replace: none, or those of an earlier push."""
    try:
        return checked(names, repository) if set(names) - set(IGNORED) else []
    except RunError as problem:
        raise RunError(f"{str(problem).rstrip('.')}; push to another repository, this one is not replaced.") from None


def check_run(run: Run) -> None:
    """Open everything that a run is used by, so that a run that is not whole shows before it is relied on."""
    for name in SELECTION_FILTERS:
        run.selection(name)
    for name in run.fit_names():
        run.learned(name)
        run.learning(name)
    for part in ("train", "known"):
        run.transitions(part)
    run.backbone()
    run.renewed()
    run.relations()
    # the events of a named data set do not travel with the run
    if (run.folder / "data.npz").is_file():
        _ = run.dataset  # refused where it is not what was fitted on


@contextmanager
def _hub(repository: str, endpoint: str | None) -> Iterator[HfApi]:
    """A client of the hub; every failure becomes one sentence."""
    try:
        import huggingface_hub
        from huggingface_hub import errors
        from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
    except ImportError:
        raise SettingsError("hubs need the extra `hub`: pip install -e '.[hub]' in the checkout.") from None
    shown = not are_progress_bars_disabled()
    disable_progress_bars()
    api = huggingface_hub.HfApi(endpoint=endpoint, library_name="bridgemem")
    try:
        with warnings.catch_warnings():
            # it takes the table of ranks for a data set in the wrong place
            warnings.simplefilter("ignore")
            yield api
    except BridgeMemError:
        raise
    except errors.RevisionNotFoundError:
        raise NotFoundError(f"{repository} has no such revision; leave it out for the newest.") from None
    except errors.RepositoryNotFoundError:
        raise NotFoundError(
            f"there is no {repository} at {api.endpoint}, or you may not see it; check the name, or set HF_TOKEN."
        ) from None
    except Exception as problem:  # the transport's own errors, which differ between versions of the client
        reason = (str(problem).strip() or type(problem).__name__).splitlines()[0].rstrip(".:")
        # each transport has exceptions of its own, and these words in their names
        if any(word in type(problem).__name__ for word in ("Connect", "Timeout", "Offline")):
            raise RunError(
                f"the hub at {api.endpoint} could not be reached ({reason}), and nothing was changed here; check the "
                "connection."
            ) from None
        raise RunError(f"{repository} at {api.endpoint}: {reason}; nothing was changed here.") from None
    finally:
        if shown:
            enable_progress_bars()
