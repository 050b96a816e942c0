"""Time beside one busy process: what a data loader or a second run on the same machine costs.

    python -m benchmarks.beside ours-dense paper-row-sum

runs in a process of its own, with the default policy of OpenMP, whose threads wait by spinning.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence

from benchmarks.record import Measurement

MODE = "forward+backward beside a busy process"
SIZE = (100, 100)
ROUNDS = 5
_TURN_SECONDS = 0.6


def measure(contenders: Sequence[str], threads: int) -> list[Measurement]:
    """Seconds of one call, the median over rounds of a round's mean.

    The best of all calls would be one during which the busy process had to wait.
    """
    environment = {k: v for k, v in os.environ.items() if k != "OMP_WAIT_POLICY"}
    command = (sys.executable, "-m", "benchmarks.beside", str(threads), *contenders)
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return [Measurement(**one) for one in json.loads(found.stdout.splitlines()[-1])]


def _take_turns(contenders: Sequence[str], threads: int) -> list[Measurement]:
    import torch

    from benchmarks.contenders import CONTENDERS
    from benchmarks.timing import Inputs, Job

    torch.set_num_threads(threads)
    inputs = Inputs(*SIZE)
    jobs = [Job(CONTENDERS[name], inputs, 1.0, "forward+backward") for name in contenders]
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for job in jobs:
        job.prepare()
        job.result.mode = MODE
    with subprocess.Popen((sys.executable, "-c", "while True: pass")) as busy:
        for _ in range(ROUNDS):
            for name, job in zip(contenders, jobs, strict=True):
                calls, start = 0, time.perf_counter()
                while job.call and time.perf_counter() < start + _TURN_SECONDS:
                    job.call()
                    calls += 1
                if calls:
                    seconds[name].append((time.perf_counter() - start) / calls)
        busy.kill()
    for name, job in zip(contenders, jobs, strict=True):
        if seconds[name]:
            job.result.value, job.result.rounds = statistics.median(seconds[name]), ROUNDS
    return [job.result for job in jobs]


if __name__ == "__main__":
    print(json.dumps([vars(one) for one in _take_turns(sys.argv[2:], int(sys.argv[1]))]))
