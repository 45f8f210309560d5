"""The cache: a directory whose contents no other user can change, said where there is none, and nothing left behind."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import stat
import subprocess
import sys
import tempfile
import textwrap
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tilewright.errors import CacheWarning
from tilewright.host import disk
from tilewright.host.disk import CacheFile, private_directory, safe_directory

pytestmark = pytest.mark.skipif(os.name != "posix", reason="owners and modes are POSIX")
as_root = pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root can act as another user")

#: Two users that are neither root nor each other.
VICTIM, ATTACKER = 65534, 65533


@pytest.fixture(autouse=True)
def _nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "_warned", set())
    monkeypatch.setattr(disk, "_unusable", {})


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "cache"
    path.mkdir(mode=0o700)
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(path))
    return path


def process(script: str, *options: str, code: int = 0, **environ: str) -> subprocess.CompletedProcess[str]:
    """A script in a process of its own."""
    command = [sys.executable, "-W", "always", *options, "-c", textwrap.dedent(script)]
    answer = subprocess.run(command, env=os.environ | environ, capture_output=True, text=True, timeout=120, check=False)
    assert answer.returncode == code, answer.stderr
    return answer


# ---- which directory -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077], ids=oct)
def test_directory_is_private_whatever_the_umask(umask: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "deep" / "cache"))
    old = os.umask(umask)
    try:
        path = private_directory("numba", "key")
    finally:
        os.umask(old)
    assert path == tmp_path / "deep" / "cache" / "numba" / "key"
    assert [stat.S_IMODE(p.stat().st_mode) for p in (path, *list(path.parents)[:3])] == [0o700] * 4


@pytest.mark.parametrize("base", ["xdg", "relative", None])
def test_cache_follows_the_xdg_directory(base: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    monkeypatch.delenv("TILEWRIGHT_CACHE", raising=False)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg") if base == "xdg" else base or "")
    found = private_directory("peaks")
    assert found == (tmp_path / "xdg" if base == "xdg" else home / ".cache") / "tilewright" / "peaks"


def test_a_relative_path_is_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("TILEWRIGHT_CACHE", "../mine/./cache/")
    assert private_directory("peaks") == tmp_path / "mine" / "cache" / "peaks"


def test_an_absolute_path_needs_no_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(tmp_path / "gone")
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert safe_directory(tmp_path / "cache", ("numba",)) == tmp_path / "cache" / "numba"
    with pytest.raises(FileNotFoundError):
        safe_directory("cache")


# ---- what is refused -------------------------------------------------------------------------------------------------


def made(path: Path, mode: int = 0o755, owner: int | None = None) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(mode)
    if owner is not None:
        os.chown(path, owner, -1)
    return path


def linked(path: Path, target: str | Path) -> Path:
    path.symlink_to(target)
    return path


def file(path: Path) -> Path:
    path.touch()
    return path


#: What lies below the test's own directory ``t``; the path that is asked for, if it is not t/cache; what is said of it.
REFUSED: dict[str, tuple[Callable[[Path], Any], str, str]] = {
    "the cache itself": (
        lambda t: made(t / "cache", 0o777),
        "cache",
        "cache' can be written by other users (mode 0o777)",
    ),
    "by its group": (lambda t: made(t / "cache", 0o775), "cache", "cache' can be written by other users (mode 0o775)"),
    "a parent": (lambda t: made(made(t / "all", 0o777) / "cache", 0o700), "all/cache", "all' can be written by other"),
    "a parent far up": (lambda t: made(t / "all", 0o757), "all/of/us/cache", "all' can be written by other users"),
    "a part": (
        lambda t: made(made(t / "cache") / "numba", 0o777),
        "cache",
        "cache/numba' can be written by other users",
    ),
    "a sticky part": (lambda t: made(made(t / "cache") / "numba", 0o1777), "cache", "numba' can be written by other"),
    "a part of a part": (lambda t: made(made(t / "cache") / "numba" / "key", 0o720), "cache", "key' can be written by"),
    "a link as a part": (
        lambda t: (made(t / "own"), linked(made(t / "cache") / "numba", t / "own")),
        "cache",
        "cache/numba' is a link",
    ),
    "a link in a sticky directory": (
        lambda t: (made(t / "own"), linked(made(t / "tmp", 0o1777) / "cache", t / "own")),
        "tmp/cache",
        "tmp/cache' is a link in a directory that other users can write",
    ),
    "a link to what others can write": (
        lambda t: (made(t / "all", 0o777), linked(t / "cache", "all")),
        "cache",
        "all' can be written by other users",
    ),
    "a link through what others can write": (
        lambda t: (made(t / "all", 0o777), linked(t / "cache", t / "all" / ".." / "own")),
        "cache",
        "all' can be written by other users",
    ),
    "links without end": (lambda t: linked(t / "cache", "cache"), "cache", "cache': Too many levels of symbolic links"),
    "a file": (lambda t: file(t / "cache"), "cache", "cache': Not a directory"),
    "a file on the way": (lambda t: file(t / "file"), "file/below", "file': Not a directory"),
    "no such place": (lambda t: None, "/proc/nowhere/cache", "/proc/nowhere': No such file or directory"),
}
BY_OTHERS: dict[str, tuple[Callable[[Path], Any], str, str]] = {
    "another user's cache": (
        lambda t: made(t / "cache", 0o755, ATTACKER),
        "cache",
        "belongs to another user (uid 65533)",
    ),
    "another user's parent": (lambda t: made(t / "his", 0o755, ATTACKER), "his/cache", "his' belongs to another user"),
    "in a sticky directory": (
        lambda t: made(made(t / "tmp", 0o1777) / "cache", 0o755, ATTACKER),
        "tmp/cache",
        "cache' belongs to another user",
    ),
    "another user's part": (lambda t: made(made(t / "cache") / "numba", 0o755, ATTACKER), "cache", "numba' belongs to"),
}


def check_refusal(
    case: tuple[Callable[[Path], Any], str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build, asked, reason = case
    build(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / asked))
    with pytest.warns(CacheWarning) as said:
        path = private_directory("numba", "key")
    assert path is not None
    assert path.parent.parent == disk.temporary_directory()
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert private_directory("numba", "key") == path, "one for the process, and said once"
    (message,) = [str(warning.message) for warning in said]
    assert message.startswith(f"the cache {str(tmp_path / asked)!r} is not used: '")
    assert reason in message
    assert "set $TILEWRIGHT_CACHE to a directory" in message
    assert "\n" not in message
    written = {path for path in set(tmp_path.rglob("*")) - set(before) if path.name != "numba"}
    assert not written, "nothing is made behind what was refused"


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_a_directory_that_others_can_change_is_not_used(
    case: tuple[Callable[[Path], Any], str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_refusal(case, tmp_path, monkeypatch)


@as_root
@pytest.mark.parametrize("case", BY_OTHERS.values(), ids=BY_OTHERS)
def test_a_directory_of_another_user_is_not_used(
    case: tuple[Callable[[Path], Any], str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_refusal(case, tmp_path, monkeypatch)


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("TILEWRIGHT_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    with pytest.warns(CacheWarning, match="the cache 'the cache' is not used: this user has no home directory"):
        assert private_directory("peaks")


ACCEPTED: dict[str, tuple[Callable[[Path], Any], str, str]] = {
    "a sticky directory": (lambda t: made(made(t / "tmp", 0o1777) / "cache", 0o755), "tmp/cache", "tmp/cache"),
    "made in a sticky directory": (lambda t: made(t / "tmp", 0o1777), "tmp/cache", "tmp/cache"),
    "a sticky directory itself": (lambda t: made(t / "tmp", 0o1777), "tmp", "tmp"),
    "a link": (lambda t: (made(t / "real" / "here"), linked(t / "cache", "real/here")), "cache", "real/here"),
    "links on the way": (
        lambda t: (made(t / "a" / "b"), linked(t / "a" / "c", "../d"), linked(t / "d", t / "a" / "b")),
        "a/c/cache",
        "a/b/cache",
    ),
    "up from where a link leads": (
        lambda t: (made(t / "a" / "b"), linked(t / "link", "a/b")),
        "link/../cache",
        "a/cache",
    ),
}


@pytest.mark.parametrize("case", ACCEPTED.values(), ids=ACCEPTED)
def test_what_no_other_user_can_change_is_used(
    case: tuple[Callable[[Path], Any], str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build, asked, real = case
    build(tmp_path)
    monkeypatch.setenv("TILEWRIGHT_CACHE", f"{tmp_path}/{asked}")
    path = private_directory("numba", "key")
    assert path == tmp_path / real / "numba" / "key"
    assert path.resolve() == path


def descriptors(folder: Path) -> int:
    """How many lead to ``folder``, into it, or to a directory above it. Threads of other tests may close others."""
    count = 0
    for link in Path("/dev/fd").iterdir():
        with contextlib.suppress(OSError):  # the one that lists them is closed by now
            target = link.readlink()
            count += target.is_relative_to(folder) or folder.is_relative_to(target)
    return count


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    before = descriptors(tmp_path)
    made(tmp_path / "all", 0o777)
    linked(tmp_path / "link", tmp_path / "own")
    for place in ("all", "link", "own", "all/../own", "link/../x"):
        for parts in ((), ("numba",), ("numba", "key")):
            try:
                safe_directory(tmp_path / place, parts)
            except PermissionError:
                assert "all" in place
    assert descriptors(tmp_path) == before
    for place in (tmp_path, tmp_path.parent, tmp_path / "own"):
        opened = os.open(place, os.O_RDONLY)
        assert descriptors(tmp_path) == before + 1, "one that is left open is seen"
        os.close(opened)


# ---- between check and use -------------------------------------------------------------------------------------------


def attack_between(name: str, when: str, tmp_path: Path, patch: pytest.MonkeyPatch) -> list[Path]:
    """A link is put in the place of the directory ``name`` right before, or after, it is opened: what is made behind it."""
    evil, place = made(tmp_path / "evil"), tmp_path / "base"
    for part in ("base", "numba", "key")[: ("base", "numba", "key").index(name) + 1]:
        place = made(tmp_path / "base" if part == "base" else place / part, 0o700)
    opened = os.open

    def swap() -> None:
        place.rename(tmp_path / "away")
        linked(place, evil)

    def attacked(path: Any, flags: int, *mode: int, dir_fd: int | None = None) -> int:
        if path == name and when == "before":
            swap()
        fd = opened(path, flags, *mode, dir_fd=dir_fd)
        if path == name and when == "after":
            swap()
        return fd

    with patch.context() as context, contextlib.suppress(OSError):
        context.setattr(disk.os, "open", attacked)
        safe_directory(tmp_path / "base", ("numba", "key", "more"))
    assert (tmp_path / "away").exists()
    return list(evil.iterdir())


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("name", ["base", "numba", "key"])
def test_what_is_opened_is_what_was_checked(
    name: str, when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not attack_between(name, when, tmp_path, monkeypatch)


@pytest.mark.parametrize("name", ["base", "numba", "key"])
def test_a_walk_that_follows_links_is_caught(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "_OPEN", disk._OPEN & ~os.O_NOFOLLOW)
    assert attack_between(name, "before", tmp_path, monkeypatch)


#: A victim opens its cache; then the attacker, another user, puts a directory of his own in its place, with a pickle for
#: what the victim opens next. ``planted``: the directories on the way are not checked, as they were not once.
ATTACK = f"""
import os, pickle, socket, sys, traceback, warnings
from pathlib import Path
import numpy as np
from numba.core.registry import cpu_target
from tilewright.host import disk
from tilewright.kernels.catalog import catalog
from tilewright.cpu.runtime import in_process

