"""The curve from what a program prints and logs; what it prints passes through unchanged."""

import io
import json
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from harness.recording import hooks, metrics
from harness.recording.metrics import PrintedMetrics, floats, parse_pattern
from harness.recording.run_spec import RunEnded
from harness.trace.values import Float


class Logged(dict[str, float | None]):
    def __call__(self, values: Any) -> None:
        self.update({name: value.decimal() for name, value in values.items()})


def read(line: str, *patterns: str, has_json: bool = True) -> dict[str, float | None]:
    logged = Logged()
    PrintedMetrics(patterns, logged).read_line(line, has_json=has_json)
    return dict(logged)


@pytest.mark.parametrize(
    ("line", "patterns", "found"),
    [
        ("step 3 loss: 0.25 lr 1e-3", (r"loss=loss: (\S+)",), {"loss": 0.25}),
        ("step 3 loss: 0.25 lr 1e-3", (r"loss: (?P<loss>\S+) lr (?P<lr>\S+)",), {"loss": 0.25, "lr": 0.001}),
        ("0.5", (r"reward=([\d.]+)",), {"reward_mean": 0.5}),
        ("a=1 a=2", (r"a=a=(\d)",), {"a": 2.0}),
        ("train/loss 4", (r"train/loss=train/loss (\d)",), {"train/loss": 4.0}),
        ("nothing here", (r"loss=loss: (\S+)",), {}),
        ("loss: high", (r"loss=loss: (\S+)",), {}),
    ],
)
def test_patterns(line: str, patterns: tuple[str, ...], found: dict[str, float]) -> None:
    assert read(line, *patterns) == found


def test_json_lines_give_their_numbers_but_no_timings() -> None:
    line = json.dumps({"loss": 0.5, "reward": 1, "flag": True, "note": "x", "step_time": 3.0, "samples_per_second": 2})
    assert read(line) == {"loss": 0.5, "reward_mean": 1.0}
    assert read(line, has_json=False) == {}


def test_what_a_pattern_has_found_is_told_and_what_json_has_is_not() -> None:
    found: list[str] = []
    metrics_of = PrintedMetrics([r"reward=reward (\S+)", r"kl=kl (\S+)"], Logged(), found.extend)
    for line in ("reward high kl", json.dumps({"reward": 1.0, "lr": 2.0}), "reward 0.5"):
        metrics_of.read_line(line, has_json=True)
    assert found == ["reward_mean"]


def test_a_pattern_is_believed_before_a_json_line_of_the_same_name() -> None:
    line = json.dumps({"loss": 0.5, "reward": 1.0, "kl": 2.0})
    assert read(line, r"loss=the loss (\S+)", r"reward (?P<reward_mean>\S+)") == {"kl": 2.0}
    assert read(line, r"loss=kl.: (\d)") == {"loss": 2.0, "reward_mean": 1.0, "kl": 2.0}


@pytest.mark.parametrize(
    "line",
    [
        *(
            "{broken",
            "{}",
            "[1, 2]",
            '{"a": [1]}',
            "{'loss': 1}",
            "{" * 10_000 + "}",
            '{"a":' * 9_000 + "1" + "}" * 9_000,
        ),
        json.dumps({"n": 10**400}),
        f'{{"n": {"9" * 5_000}}}',
    ],
)
def test_lines_that_are_no_json_object_of_numbers_give_nothing(line: str) -> None:
    assert read(line) == {}


of_json = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers(-(10**400), 10**400) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(st.text() | st.dictionaries(st.text(), of_json).map(json.dumps))
def test_no_line_is_an_error(line: str) -> None:
    read(line, r"x=(.*)")


