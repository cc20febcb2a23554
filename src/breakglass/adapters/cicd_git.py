"""`cicd.yaml` at the default branch's head: where an app runs and how much that matters, with the commit that says so.

Outside the layers; layer 3 compares its word with the cluster's own. Must never: take a file from a branch, a fork or a host
the site did not name, send a host's credential elsewhere, or use a copy older than a day.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

import urllib3
from dulwich.client import HTTPUnauthorized, Urllib3HttpGitClient
from dulwich.errors import NotGitRepository
from dulwich.objects import Blob, Commit, ObjectID, Tree
from dulwich.repo import Repo
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from breakglass.core.facts import AppFacts
from breakglass.core.model import AfterProcessAccess, EntityRef, Environment, Tier, entity_ref, is_dns_label
from breakglass.core.strict_yaml import Malformed, document, problem
from breakglass.ports import PortError, Trouble

FILE: Final = b"cicd.yaml"
FILE_LIMIT: Final = 64 * 1024
"""Bytes of cicd.yaml."""
FETCH_LIMIT: Final = 256 * 1024 * 1024
"""Bytes one fetch may bring."""
FETCH_SECONDS: Final = 20.0
"""A fetch from its beginning to its end; single reads have shorter limits, so a server that drips is cut off too."""
FRESH_FOR: Final = timedelta(hours=24)
"""How old a copy may be when git is down."""
_THREADS: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A git host this site trusts. The credential goes to this host only, and is read from its file at each fetch."""

    username: str = ""
    token_file: Path | None = None
    ca_file: Path | None = None


def _label(value: str) -> str:
    if not is_dns_label(value):
        raise ValueError("must be 1 to 63 of a-z, 0-9 and -, beginning and ending with a letter or digit")
    return value


_Label = Annotated[str, AfterValidator(_label)]
_STRICT: Final = ConfigDict(extra="forbid", strict=True, frozen=True)


class _DeliveryEnvironment(BaseModel):
    model_config = _STRICT
    cluster: _Label
    namespace: _Label
    tier: Literal["ground", "flight"]
    after_process_access: Literal["recycle", "keep"] = Field("recycle", alias="afterProcessAccess")


class _Delivery(BaseModel):
    model_config = _STRICT
    api_version: Literal["tower.hangar/v1"] = Field(alias="apiVersion")
    kind: Literal["Delivery"]
    app: str
    environments: dict[_Label, _DeliveryEnvironment] = Field(min_length=1, max_length=50)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Copy:
    """The file's bytes, the commit that holds them, and when its repository said that this commit is the head."""

    raw: bytes
    commit: str
    read_at: datetime
    stale: bool = False


