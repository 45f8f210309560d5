"""Reads what the operating system reports in its text files: processors, affinity, cgroups, memory.

Each function takes the ``root`` of the file system, so a test can describe a machine by a few files. If a file is
missing, the function returns None or an empty result.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path("/")

#: cgroup v1 writes "no limit" as the largest multiple of a page below 2⁶³; no machine has an exbibyte.
NO_LIMIT = 1 << 60


def affinity(root: Path) -> set[int] | None:
    """Return the CPUs on which this process may run; None if the system does not report them."""
    if root == ROOT and sys.platform == "linux":
        return os.sched_getaffinity(0)
    allowed = re.search(r"^Cpus_allowed_list:(.*)$", text_or_empty(root / "proc/self/status"), re.M)
    return cpu_list(allowed[1]) if allowed else None


def cpuinfo(root: Path) -> list[dict[str, str]]:
    """Return the contents of ``/proc/cpuinfo`` as one dict for each logical CPU, without empty values."""
    blocks = re.split(r"\n\s*\n", text_or_empty(root / "proc/cpuinfo"))
    cpus = [dict(re.findall(r"^([^\n:]*?)[ \t]*:[ \t]*(\S.*?)[ \t]*$", block, re.M)) for block in blocks]
    return [cpu for cpu in cpus if "processor" in cpu]


#: The names of instruction sets on Linux and macOS that differ from LLVM's (without "-" and "."), with those of LLVM.
_OF_LINUX = {
    **{
        "asimd": "neon",
        "asimddp": "dotprod",
        "asimdhp": "fullfp16",
        "avx_vnni": "avxvnni",
        "avx512_vnni": "avx512vnni",
    },
    **{"avx512_bf16": "avx512bf16", "avx512_fp16": "avx512fp16", "sse4_2": "sse4.2"},
    **{f"amx_{name}": f"amx-{name}" for name in ("tile", "int8", "bf16", "fp16")},
}
_OF_MACOS = {
    "avx1_0": "avx",
    "avx2_0": "avx2",
    "sse4_2": "sse4.2",
    "arm.feat_fp16": "fullfp16",
    "floatingpoint": "neon",
}


def instruction_sets(root: Path, sysctl: Mapping[str, str] | None) -> set[str]:
    """Return the names of the instruction sets that the processor has and the system lets processes use.

    An instruction set has LLVM's name, or the system's name if LLVM has none. The names come from ``/proc/cpuinfo``,
    or on macOS from ``sysctl``.
    """
    if sysctl is None:
        cpu = next(iter(cpuinfo(root)), {})
        names = cpu.get("flags", cpu.get("Features", "")).split()
        return {_OF_LINUX.get(name, name) for name in names}
    optional = {name.removeprefix("hw.optional.").lower() for name, there in sysctl.items() if there == "1"}
    return {_OF_MACOS.get(name, name.removeprefix("arm.feat_")) for name in optional}


def meminfo(root: Path, name: str) -> int | None:
    """Return the bytes in the line ``name`` of Linux's ``/proc/meminfo``; None if the file has no such line."""
    match = re.search(rf"^{name}:\s+(\d+) kB$", text_or_empty(root / "proc/meminfo"), re.M)
    return int(match[1]) * 1024 if match else None


def _cgroups(root: Path, controller: str) -> Iterator[Path]:
    """The directories of the cgroups that contain this process, innermost first; the limits of all apply.

    In a container the path may not be visible, but one of its ancestors is, at the latest the mount.
    """
    for controllers, path in re.findall(r"^\d+:(.*?):(.*)$", text_or_empty(root / "proc/self/cgroup"), re.M):
        if not controllers:
            mounts = ["unified", "."]  # cgroup v2, beside v1 or alone
        else:
            mounts = [controllers, controller] if controller in controllers.split(",") else []
        mount = next((m for m in (root / "sys/fs/cgroup" / name for name in mounts) if m.is_dir()), None)
        if mount is not None:
            inside = Path(path.lstrip("/")) if ".." not in path else Path()  # ".." leaves what is mounted
            yield from (mount / group for group in (inside, *inside.parents))


def cpu_quota(root: Path) -> float | None:
    """Return the smallest CPU quota of this process's cgroups, as a number of CPUs such as 1.5; None without a
    quota."""
    quotas = []
    for group in _cgroups(root, "cpu"):
        v1 = f"{text_or_empty(group / 'cpu.cfs_quota_us')} {text_or_empty(group / 'cpu.cfs_period_us')}"
        limit = re.fullmatch(r"(\d+) (\d+)", text_or_empty(group / "cpu.max") or v1)  # none is "max" or -1
        if limit:
            quotas.append(int(limit[1]) / int(limit[2]))
    return min(quotas, default=None)


def memory_cgroups(root: Path) -> Iterator[tuple[int, int]]:
    """For each cgroup that limits memory, yield the limit, and the bytes in use that the operating system cannot
    reclaim."""
    for group in _cgroups(root, "memory"):
        # Above memory.high the kernel stalls the process instead of killing it: that memory is not available either.
        values = [integer_in(text_or_empty(group / f"memory.{name}")) for name in ("max", "high", "limit_in_bytes")]
        limits = [limit for limit in values if limit is not None and limit < NO_LIMIT]
        if limits:
            used = (
                integer_in(text_or_empty(group / "memory.current") or text_or_empty(group / "memory.usage_in_bytes"))
                or 0
            )
            stat = dict(re.findall(r"^(\w+) (\d+)$", text_or_empty(group / "memory.stat"), re.M))
            dropped = integer_in(stat.get("total_inactive_file", stat.get("inactive_file"))) or 0
            yield min(limits), max(0, used - dropped)


def process_room(root: Path) -> Iterator[int]:
    """Yield the bytes that this process may still allocate under each of its limits (``ulimit -v``, ``ulimit -d``)."""
    limits, status = (text_or_empty(root / "proc/self" / name) for name in ("limits", "status"))
    for limit, taken in (("address space", "VmSize"), ("data size", "VmData")):
        most = re.search(rf"^Max {limit} +(\d+) ", limits, re.M)
        used = re.search(rf"^{taken}:\s+(\d+) kB$", status, re.M)
        if most and used:
            yield max(0, int(most[1]) - 1024 * int(used[1]))


def run_sysctl() -> dict[str, str]:
    """Return the facts of the hardware that macOS's command ``sysctl`` prints, by name."""
    import subprocess  # not needed on Linux

    command = ["/usr/sbin/sysctl", "hw", "machdep.cpu"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return dict(line.split(": ", 1) for line in answer.splitlines() if ": " in line)


def cpu_list(text: str) -> set[int]:
    """Return the set of CPUs that a text in Linux's notation lists.

    >>> sorted(cpu_list("0-3,8-11"))
    [0, 1, 2, 3, 8, 9, 10, 11]
    """
    ranges = re.findall(r"(\d+)(?:-(\d+))?", text)
    return {cpu for first, last in ranges for cpu in range(int(first), int(last or first) + 1)}


def text_or_empty(path: Path) -> str:
    """Return the text of a file without surrounding space; an empty text if the file is missing or cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def integer_in(text: str | None) -> int | None:
    """Return the integer in a text, in any of Python's notations; None if the text is not an integer."""
    try:
        return int(text or "", 0)
    except ValueError:
        return None
