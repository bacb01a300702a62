"""Setup scripts: which units need one, the variables that it exports, and the units of one that failed."""

import signal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.core.command import MANAGED, Command, SetupRule
from harness.core.config import load_config
from harness.core.errors import UsageError
from harness.core.exit_codes import ExitCode
from harness.core.need import Need
from harness.process.supervisor import process_tree
from harness.runner.schedule.first_fit import Job
from harness.runner.setup_scripts import PREFIX, SetupScripts, parse_env, wanted_by
from harness.runner.units import NeedSource, Part, Unit
from tests.support.nvml_stub.build import StubGpu, build, compiler, machine_of, stub_env
from tests.support.suite_runs import ended, run, started, until, write_suite

pytestmark = pytest.mark.usefixtures("own_cache")
NAMES = st.from_regex(r"[A-Z_][A-Z0-9_]*", fullmatch=True).filter(lambda name: name not in MANAGED)
VALUES = st.text(st.characters(exclude_characters="\n\x00", exclude_categories=["Cs"]))


@given(st.dictionaries(NAMES, VALUES))
def test_the_variables_that_a_script_writes_are_those_that_are_read(variables: dict[str, str]) -> None:
    text = "".join(f"{name}={value}\n" for name, value in variables.items())
    assert parse_env(text) == (variables, "")


@pytest.mark.parametrize("text", ["NAME", "A=1\n2B=2", "A=1\nCUDA_VISIBLE_DEVICES=0", "export A=1"])
def test_a_line_that_sets_no_variable_or_one_of_rlharness_is_a_fault(text: str) -> None:
    variables, fault = parse_env(text)
    assert variables == {}
    assert fault


def test_a_script_is_for_the_files_and_commands_of_its_patterns() -> None:
    paths = ("tests/gpu/test_a.py", "tests/test_b.py", "command:smoke")
    units = [Unit(path, Need(), NeedSource.AST) for path in paths]
    rule = SetupRule("s", Command("true", "/"), ("tests/gpu/**", "command:smo*"))
    assert [unit.path for unit in wanted_by(rule, units)] == [paths[0], paths[2]]
    assert len(wanted_by(SetupRule("s", Command("true", "/")), units)) == 3


@pytest.mark.parametrize("isolate", ["file", pytest.param("worker", marks=pytest.mark.full)])
def test_a_script_runs_once_and_exports_variables_to_its_units_alone(tmp_path: Path, isolate: str) -> None:
    has = "import os\ndef test_it(): assert os.environ.get('BUILT') == {!r}\n"
    files = {"a/test_a.py": has.format("yes"), "a/test_b.py": has.format("yes"), "test_c.py": has.format(None)}
    write_suite(tmp_path, files)
    (tmp_path / "pyproject.toml").write_text(
        "[tool.rlharness.setup]\n"
        """build = { command = 'echo x >> times; echo "BUILT=$WORD" > "$RLHARNESS_ENV"', """
        """for = ["a/"], env = { WORD = "yes" } }\n"""
        """unneeded = { command = "touch unneeded", for = ["b/"] }\n""",
        "utf-8",
    )
    done = run(tmp_path, "run", "--gpus", "none", "--isolate", isolate, "--cpu-units", "1")
    done.assert_sound()
    assert done.code == 0, done.stdout
    assert set(done.outcomes.values()) == {"passed"}
    assert (tmp_path / "times").read_text() == "x\n"
    assert not (tmp_path / "unneeded").exists()


@pytest.mark.full
def test_units_of_a_failed_script_are_not_run_and_the_run_fails(tmp_path: Path) -> None:
    write_suite(tmp_path, {"test_a.py": "def test_a(): pass\n", "test_b.py": "def test_b(): pass\n"})
    (tmp_path / "pyproject.toml").write_text(
        '[tool.rlharness.setup]\nbuild = { command = "echo why; exit 2", for = ["test_b.py"] }\n', "utf-8"
    )
    done = run(tmp_path, "run", "--gpus", "none")
    done.assert_sound()
    assert (done.code, done.outcomes) == (1, {"test_a.py": "passed", "test_b.py": "not_run"})
    assert "build" in done.results["test_b.py"]["reason"]
    assert (done.record / "setup" / "build" / "output.log").read_text() == "why\n"


def test_a_script_is_for_every_file_of_a_group_and_not_for_files_that_cannot_run() -> None:
    group = Unit("test_b.py", Need(), NeedSource.AST, together=("test_a.py::test_x", "test_b.py"))
    broken = Unit("test_a.py", Need(), NeedSource.AST, collect_error="SyntaxError")
    part = Unit("test_a.py [1/2]", Need(), NeedSource.AST, file="test_a.py", part=Part(1, 2))
    rule = SetupRule("s", Command("true", "/"), ("test_a.py",))
    assert wanted_by(rule, [group, broken, part]) == [group, part]


