"""Reads files and zarr stores at URLs through fsspec by ranges of bytes, reads their properties, and translates the
errors of fsspec.

Credentials come from the caller's ``storage_options``, or fsspec finds them in its configuration and in the
environment. No message contains credentials or the query of a URL, because the query may be a signature.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, NoReturn
from urllib.parse import unquote

from ...errors import FileError, TilewrightError, UnavailableError, UsageError, did_you_mean, how_to_install
from ...host.cached_property import cached_property
from .checks import one_line

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*(://|::.*://)", re.DOTALL)
_LOCAL = re.compile(r"(?:file|local)://(?:localhost(?=/))?", re.IGNORECASE)
#: The facts of ``fs.info`` that change with a file's contents, in lower case, without signs.
_NOTED = {
    *("size", "etag", "mtime", "modified", "lastmodified", "modificationtime", "created", "updated", "generation"),
    *("version", "versionid", "md5", "md5hash", "contentmd5", "digest", "checksum", "crc", "crc32c", "blobid", "sha"),
}


def is_url(where: str) -> bool:
    """Whether a text is the URL of a file that another program serves, and not a local path."""
    return _URL.match(where) is not None and _LOCAL.match(where) is None


def without_scheme(where: str) -> str:
    """Return the path that a ``file://`` URL names; return any other text unchanged.

    >>> without_scheme("file:///data/my%20a.npy"), without_scheme("a.npy"), without_scheme("s3://bucket/a.npy")
    ('/data/my a.npy', 'a.npy', 's3://bucket/a.npy')
    """
    scheme = _LOCAL.match(where)
    if scheme is None:
        return where
    path = where[scheme.end() :]
    return path if Path(path).exists() else unquote(path)


def local_path(where: str) -> Path | None:
    """Return the path that a text names: a plain path or a ``file://`` URL. For any other URL, return None."""
    return None if is_url(where) else Path(without_scheme(where))


def url_parts(url: str) -> tuple[str, str, str]:
    """Split a URL into three texts: what precedes the path, the path, and what follows it (a query or a chained URL).

    >>> url_parts("https://host:80/a.h5:x?v=1.npy"), url_parts("s3://bucket/a.npy"), url_parts("zip://a.npy::s3://b/c.zip")
    (('https://host:80', '/a.h5:x', '?v=1.npy'), ('s3://', 'bucket/a.npy', ''), ('zip://', 'a.npy', '::s3://b/c.zip'))
    """
    before, mark, rest = url.partition("://")
    is_http = before.lower().rpartition("::")[2] in ("http", "https")
    path = re.split(r"::|[?#]" if is_http else r"::|\?", rest, maxsplit=1)[0]
    after, host = rest[len(path) :], path.partition("/")[0]
    if "/" in path and (is_http or re.search(r"@|:\d+$", host)):  # otherwise the suffix can be in the first part
        return before + mark + host, path[len(host) :], after
    return before + mark, path, after


def _without_secrets(url: str) -> str:
    """A URL without user, password and query.

    >>> _without_secrets("zip://a.npy::https://me:pass@host/b.zip?signature=x")
    'zip://a.npy::https://host/b.zip?…'
    """
    before, path, after = url_parts(url)
    rest = f"::{_without_secrets(after[2:])}" if after.startswith("::") else after[:1] + "…" * bool(after)
    return re.sub(r"://[^/]*@", "://", before) + path + rest


