"""Coverage-guided fuzzing of every reader with Atheris: the full size of test_readers.

    pip install atheris
    python tests/fuzz/fuzz.py --seconds 3600            every reader for an hour, two at a time
    python tests/fuzz/fuzz.py --seconds 60 "a trace"    one of them
    python tests/fuzz/fuzz.py --corpus corpus           with what earlier rounds in this directory found

Each reader has a process of its own, with limits on time and memory for each document. It ends with a table of what was
executed, in all rounds of a corpus, and with 1 if a reader crashed, hung or exceeded its memory; the document is then
in the directory named.
"""

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
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

    with atheris.instrument_imports(include=["harness", "rlcore"]):
        from tests.support.hostile_files import readers
    from tests.support.hostile_documents import changed_at_random

    (reader,) = (each for each in readers(*map(Path, recorded.read_text().splitlines())) if each.name == name)

    def execute(data: bytes) -> None:
        with tempfile.TemporaryDirectory() as directory, suppress(*reader.errors):
            reader.read(data, Path(directory))

    def mutate(data: bytes, max_bytes: int, seed: int) -> bytes:
        """Change a value of the document's JSON half of the time: changed bytes are no JSON more often than not."""
        with suppress(ValueError, RecursionError):
            changed = changed_at_random(data, seed) if seed % 2 else None
            if changed is not None and len(changed) <= max_bytes:
                return changed
        mutated: bytes = atheris.Mutate(data, max_bytes)
        return mutated

    corpus = Path(arguments[-1])
    for number, document in enumerate(reader.documents):
        (corpus / f"seed-{number}").write_bytes(document)
    atheris.Setup([sys.argv[0], *arguments], execute, custom_mutator=mutate)
    atheris.Fuzz()


@dataclass(frozen=True, slots=True)
class Rounds:
    """What a reader has executed in all rounds of a corpus."""

    cpu_s: float = 0.0
    """Processor time: on a busy machine less than the time that passed."""
    documents: int = 0
    found: str = ""
    """What the last round found."""

    @classmethod
    def read(cls, path: Path) -> "Rounds":
        return cls(**json.loads(path.read_text())) if path.exists() else cls()


def fuzzed(name: str, seconds: int, recorded: Path, directory: Path) -> Rounds:
    """Fuzz one reader for a round in a process of its own."""
    corpus = directory / re.sub(r"\W+", "-", name)
    corpus.mkdir(exist_ok=True)
    limits = [f"-max_total_time={seconds}", f"-timeout={LIMIT_S}", f"-rss_limit_mb={MEMORY_MB}", "-print_final_stats=1"]
    command = [sys.executable, __file__, *limits, f"-artifact_prefix={corpus}.", str(corpus)]
    environment = {**os.environ, READER: name, RECORDED: str(recorded)}
    with open(log := corpus.with_name(f"{corpus.name}.log"), "wb") as output:
        process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    said = log.read_text(errors="replace")
    executed = re.search(r"number_of_executed_units: (\d+)", said)
    found = "" if process.returncode == 0 else "; ".join(said.strip().splitlines()[-6:])
    before = Rounds.read(told := corpus.with_name(f"{corpus.name}.rounds.json"))
    cpu_s = before.cpu_s + used.ru_utime + used.ru_stime
    rounds = Rounds(cpu_s, before.documents + (int(executed[1]) if executed else 0), found)
    told.write_text(json.dumps(asdict(rounds)))
    return rounds


def main() -> int:
    """Fuzz the readers that are named, all by default."""
    from tests.fuzz.recorded import record
    from tests.support.hostile_files import readers

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="readers; all by default")
    parser.add_argument("--seconds", type=int, default=3600, help="time for each reader")
    parser.add_argument("--jobs", type=int, default=2, help="readers at a time")
    parser.add_argument("--corpus", type=Path, help="directory of what is found, kept for later rounds; a new one")
    options = parser.parse_args()
    directory = options.corpus or Path(tempfile.mkdtemp(prefix="rlharness-fuzz-"))
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as material:
        run, trace = record(Path(material))
        recorded = Path(material, "recorded")
        recorded.write_text(f"{run}\n{trace}\n")
        known = [reader.name for reader in readers(run, trace)]
        if unknown := set(options.names) - set(known):
            parser.error(f"no reader {', '.join(sorted(unknown))}; legal: {', '.join(known)}")
        names = options.names or known
        print(f"{datetime.now(UTC):%Y-%m-%d}, Python {platform.python_version()}, {options.seconds} s, in {directory}")
        print(f"{'reader':<28} {'CPU s':>7} {'documents':>12}  found")
        with ThreadPoolExecutor(options.jobs) as pool:
            results = pool.map(lambda name: fuzzed(name, options.seconds, recorded, directory), names)
            failed = 0
            for name, done in zip(names, results, strict=True):
                print(f"{name:<28} {done.cpu_s:>7,.0f} {done.documents:>12,}  {done.found or 'nothing'}", flush=True)
                failed += bool(done.found) or not done.documents
    return 1 if failed else 0


if __name__ == "__main__":
    if name := os.environ.get(READER):
        fuzz_one(name, Path(os.environ[RECORDED]), sys.argv[1:])
    else:
        sys.exit(main())