def configure(directory: Path, *scripts: str) -> None:
    lines = "\n".join(scripts)
    (directory / "pyproject.toml").write_text(f"[tool.rlharness.setup]\n{lines}\n", "utf-8")


@pytest.mark.full
def test_scripts_run_in_the_order_of_the_table_in_their_directory_without_gpus(tmp_path: Path) -> None:
    """Two names that differ in a blank, and a later script that overrides a variable of an earlier one."""
    write_suite(
        tmp_path,
        {
            "test_a.py": "import os\ndef test_it(): assert (os.environ['A'], os.environ['B']) == ('2', 'x=y z')\n",
            "sub/in_sub": "",
        },
    )
    configure(
        tmp_path,
        """'a b' = { command = 'echo first >> ../log; test -e in_sub && echo A=1 > "$RLHARNESS_ENV"', cwd = "sub" }""",
        """a_b = { command = 'echo "second [$CUDA_VISIBLE_DEVICES] ${A-unset}" >> log; """
        """printf "A=2\\n\\nB=x=y z" > "$RLHARNESS_ENV"' }""",
    )
    done = run(tmp_path, "run", "--gpus", "sim:1")
    done.assert_sound()
    assert done.code == 0, done.stdout
    assert (tmp_path / "log").read_text() == "first\nsecond [] unset\n"


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("{ command = 'sleep 60', timeout = 0.5 }", "0.5 s"),
        pytest.param("{ command = 'kill -SEGV $$' }", "SIGSEGV", marks=pytest.mark.full),
        pytest.param("""{ command = 'echo "no variable" > "$RLHARNESS_ENV"' }""", "line 1", marks=pytest.mark.full),
        pytest.param("""{ command = 'echo TMPDIR=/x > "$RLHARNESS_ENV"' }""", "TMPDIR", marks=pytest.mark.full),
        pytest.param("""{ command = 'rm "$RLHARNESS_ENV"' }""", "No such file", marks=pytest.mark.full),
        pytest.param("""{ command = 'printf "A=\\377" > "$RLHARNESS_ENV"' }""", "utf-8", marks=pytest.mark.full),
        pytest.param("{ command = 'true', cwd = 'gone' }", "exit code 127", marks=pytest.mark.full),
    ],
)
def test_a_script_that_fails_in_any_way_has_its_reason(tmp_path: Path, script: str, why: str) -> None:
    write_suite(tmp_path, {"test_a.py": "def test_a(): pass\n"})
    configure(tmp_path, f"bad = {script}")
    done = run(tmp_path, "run", "--gpus", "none", "--grace", "1")
    done.assert_sound()
    assert (done.code, done.outcomes) == (1, {"test_a.py": "not_run"})
    assert why in done.results["test_a.py"]["reason"], done.results["test_a.py"]["reason"]
    assert "bad" in (reason := done.of("setup_finished")[0]["reason"]) and why in reason


@pytest.mark.full
def test_what_a_script_leaves_running_is_ended(tmp_path: Path) -> None:
    write_suite(tmp_path, {"test_a.py": "def test_a(): pass\n"})
    configure(tmp_path, "server = { command = 'sleep 3917 & echo $! > pid' }")
    assert run(tmp_path, "run", "--gpus", "none").code == 0
    assert process_tree.read_process(int((tmp_path / "pid").read_text())) is None


@pytest.mark.full
def test_scripts_run_neither_in_a_plan_nor_for_units_that_are_kept(tmp_path: Path) -> None:
    write_suite(tmp_path, {"test_a.py": "def test_a(): pass\n"})
    configure(tmp_path, "count = { command = 'echo x >> times' }")
    assert run(tmp_path, "plan", "--gpus", "none").code == 0
    assert not (tmp_path / "times").exists()
    assert run(tmp_path, "run", "--gpus", "none").code == 0
    assert run(tmp_path, "run", "--gpus", "none", "--resume", "latest").outcomes == {"test_a.py": "passed"}
    assert (tmp_path / "times").read_text() == "x\n"


@pytest.mark.full
def test_a_command_has_the_variables_of_its_script_under_its_own(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        "[tool.rlharness.setup]\n"
        """data = { command = 'echo A=1 > "$RLHARNESS_ENV"; echo B=1 >> "$RLHARNESS_ENV"', for = ["command:c*"] }\n"""
        "[tool.rlharness.commands]\n"
        """checks = { command = 'test "$A$B" = 12', env = { B = "2" } }\n"""
        """other = { command = 'test -z "$A"' }\n""",
        "utf-8",
    )
    done = run(tmp_path, "run", "--gpus", "none", "--command", "*")
    done.assert_sound()
    assert done.outcomes == {"command:checks": "passed", "command:other": "passed"}