@dataclass(frozen=True)
class Remote:
    """A file or directory at ``url``, whose file system is opened with ``options``. A ``Remote`` can be sent to other
    processes.
    """

    url: str
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        return _without_secrets(self.url)

    def __reduce__(self) -> tuple[Any, ...]:
        return Remote, (self.url, self.options)

    @property
    def name(self) -> str:
        """The last part of the URL's path."""
        return PurePosixPath(url_parts(self.url)[1]).name

    @cached_property
    def _opened(self) -> tuple[Any, str]:
        """Its file system, and its path there."""
        try:
            import fsspec
        except ImportError:
            raise UnavailableError(
                f"{self} needs fsspec, which is not installed: {how_to_install('cluster')}"
            ) from None
        protocol = self.url.partition(":")[0]
        try:
            return fsspec.url_to_fs(self.url, **self.options)
        except ImportError as error:  # fsspec's text names the package
            raise UnavailableError(f"{self} needs a library for {protocol}: {one_line(error)}") from None
        except Exception as error:
            if str(error).startswith("Protocol not known"):
                raise UsageError(
                    f"{self}: no file system is named {protocol}; {did_you_mean(protocol, _protocols())}"
                ) from None
            self.refuse(error)

    @property
    def suffix(self) -> str:
        """The suffix of the URL's path, such as ".npy"."""
        return PurePosixPath(url_parts(self.url)[1]).suffix

    def connect(self) -> None:
        """Connect to the file system. Raises UsageError if the protocol of the URL is unknown, and UnavailableError if
        the library of the protocol is not installed.
        """
        _ = self._opened

    @property
    def file_system(self) -> Any:
        """The file system object of fsspec."""
        return self._opened[0]

    @property
    def path(self) -> str:
        """The name of the file in its file system."""
        return self._opened[1]

    def size(self) -> int:
        """The size of the file in bytes. Raises FileError if the URL is not that of a file, or if the server cannot
        send parts of the file.
        """
        with self.errors():
            info = self._info()
            size = info.get("size")
            if info.get("type") == "directory":
                raise FileError(f"{self} is not a file: a matrix is read from a file")
            if not isinstance(size, int):
                raise FileError(f"{self} cannot be read: its server does not say how long it is; copy it to a disk")
            # Such a server would send all of the file for each part of it.
            if size > 1 and "http" in self.file_system.protocol and not self._serves_parts(size):
                raise FileError(f"{self} cannot be read: its server sends no parts of files; copy it to a disk")
        return size

    def _serves_parts(self, size: int) -> bool:
        with self.file_system.open(self.path, "rb", size=size, cache_type="none") as file:
            try:
                file.seek(size - 1)
                return len(file.read(1)) == 1
            except ValueError:
                return False

    def read(self, spans: Sequence[tuple[int, int]]) -> list[bytes]:
        """Read several ranges of bytes, which are requested together. Raises FileError if the file ends before the end
        of a range.
        """
        with self.errors():
            if len(spans) == 1:
                parts = [self.file_system.cat_file(self.path, start=spans[0][0], end=spans[0][1])]
            else:
                begins, ends = map(list, zip(*spans, strict=True))
                parts = self.file_system.cat_ranges([self.path] * len(spans), begins, ends, on_error="raise")
            for (begin, end), part in zip(spans, parts, strict=True):
                if isinstance(part, BaseException):
                    raise part
                if len(part) > end - begin:
                    raise FileError(f"{self} cannot be read: its server sends no parts of files; copy it to a disk")
                if len(part) < end - begin:
                    raise FileError(f"{self} ends at byte {begin + len(part)}: it was truncated while it was open")
        return parts

    def identity(self) -> list[Any]:
        """Return the URL of the file and the facts about it that change with its contents: its size, and its etag or
        modification times.

        If the file has an etag, the query of the URL is left out, because the query can be a signature that differs in
        a later run.
        """
        begin, path, after = url_parts(self.url)
        with self.errors():
            noted = _noted(self._info())
        is_tagged = any(key.lower() == "etag" for key, _ in noted)
        return [begin + path + ("" if is_tagged and after.startswith("?") else after), *noted]

    def _info(self) -> dict[str, Any]:
        self._forget(self.path)
        return self.file_system.info(self.path)

    def _forget(self, path: str) -> None:
        """Have the file system forget what it has listed: not all do that by ``invalidate_cache``."""
        self.file_system.invalidate_cache(path)
        getattr(self.file_system, "dircache", {}).clear()

    def listing(self, below: str) -> list[Any]:
        """Return the name and ``identity`` of every file below a directory. The result is empty if the file system cannot
        list files.
        """
        where = "/".join([self.path.rstrip("/"), below]) if below else self.path
        try:
            self._forget(where)
            found = self.file_system.find(where, detail=True)
        except (FileNotFoundError, NotImplementedError):
            return []
        except Exception as error:
            self.refuse(error)
        return [(name, *_noted(info)) for name, info in sorted(found.items())]

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Turn exceptions of the file system into FileError, except Tilewright's own errors."""
        try:
            yield
        except TilewrightError:
            raise
        except Exception as error:
            self.refuse(error)

    def refuse(self, error: Exception) -> NoReturn:
        """Raise the FileError that corresponds to an exception of the file system."""
        raise FileError(f"{self} cannot be read: {self._reason(error)}") from error

    def _reason(self, error: BaseException) -> str:
        if type(error) is FileNotFoundError and error.__cause__ is not None:  # the HTTP file system's, for any error
            error = error.__cause__
        status = getattr(error, "status", None)
        if isinstance(error, FileNotFoundError) or status == 404:
            return "it does not exist"
        if isinstance(error, PermissionError) or status in (401, 403):
            return "permission denied; fsspec takes credentials from its configuration, the environment and storage_options"
        if isinstance(error, TimeoutError):
            return "there was no answer in time"
        if status is not None:
            return one_line(f"its server answers {status} {getattr(error, 'message', '')}")
        return one_line(re.sub(r"\?[^\s'\"]+", "?…", str(error).replace(self.url, str(self)))) or type(error).__name__


def resolved(path: Path | Remote) -> Path | Remote:
    """Return a path with its symbolic links resolved, because links may change later. A URL is returned unchanged."""
    return path if isinstance(path, Remote) else Path(os.path.realpath(path))


def _noted(info: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The facts of a file that change with its contents, in one order."""
    return sorted((key, str(info[key])) for key in info if re.sub(r"[^a-z0-9]", "", key.lower()) in _NOTED)


def _protocols() -> list[str]:
    import fsspec

    return fsspec.available_protocols()
