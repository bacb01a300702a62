"""No file and no message of others makes a reader raise what it does not say, hang, or take memory without end."""

import os
import resource
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.recorded import record
from tests.support.hostile_documents import hostile
from tests.support.hostile_files import readers
from tests.support.hostile_readers import OfFile, Reader

pytestmark = [pytest.mark.full, pytest.mark.timeout(300)]

NAMES = (
    *("manifest.json", "curve.jsonl", "rank-0.log", "frames of a log", "a trace", "operations", "tensors"),
    *("report.jsonl", "events.jsonl", "golden.json", "a line of numbers", "call.json", "refusal.json", "a scenario"),
    *("nccl.conf", "a report of a process", "a stop", "output", "a finding of the sentinel", "pyproject.toml"),
    *("a library", "config.json of a model", "model.safetensors of a model", "model.safetensors.index.json of a model"),
    *("config.json of a classifier", "tokenizer.json of a model", "tokenizer_config.json", "checksums.json of a run"),
    *("values.json of a run", "a shard of a trainer", "prompts.jsonl", "prompts.parquet", "an answer of a server"),
)
LIMIT_S = 20
"""Processor time that one document may take; a reader that waits instead meets the time limit of the test."""
WAIT_S = 60
MEMORY_BYTES = 1 << 30
"""Address space that one document may make a reader take."""


@pytest.fixture(scope="module")
def by_name(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Reader]:
    run, trace = record(tmp_path_factory.mktemp("recorded"))
    return {reader.name: reader for reader in readers(run, trace)}


@contextmanager
def limits() -> Iterator[None]:
    """LIMIT_S and MEMORY_BYTES for what is within."""

    def late(signum: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"it took more than {LIMIT_S} s of processor time")

    with open("/proc/self/statm", encoding="ascii") as file:
        used_bytes = int(file.read().split()[0]) * resource.getpagesize()
    before, handler = resource.getrlimit(resource.RLIMIT_AS), signal.signal(signal.SIGPROF, late)
    resource.setrlimit(resource.RLIMIT_AS, (used_bytes + MEMORY_BYTES, before[1]))
    signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, handler)
        resource.setrlimit(resource.RLIMIT_AS, before)


def test_all_readers_are_tried(by_name: dict[str, Reader]) -> None:
    assert sorted(by_name) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_reader_understands_its_documents(name: str, by_name: dict[str, Reader], tmp_path: Path) -> None:
    reader = by_name[name]
    for number, document in enumerate(reader.documents):
        (directory := tmp_path / str(number)).mkdir()
        assert reader.read(document, directory) is not None


RELEASE = 'sleep "$0"; [ -p "$1" ] && : > "$1"'
"""Opens a FIFO after some seconds, and ends then if something reads it."""


@contextmanager
def no_waiting(path: Path) -> Iterator[None]:
    """Fail where a reader waits for the writer of a FIFO.

    It is let go after WAIT_S, by another process: a library that waits may let neither signals nor threads run.
    """
    process = subprocess.Popen(["sh", "-c", RELEASE, str(WAIT_S), path], start_new_session=True)
    try:
        yield
        assert process.poll() is None or process.returncode, f"it waited for a writer of {path}"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _large(path: Path, document: bytes) -> None:
    """A document that goes on for 64 GiB, without taking room."""
    path.write_bytes(document)
    os.truncate(path, 1 << 36)


SPECIAL: Mapping[str, Callable[[Path, bytes], None]] = {
    "a FIFO": lambda path, document: os.mkfifo(path),
    "a device": lambda path, document: path.symlink_to("/dev/zero"),
    "a directory": lambda path, document: path.mkdir(),
    "a loop": lambda path, document: path.symlink_to(path.name),
    "64 GiB": _large,
}


@pytest.mark.parametrize("name", NAMES)
def test_a_file_of_another_kind_is_refused(name: str, by_name: dict[str, Reader], tmp_path: Path) -> None:
    reader = by_name[name]
    if not isinstance(reader.read, OfFile):
        return  # it reads what it is given
    for number, make in enumerate(SPECIAL.values()):
        (directory := tmp_path / str(number)).mkdir()
        with no_waiting(directory / reader.read.name), suppress(*reader.errors), limits():
            reader.read.read_another(directory, lambda path: make(path, reader.documents[0]))  # noqa: B023


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=60)
@given(data=st.data())
def test_a_changed_document_is_read_or_refused(
    name: str, by_name: dict[str, Reader], tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    reader = by_name[name]
    document = data.draw(st.sampled_from(reader.documents).flatmap(hostile))
    directory = tmp_path_factory.mktemp("changed")
    with limits():
        try:
            reader.read(document, directory)
        except reader.errors as error:
            str(error).encode("utf-8", "backslashreplace")