class Stubborn:
    """A number that does not like to be one."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __float__(self) -> float:
        raise self.error


@pytest.mark.parametrize(
    "value", [10**400, torch.ones(2), torch.ones(1, device="meta"), Stubborn(KeyError("x")), 1j], ids=type
)
def test_what_will_be_no_float_is_left_out(value: object) -> None:
    assert floats({"a": value, "b": 2}) == {"b": Float.of(2.0)}


class TestStreams:
    def watched(
        self, monkeypatch: pytest.MonkeyPatch, *patterns: str, has_json: bool = True
    ) -> tuple[Logged, io.StringIO, io.StringIO]:
        out, err, logged = io.StringIO(), io.StringIO(), Logged()
        monkeypatch.setattr("sys.stdout", out)
        monkeypatch.setattr("sys.stderr", err)
        PrintedMetrics(patterns, logged).watch_streams(has_json=has_json)
        return logged, out, err

    def test_lines_come_in_any_pieces(self, monkeypatch: pytest.MonkeyPatch) -> None:
        logged, out, _ = self.watched(monkeypatch)
        for piece in ('{"lo', 'ss": 1', "}", "\n", '{"loss": 2}'):
            print(piece, end="")
        assert logged == {"loss": 1.0}
        assert out.getvalue() == '{"loss": 1}\n{"loss": 2}'

    def test_objects_of_a_program_that_says_its_curve_itself_are_left_alone(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        logged, _, _ = self.watched(monkeypatch, r"kl=kl (\S+)", has_json=False)
        print('{"loss": 1}')
        assert logged == {}
        print("kl 2")
        assert logged == {"kl": 2.0}, "what was asked for is taken"

    def test_both_streams_are_read_for_patterns(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import sys

        logged, _, err = self.watched(monkeypatch, r"loss=loss (\S+)")
        print("loss 1")
        assert logged == {"loss": 1.0}
        print("loss 2", file=sys.stderr)
        assert logged == {"loss": 2.0}
        assert err.getvalue() == "loss 2\n"

    def test_what_a_progress_bar_overwrites_does_not_hide_a_line(self, monkeypatch: pytest.MonkeyPatch) -> None:
        logged, _, _ = self.watched(monkeypatch)
        print('10%\r20%\r{"loss": 3}')
        assert logged == {"loss": 3.0}

    def test_a_line_without_end_does_not_fill_memory(self, monkeypatch: pytest.MonkeyPatch) -> None:
        logged, out, _ = self.watched(monkeypatch)
        for _ in range(40):
            print("x" * metrics.MAX_LINE_CHARS, end="")
        print('\n{"loss": 4}')
        assert logged == {"loss": 4.0}
        assert len(out.getvalue()) == 40 * metrics.MAX_LINE_CHARS + 13

    def test_a_mistake_of_the_reader_is_told_once_and_never_reaches_who_prints(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def log_values(values: object) -> None:
            raise LookupError("lost")

        out, err = io.StringIO(), io.StringIO()
        monkeypatch.setattr("sys.stdout", out)
        monkeypatch.setattr("sys.stderr", err)
        PrintedMetrics([r"loss=loss (\S+)"], log_values).watch_streams()
        for _ in range(3):
            print("loss 1")
        assert out.getvalue() == "loss 1\n" * 3
        assert err.getvalue() == "rlharness: nothing more is taken from what is printed: LookupError: lost\n"

    def test_a_run_that_is_to_end_ends_where_it_prints(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def log_values(values: object) -> None:
            raise RunEnded

        monkeypatch.setattr("sys.stdout", io.StringIO())
        PrintedMetrics([], log_values).watch_streams()
        with pytest.raises(RunEnded):
            print('{"loss": 1}')


def test_trainers_and_tensorboard_log_as_before_and_are_read() -> None:
    logged = Logged()

    class SummaryWriter:
        def add_scalar(self, tag: str, scalar_value: float, global_step: int | None = None) -> str:
            return f"{tag} {scalar_value} {global_step}"

    class CallbackHandler:
        def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any], **kwargs: Any) -> Any:
            return logs

    module: Any = SimpleNamespace(SummaryWriter=SummaryWriter, CallbackHandler=CallbackHandler)
    hooks.hook_tensorboard(module, logged, print)
    hooks.hook_trainer(module, logged, print)
    assert SummaryWriter().add_scalar("train/grad_norm", 2.5, global_step=7) == "train/grad_norm 2.5 7"
    logs = {"reward": 0.25, "train_runtime": 9.0}
    assert CallbackHandler().on_log(None, None, None, logs) is logs
    assert logged == {"gradient_norm": 2.5, "reward_mean": 0.25}


@pytest.mark.parametrize("text", ["loss", "loss=(", "(a)(b)", "x=(a)(b)", "l=x", "step=(a)", "a (?P<chain>.)"])
def test_a_pattern_that_names_no_value_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"no name|regular expression|is taken"):
        parse_pattern(text)