@pytest.mark.full
def test_a_script_runs_for_the_parts_of_a_file(tmp_path: Path) -> None:
    many = "import os, pytest\n@pytest.mark.gpus(1)\n@pytest.mark.parametrize('n', range(8))\n"
    write_suite(tmp_path, {"test_many.py": f"{many}def test_many(n): assert os.environ['A'] == '1'\n"})
    configure(tmp_path, """a = { command = 'echo A=1 > "$RLHARNESS_ENV"', for = ["test_many.py"] }""")
    done = run(tmp_path, "run", "--gpus", "sim:2")
    assert (done.code, len(done.outcomes)) == (0, 2), done.stdout


@given(st.data())
def test_each_script_runs_once_and_before_each_unit_that_needs_it(data: st.DataObject) -> None:
    names = [f"test_{number}.py" for number in range(data.draw(st.integers(1, 6)))]
    units = [Unit(name, Need(), NeedSource.AST) for name in names]
    patterns = data.draw(st.lists(st.lists(st.sampled_from(names), min_size=1), max_size=4))
    rules = [SetupRule(f"s{n}", Command("true", "/"), tuple(each)) for n, each in enumerate(patterns)]
    scripts = SetupScripts(rules, units, {})
    queue = [Job(number, Need(), 1.0) for number in range(len(units))]
    running: list[Job] = []
    ended: list[str] = []
    failed, outcomes = set[str](), dict[str, str]()
    while queue or running:
        if queue and (not running or data.draw(st.booleans())):
            job = queue.pop(0)
            if scripts.is_script(job):
                assert not running
                running.append(job)
                continue
            unit, needed = units[job.index], {rule.name for rule in rules if units[job.index].path in rule.globs}
            if scripts.error(unit):
                assert needed & failed
                outcomes[unit.path] = "not run"
            elif scripts.has_to_wait(unit):
                if script := scripts.hold(job):
                    queue.insert(0, script)
            else:
                assert needed <= set(ended)
                assert not needed & failed
                outcomes[unit.path] = "ran"
        else:
            path = scripts.script(running.pop()).path
            why = data.draw(st.sampled_from(("", "broken")))
            ended.append(path.removeprefix(PREFIX))
            failed |= {ended[-1]} if why else set()
            ready, script = scripts.end(path, why)
            queue[:0] = [*([script] if script else []), *ready]
    assert len(ended) == len(set(ended))
    assert outcomes.keys() == set(names)
    assert scripts.drain() == []


def configured(directory: Path, setup: str, **files: str) -> Path:
    texts = {f"{name}.py": text for name, text in files.items()}
    return write_suite(directory, {**texts, "pyproject.toml": f"[tool.rlharness.setup]\n{setup}\n"})


@pytest.mark.full
def test_units_that_need_no_script_run_before_and_beside_one(tmp_path: Path) -> None:
    waits = """build = { command = "until [ -e ran ]; do sleep 0.05; done", for = ["test_b.py"], timeout = 60 }"""
    touch = "import pathlib\ndef test_a(): pathlib.Path('ran').touch()\n"
    done = run(
        configured(tmp_path, waits, test_a=touch, test_b="def test_b(): pass\n"), "run", "--gpus=none", "--cpu-units=2"
    )
    done.assert_sound()
    assert done.outcomes == {"test_a.py": "passed", "test_b.py": "passed"}


@pytest.mark.full
def test_a_script_whose_units_cannot_start_does_not_run(tmp_path: Path) -> None:
    wide = "import pytest\n@pytest.mark.gpus(9)\ndef test_b(): pass\n"
    setup = """build = { command = "touch ran", for = ["test_b.py"] }"""
    done = run(configured(tmp_path, setup, test_a="def test_a(): pass\n", test_b=wide), "run", "--gpus=sim:1")
    assert done.outcomes == {"test_a.py": "passed", "test_b.py": "not_run"}
    assert not (tmp_path / "ran").exists()


@pytest.mark.full
def test_scripts_of_a_unit_run_one_after_the_other_in_the_order_of_the_table(tmp_path: Path) -> None:
    one = '{ command = "echo %s >> times; sleep 0.2; echo %s >> times" }'
    setup = f"b = {one.replace('%s', 'b')}\na = {one.replace('%s', 'a')}"
    done = run(configured(tmp_path, setup, test_a="def test_a(): pass\n"), "run", "--gpus=none")
    assert done.outcomes == {"test_a.py": "passed"}
    assert (tmp_path / "times").read_text().split() == ["b", "b", "a", "a"]


