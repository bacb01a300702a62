"""Files of an attempt on their way from a node: the same bytes arrive, where they belong, whatever grows when."""

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.core.errors import NetworkError
from harness.runner.cluster.messages import FilePart, to_data
from harness.runner.cluster.mirror import FilesIn, FilesOut

pytestmark = pytest.mark.full

growth = st.lists(st.tuples(st.sampled_from(["report.jsonl", "output.log"]), st.binary(max_size=50)), max_size=12)


@given(growth=growth, others=st.dictionaries(st.sampled_from(["a", "ray_logs/b", "x/y/z"]), st.binary(max_size=99)))
def test_the_same_bytes_arrive(
    growth: list[tuple[str, bytes]], others: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory
) -> None:
    there, here = tmp_path_factory.mktemp("node"), tmp_path_factory.mktemp("run")
    incoming = FilesIn(here)

    async def send(part: FilePart) -> None:
        incoming.write(part)

    async def grow() -> None:
        outgoing = FilesOut(there, "m", send, frozenset({"part.json"}))
        (there / "part.json").write_text("from the run")
        outgoing.begin()
        for name, data in growth:
            with (there / name).open("ab") as file:
                file.write(data)
            await outgoing.send_new()
        for name, data in others.items():
            (there / name).parent.mkdir(parents=True, exist_ok=True)
            (there / name).write_bytes(data)
        await outgoing.send_rest()
        outgoing.close()

    asyncio.run(grow())
    for name in ("report.jsonl", "output.log"):
        expected = b"".join(data for each, data in growth if each == name)
        assert ((here / name).read_bytes() if expected else b"") == expected
    assert {name: (here / name).read_bytes() for name, data in others.items() if data} == {
        name: data for name, data in others.items() if data
    }
    assert not (here / "part.json").exists()


def test_what_replaces_the_report_is_not_sent(tmp_path: Path) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    there.mkdir()
    here.mkdir()
    secret = tmp_path / "secret"
    secret.write_text("not of this attempt")
    incoming = FilesIn(here)

    async def send(part: FilePart) -> None:
        incoming.write(part)

    async def replace() -> None:
        outgoing = FilesOut(there, "m", send)
        outgoing.begin()
        (there / "report.jsonl").write_text("pytest's own")
        await outgoing.send_new()
        (there / "report.jsonl").unlink()
        (there / "report.jsonl").symlink_to(secret)
        (there / "link").symlink_to(secret)
        await outgoing.send_rest()
        outgoing.close()

    asyncio.run(replace())
    assert (here / "report.jsonl").read_text() == "pytest's own"
    assert [path.name for path in here.iterdir()] == ["report.jsonl"]


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/../../x", "", "a\0b", "\ud800"])
def test_a_name_outside_the_directory_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(NetworkError, match="outside"):
        FilesIn(tmp_path / "here").write(FilePart("m", name, 0, to_data(b"x")))
    assert list(tmp_path.rglob("*")) == []


def test_a_part_that_is_repeated_or_missing_is_refused(tmp_path: Path) -> None:
    files = FilesIn(tmp_path)
    files.write(FilePart("m", "a", 0, to_data(b"abc")))
    for offset in (0, 2, 4):
        with pytest.raises(NetworkError, match="out of turn"):
            files.write(FilePart("m", "a", offset, to_data(b"x")))
    files.write(FilePart("m", "a", 3, to_data(b"d")))
    assert (tmp_path / "a").read_bytes() == b"abcd"


def test_bytes_that_are_not_in_base_64_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NetworkError, match="base 64"):
        FilesIn(tmp_path).write(FilePart("m", "a", 0, "???"))