@dataclass(slots=True)
class CicdGit:
    """Deployments over git. `local` repositories, and paths in the catalog, only where `dev` says that this is a trial."""

    cache: Path
    hosts: Mapping[str, Host] = field(default_factory=dict)
    dev: bool = False
    local: Mapping[EntityRef, Path] = field(default_factory=dict)
    now: Callable[[], datetime] = lambda: datetime.now(tz=UTC)
    seconds: float = FETCH_SECONDS
    _threads: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(_THREADS, thread_name_prefix="git"))
    _locks: dict[str, threading.Lock] = field(default_factory=dict)

    async def environments(self, app: AppFacts) -> Sequence[Environment]:
        """Every environment the app's file names.

        1. Where the file is: the site's local repository, else the catalog's annotation, else `invalid`. 2. The head of the
        default branch now, or, only when git is down, a copy of at most a day, marked. 3. The file is for this very app.
        Whether its tier and namespace are true is for layer 3 to ask the cluster.
        """
        where = self.local.get(app.app) or app.cicd  # (1)
        if where is None:
            words = "give its catalog entity the annotation tower.hangar/cicd"
            raise PortError(Trouble.INVALID, f"where {app.app} is deployed is not known; {words}")
        if isinstance(where, Path) or not where.startswith("https://"):
            if not self.dev:
                words = "a local repository is for profile try; give its https URL"
                raise PortError(Trouble.INVALID, f"the delivery file of {app.app}: {words}")
            copy = await self._run(lambda: self._read_local(Path(where)))  # (2)
        else:
            copy = await self._remote(where)
        return _environments(app.app, copy)  # (3)

    async def close(self) -> None:
        """Let go of the threads; a fetch that is under way ends by its own limits."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _remote(self, url: str) -> _Copy:
        host = self._host(url)
        try:
            async with asyncio.timeout(self.seconds + 1):
                return await self._run(lambda: self._fetch(url, host))
        except TimeoutError:
            down = PortError(Trouble.TRANSIENT, f"{url} did not answer in {self.seconds:.0f} s; look at the git host")
        except PortError as error:
            if error.trouble is not Trouble.TRANSIENT:
                raise
            down = error
        kept = await asyncio.to_thread(self._kept, url)
        if kept is None or self.now() - kept.read_at > FRESH_FOR:
            raise down
        return kept

    async def _run(self, work: Callable[[], _Copy]) -> _Copy:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _host(self, url: str) -> Host:
        parts = urlsplit(url)
        if parts.username is not None or parts.query or parts.fragment or not url.isprintable():
            raise PortError(Trouble.INVALID, "the URL of a delivery file is https://host/path, without user, ? or #")
        if parts.netloc not in self.hosts:
            words = "is not a git host of this site; an admin adds it under deployments.hosts in site.yaml"
            raise PortError(Trouble.INVALID, f"{parts.netloc} {words}")
        return self.hosts[parts.netloc]

    # --- in a thread --------------------------------------------------------------------------------------------------

    def _read_local(self, path: Path) -> _Copy:
        with _git_failures(str(path)), Repo(str(path)) as repo:
            head = repo.refs.get_symrefs().get(b"HEAD", b"HEAD")  # type: ignore[call-overload] # NewType of bytes
            if head not in repo.refs:
                raise PortError(Trouble.INVALID, f"{path} has no commit on its default branch; make one")
            return _read(repo, repo.refs[head], str(path), self.now())

    def _fetch(self, url: str, host: Host) -> _Copy:
        folder = self._folder(url)
        with self._locks.setdefault(url, threading.Lock()), _git_failures(url):
            with _bare(folder) as repo:
                read_at = self.now()
                with _client(url, host, self.seconds) as client:
                    result = client.fetch(urlsplit(url).path, repo, determine_wants=_wanted(repo), depth=1)
                head = result.refs.get(b"HEAD")  # type: ignore[call-overload] # the library's keys are a NewType of bytes
                if head is None:
                    raise PortError(Trouble.INVALID, f"{url} has no commit on its default branch; push one")
                copy = _read(repo, head, url, read_at)
            _remember(folder, copy)
            return copy

    def _kept(self, url: str) -> _Copy | None:
        """What the last good fetch left: the file and when that was; None when there is nothing whole."""
        try:
            with (self._folder(url) / "tower.json").open() as file:
                said = json.load(file)
            raw, read_at = said["file"].encode(), datetime.fromisoformat(said["read_at"])
            return _Copy(raw=raw, commit=str(said["commit"]), read_at=read_at, stale=True)
        except (OSError, ValueError, KeyError, AttributeError, TypeError):
            return None

    def _folder(self, url: str) -> Path:
        return self.cache / hashlib.sha256(url.encode()).hexdigest()[:32]


class _Pool(urllib3.PoolManager):
    """Connections of one fetch, which closes every answer at its end: the library forgets those it did not like."""

    answers: list[urllib3.BaseHTTPResponse]

    def request(self, *args: Any, **kwargs: Any) -> urllib3.BaseHTTPResponse:
        answer = super().request(*args, **kwargs)
        self.answers.append(answer)
        return answer

    def clear(self) -> None:
        for answer in self.answers:
            answer.close()
        super().clear()


class _Bounded(Urllib3HttpGitClient):
    """The library's client, with an end in time and in bytes to all of a fetch, checked at every read of the socket."""

    def __init__(self, base_url: str, *, seconds: float, **options: Any) -> None:
        super().__init__(base_url, **options)
        self._ends_at = time.monotonic() + seconds
        self._left = FETCH_LIMIT

    def _http_request(self, *args: Any, **kwargs: Any) -> Any:
        answer: Any = super()._http_request(*args, **kwargs)[0]

        def bounded(size: int) -> bytes:
            parts = []
            while size > 0 and (part := answer.read1(size)):
                size -= len(part)
                self._left -= len(part)
                if self._left < 0 or time.monotonic() > self._ends_at:
                    raise OSError("the fetch took too long or brought too much")
                parts.append(part)
            return b"".join(parts)

        return answer, bounded


