"""The user's cache on disk for compiled code and measured facts: a directory that no other user can change.

Every measured fact is a ``CacheFile`` of JSON, read by ``read_as`` and written by ``write_json``.

Cached machine code is run later, so the directory must be safe. The path of the cache directory is walked from the
root of the file system. Each directory on the path is opened relative to its parent, without following a symbolic
link, and the owner and mode of the open directory are checked. So no directory can be replaced between its check and
its use.

- Each directory on the path must belong to this user or to root. The last directories, which hold the cached files,
  must belong to this user.
- No other user may have write permission in a directory on the path, except in a sticky directory such as ``/tmp``. In
  the last directories no other user may have write permission, even if they are sticky.
- A symbolic link is followed only if no other user can write to the directory that holds it. The target of such a link
  is walked in the same way.

The checked path contains no link, and always leads to the same directory. So other libraries, such as Numba's cache,
may open files by this path later. To change where the path leads, an entry of one of its directories would have to be
renamed, removed or replaced. In a directory that only its owner can write to, only the owner and root can change an
entry. In a sticky directory, only the owner of the directory, the owner of the entry, and root can change an entry.
Each such entry is the next directory of the path, whose owner was checked. So only this user and root can change where
the path leads.

The check of the mode also notices a POSIX access control list that lets another user write: with such a list, the
group bits of the mode are the widest permissions that the list gives.

If the user's cache is unsafe or cannot be written, a CacheWarning is shown once, and the cached files are stored in a
temporary directory of this process. A process that is killed cannot remove its temporary directory. So each process
holds a lock on its temporary directory, which the system releases when the process ends in any way. A process that
makes a temporary directory first removes those of the same user that are no longer locked. If there is no safe place
for a temporary directory either, nothing is cached.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import functools
import json
import os
import re
import stat
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ..errors import CacheWarning

# ---- directories whose contents no other user can change -------------------------------------------------------------

#: Flags to open a directory on the way: only to pass through it, for which no permission to list it is needed.
_OPEN = getattr(os, "O_PATH", os.O_RDONLY) | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)
#: Links on one path, as many as Linux follows.
_MOST_LINKS = 40
_ROOT = Path("/")


def safe_directory(path: str | Path, parts: Iterable[str] = (), *, make: bool = True) -> Path:
    """Return the real path of the directory ``path``/``parts``, whose last directories ``parts`` only this user can
    write to.

    Missing directories are made with mode 0700, unless ``make`` is False. ``safe_directory`` raises PermissionError if
    another user could change the contents of the directory, and other errors of class OSError if the directory cannot
    be reached, made or written. On Windows, which has no POSIX owners and modes, the directories are made and nothing
    is checked.
    """
    if os.name != "posix":
        return _made(Path(path), parts)
    walk = _Walk(make)
    try:
        walk.follow(str(path) if Path(path).is_absolute() else f"{Path.cwd()}/{path}")
        for part in parts:
            walk.enter(part, mine=True)
        if not os.access(".", os.W_OK | os.X_OK, dir_fd=walk.fd, effective_ids=os.access in os.supports_effective_ids):
            raise PermissionError(f"{str(walk.path)!r} cannot be written")
        return walk.path
    finally:
        os.close(walk.fd)


class _Walk:
    """An open directory and its real path. A walk begins at the root of the file system and enters one directory at a
    time."""

    def __init__(self, make: bool) -> None:
        self._make = make
        self.path, self.fd = _ROOT, os.open(_ROOT, _OPEN)
        self._shared = False
        try:
            self._check(self.fd, self.path, mine=False)
        except BaseException:
            os.close(self.fd)
            raise

    def follow(self, path: str) -> None:
        """Enter the directories of ``path`` one by one; for a link, enter those of its target."""
        waiting, links = path.split("/")[::-1], 0
        while waiting:
            name = waiting.pop()
            if name in ("", "."):
                continue
            target = self._link(name)
            if target is None:
                self.enter(name)
                continue
            links += 1
            if links > _MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            if target.startswith("/"):
                self._move_to(os.open(_ROOT, _OPEN), _ROOT, mine=False)
            waiting += target.split("/")[::-1]

    def enter(self, name: str, *, mine: bool = False) -> None:
        """Enter the directory ``name``, which is made if it is missing. With ``mine`` the directory must belong to
        this user."""
        path = self.path.parent if name == ".." else self.path / name
        if mine and self._link(name) is not None:
            raise PermissionError(f"{str(path)!r} is a link")
        try:
            fd = self._opened(name)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(path)) from None
        self._move_to(fd, path, mine)

    def _opened(self, name: str) -> int:
        try:
            return os.open(name, _OPEN, dir_fd=self.fd)
        except FileNotFoundError:
            if not self._make:
                raise
        with contextlib.suppress(FileExistsError):  # another process made it meanwhile
            os.mkdir(name, 0o700, dir_fd=self.fd)
        return os.open(name, _OPEN, dir_fd=self.fd)

    def _link(self, name: str) -> str | None:
        """Where the link ``name`` leads; None where it is not a link."""
        try:
            target = os.readlink(name, dir_fd=self.fd)
        except OSError:  # not a link, or missing: opening it raises the error
            return None
        if self._shared:
            raise PermissionError(f"{str(self.path / name)!r} is a link in a directory that other users can write")
        return target

    def _move_to(self, fd: int, path: Path, mine: bool) -> None:
        try:
            self._check(fd, path, mine)
        except BaseException:
            os.close(fd)
            raise
        os.close(self.fd)
        self.fd, self.path = fd, path

    def _check(self, fd: int, path: Path, mine: bool) -> None:
        """Raises PermissionError if another user could change the entries of this directory that belong to this user."""
        status = os.fstat(fd)
        if status.st_uid != os.geteuid() and (mine or status.st_uid != 0):
            raise PermissionError(f"{str(path)!r} belongs to another user (uid {status.st_uid})")
        self._shared = bool(status.st_mode & (stat.S_IWGRP | stat.S_IWOTH))
        if self._shared and (mine or not status.st_mode & stat.S_ISVTX):
            mode = oct(stat.S_IMODE(status.st_mode))
            raise PermissionError(f"{str(path)!r} can be written by other users (mode {mode})")


def _made(path: Path, parts: Iterable[str]) -> Path:
    path = path.absolute().joinpath(*parts)
    path.mkdir(parents=True, exist_ok=True)
    return path


# ---- a temporary directory of this process, removed when it ends -----------------------------------------------------

try:
    import fcntl
except ImportError:  # Windows: nothing is locked, and what a killed process left behind stays
    fcntl = None  # type: ignore[assignment]

_PREFIX = "tilewright-process-"
_NAME = re.compile(rf"{_PREFIX}\d+-\w{{8}}")
#: Places to try where the directory that the environment names cannot be used.
_PLACES = ("/tmp", "/var/tmp", "/dev/shm")
#: How often to try: another process may remove a new directory that is not locked yet, because it seems left behind.
_TRIES = 3

_making = threading.Lock()
_current: _Directory | None = None


def temporary_directory() -> Path | None:
    """Return the temporary directory of this process, which is made at the first call. A forked child process uses its
    parent's temporary directory. The result is None if there is no safe place for a temporary directory."""
    global _current
    with _making:
        if _current is None or not _current.is_there():
            _current = _new_directory()
        return None if _current is None else _current.path