warnings.simplefilter("ignore")
base, planted = Path(os.environ["TILEWRIGHT_CACHE"]), sys.argv[1] == "planted"
kernel, context = catalog()["cpu/naive"], cpu_target.target_context
in_process._generator(), context.refresh()
if planted:
    disk._Walk._check = lambda self, fd, path, mine: None
to_attacker, to_victim = socket.socketpair()


class Evil:
    def __reduce__(self):
        return os.mkdir, (str(base / "ran"),)


def victim():
    to_victim.close()
    cache = in_process.CodeCache(kernel, np.dtype("f4"))
    to_attacker.sendall(cache._cache_file._index_path.encode())
    to_attacker.recv(1)
    cache.load_overload((), context)


def attacker():
    to_attacker.close()
    index = Path(to_victim.recv(4096).decode())
    if base in index.parents:
        (base / "numba").rename(base / "away")
    mine = base / "numba" / index.parent.name
    mine.mkdir(parents=True)
    (mine / index.name).write_bytes(pickle.dumps(Evil()))
    to_victim.sendall(b"!")


def child(user, work):
    process = os.fork()
    if not process:
        try:
            os.setgroups([])
            os.setgid(user)
            os.setuid(user)
            work()
        except BaseException:
            traceback.print_exc()
        os._exit(0)
    return process


