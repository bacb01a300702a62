"""Passes and leaves memory of its GPU allocated, as a driver does that is slow to clean up after a killed process:
PASSED, the GPU quarantined. Writes to the machine file of the pretended NVIDIA driver; skips without it."""

import os
from pathlib import Path

import pytest

LEFT_MB = 20_000


@pytest.mark.gpus(1)
def test_leaves_memory() -> None:
    if "NVML_STUB_FILE" not in os.environ:
        pytest.skip("no pretended driver: NVML_STUB_FILE is not set")
    file = Path(os.environ["NVML_STUB_FILE"])
    gpu = os.environ["CUDA_VISIBLE_DEVICES"]
    lines = []
    for line in file.read_text().splitlines():
        fields = line.split(" ")
        if fields[:2] == ["gpu", gpu]:
            fields[4] = str(int(fields[4]) + LEFT_MB)
        lines.append(" ".join(fields) + "\n")
    new = file.with_name(f"{file.name}.{os.getpid()}")
    new.write_text("".join(lines))
    new.replace(file)