@contextmanager
def _client(url: str, host: Host, seconds: float) -> Iterator[_Bounded]:
    parts = urlsplit(url)
    pool = _Pool(
        cert_reqs="CERT_REQUIRED",
        ca_certs=str(host.ca_file) if host.ca_file else None,
        retries=urllib3.Retry(total=0, redirect=0),  # elsewhere is another host: say so instead of going there
        timeout=urllib3.Timeout(connect=min(5.0, seconds), read=min(10.0, seconds)),
    )
    token = host.token_file.read_text().strip() if host.token_file else None
    pool.answers = []
    who = host.username if token else None
    client = _Bounded(f"{parts.scheme}://{parts.netloc}", seconds=seconds, pool_manager=pool, username=who, password=token)
    try:
        yield client
    finally:
        pool.clear()


def _wanted(repo: Repo) -> Callable[..., list[ObjectID]]:
    def wants(refs: Mapping[Any, ObjectID], **_: Any) -> list[ObjectID]:
        head = refs.get(b"HEAD")
        return [head] if head is not None and head not in repo.object_store else []

    return wants


@contextmanager
def _bare(folder: Path) -> Iterator[Repo]:
    if not (folder / "HEAD").exists():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        Repo.init_bare(str(folder)).close()
    repo = Repo(str(folder))
    try:
        yield repo
    finally:
        repo.close()


def _remember(folder: Path, copy: _Copy) -> None:
    said = {"commit": copy.commit, "read_at": copy.read_at.isoformat(), "file": copy.raw.decode(errors="replace")}
    new = folder / ".tower.json.new"
    new.write_text(json.dumps(said))
    os.replace(new, folder / "tower.json")  # noqa: PTH105 (the atomic one by name)


def _read(repo: Repo, head: ObjectID, name: str, read_at: datetime) -> _Copy:
    commit = repo[head]
    tree = repo[commit.tree] if isinstance(commit, Commit) else None
    if not isinstance(tree, Tree) or FILE not in tree:
        raise PortError(Trouble.INVALID, f"{name} has no cicd.yaml at the head of its default branch; commit one")
    mode, sha = tree[FILE]
    blob = repo[sha] if stat.S_ISREG(mode) else None
    if not isinstance(blob, Blob):
        raise PortError(Trouble.INVALID, f"cicd.yaml in {name} is a link or folder; commit a plain file")
    return _Copy(raw=blob.data[: FILE_LIMIT + 1], commit=head.decode("ascii"), read_at=read_at)


@contextmanager
def _git_failures(name: str) -> Iterator[None]:
    """Say who failed: a repository that is not there or closed to us is a definite no, everything else is git being down."""
    try:
        yield
    except PortError:
        raise
    except NotGitRepository as error:
        raise PortError(
            Trouble.NOT_FOUND, f"{name} is no git repository Tower can see; look at its address and rights"
        ) from error
    except HTTPUnauthorized as error:
        raise PortError(
            Trouble.FORBIDDEN, f"{name} refused Tower's credential; give deployments.hosts a token that reads it"
        ) from error
    except KeyError as error:
        raise PortError(Trouble.INVALID, f"{name} has no commit on its default branch; push one") from error
    except Exception as error:
        raise PortError(Trouble.TRANSIENT, f"{name} cannot be read now ({type(error).__name__}); look at the git host") from error


# --- the format -------------------------------------------------------------------------------------------------------


def _environments(app: EntityRef, copy: _Copy) -> Sequence[Environment]:
    name = f"cicd.yaml of {app} at {copy.commit[:12]}"
    found = document(copy.raw, limit=FILE_LIMIT)
    if isinstance(found, Malformed):
        raise PortError(Trouble.INVALID, f"{name}: {found.sentence}")
    try:
        delivery = _Delivery.model_validate(found.value)
    except ValidationError as error:
        raise PortError(Trouble.INVALID, f"{name}: {problem(error.errors())}") from None
    if entity_ref(delivery.app) != app:
        raise PortError(Trouble.INVALID, f"{name}: app: must be {app}, the app that is asked for")
    return [
        Environment(
            app=app,
            name=environment,
            cluster=said.cluster,
            namespace=said.namespace,
            tier=Tier(said.tier),
            commit=copy.commit,
            read_at=copy.read_at,
            stale=copy.stale,
            after_process_access=AfterProcessAccess(said.after_process_access),
        )
        for environment, said in delivery.environments.items()
    ]