processes = child({VICTIM}, victim), child({ATTACKER}, attacker)
to_attacker.close(), to_victim.close()
for process in processes:
    os.waitpid(process, 0)
ran = base / "ran"
print(ran.stat().st_uid if ran.exists() else "nothing ran")
"""


@pytest.mark.slow
@as_root
@pytest.mark.parametrize(("planted", "ran"), [("planted", str(VICTIM)), ("checked", "nothing ran")])
def test_another_user_cannot_put_code_into_a_cache_that_all_can_write(planted: str, ran: str) -> None:
    """With the check taken away the attack succeeds, so it is an attack."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # pytest's own lets no other user in
        Path(folder).chmod(0o711)
        shared = made(Path(folder) / "shared", 0o777)
        environment = os.environ | {"TILEWRIGHT_CACHE": str(shared)}
        command = [sys.executable, "-c", ATTACK, planted]
        answer = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
        assert (answer.stdout.strip(), answer.stderr) == (ran, "")


# ---- the temporary directory -----------------------------------------------------------------------------------------

UNUSABLE = {"TILEWRIGHT_CACHE": "/proc/nowhere"}
MAKE = "from tilewright.host import disk; from tilewright.host.disk import private_directory; "


def left(place: Path) -> list[str]:
    return [path.name for path in place.iterdir() if path.name.startswith("tilewright-")]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary directories are made in this test's processes."""
    path = made(tmp_path / "temporary", 0o1777)
    monkeypatch.setenv("TMPDIR", str(path))
    return path


