"""An exported folder sent to a hub: one commit in a repository that is private unless asked otherwise.

Tokens are huggingface_hub's own business (HF_TOKEN, or its login); none is read, kept or shown here.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, TypeVar

from huggingface_hub import CommitOperationAdd, HfApi, constants
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalTokenNotFoundError
from huggingface_hub.utils import get_token, httpx, validate_repo_id

from muster.errors import CheckpointError, ConfigError
from muster.redaction import redacted

Result = TypeVar("Result")

WAITS_S = (1.0, 2.0, 4.0)
"""Between tries, where the hub can't be reached, is busy, or fails."""

PARTS = (".safetensors", ".json", ".jinja", ".md", ".txt", ".model")
"""Endings of the files of an export; whatever else lies in a folder is not sent."""

FRESH = {".gitattributes"}
"""What a hub puts into a new repository."""

REFUSALS = {
    401: "it doesn't know who asks. Set HF_TOKEN to a token that may write, or run `hf auth login`",
    403: "the token may not write there. Take one with write access to this owner's repositories",
    404: "there is no such owner or repository, or the token may not see it",
    413: "a file is larger than it takes",
}


def refuse_bad_name(repo: str) -> None:
    """Refuses what is no `owner/name` before anything is loaded; raises ConfigError."""
    try:
        validate_repo_id(repo)
        is_whole = "/" in repo
    except HFValidationError:
        is_whole = False
    if not is_whole:
        raise ConfigError(f"{repo!r} is no name of a repository. Give owner/name, such as ada/sums-model.")


def push(
    folder: Path,
    repo: str,
    *,
    public: bool = False,
    endpoint: str | None = None,
    wait: Callable[[float], object] = time.sleep,
) -> str:
    """Sends an export to the repository in one commit and returns its address.

    The repository is made, private unless `public`; one that is there is only taken where it is empty
    and as private as was asked for. What fails for a moment is tried again. Raises CheckpointError with
    what the hub said; the folder stays as it is.
    """
    refuse_bad_name(repo)
    if constants.is_offline_mode():
        raise ConfigError("HF_HUB_OFFLINE is set, so nothing can be pushed. Unset it and push again.")
    api = HfApi(endpoint=endpoint)
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.suffix in PARTS]

    def make() -> str:
        return str(api.create_repo(repo, private=not public))

    def commit() -> object:
        additions = [
            CommitOperationAdd(path_in_repo=path.relative_to(folder).as_posix(), path_or_fileobj=str(path))
            for path in files
        ]
        return api.create_commit(repo, additions, commit_message="Add the model that Muster exported")

    try:
        try:
            address = _retried(make, repo, wait)
        except _RefusalError as refusal:
            if refusal.status != 409:
                raise
            address = _retried(lambda: _taken(api, repo, public), repo, wait)
        _retried(commit, repo, wait)
    except _RefusalError as refusal:
        _complain(repo, str(refusal))
    return address


class _RefusalError(Exception):
    """The hub answered, and trying again won't change it."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def _retried(call: Callable[[], Result], repo: str, wait: Callable[[float], object]) -> Result:
    """What the call gives; what may pass is tried again, what may not is raised as a refusal."""
    said = ""
    for pause in (0.0, *WAITS_S):
        if pause:
            wait(pause)
        try:
            return call()
        except LocalTokenNotFoundError:
            raise _RefusalError(401, f"the hub answered 401: {REFUSALS[401]}") from None
        except HfHubHTTPError as error:
            status = error.response.status_code
            said = _told(status, error)
            if status < 500 and status != 429:
                raise _RefusalError(status, said) from None
        except ValueError as error:
            raise _RefusalError(400, f"it can't be sent: {_clean(str(error))}") from None
        except (httpx.TransportError, ConnectionError) as error:
            said = f"the hub can't be reached ({type(error).__name__}: {_clean(str(error))})"
    return _complain(repo, f"{said}, {len(WAITS_S) + 1} times in a row")


def _told(status: int, error: HfHubHTTPError) -> str:
    meaning = REFUSALS.get(status) or _clean(error.server_message or "") or "without a reason"
    return f"the hub answered {status}: {meaning}"


def _taken(api: HfApi, repo: str, public: bool) -> str:
    """The address of a repository that is there; refuses one that holds something or is seen by others."""
    found = api.model_info(repo)
    names = {file.rfilename for file in found.siblings or ()} - FRESH
    if names:
        _complain(
            repo,
            f"the repository is there already and holds {len(names)} files, such as {min(names)}. Name "
            "another, or delete it on the hub",
        )
    if not public and not found.private:
        _complain(repo, "the repository is there already and public. Name another, or push with --public")
    return f"{api.endpoint}/{repo}"


def _complain(repo: str, reason: str) -> NoReturn:
    raise CheckpointError(f"{repo} was not pushed: {reason}. The run and its checkpoints are as they were.")


def _clean(text: str) -> str:
    """The text on one line, without the token that is in use."""
    return redacted(" ".join(text.split()), [get_token()])[:300]
