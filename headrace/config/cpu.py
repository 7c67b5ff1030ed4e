"""What this machine is, and how much of it is ours: cores by affinity and cgroup quota, memory by its limit. Linux;
elsewhere all."""

from __future__ import annotations

import math
import os
import re
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
PROC_CGROUP = Path("/proc/self/cgroup")

INSTRUCTION_SETS = ("avx2", "fma", "f16c", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "asimd", "bf16", "i8mm")


def cpu_model() -> str:
    """The processor's name."""
    match = re.search(r"^model name\s*:\s*(.+)$", _cpuinfo(), re.MULTILINE)
    if match:
        return match.group(1)
    import platform  # a millisecond that the start of a server does not have

    return platform.processor() or platform.machine()


def cpu_flags() -> list[str]:
    """Of the instruction sets that matter for models, those that the processor has."""
    match = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", _cpuinfo(), re.MULTILINE)
    flags = set(match.group(1).split()) if match else set()
    return [name for name in INSTRUCTION_SETS if name in flags]


def usable_cores() -> int:
    """Cores that this process may run on: its affinity, cut to the cgroup's quota. At least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quotas = [quota for folder in own_cgroups() if (quota := _cgroup_quota(folder)) is not None]
    return max(1, min([cores, *map(math.ceil, quotas)]))


def available_memory() -> int:
    """Bytes that can still be allocated: what the kernel calls available, cut to what the cgroup has left."""
    left = [size for folder in own_cgroups() if (size := _cgroup_memory_left(folder)) is not None]
    return min([_meminfo_available(), *left])


def own_cgroups() -> list[Path]:
    """The cgroup that this process is in and all above it, each of which may set a limit. In a container that is
    usually the root of what it sees."""
    try:
        lines = PROC_CGROUP.read_text().splitlines()
    except OSError:
        return [CGROUP]
    paths = [line.removeprefix("0::").strip("/") for line in lines if line.startswith("0::")]
    own = CGROUP / paths[0] if paths else CGROUP
    return [own, *(parent for parent in own.parents if parent.is_relative_to(CGROUP))]


def _cgroup_quota(root: Path) -> float | None:
    """CPU quota in cores; cgroup v2 first, then v1. None: no quota."""
    try:
        quota, period = (root / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        pass
    try:
        quota_us = int((root / "cpu" / "cpu.cfs_quota_us").read_text())
        period_us = int((root / "cpu" / "cpu.cfs_period_us").read_text())
        return quota_us / period_us if quota_us > 0 else None
    except (OSError, ValueError):
        return None


def _cgroup_memory_left(root: Path) -> int | None:
    """Limit less usage of the cgroup (page cache that can go counts as free). None: no limit."""
    try:
        limit_text = (root / "memory.max").read_text().strip()
        if limit_text == "max":
            return None
        usage = int((root / "memory.current").read_text())
        stat = dict(line.split() for line in (root / "memory.stat").read_text().splitlines())
        return max(0, int(limit_text) - usage + int(stat.get("inactive_file", 0)))
    except (OSError, ValueError):
        return None


def _meminfo_available() -> int:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _cpuinfo() -> str:
    try:
        return Path("/proc/cpuinfo").read_text()
    except OSError:
        return ""
