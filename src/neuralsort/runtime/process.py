"""Settings of a process that count only if they are there before it starts."""

import os
import sys
from collections.abc import Mapping

_MALLOC = {"hugetlb": "1", "mmap_max": "0", "trim_threshold": "100000000000"}
"""glibc keeps memory between steps, in large pages, and does not give it back each time."""

_ROUNDING = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
"""Wider vectors round otherwise; what every machine of today has gives the same everywhere."""

# Threads that wait do not spin: where cores are shared, spinning costs tens of times the work.
_USUAL = {"OMP_WAIT_POLICY": "PASSIVE"} | _ROUNDING

DONE = "NEURALSORT_RESTARTED"
"""Set in a process that has been started again; set it yourself to keep your own settings."""


def settings(environment: Mapping[str, str]) -> dict[str, str]:
    """What is to be added to an environment; what somebody has set stays as it is."""
    added = {name: value for name, value in _USUAL.items() if name not in environment}
    given = environment.get("GLIBC_TUNABLES", "")
    missing = [
        f"glibc.malloc.{name}={value}"
        for name, value in _MALLOC.items()
        if f"glibc.malloc.{name}=" not in given
    ]
    if missing:
        added["GLIBC_TUNABLES"] = ":".join([*filter(None, [given]), *missing])
    return added


def own_rounding(environment: Mapping[str, str]) -> dict[str, str]:
    """What somebody has set in place of the usual, which the same numbers can only be had with."""
    return {
        name: environment[name]
        for name, usual in _ROUNDING.items()
        if environment.get(name, usual) != usual
    }


def restart_with_settings() -> None:
    """Starts this program again with the settings, in the same process, unless that was done."""
    if DONE in os.environ or not sys.platform.startswith("linux") or not sys.orig_argv:
        return
    environment = os.environ | settings(os.environ) | {DONE: "1"}
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)