def test_it_is_removed_at_exit_and_said_once(place: Path) -> None:
    script = (
        MAKE
        + """
path = private_directory("numba", "key")
(path / "file").touch()
private_directory("peaks")
print(path)
"""
    )
    answer = process(script, **UNUSABLE)
    path = Path(answer.stdout.strip())
    assert path.parent.parent.parent == place
    assert path.parent.parent.name.startswith("tilewright-process-")
    assert not path.exists()
    assert not left(place)
    assert answer.stderr.count("CacheWarning") == 1
    assert f"kept in '{path.parent.parent}' until this process ends" in answer.stderr


@pytest.mark.slow
def test_a_command_says_it_in_one_line(place: Path) -> None:
    command = [sys.executable, "-m", "tilewright", "ladder"]
    answer = subprocess.run(command, env=os.environ | UNUSABLE, capture_output=True, text=True, timeout=60, check=True)
    assert answer.stderr.startswith("warning: the cache '/proc/nowhere' is not used: ")
    assert answer.stderr.count("\n") == 1
    assert not left(place)


def of_parent_and_child(script: str, place: Path) -> list[str]:
    """What a process that forks, with no cache but its own directory, and its child print; both leave nothing."""
    command = [sys.executable, "-W", "ignore", "-c", MAKE + script]
    answer = subprocess.run(command, env=os.environ | UNUSABLE, capture_output=True, text=True, timeout=60, check=True)
    assert not left(place)
    return answer.stdout.split()


def test_it_is_not_removed_by_a_child(place: Path) -> None:
    script = """
import os, sys
path = private_directory("numba")
child = os.fork()
if not child:
    print(private_directory("numba") == path, flush=True)
    sys.exit()
os.waitpid(child, 0)
print(path.is_dir())
"""
    assert of_parent_and_child(script, place) == ["True", "True"]


