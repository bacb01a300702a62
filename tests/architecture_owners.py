"""Who owns what: the names that only some files of the house may use. `test_architecture` holds all files to it.

Who may import a package is in pyproject.toml, for import-linter; here are names within one, and methods.
"""

from tests.architecture_rules import Owned

SUPERVISOR = ("harness/process/supervisor/",)
# The session that collects ends its standby, and ends where a file poisons it; the runner's side ends both. A leader
# ends the tests that it forks.
SESSION = tuple(f"harness/runner/sessions/{name}.py" for name in ("collected_session", "suite", "forked_tests"))
ENVIRONMENT = (
    "harness/cli/main.py",  # rlharness itself reads it here, and passes it down
    "harness/bits/redaction.py",  # what --no-redact says reaches every process that writes
    "harness/doctor/probe.py",  # stands in for a program that would run here
    "harness/plugin.py",  # the plugin and the fixtures live in a user's pytest, and read that process's own
    "harness/fixtures/",
    "harness/recording/",  # lives in the process of the program that is recorded
    "harness/process/supervisor/fork_hazards.py",  # and these in the pytest from which test processes are forked
    "harness/process/supervisor/forked_leader.py",
    "harness/runner/sessions/own_coverage.py",
    "harness/runner/sessions/xdist_fixtures.py",
)
KERNELS_FILES = (  # below /proc and /sys, which no process can replace
    *SUPERVISOR,
    *("harness/process/ports.py", "harness/doctor/resources.py", "harness/doctor/packages.py"),
    "harness/runner/ray/node.py",
    "harness/trace/fingerprint.py",
)
PACKAGE_DATA = (  # files of an installed package
    *("harness/render/pages.py", "harness/cli/demo.py"),
    "harness/lab/experiment/scenario.py",
)
OPEN_ALREADY = (  # descriptors, and new files in directories that are this process's own
    *(
        "harness/process/run_directory.py",
        "harness/runner/sessions/collected_session.py",
        "harness/runner/sessions/forked_tests.py",
    ),
    *("harness/process/child_main.py", "harness/process/children.py", "harness/recording/boot/"),
)
NAMED_BY_THE_USER = (  # who may name a terminal or a pipe
    "harness/lab/reproduce/debugger.py",
)
OWNED = (
    # A question for GPUs initialises CUDA in the program that is recorded; program_state.py has what may be asked.
    Owned(
        "harness/recording/",
        tuple(
            f"torch.cuda.{name}" for name in ("is_available", "device_count", "init", "get_device_name", "mem_get_info")
        ),
        ("harness/recording/program_state.py",),  # asks where the program has initialised CUDA itself
    ),
    Owned("harness/recording/", ("torch.cuda.is_current_stream_capturing",), ("harness/recording/program_state.py",)),
    Owned("harness/", ("time", "datetime.datetime.now", "datetime.datetime.utcnow"), ("harness/process/clock.py",)),
    Owned("harness/", ("os.environ", "os.environb", "os.getenv", "os.putenv", "os.unsetenv"), ENVIRONMENT),
    # A crash that was asked for is a process's own death, at a moment that only it knows.
    Owned(
        "harness/",
        ("os.kill", "os.killpg", "signal.pidfd_send_signal", "signal.raise_signal"),
        (*SUPERVISOR, *SESSION, "harness/lab/chaos/crash.py", "harness/recording/resumption_recorder.py"),
    ),
    # Fixtures end what they have started themselves: a user's pytest may have no supervisor above it.
    Owned(
        "harness/",
        (".kill()", ".terminate()", ".send_signal()"),
        (*SUPERVISOR, *SESSION, "harness/process/children.py"),
    ),
    # A rank leaves past torch's own exit, which aborts now and then.
    Owned("harness/", ("os._exit", "os.abort"), (*SUPERVISOR, *SESSION, "harness/process/child_main.py")),
    # The process of an entry has an exit status of its own. A program whose recorder was told to end it ends in order.
    Owned(
        "harness/",
        ("sys.exit", "builtins.SystemExit", "builtins.exit", "builtins.quit"),
        ("harness/__main__.py", *SESSION, "harness/lab/experiment/scenario_main.py", "harness/recording/run_spec.py"),
    ),
    # One way to give a whole file its name. The others move directories, links and files that are held open.
    Owned(
        "harness/",
        ("os.replace", "os.rename", "os.renames", "tempfile.mktemp"),
        (
            *("harness/bits/files.py", "harness/runner/records/history.py"),
            *("harness/process/run_directory.py", "harness/process/scratch.py", "harness/process/child_main.py"),
            "harness/process/scratch.py",
        ),
    ),
    # One reader for files that others may have replaced by a FIFO, a device or terabytes: harness/bits/files.py.
    Owned(
        "harness/",
        ("builtins.open", ".read_text()", ".read_bytes()"),
        (*KERNELS_FILES, *PACKAGE_DATA, *OPEN_ALREADY, *NAMED_BY_THE_USER),
    ),
    # The same for writing: a FIFO waits for a reader, a link leads to a file of somebody else. See replaced_file.py.
    Owned(
        "harness/",
        (".write_text()", ".write_bytes()"),
        (
            "harness/recording/boot/",  # child processes
            "harness/recording/run_spec.py",  # new, with a mode of its own
        ),
    ),
    Owned(
        "rlcore/",
        ("builtins.open", ".read_text()", ".read_bytes()", "json.load", "json.loads"),
        (
            *("rlcore/memory.py", "rlcore/log.py"),  # /proc, /sys
            "rlcore/asynchronous/directory.py",  # batches, by their digests; larger than parse_object takes
        ),
    ),
    # These map a file by its name, which has been looked at first.
    Owned(
        "rlcore/",
        ("safetensors.safe_open", "torch.distributed.checkpoint.hf_storage.HuggingFaceStorageReader"),
        ("rlcore/models/checkpoints.py", "rlcore/checkpoint.py"),
    ),
    Owned(
        "rlcore/",
        ("safetensors.torch.load_file", "tokenizers.Tokenizer.from_file", "torch.load"),
        ("rlcore/distributed/worker_group.py",),  # tensors alone, of its own ranks
    ),
)
