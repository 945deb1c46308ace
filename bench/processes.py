"""Processes of a benchmark: what a process and all that it started take of the machine, and how they are ended."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
POLL_S = 0.5


def process_tree(root: int) -> set[int]:
    """A process and its descendants."""
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                parents[int(name)] = int(_stat(int(name))[1])
    tree = {root}
    while fresh := {pid for pid, parent in parents.items() if parent in tree} - tree:
        tree |= fresh
    return tree


def _stat(pid: int) -> list[str]:
    """What the kernel tells of a process, from its state on."""
    return Path("/proc", str(pid), "stat").read_text().rsplit(")", 1)[1].split()


def tree_rss_bytes(root: int) -> dict[int, int]:
    """Resident bytes of a process and its descendants, by process id."""
    sizes = {}
    for pid in process_tree(root):
        with contextlib.suppress(OSError):
            sizes[pid] = int(Path("/proc", str(pid), "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return sizes


def tree_pss_bytes(root: int) -> int | None:
    """Proportional bytes of a process and its descendants: a page that several have counts once. None where the kernel does
    not tell."""
    found = 0
    for pid in process_tree(root):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            try:
                lines = Path("/proc", str(pid), "smaps_rollup").read_text().splitlines()
            except FileNotFoundError:
                if Path("/proc", str(pid)).exists():
                    return None
                continue
            found += next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)
    return found


def tree_cpu_s(root: int) -> dict[str, float]:
    """CPU seconds that a process and its descendants have taken so far, by what they are: the root, Java, or others. Those
    of a process that has ended count with the process that started it."""
    spent = {"root": 0.0, "java": 0.0, "others": 0.0}
    for pid in process_tree(root):
        with contextlib.suppress(OSError):
            ticks = sum(int(field) for field in _stat(pid)[11:15])
            name = Path("/proc", str(pid), "comm").read_text().strip()
            kind = "root" if pid == root else "java" if name == "java" else "others"
            spent[kind] += ticks / os.sysconf("SC_CLK_TCK")
    return spent


class TreeCpu:
    """CPU seconds of a process and its descendants, those that have ended among them: Spark's Python workers end when they
    were idle for a minute, and the process that forks them does not take over what they have spent. So a process counts as
    it was when last looked at, and whoever asks looks every few seconds."""

    def __init__(self, root: int) -> None:
        self.root = root
        self._seen: dict[tuple[int, str], tuple[str, float]] = {}
        """What each process is, and its CPU; ids may be used again, so the time of its start is part of its name."""

    def look(self) -> dict[str, float]:
        """CPU seconds so far, by what processes are: the root, Java, or others."""
        for pid in process_tree(self.root):
            with contextlib.suppress(OSError):
                fields = _stat(pid)
                name = Path("/proc", str(pid), "comm").read_text().strip()
                kind = "root" if pid == self.root else "java" if name == "java" else "others"
                ticks = int(fields[11]) + int(fields[12])
                self._seen[pid, fields[19]] = kind, ticks / os.sysconf("SC_CLK_TCK")
        spent = {"root": 0.0, "java": 0.0, "others": 0.0}
        for kind, cpu_s in self._seen.values():
            spent[kind] += cpu_s
        return spent


def kill_tree(process: subprocess.Popen[bytes]) -> None:
    """Ends a process and its descendants, if it still runs."""
    if process.poll() is None:
        for pid in process_tree(process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    process.wait()


def watched(command: Sequence[str], limit_s: float, pss: bool = False) -> dict[str, Any]:
    """Runs a command in a process of its own; what it prints last, as JSON, with the peak memory of all its processes, and
    `cpu_by_time`: how many CPU seconds they had taken by what time. Memory is resident bytes, and with `pss` proportional
    ones, too, where the kernel tells them. When the limit is over they are killed, and `subprocess.TimeoutExpired` is
    raised."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=log, start_new_session=True)
        peak, peak_pss, began = 0, 0, time.perf_counter()
        cpu_s: list[tuple[float, float]] = []
        try:
            while process.poll() is None and time.perf_counter() - began < limit_s:
                peak = max(peak, sum(tree_rss_bytes(process.pid).values()))
                if pss:
                    peak_pss = max(peak_pss, tree_pss_bytes(process.pid) or 0)
                cpu_s.append((time.time(), sum(tree_cpu_s(process.pid).values())))
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(POLL_S)
            if process.returncode is None:
                raise subprocess.TimeoutExpired(command, limit_s)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if process.returncode:
            log.seek(0)
            raise SystemExit(f"{' '.join(command)} failed:\n{log.read()[-4000:]}")
        out.seek(0)
        found: dict[str, Any] = json.loads(out.read().splitlines()[-1])
        return {**found, "peak_rss_bytes": peak, "peak_pss_bytes": peak_pss or None, "cpu_by_time": cpu_s}


def cpu_between(cpu_s: Sequence[tuple[float, float]], began_s: float, ended_s: float) -> float:
    """CPU seconds that were taken between two times, of what `watched` found; even between its looks.

    >>> cpu_between([(10.0, 1.0), (12.0, 5.0), (14.0, 6.0)], 11.0, 13.0)
    2.5
    """
    times, spent = zip(*cpu_s, strict=True)
    return float(np.interp(ended_s, times, spent) - np.interp(began_s, times, spent))
