"""`vllm serve`, with child processes that are forked.

vLLM for the CPU starts each of its two children, the engine and its worker, with a new
interpreter, which imports PyTorch and vLLM again: 15 s each. A fork has them already.
What serves is vLLM's own. CORE names the core on which the worker computes: where a new
interpreter takes it from VLLM_CPU_OMP_THREADS_BIND, a fork is told.
"""

import multiprocessing
import os
import sys

from vllm.utils import system_utils

generation = 0


def place():
    global generation
    generation += 1
    if generation == 2 and "CORE" in os.environ:
        os.sched_setaffinity(0, {int(os.environ["CORE"])})


os.register_at_fork(after_in_child=place)
system_utils.get_mp_context = lambda: multiprocessing.get_context("fork")

from vllm.entrypoints.cli.main import main  # noqa: E402

sys.exit(main())
