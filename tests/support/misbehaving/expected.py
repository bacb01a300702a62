"""How each file here must end, and what it takes to run it: the table that the runner is held to.

One run of all of them shares these limits and two pretended GPUs; the last ones need a
machine of their own. A file that its process tree cannot be rid of, or that has no line here, is a bug.
"""

from dataclasses import dataclass, field

TIMEOUT_S, COLLECT_TIMEOUT_S, GRACE_S = 25, 25, 1


@dataclass(frozen=True, slots=True)
class Expected:
    """What the runner must say of one file."""

    outcome: str
    """A value of `harness.runner.units.Outcome`."""
    reason: str = ""
    """Text that its reason contains."""
    tests: dict[str, int] = field(default_factory=dict)
    """Number of its tests by outcome; those of none are left out."""
    left_behind: str = ""
    """Text that a process named as left behind shows; empty where there must be none."""


PASSES = {"passed": 1}
MIDWAY = {"passed": 1, "unfinished": 1, "unstarted": 1}
RESUMED = {"passed": 2, "unfinished": 1}
"""Where the tests after it run in another process."""
HANGS = {"unfinished": 1}

EXPECTED = {
    "conftest_hangs/test_beside_one_that_hangs.py": Expected("collect_timeout", "import"),
    "conftest_raises/test_beside_one_that_raises.py": Expected(
        "collect_error", "RuntimeError: this conftest cannot be imported"
    ),
    "test_child_outlives_it.py": Expected("passed", "", PASSES, "sleep 1000"),
    "test_daemon_outlives_it.py": Expected("passed", "", PASSES, "sleep 1001"),
    "test_deletes_its_directories.py": Expected("passed", "", {"passed": 2}),
    "test_ends_the_session_with_0.py": Expected("exited_early", "::test_ends_the_session ran", MIDWAY),
    "test_exits_early.py": Expected("exited_early", "before pytest had finished while ", RESUMED),
    "test_exits_otherwise.py": Expected("crashed", "reported exit code 0, but the process exited with 7", PASSES),
    "test_first_thread_ends.py": Expected("timed_out", "::test_ends_its_first_thread ran", HANGS),
    "test_forks_without_end.py": Expected("timed_out", "::test_forks ran", HANGS),
    "test_grandchild_keeps_stdout.py": Expected("passed", "", PASSES, "still here"),
    "test_hangs_at_import.py": Expected("collect_timeout", "import"),
    "test_hangs_in_c.py": Expected(
        "timed_out", f"longer than {TIMEOUT_S} s while test_hangs_in_c.py::test_hangs ran", HANGS
    ),
    "test_hangs_in_python.py": Expected("timed_out", f"longer than {TIMEOUT_S} s", MIDWAY),
    "test_has_no_tests.py": Expected("no_tests"),
    "test_ignores_sigterm.py": Expected("timed_out", f"longer than {TIMEOUT_S} s", HANGS),
    "test_is_killed_from_outside.py": Expected("crashed", "SIGKILL while ", HANGS),
    "test_one_test_hangs.py": Expected("timed_out", "::test_hangs ran longer than its own limit", RESUMED),
    "test_prints_200_mb.py": Expected("failed", "", {"failed": 1}),
    "test_prints_no_text.py": Expected("failed", "", {"failed": 1}),
    "test_replaces_its_report.py": Expected("timed_out", f"longer than {TIMEOUT_S} s", MIDWAY),
    "test_segfaults.py": Expected("crashed", "SIGSEGV while test_segfaults.py::test_segfaults ran", RESUMED),
    "test_thread_keeps_it_alive.py": Expected("timed_out", "pytest had finished, but its process had not", PASSES),
    "test_wants_16_gpus.py": Expected("not_run", "16 GPUs"),
    "test_writes_into_its_report.py": Expected("passed", "", {"passed": 2}),
}
"""By path below this folder."""

EXPECTED_WITH_RAY = {
    "test_starts_a_ray_cluster.py": Expected("passed", "", PASSES, "raylet"),
    "test_starts_ray.py": Expected("passed", "", PASSES),
}
"""Where Ray is installed; elsewhere they skip."""

EXPECTED_ON_A_SMALL_TMPDIR = {"test_fills_its_tmpdir.py": Expected("failed", "", {"failed": 2})}
"""With a TMPDIR on a file system of less than 100 MB; elsewhere it skips."""

EXPECTED_WITH_A_DRIVER = {"test_leaves_gpu_memory.py": Expected("passed", "", PASSES)}
"""With the pretended NVIDIA driver of `tests.support.nvml_stub`; elsewhere it skips."""
