"""What XLA does in tests: as little as it can, since each of thousands of programs runs once.

`make test-all` lets it optimise them as it does for users; so do the tests of float32's digits and
of memory, in any run. Import this before JAX makes its first array.
"""

import os
from importlib.metadata import version
from importlib.util import find_spec

OPTIONS = {
    "xla_backend_optimization_level": (0, 3),
    "xla_llvm_disable_expensive_passes": (True, False),
}
"""Of every option: what tests set, and what users have."""

if find_spec("jaxlib") and tuple(map(int, version("jaxlib").split(".")[:2])) >= (0, 10):
    # The new way to write fused loops takes half of the time. XLA ends the process at an option
    # that it does not know, as older ones may not.
    OPTIONS["xla_cpu_use_fusion_emitters"] = (False, True)
    OPTIONS["xla_cpu_enable_concurrency_optimized_scheduler"] = (False, True)

AS_USERS = {name: theirs for name, (_, theirs) in OPTIONS.items()}
"""Options of a compiler that does what it does for users."""

BUFFERS_OF_USERS = {
    name: ours if "backend" in name or "llvm" in name else theirs
    for name, (ours, theirs) in OPTIONS.items()
}
"""The same for a test of how large buffers are: LLVM, which comes after them, is quick."""

os.environ.setdefault(
    "XLA_FLAGS", " ".join(f"--{name}={str(ours).lower()}" for name, (ours, _) in OPTIONS.items())
)
