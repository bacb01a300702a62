"""Command lines that are not ours: what they mean, and the options that go with them."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.bits.errors import UsageError
from harness.lab.experiment.command_spec import (
    SpecOptions,
    checked_metric,
    command_identity,
    command_name,
    make_command_spec,
    parse_steps,
)
from harness.lab.experiment.preparation import prepare
from harness.recording.run_spec import RunSpec

SEEDED = settings(derandomize=True)
values = st.text("abc123.", min_size=1, max_size=4)


def test_a_command_line_is_told_by_option() -> None:
    argv = ("/a/python3", "-u", "-m", "x.train", "--lr=1e-3", "--tag", "a", "--tag", "b", "config.yaml", "-", "--fast")
    assert command_identity(argv) == {
        "program": "python3",
        "-u": "",
        "-m": "x.train",
        "--lr": "1e-3",
        "--tag": "a, b",
        "argument 1": "config.yaml",
        "argument 2": "-",
        "--fast": "",
    }


@SEEDED
@given(st.dictionaries(values.map("--{}".format), values, min_size=1, max_size=4), st.data())
def test_another_value_of_an_option_is_another_identity_in_that_name_alone(
    options: dict[str, str], data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(sorted(options)))
    other = {**options, name: data.draw(values.filter(lambda value: value != options[name]))}
    spelled = data.draw(st.sampled_from([" ", "="]))
    a, b = (
        command_identity(("p", *" ".join(f"{n}{spelled}{v}" for n, v in each.items()).split()))
        for each in (options, other)
    )
    assert {key for key in a | b if a.get(key) != b.get(key)} == {name}


def test_secrets_are_in_neither_identity_nor_orders(tmp_path: Path) -> None:
    argv = ("python", "train.py", "--hf-token", "abcdef", "--api-key=abcdef")
    run_spec = RunSpec(argv, command_identity(argv))
    prepare(run_spec, tmp_path / "out", {})
    assert "abcdef" not in (tmp_path / "out" / "run.json").read_text("utf-8")


def test_steps_are_parsed() -> None:
    assert parse_steps([]) == ()
    assert parse_steps(["3", "10-12, 1", "3"]) == (1, 3, 10, 11, 12)
    for wrong in ("", "a", "-1", "5-3", "1-2-3", "0-10000000", "3,"):
        with pytest.raises(UsageError, match="--save-tensors"):
            parse_steps([wrong])


@pytest.mark.parametrize(
    "metric", [r"loss=loss ([\d.]+)", r"(?P<a>\d+) (?P<b>\d+)", r"(?P<a>x=\d+)", "a/b=(?:x)(y)", "n=([0-9]+)"]
)
def test_metrics_that_can_be_used(metric: str) -> None:
    assert checked_metric(metric) == metric


@pytest.mark.parametrize("metric", ["loss", "loss=(a)(b)", "loss=(", "(a)", "=(a)", "l=x", "step=(.)", "(?P<chain>.)"])
def test_metrics_that_cannot_be_used_are_named(metric: str) -> None:
    with pytest.raises(UsageError) as refused:
        checked_metric(metric)
    assert str(refused.value).startswith(f"--metric {metric}: ")
    assert "--metric 'reward=" in refused.value.remedy


@pytest.mark.parametrize("word", ["--api-key=<redacted>", "<redacted>", "https://<redacted>@host/x"])
def test_a_command_that_was_copied_without_its_secrets_is_not_started(tmp_path: Path, word: str) -> None:
    with pytest.raises(UsageError) as refused:
        make_command_spec(("python", "train.py", word), SpecOptions())
    assert word in refused.value.what
    assert "replace <redacted>" in refused.value.remedy


def test_a_command_has_a_name_of_its_own_as_a_directory() -> None:
    assert command_name(("/usr/bin/python", "train.py", "--token", "abc", "--lr=1e-3")) == (
        "python-train-py-token-redacted-lr-1e-3"
    )
    long = [command_name(("python", "train.py", *["--flag"] * 40, last)) for last in "ab"]
    assert long[0] != long[1] and max(map(len, long)) < 80
