"""Memory: the most a call takes beyond its inputs, measured in a process of its own.

`python -m benchmarks.memory CONTENDER BATCH N TAU THREADS` prints the two peaks as JSON. The
process imports, builds its inputs, warms up on a short list, notes its resident size, resets the
kernel's high-water mark and makes one call. Resolution: about 1 MiB.
"""

import ctypes
import gc
import json
import subprocess
import sys
from pathlib import Path

import torch

from benchmarks.contenders import CONTENDERS, Contender
from benchmarks.record import Measurement
from benchmarks.timing import MODES, Inputs

_WARM_UP_ITEMS = 8


def _status(field: str) -> int:
    """Bytes of a field of /proc/self/status."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {field}")


class Peak:
    """Growth of the resident size since the object was made, at its highest."""

    def __init__(self) -> None:
        gc.collect()
        try:
            ctypes.CDLL(None).malloc_trim(0)  # what was freed must not hide what is taken next
            Path("/proc/self/clear_refs").write_text("5")
            self.resettable = True
            self.base = _status("VmRSS")
        except (OSError, AttributeError):  # not Linux, or not allowed
            self.resettable = False
            self.base = self._lifetime()

    @staticmethod
    def _lifetime() -> int:
        import resource  # not on every system

        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit

    def bytes(self) -> int:
        return max(0, (_status("VmHWM") if self.resettable else self._lifetime()) - self.base)


def peaks(contender: Contender, batch: int, n: int, tau: float) -> dict[str, int]:
    """Peak bytes of one call in each mode, in this process."""
    warm_up = Inputs(batch, _WARM_UP_ITEMS)
    sorter = contender.prepare(_WARM_UP_ITEMS, tau)
    output = sorter(warm_up.variable)
    torch.autograd.grad(output, warm_up.variable, warm_up.gradient_of(output))

    inputs = Inputs(batch, n)
    sorter = contender.prepare(n, tau)
    peak = Peak()
    with torch.no_grad():
        output = sorter(inputs.scores)
    forward = peak.bytes()

    inputs.gradient_of(output)
    del output
    peak = Peak()
    output = sorter(inputs.variable)
    gradient = torch.autograd.grad(output, inputs.variable, inputs.gradient_of(output))
    both = peak.bytes()
    del gradient
    return dict(zip(MODES, (forward, both), strict=True))


def measure(contender: Contender, batch: int, n: int, tau: float) -> list[Measurement]:
    """The peaks of a fresh process, or the reason why there are none."""
    results = [Measurement("bytes", contender.name, batch, n, tau, mode) for mode in MODES]
    note = contender.sits_out(batch, n) or contender.build(_WARM_UP_ITEMS, tau)[1]
    if not note:
        arguments = [contender.name, batch, n, tau, torch.get_num_threads()]
        command = [sys.executable, "-m", "benchmarks.memory", *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            found = json.loads(done.stdout.splitlines()[-1])
            for result in results:
                result.value, result.rounds = found[result.mode], 1
        else:
            last = done.stderr.strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
            note = f"failed, {last[0][:80]}"
    for result in results:
        result.note = note
    return results


if __name__ == "__main__":
    _name, _batch, _n, _tau, _threads = sys.argv[1:]
    torch.set_num_threads(int(_threads))
    print(json.dumps(peaks(CONTENDERS[_name], int(_batch), int(_n), float(_tau))))
