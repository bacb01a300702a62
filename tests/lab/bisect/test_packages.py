"""Versions of a package: what is between two, and a bisection over wheels that are made here."""

import base64
import hashlib
import json
import zipfile
from pathlib import Path

import pytest
from packaging.version import Version

from harness.bits.errors import UsageError
from harness.bits.exit_codes import ExitCode
from harness.lab.bisect.bisection import parse_packages, versions_between
from tests.support.cli_commands import Done, type_command
from tests.support.projects import SCENARIO

KNOWN = ["2.0rc1", "1.10", "1.9", "1.2.post1", "1.2", "1.0"]


def test_versions_stand_in_their_own_order() -> None:
    assert versions_between(KNOWN, "x", Version("1.0"), Version("1.10")) == ["1.0", "1.2", "1.2.post1", "1.9", "1.10"]
    assert versions_between(KNOWN, "x", Version("1.9"), Version("2.0rc1")) == ["1.9", "1.10", "2.0rc1"]
    with_candidate = ["1.9rc1", *KNOWN]
    assert "1.9rc1" not in versions_between(with_candidate, "x", Version("1.2"), Version("1.10"))
    assert "1.9rc1" in versions_between(with_candidate, "x", Version("1.2"), Version("2.0rc1"))
    with pytest.raises(UsageError, match=r"pip finds no x 1\.3 for Python 3\.\d+ here") as refused:
        versions_between(KNOWN, "x", Version("1.0"), Version("1.3"))
    assert "1.2.post1, 1.9, 1.10" in refused.value.legal


@pytest.mark.parametrize("text", ["torch", "torch==1.0", "torch==1..", "torch==a..b", "torch>=1.0..2.0", "==1..2"])
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--packages"):
        parse_packages(text)


def test_a_range_is_read() -> None:
    assert parse_packages(" Torch_Geometric == 2.0 .. 2.1.1 ") == ("torch-geometric", Version("2.0"), Version("2.1.1"))
    with pytest.raises(UsageError, match="one version"):
        parse_packages("torch==2.0..2.0.0")
    with pytest.raises(UsageError, match=r"2\.10 is later than 2\.9") as turned:
        parse_packages("torch==2.10..2.9")
    assert turned.value.remedy.startswith("--packages torch==2.9..2.10 ")


# ------------------------------------------------------------------------------------------------- of wheels made here


def make_wheel(directory: Path, name: str, version: str, code: str, requires: str = "") -> None:
    """A wheel of one module."""
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    files = {
        f"{name}.py": code,
        f"{info}/METADATA": metadata + (f"Requires-Dist: {requires}\n" if requires else ""),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    lines = []
    with zipfile.ZipFile(directory / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
            lines.append(f"{path},sha256={digest},{len(text.encode())}\n")
        wheel.writestr(f"{info}/RECORD", "".join(lines) + f"{info}/RECORD,,\n")


ENTRY = """\
import torch

from tinyscale import scale


def run(config, *, level, directory, recorder):
    for step in range(config["num_steps"]):
        recorder.begin_step(step)
        recorder.record("backward", "weight", torch.arange(8.0) * scale())
        recorder.end_step(loss=torch.tensor(scale()))
"""


@pytest.fixture
def wheelhouse(tmp_path: Path) -> Path:
    """Versions 1.0 to 1.4 of a package: 1.2 needs one that nobody has, 1.3 is where what it gives becomes another."""
    house = tmp_path / "wheels"
    house.mkdir()
    for version, (scale, requires) in {
        "1.0": (1.0, ""),
        "1.1": (1.0, "tinyplus>=1"),
        "1.2": (1.0, "nobody-has-this"),
        "1.3": (2.0, ""),
        "1.4": (2.0, ""),
    }.items():
        plus = "from tinyplus import PLUS\n" if "plus" in requires else "PLUS = 0.0\n"
        make_wheel(house, "tinyscale", version, f"{plus}def scale():\n    return {scale} + PLUS\n", requires)
    make_wheel(house, "tinyplus", "1.0", "PLUS = 0.0\n")
    (tmp_path / "scenarios").mkdir()
    (tmp_path / "scenarios" / "sums.yaml").write_text(SCENARIO, encoding="utf-8")
    (tmp_path / "sums.py").write_text(ENTRY, encoding="utf-8")
    return house


def bisect(wheelhouse: Path, *words: str) -> Done:
    pip = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheelhouse), "PIP_CONFIG_FILE": "/dev/null"}
    return type_command(wheelhouse.parent, "bisect", "sums", *words, **pip)


@pytest.mark.full
@pytest.mark.timeout(180)
def test_the_version_that_moved_bits_is_found(wheelhouse: Path) -> None:
    """With what a version needs, past one that cannot be installed; the environment is left as it was."""
    pytest.importorskip("torch")
    done = bisect(wheelhouse, "--packages", "tinyscale==1.0..1.4", "--json")
    assert done.code == ExitCode.INCOMPLETE_RECORDING, done.stderr
    told = json.loads(done.stdout)
    assert [each["label"] for each in told["candidates"]] == ["tinyscale 1.2", "tinyscale 1.3"]
    assert told["found"]["label"] == "tinyscale 1.3"
    assert "nobody-has-this" in told["candidates"][0]["reason"]
    assert told["verdict"]["first"]["a"]["name"] == "weight"
    assert not list(Path(told["directory"]).glob("packages-*"))

    unknown = bisect(wheelhouse, "--packages", "tinyscale==1.0..1.9")
    assert unknown.code == ExitCode.USAGE_ERROR
    assert "error: pip finds no tinyscale 1.9 for Python " in unknown.stderr
    assert " here\n  legal:  1.0, 1.1, 1.2, 1.3, 1.4\n" in unknown.stderr


@pytest.mark.full
def test_what_pip_cannot_find_is_refused_before_anything_is_installed(wheelhouse: Path) -> None:
    """A version that cannot be had, which is the second to be needed; no such package."""
    missing = bisect(wheelhouse, "--packages", "tinyscale==1.0..1.2")
    assert missing.code == ExitCode.INCOMPLETE_RECORDING
    assert (
        "error: tinyscale 1.2 cannot be had here: ERROR: No matching distribution found for nobody-has-this"
        in missing.stderr
    )
    nothing = bisect(wheelhouse, "--packages", "nobody-has-this==1..2")
    assert nothing.code == ExitCode.USAGE_ERROR
    assert "error: the versions of nobody-has-this are not known: ERROR: No matching distribution" in nothing.stderr
    assert "installing" not in missing.stderr + nothing.stderr
