"""Coverage-guided fuzzing of every reader with Atheris: the full size of test_readers.

    pip install atheris
    python tests/fuzz/fuzz.py --seconds 3600            every reader for an hour, two at a time
    python tests/fuzz/fuzz.py --seconds 60 "a trace"    one of them

Each reader has a process of its own, with limits on time and memory for each document. It ends with a table of what was
executed, and with 1 if a reader crashed, hung or exceeded its memory; the document is then in the directory named.
"""

import argparse
import os
import platform
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

LIMIT_S = 10
MEMORY_MB = 2048
READER, RECORDED = "RLHARNESS_FUZZ_READER", "RLHARNESS_FUZZ_RECORDED"


def fuzz_one(name: str, recorded: Path, arguments: list[str]) -> None:
    """Fuzz one reader in this process, which ends there."""
    atheris = import_module("atheris")  # Linux alone has wheels: it is no requirement of the tests

    with atheris.instrument_imports(include=["harness"]):
        from tests.support.hostile_files import readers

    (reader,) = (each for each in readers(*map(Path, recorded.read_text().splitlines())) if each.name == name)

    def execute(data: bytes) -> None:
        with tempfile.TemporaryDirectory() as directory, suppress(*reader.errors):
            reader.read(data, Path(directory))

    corpus = Path(arguments[-1])
    for number, document in enumerate(reader.documents):
        (corpus / f"seed-{number}").write_bytes(document)
    atheris.Setup([sys.argv[0], *arguments], execute)
    atheris.Fuzz()


def fuzzed(name: str, seconds: int, recorded: Path, directory: Path) -> tuple[str, int, str]:
    """Fuzz one reader in a process of its own; return its name, its executions and what it found."""
    corpus = directory / re.sub(r"\W+", "-", name)
    corpus.mkdir()
    limits = [f"-max_total_time={seconds}", f"-timeout={LIMIT_S}", f"-rss_limit_mb={MEMORY_MB}", "-print_final_stats=1"]
    command = [sys.executable, __file__, *limits, f"-artifact_prefix={corpus}.", str(corpus)]
    environment = {**os.environ, READER: name, RECORDED: str(recorded)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, errors="replace", check=False)
    executed = re.search(r"number_of_executed_units: (\d+)", done.stderr)
    found = "" if done.returncode == 0 else "; ".join(done.stderr.strip().splitlines()[-6:])
    return name, int(executed[1]) if executed else 0, found


def main() -> int:
    """Fuzz the readers that are named, all by default."""
    from tests.fuzz.recorded import record
    from tests.support.hostile_files import readers

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="readers; all by default")
    parser.add_argument("--seconds", type=int, default=3600, help="time for each reader")
    parser.add_argument("--jobs", type=int, default=2, help="readers at a time")
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="rlharness-fuzz-"))
    (directory / "material").mkdir()
    run, trace = record(directory / "material")
    recorded = directory / "recorded"
    recorded.write_text(f"{run}\n{trace}\n")
    known = [reader.name for reader in readers(run, trace)]
    if unknown := set(options.names) - set(known):
        parser.error(f"no reader {', '.join(sorted(unknown))}; legal: {', '.join(known)}")
    print(f"{datetime.now(UTC):%Y-%m-%d}, Python {platform.python_version()}, {options.seconds} s each, in {directory}")
    print(f"{'reader':<24} {'documents':>12}  found")
    with ThreadPoolExecutor(options.jobs) as pool:
        results = pool.map(lambda name: fuzzed(name, options.seconds, recorded, directory), options.names or known)
        failed = 0
        for name, executed, found in results:
            print(f"{name:<24} {executed:>12,}  {found or 'nothing'}", flush=True)
            failed += bool(found) or not executed
    return 1 if failed else 0


if __name__ == "__main__":
    if name := os.environ.get(READER):
        fuzz_one(name, Path(os.environ[RECORDED]), sys.argv[1:])
    else:
        sys.exit(main())