class _Directory:
    """A new locked directory of mode 0700. The constructor raises OSError if the directory cannot be made, or if
    another process has locked it."""

    def __init__(self, place: Path) -> None:
        self._process = os.getpid()
        import tempfile  # rarely needed, and it imports much

        self.path = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{self._process}-", dir=place))
        self._fd = _locked(self.path, must=False) if fcntl else None

    def is_there(self) -> bool:
        """Return whether the path still leads to this directory: a forked child may outlive the parent that removes
        the directory."""
        try:
            return self._fd is None or os.path.samestat(os.lstat(self.path), os.fstat(self._fd))
        except OSError:
            return False

    def remove(self) -> None:
        """Remove the directory, but only in the process that made it, not in a forked child."""
        if self._process == os.getpid():
            import shutil  # as ``tempfile``

            shutil.rmtree(self.path, ignore_errors=True)


def _new_directory() -> _Directory | None:
    for place in _places():
        for _ in range(_TRIES):
            with contextlib.suppress(OSError):
                directory = _Directory(place)
                if directory.is_there():
                    _remove_at_exit(directory)
                    return directory
    return None


def _places() -> Iterator[Path]:
    """The safe places; what killed processes left in each is removed first."""
    with contextlib.suppress(OSError):
        import tempfile

        yield _cleared(tempfile.gettempdir())
    for place in _PLACES:
        with contextlib.suppress(OSError):
            yield _cleared(place)