def test_a_child_that_outlives_its_parent_makes_its_own(place: Path) -> None:
    script = """
import os, sys
path = private_directory("numba")
read, write = os.pipe()
if os.fork():
    os._exit(disk._current.remove() or os.write(write, b"!") - 1)
os.read(read, 1)
mine = private_directory("numba")
print(mine.is_dir(), mine != path, path.exists(), flush=True)
"""
    assert of_parent_and_child(script, place) == ["True", "True", "False"]


def in_a_pool(index: int) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return str(private_directory("numba", str(index)))


@pytest.mark.slow
def test_processes_of_a_pool_leave_nothing(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They end without running what ``atexit`` holds."""
    monkeypatch.setenv("TILEWRIGHT_CACHE", "/proc/nowhere")
    for method in ("fork", "spawn"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # this process has threads
            monkeypatch.setattr(disk, "_current", None)
            monkeypatch.setattr(tempfile, "tempdir", str(place))
            pool = multiprocessing.get_context(method).Pool(1)
        with pool:
            path = Path(pool.apply(in_a_pool, (1,)))
            assert place in path.parents
            pool.close()
            pool.join()
        assert not path.exists()
    assert not left(place)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_what_a_killed_process_left_is_removed_by_the_next(how: signal.Signals, place: Path) -> None:
    script = (
        MAKE
        + f"""
import os
path = private_directory("numba")
(path / "file").touch()
os.kill(os.getpid(), {int(how)})
"""
    )
    process(script, code=-how, **UNUSABLE)
    assert len(left(place)) == 1
    others = [made(place / name) for name in ("tilewright-mine", "tilewright-process-1", "other")]
    running = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", MAKE + "print(private_directory(), flush=True); input()"],
        env=os.environ | UNUSABLE,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert running.stdout is not None
    alive = Path(running.stdout.readline().strip())
    process(MAKE + "private_directory()", **UNUSABLE)
    assert alive.is_dir(), "of a process that runs"
    assert all(path.is_dir() for path in others), "of that name, and not ours"
    running.communicate("\n", timeout=60)
    assert set(left(place)) == {path.name for path in others} - {"other"}


def test_an_unsafe_place_for_temporary_files_is_passed_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unsafe, good = made(tmp_path / "unsafe", 0o777), made(tmp_path / "good", 0o1777)
    monkeypatch.setattr(tempfile, "tempdir", str(unsafe))
    monkeypatch.setattr(disk, "_PLACES", (str(unsafe), str(good)))
    monkeypatch.setattr(disk, "_current", None)
    found = disk.temporary_directory()
    assert found is not None
    assert found.parent == good
    assert not list(unsafe.iterdir())


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No safe place for anything."""
    monkeypatch.setenv("TILEWRIGHT_CACHE", "/proc/nowhere")
    monkeypatch.setattr(tempfile, "tempdir", "/proc/nowhere")
    monkeypatch.setattr(disk, "_PLACES", ())
    monkeypatch.setattr(disk, "_current", None)
    with pytest.warns(CacheWarning, match="compiled code and measured facts are not kept at all"):
        yield


@pytest.mark.usefixtures("nowhere")
def test_without_any_safe_place_nothing_is_kept() -> None:
    assert private_directory("numba") is None
    stored = CacheFile("peaks", "x.json")
    assert (stored.path, stored.read(), stored.read_json(), stored.write(b"x"), stored.remove()) == (
        None,
        None,
        {},
        None,
        False,
    )


@pytest.mark.usefixtures("nowhere")
def test_without_any_safe_place_products_are_right(tmp_path: Path) -> None:
    import numpy as np

    from tilewright.cpu.runtime.runner import runner
    from tilewright.kernels.catalog import load_file

    mine = tmp_path / "fill.py"
    mine.write_text(
        "from tilewright.kernels import kernel\n"
        '@kernel(idea="", row="")\ndef fill(a, b, c):\n    for i in range(c.shape[0]):\n        c[i, 0] = 5\n'
    )
    c = np.zeros((3, 1))
    runner(load_file(mine), "float64")(c, c[:1], c)
    assert (c == 5).all()


# ---- files -----------------------------------------------------------------------------------------------------------


def test_a_file_is_written_whole_and_read_back(cache: Path) -> None:
    stored = CacheFile("peaks", "here.json")
    assert stored.read() is None
    assert stored.read_json() == {}
    assert not stored.remove()
    assert stored.write_json({"a": [1.5, "ü"]}) == cache / "peaks" / "here.json"
    assert stored.read_json() == {"a": [1.5, "ü"]}
    assert [path.name for path in (cache / "peaks").iterdir()] == ["here.json"]
    assert stored.remove()
    assert not stored.remove()


@pytest.mark.parametrize("content", [b"", b"\xff", b"[1]", b"3", b"{", b"[" * 100_000, b'{"a": ' * 100_000, b"null"])
def test_what_is_no_json_object_is_as_if_it_were_not_there(content: bytes, cache: Path) -> None:
    stored = CacheFile("peaks", "here.json")
    stored.write(content)
    assert stored.read_json() == {}


def test_a_disk_that_is_full_is_said_once_and_the_temporary_directory_used(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes = disk._written

    def full(path: Path, content: bytes) -> Path:
        if cache in path.parents:
            raise OSError(28, "No space left on device", str(path))
        return writes(path, content)

    monkeypatch.setattr(disk, "_written", full)
    stored = CacheFile("peaks", "here.json")
    with pytest.warns(CacheWarning, match=r"here.json': No space left on device; compiled code .* kept in '/") as said:
        path = stored.write(b"{}")
    assert len(said) == 1
    assert path is not None
    assert path.parent.parent == disk.temporary_directory()
    assert stored.read() == b"{}"


def test_a_directory_that_was_removed_is_made_again(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored, writes, times = CacheFile("peaks", "here.json"), disk._written, []

    def removed(path: Path, content: bytes) -> Path:
        times.append(path)
        if len(times) == 1:
            path.parent.rmdir()
        return writes(path, content)

    monkeypatch.setattr(disk, "_written", removed)
    assert stored.write(b"x") == cache / "peaks" / "here.json"
    assert stored.read() == b"x"


#: Files may not grow beyond 1 KiB: no machine code can be written, as on a full disk.
FULL = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))
import numpy as np
from tilewright.kernels.catalog import catalog
from tilewright.cpu.runtime.runner import runner
for dtype in ("float32", "float64"):
    a, c = np.arange(4, dtype=dtype).reshape(2, 2), np.ones((2, 2), dtype)
    runner(catalog()["cpu/naive"], dtype)(a, a, c)
    print(np.array_equal(c, a @ a))
"""


@pytest.mark.slow
def test_products_are_right_where_nothing_can_be_written(cache: Path, place: Path) -> None:
    answer = process(FULL)
    assert answer.stdout.split() == ["True", "True"]
    assert answer.stderr.count("CacheWarning") == 1
    assert f"the cache '{cache}' is not used: " in answer.stderr
    assert "File too large" in answer.stderr
    assert not left(place)


# ---- Numba's settings ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_numba_cannot_be_told_to_keep_it_elsewhere(cache: Path, tmp_path: Path) -> None:
    """Neither its directory nor its own locators, under whose key code of other sources would be taken."""
    elsewhere = made(tmp_path / "elsewhere")
    script = """
import numpy as np
from tilewright.kernels.catalog import catalog
from tilewright.cpu.runtime.runner import compiled
compiled(catalog()["cpu/naive"], np.dtype("f4"))
"""
    process(script, NUMBA_CACHE_DIR=str(elsewhere), NUMBA_CACHE_LOCATOR_CLASSES="UserProvidedCacheLocator")
    assert not list(elsewhere.iterdir())
    assert list((cache / "numba").rglob("*.nbi"))


@pytest.mark.parametrize(("name", "value"), [("BOUNDSCHECK", 1), ("OPT", 0), ("DEBUGINFO_DEFAULT", 1)])
def test_machine_code_of_other_settings_is_not_taken(name: str, value: int, monkeypatch: pytest.MonkeyPatch) -> None:
    import numba

    from tilewright.cpu.runtime import in_process

    before = in_process._generator.__wrapped__()
    monkeypatch.setattr(numba.config, name, value)
    assert in_process._generator.__wrapped__() != before
