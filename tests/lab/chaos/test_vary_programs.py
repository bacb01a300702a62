"""Settings of small programs that must not matter: each program healthy, and with a fault of its own."""

from pathlib import Path

import pytest

from harness.bits.exit_codes import ExitCode
from harness.lab.chaos.vary import Kind, Varied
from tests.lab.chaos.forked import varied

PROGRAMS = Path(__file__).with_name("vary_programs")


def verdicts(tmp_path: Path, name: str, vary: str, *, fix: bool) -> Varied:
    settings = vary.split()
    words = [f"{{{each.partition('=')[0]}}}" for each in settings]
    return varied(tmp_path, PROGRAMS / f"{name}.py", settings, words, fix=fix)


@pytest.mark.parametrize(
    ("name", "vary", "kinds", "said"),
    [
        ("ga_twice", "G=1,4", (Kind.ROUNDING, Kind.FACTOR), "all gradients are 0.25 times"),
        (
            "dropped_micro",
            "G=1,4",
            (Kind.ROUNDING, Kind.DIFFERENT),
            "Step 0: with G=4 the gradient of weight differs by",
        ),
        ("block_size", "ROWS=1,256", (Kind.EQUAL, Kind.ROUNDING), "ROWS=256 changes bits from step 0 on"),
        ("workers", "W=0,2", (Kind.EQUAL, Kind.RANDOM), "the random numbers of torch stand elsewhere from step 0 on"),
        ("dropout", "G=1,4", (Kind.BY_DESIGN, Kind.DIFFERENT), "the mask of dropout"),
        pytest.param(
            *("autocast", "G=1,4", (Kind.ROUNDING, Kind.DIFFERENT), "Step 0: with G=4 the gradient of 0.weight"),
            marks=pytest.mark.full,
        ),
        pytest.param(
            *("traced", "TRACE=off,on", (Kind.ROUNDING, Kind.DIFFERENT), "Step 4: with TRACE=on the gradient of"),
            marks=pytest.mark.full,
        ),
        pytest.param(
            *("noise", "G=1,4", (Kind.BY_DESIGN, Kind.FACTOR), "0.25 times the base's"), marks=pytest.mark.full
        ),
        pytest.param(
            *("odd_optimizers", "A=1,4", (Kind.ROUNDING, Kind.DIFFERENT), "8 steps in the base, 7 with A=4"),
            marks=pytest.mark.full,
        ),
    ],
)
def test_a_fault_is_named_and_a_healthy_program_is_not(
    tmp_path: Path, name: str, vary: str, kinds: tuple[Kind, Kind], said: str
) -> None:
    for fix, kind in zip((True, False), kinds, strict=True):
        (tmp_path / str(fix)).mkdir()
        found = verdicts(tmp_path / str(fix), name, vary, fix=fix)
        assert [each.kind for each in found.verdicts] == [kind]
    assert said in found.verdicts[0].sentence
    assert not list(tmp_path.rglob("*.pt")), "no tensors are left"


def test_two_settings_are_found_together_and_alone_they_are_harmless(tmp_path: Path) -> None:
    found = verdicts(tmp_path, "two_settings", "G=1,4 cache=off,on", fix=False)
    kinds = [(dict(each.values), each.kind) for each in found.verdicts]
    assert kinds == [
        ({"G": "4"}, Kind.ROUNDING),
        ({"cache": "on"}, Kind.EQUAL),
        ({"G": "4", "cache": "on"}, Kind.DIFFERENT),
    ]
    assert found.exit_code == ExitCode.DIVERGED


@pytest.mark.full
def test_two_healthy_settings_are_harmless_together(tmp_path: Path) -> None:
    found = verdicts(tmp_path, "two_settings", "G=1,4 cache=off,on", fix=True)
    assert [each.kind for each in found.verdicts] == [Kind.ROUNDING, Kind.EQUAL, Kind.ROUNDING]
    assert found.exit_code == ExitCode.OK


def run_source(tmp_path: Path, source: str) -> Varied:
    program = tmp_path / "program.py"
    program.write_text(f"import sys, torch\nnet = torch.nn.Linear(2, 1)\n{source}")
    return varied(tmp_path, program, ["V=1,2"], ["{V}"], fix=True)


STEP = "optimizer = torch.optim.SGD(net.parameters(), 0.1); net(torch.ones(3, 2)).sum().backward(); optimizer.step()\n"


def test_clipping_does_not_hide_by_what_factor_gradients_differ(tmp_path: Path) -> None:
    """The parts are alike, so that clipped gradients are equal in each step."""
    step = """
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for part in torch.ones(4, 2).chunk(int(sys.argv[1])):
    net(part).square().mean().backward()
torch.nn.utils.clip_grad_norm_(net.parameters(), 1e-3)
optimizer.step()
"""
    (verdict,) = run_source(tmp_path, f"torch.manual_seed(0)\n{step}").verdicts
    assert verdict.kind is Kind.FACTOR
    assert verdict.sentence == "Step 0: with V=2 all gradients are 2 times the base's: the loss is not divided by V."


def test_a_value_that_fails_is_named(tmp_path: Path) -> None:
    found = run_source(tmp_path, f"torch.manual_seed(0)\n{STEP}sys.exit(7 if sys.argv[1] == '2' else 0)")
    (verdict,) = found.verdicts
    assert (verdict.kind, found.exit_code) == (Kind.FAILED, ExitCode.INCOMPLETE_RECORDING)
    assert verdict.sentence == "With V=2 the program fails: the program ended with exit code 7."


def test_a_base_that_fails_has_no_verdicts(tmp_path: Path) -> None:
    found = run_source(tmp_path, f"{STEP}sys.exit(3)")
    assert (found.problem, found.verdicts) == ("the program ended with exit code 3", ())
    assert found.exit_code == ExitCode.INCOMPLETE_RECORDING


def test_a_program_without_a_step_has_no_verdicts(tmp_path: Path) -> None:
    assert run_source(tmp_path, "").problem == "no optimizer step was seen"


def test_a_base_that_does_not_repeat_itself_is_said_first(tmp_path: Path) -> None:
    found = run_source(tmp_path, f"torch.seed()\nnet = torch.nn.Linear(2, 1)\n{STEP}")
    assert found.unsteady.startswith("from step 0 on")
    assert (found.verdicts, found.exit_code) == ((), ExitCode.NOT_COMPARABLE)