@pytest.mark.full
@pytest.mark.parametrize("isolate", ["file", "worker"])
def test_a_script_leases_the_gpus_that_it_needs(tmp_path: Path, isolate: str) -> None:
    setup = """build = { command = 'echo "SEEN=$CUDA_VISIBLE_DEVICES" > "$RLHARNESS_ENV"', gpus = 1 }"""
    has = "import os, pytest\npytestmark = pytest.mark.gpus({})\ndef test_it(): assert os.environ['SEEN'] == 'SIM-0'\n"
    files = {"test_a": has.format(1), "test_b": has.format(0)}
    done = run(configured(tmp_path, setup, **files), "run", "--gpus=sim:1", "--isolate", isolate)
    done.assert_sound()
    assert set(done.outcomes.values()) == {"passed"}
    (began,), (finished,) = done.of("setup_started"), done.of("setup_finished")
    assert (began["path"], began["gpu_ids"], finished["reason"]) == ("setup:build", ["SIM-0"], "")
    assert next(event["path"] for event in done.of("lease_returned") if event["gpu_ids"]) == "setup:build"


@pytest.mark.full
def test_units_of_a_script_that_needs_more_gpus_than_there_are_are_not_run(tmp_path: Path) -> None:
    setup = """build = { command = "touch ran", gpus = 2, for = ["test_b.py"] }"""
    files = {"test_a": "def test_a(): pass\n", "test_b": "def test_b(): pass\n"}
    done = run(configured(tmp_path, setup, **files), "run", "--gpus=sim:1")
    done.assert_sound()
    assert (done.code, done.outcomes) == (ExitCode.TESTS_FAILED, {"test_a.py": "passed", "test_b.py": "not_run"})
    assert "setup:build was not run: it needs 2 GPUs" in done.results["test_b.py"]["reason"]


@pytest.mark.full
def test_a_script_that_needs_gpus_ends_a_run_that_has_none(tmp_path: Path) -> None:
    """Nothing else runs whose end would be looked at."""
    setup = """build = { command = "touch ran", gpus = 1 }"""
    done = run(configured(tmp_path, setup, test_b="def test_b(): pass\n"), "run", "--gpus=none")
    done.assert_sound()
    assert (done.code, done.outcomes) == (ExitCode.TESTS_FAILED, {"test_b.py": "not_run"})
    assert "setup:build was not run: it needs 1 GPU" in done.results["test_b.py"]["reason"]


@pytest.mark.full
def test_a_script_does_not_run_on_a_gpu_with_a_fault(tmp_path: Path) -> None:
    if compiler() is None:
        pytest.skip("no C compiler here: the pretended NVIDIA driver cannot be built")
    breaks = (
        "import os, pytest\n@pytest.mark.gpus(1, exclusive=True)\ndef test_breaks():\n"
        "    path = os.environ['NVML_STUB_FILE']\n    text = open(path).read() + 'memory 0 3 0 0 0\\n'\n"
        "    open(path + '.new', 'w').write(text)\n    os.replace(path + '.new', path)\n"
    )
    setup = """build = { command = "touch ran", gpus = 1, for = ["test_b.py"] }"""
    library, stub_file = build(tmp_path), tmp_path / "machine.txt"
    machine_of(StubGpu()).write(stub_file)
    suite = configured(tmp_path / "suite", setup, test_a=breaks, test_b="def test_b(): pass\n")
    done = run(suite, "run", "--gpus=auto", "--cpu-units=1", env=stub_env(library, stub_file))
    done.assert_sound()
    assert done.outcomes == {"test_a.py": "passed", "test_b.py": "not_run"}
    assert [event["is_refused"] for event in done.of("setup_finished")] == [True, False]
    assert done.of("gpu_quarantined")[0]["path"] == "setup:build"
    assert not (suite / "ran").exists()


@pytest.mark.full
def test_an_interrupt_ends_a_script_and_its_units_are_not_run(tmp_path: Path) -> None:
    setup = """build = { command = "touch began; sleep 600 & sleep 600" }"""
    directory = configured(tmp_path, setup, test_a="def test_a(): pass\n")
    with started(directory, "run", "--gpus=none", "--grace=1") as process:
        until((directory / "began").exists, process)
        process.send_signal(signal.SIGINT)
        done = ended(process, directory)
    done.assert_sound()
    assert (done.code, done.outcomes) == (ExitCode.INTERRUPTED, {"test_a.py": "not_run"})
    assert len(done.of("setup_finished")) == 1


def test_a_script_cannot_share_a_gpu(tmp_path: Path) -> None:
    configured(tmp_path, 'build = { command = "true", gpus = 1, memory-gb = 3, shared = true }')
    with pytest.raises(UsageError, match="shared"):
        load_config(tmp_path)
