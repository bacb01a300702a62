"""The heap as glibc has it and after it was told: pages that the kernel hands over in a pass, and large ones."""

import platform
import re
import subprocess
import sys

import pytest

from rlcore.memory import LARGE_PAGES

PASSES = """
import resource
import sys
from rlcore.memory import keep_freed_memory

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


USED = """
from rlcore.memory import keep_freed_memory

def large_kb():
    lines = iter(open("/proc/self/smaps"))
    return sum(
        int(next(line for line in lines if line.startswith("AnonHugePages:")).split()[1])
        for line in lines if line.rstrip().endswith("[heap]")
    )

at_first = [bytes(1) * (1 << 16) for _ in range(200)], large_kb()
keep_freed_memory()
collapsed = large_kb()
blocks = [bytes(1) * (1 << 20) for _ in range(200)]
print(at_first[1], collapsed, large_kb())
"""
SHORT = """
import resource
from rlcore.memory import keep_freed_memory

resource.setrlimit(resource.RLIMIT_DATA, (64 << 20, 64 << 20))
keep_freed_memory()
print(len(bytes(1 << 20)))
"""
HAS_COLLAPSE = tuple(int(number) for number in re.findall(r"\d+", platform.release())[:2]) >= (6, 1)

if_glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another allocator than glibc's is not told")


@if_glibc
@pytest.mark.skipif(
    not LARGE_PAGES.exists() or "[never]" in LARGE_PAGES.read_text(), reason="this kernel has no large pages"
)
def test_the_heap_comes_in_large_pages() -> None:
    told = subprocess.run([sys.executable, "-c", USED], capture_output=True, text=True, check=True).stdout
    at_first, collapsed, afterwards = map(int, told.split())
    if "[madvise]" in LARGE_PAGES.read_text():
        assert at_first == 0
    if HAS_COLLAPSE:
        assert collapsed >= 8 << 10, "of 12 MiB that were there"
    assert afterwards - collapsed >= 180 << 10, "of 200 MiB"


def test_where_memory_is_limited_nothing_is_changed() -> None:
    done = subprocess.run([sys.executable, "-c", SHORT], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"{1 << 20}\n"), done.stderr


@pytest.mark.full
@if_glibc
def test_a_pass_finds_the_memory_that_the_one_before_has_freed() -> None:
    told = subprocess.run([sys.executable, "-c", PASSES], capture_output=True, text=True, check=True).stdout
    at_first, afterwards = map(int, told.split())
    assert at_first > 1000
    assert afterwards < 100
