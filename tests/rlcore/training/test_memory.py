"""Pages that the kernel hands over in a pass, with glibc as it starts and after it was told."""

import platform
import subprocess
import sys

import pytest

PASSES = """
import resource
import sys
from rlcore.training.memory import keep_freed_memory

def pages_of_a_pass():
    for _ in range(10):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        blocks = [bytes(1) * (1 << 20) for _ in range(200)]
        del blocks
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

assert "torch" not in sys.modules, "what importing it has freed glibc has learned from"
at_first = pages_of_a_pass()
keep_freed_memory()
print(at_first, pages_of_a_pass())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another allocator than glibc's is not told")
def test_a_pass_finds_the_memory_that_the_one_before_has_freed() -> None:
    told = subprocess.run([sys.executable, "-c", PASSES], capture_output=True, text=True, check=True).stdout
    at_first, afterwards = map(int, told.split())
    assert at_first > 1000
    assert afterwards < 100