def _cleared(place: str) -> Path:
    safe = safe_directory(place, make=False)
    if fcntl:
        for path in safe.iterdir():
            if _NAME.fullmatch(path.name):
                with contextlib.suppress(OSError):  # it is another user's, or locked
                    fd = _locked(path, must=True)
                    import shutil

                    shutil.rmtree(path, ignore_errors=True)
                    os.close(fd)
    return safe


def _locked(path: Path, *, must: bool) -> int:
    """A descriptor of the directory, which is locked as long as the descriptor is open. Raises OSError if it belongs to
    another user, or another process has locked it. Where the file system has no locks, raises OSError with ``must``, and
    returns the descriptor of an unlocked directory without."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(fd).st_uid != os.geteuid():
            raise PermissionError(path)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if must or isinstance(error, BlockingIOError | PermissionError):
            os.close(fd)
            raise
    return fd


def _remove_at_exit(directory: _Directory) -> None:
    atexit.register(directory.remove)
    process = sys.modules.get("multiprocessing.process")
    if process is not None and process.parent_process() is not None:  # such a child ends without running atexit
        from multiprocessing.util import Finalize

        Finalize(None, directory.remove, exitpriority=0)


def _renew() -> None:
    """A new lock for a forked child: the thread that held the old one does not exist there."""
    global _making
    _making = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)


# ---- the cache -------------------------------------------------------------------------------------------------------

try:  # ``hashlib`` would load OpenSSL, too: a tenth of the time of a process's first product
    from _blake2 import blake2b
except ImportError:
    from hashlib import blake2b

Found = TypeVar("Found")

#: Caches that could not be written, each with the reason; and caches that a warning was shown for.
_unusable: dict[str, str] = {}
_warned: set[str] = set()


def private_directory(*parts: str) -> Path | None:
    """Return the directory of the cache. If the directory does not exist, it is made with mode 0700.

    The directory is in ``$TILEWRIGHT_CACHE``, else in ``$XDG_CACHE_HOME/tilewright``, else in ``~/.cache/tilewright``.
    If this place cannot be written, or another user could change its contents, a CacheWarning says so once per
    process, and the result is a directory in the temporary directory of this process. The result is None if there is
    no safe place for a temporary directory either.
    """
    cache = "the cache"
    try:
        cache = str(_user_cache())
        if cache not in _unusable:
            return safe_directory(cache, parts)
        reason = _unusable[cache]
    except RuntimeError:
        reason = "this user has no home directory"
    except OSError as error:
        reason = _reason_text(error)
    temporary = temporary_directory()
    _warn(cache, reason, temporary)
    with contextlib.suppress(OSError):
        return temporary and safe_directory(temporary, parts)
    return None


def give_up(error: OSError) -> None:
    """Stop using the user's cache in this process, after writing to it has failed with ``error``."""
    with contextlib.suppress(RuntimeError):
        _unusable.setdefault(str(_user_cache()), _reason_text(error))
    private_directory()  # shows the warning


def _user_cache() -> Path:
    """The directory of the user's cache, unchecked. Raises RuntimeError for a user without a home directory."""
    return _cache_of(*map(os.environ.get, ("TILEWRIGHT_CACHE", "XDG_CACHE_HOME", "HOME")))


@functools.lru_cache(maxsize=8)  # ``is_absent`` asks for each plan
def _cache_of(own: str | None, base: str | None, _home: str | None) -> Path:
    """``_home`` is what ``Path.home`` reads: a part of the key."""
    if own:
        return Path(own)
    is_given = base and Path(base).is_absolute()  # by its standard, a relative path is ignored
    return (Path(base or "") if is_given else Path.home() / ".cache") / "tilewright"


def _reason_text(error: OSError) -> str:
    if error.strerror is None:
        return str(error)
    return f"{error.filename!r}: {error.strerror}" if error.filename else error.strerror


def _warn(cache: str, reason: str, temporary: Path | None) -> None:
    if cache in _warned:
        return
    _warned.add(cache)
    instead = f"kept in {str(temporary)!r} until this process ends" if temporary else "not kept at all"
    warnings.warn(
        f"the cache {cache!r} is not used: {reason}; compiled code and measured facts are {instead}, and made again in the "
        "next process; set $TILEWRIGHT_CACHE to a directory that you can write and no other user can",
        CacheWarning,
        stacklevel=3,
    )


@dataclass(frozen=True)
class CacheFile:
    """One file of the cache. A cache file is always written as a whole, and counts as missing if it cannot be read."""

    folder: str
    name: str

    @property
    def path(self) -> Path | None:
        """The path of the file, whether it exists or not; None if nothing can be cached."""
        folder = private_directory(self.folder)
        return folder and folder / self.name

    @property
    def is_absent(self) -> bool:
        """Whether the file is certainly missing. The property ``is_absent`` takes one fiftieth of the time of
        ``read``, because only ``read`` checks the cache's directory."""
        try:
            cache = str(_user_cache())
        except RuntimeError:
            return False
        return cache not in _warned and not os.path.exists(f"{cache}/{self.folder}/{self.name}")  # noqa: PTH110

    def read(self) -> bytes | None:
        """Return the contents of the file; None if the file is missing or cannot be read."""
        path = self.path
        try:
            return None if path is None else path.read_bytes()
        except OSError:
            return None

    def read_json(self) -> dict[str, Any]:
        """Return the JSON object in the file; an empty dict if the file is missing or is not a JSON object."""
        try:
            known = json.loads(self.read() or b"{}")
        except (ValueError, RecursionError):
            return {}
        return known if isinstance(known, dict) else {}

    def read_as(self, make: Callable[[dict[str, Any]], Found | None]) -> Found | None:
        """Return the result of ``make`` for the JSON object in the file; None if the file is missing or its contents
        are not valid."""
        with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError, OverflowError):
            return make(self.read_json())
        return None

    def write(self, content: bytes) -> Path | None:
        """Write the file and return its path; return None if the file cannot be written.

        Other processes see either the old file or the complete new one. If writing to the user's cache fails, this
        process no longer uses that cache, and writes the file to its temporary directory."""
        for _ in range(2):
            path = self.path
            if path is None:
                return None
            try:
                return _written(path, content)
            except FileNotFoundError:  # the directory was removed since; the next round makes it again
                continue
            except OSError as error:
                give_up(error)
        return None

    def write_json(self, known: Mapping[str, Any]) -> Path | None:
        """Write a JSON object to the file, as ``write`` does."""
        return self.write(json.dumps(known, indent=1).encode() + b"\n")

    def read_checked(self) -> bytes | None:
        """Return the contents that ``write_checked`` wrote; None if the file is missing or was changed since."""
        digest, _, content = (self.read() or b"").partition(b"\n")
        return content if fingerprint(content).encode() == digest else None

    def write_checked(self, content: bytes) -> Path | None:
        """Write a line with the digest of the contents, and then the contents, as ``write`` does."""
        return self.write(fingerprint(content).encode() + b"\n" + content)

    def remove(self) -> bool:
        """Remove the file. Returns whether it existed."""
        path = self.path
        try:
            if path is not None:
                path.unlink()
        except FileNotFoundError:
            return False
        return path is not None


def _written(path: Path, content: bytes) -> Path:
    import tempfile

    handle, draft = tempfile.mkstemp(prefix=f"{path.name}.", suffix=".draft", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        return Path(draft).replace(path)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise


def fingerprint(*facts: object) -> str:
    """Return a short name for a combination of facts, which is a digest. For a path among the facts, the contents of
    its file are used."""
    digest = blake2b(digest_size=8)
    for fact in facts:
        content = fact.read_bytes() if isinstance(fact, Path) else fact
        digest.update(content if isinstance(content, bytes) else repr(content).encode())
        digest.update(b"\0")
    return digest.hexdigest()
