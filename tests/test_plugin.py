"""The pytest plugin against real pytest processes: what it writes is what pytest itself counts."""

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from harness.plugin import MAX_TEXT_CHARS
from harness.runner.need import Need
from harness.runner.report_file import read_report

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[1]
Record = dict[str, Any]


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def run(pytester: pytest.Pytester, *args: str) -> tuple[pytest.RunResult, list[Record]]:
    report = pytester.path / "report.jsonl"
    command = ["-p", "harness.plugin", f"--rlharness-report={report}", "--strict-markers", "-Werror", *args]
    result = pytester.runpytest_subprocess(*command)
    return result, [json.loads(line) for line in report.read_text().splitlines()] if report.exists() else []


def of_kind(records: list[Record], kind: str) -> list[Record]:
    return [record for record in records if record["k"] == kind]


def ends(records: list[Record]) -> dict[str, Record]:
    return {record["id"].partition("::")[2] or record["id"]: record for record in of_kind(records, "end")}


EVERY_OUTCOME = """
import pytest, unittest

@pytest.fixture
def bad_setup():
    raise ValueError("in setup")

@pytest.fixture
def bad_teardown():
    yield
    raise ValueError("in teardown")

@pytest.fixture
def skipping_teardown():
    yield
    pytest.skip("late")

def test_passes(): pass
def test_fails(): assert 1 == 2, "first line\\nsecond line"
@pytest.mark.skip(reason="because")
def test_skipped(): pass
def test_xfails(): pytest.xfail("not yet")
@pytest.mark.xfail(reason="wrong")
def test_xpasses(): pass
@pytest.mark.xfail(strict=True, reason="wrong")
def test_strict_xpass(): pass
def test_setup_error(bad_setup): pass
def test_teardown_error(bad_teardown): pass
def test_both(bad_teardown): assert False
def test_skips_late(skipping_teardown): pass

class TestOld(unittest.TestCase):
    def test_subtests(self):
        for i in range(3):
            with self.subTest(i=i):
                self.assertEqual(i, 1)
    @unittest.expectedFailure
    def test_expected(self): self.fail()
    @unittest.skip("old")
    def test_skip(self): pass
"""


def test_every_outcome_is_the_one_pytest_counts(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(EVERY_OUTCOME)
    result, records = run(pytester)
    counted = Counter(category for record in of_kind(records, "end") for category in record["counted"])
    summary = {"errors" if key == "error" else key: count for key, count in counted.items()}
    assert result.parseoutcomes() == summary
    told = ends(records)
    assert {name: record["outcome"] for name, record in told.items()} == {
        "test_passes": "passed",
        "test_fails": "failed",
        "test_skipped": "skipped",
        "test_xfails": "xfailed",
        "test_xpasses": "xpassed",
        "test_strict_xpass": "failed",
        "test_setup_error": "error",
        "test_teardown_error": "error",
        "test_both": "error",
        "test_skips_late": "passed",
        "TestOld::test_subtests": "failed",
        "TestOld::test_expected": "xfailed",
        "TestOld::test_skip": "skipped",
    }
    assert told["test_teardown_error"]["counted"] == ["passed", "error"]
    assert told["test_both"]["counted"] == ["failed", "error"]
    assert "assert False" in told["test_both"]["text"]
    assert "in teardown" in told["test_both"]["text"]
    assert told["test_skipped"]["reason"] == "because"
    assert told["test_xfails"]["reason"] == "not yet"
    assert told["test_fails"]["reason"] == "AssertionError: first line"
    assert "second line" in told["test_fails"]["text"]
    assert of_kind(records, "finish") == [{"k": "finish", "exit": 1}]


def test_subtests_of_the_fixture_count_as_pytest_counts_them(pytester: pytest.Pytester) -> None:
    pytest.importorskip("_pytest.subtests")
    pytester.makepyfile("""
        import pytest
        def test_some(subtests):
            for i in range(3):
                with subtests.test(i=i):
                    assert i == 1
        def test_passing(subtests):
            with subtests.test("skips"):
                pytest.skip("here")
    """)
    result, records = run(pytester)
    counted = Counter(category for record in of_kind(records, "end") for category in record["counted"])
    assert result.parseoutcomes()["failed"] == counted["failed"] == 3
    told = ends(records)
    assert told["test_some"]["outcome"] == "failed"
    assert told["test_passing"]["outcome"] == "passed"


def test_every_test_starts_and_ends_once_in_order(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import pytest
        @pytest.mark.parametrize("x", [1, 2])
        def test_a(x): pass
        def test_b(): pass
    """)
    _, records = run(pytester)
    nodeids = of_kind(records, "collected")[0]["nodeids"]
    assert [record["k"] for record in records] == ["hello", "collected", *["start", "teardown", "end"] * 3, "finish"]
    assert [record["id"] for record in of_kind(records, "start")] == nodeids
    assert [record["id"] for record in of_kind(records, "end")] == nodeids


def test_the_reader_of_reports_understands_all_of_it(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(EVERY_OUTCOME + "pytestmark = pytest.mark.gpus(2, min_capability=9.0)")
    run(pytester)
    report = read_report(pytester.path / "report.jsonl")
    assert report.num_unreadable == 0
    assert report.collected_need == Need(gpus=2, min_capability=(9, 0))
    assert report.finished_exit == 1
    assert report.counts().total == len(report.nodeids) == 13


def test_a_file_that_skips_itself_has_an_end(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("import pytest\npytest.importorskip('surely_not_there')\ndef test_x(): pass")
    result, records = run(pytester)
    [end] = of_kind(records, "end")
    assert end["id"] == f"{pytester.path.name}.py" or end["id"].endswith(".py")
    assert end["outcome"] == "skipped"
    assert "surely_not_there" in end["reason"]
    assert of_kind(records, "collected")[0]["nodeids"] == []
    assert result.parseoutcomes() == {"skipped": 1}


def test_a_file_that_cannot_be_imported_is_a_collect_error(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("raise RuntimeError('at import')")
    result, records = run(pytester)
    [error] = of_kind(records, "collect_error")
    assert "at import" in error["text"]
    assert result.ret == 2
    assert of_kind(records, "finish") == [{"k": "finish", "exit": 2}]
    assert not of_kind(records, "interrupted")


def test_what_pytest_refuses_is_told_line_by_line(pytester: pytest.Pytester) -> None:
    file = pytester.makepyfile("def test_x(): pass")
    result, records = run(pytester, f"{file}::test_gone", f"{file}::TestGone")
    assert of_kind(records, "refused") == [
        {"k": "refused", "text": f"not found: {file}::test_gone\nnot found: {file}::TestGone"}
    ]
    assert not of_kind(records, "collect_error")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert read_report(pytester.path / "report.jsonl").refused.count("not found: ") == 2


RERUNNING = """
import pytest
from _pytest.runner import runtestprotocol

EACH = {each}

@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item, nextitem):
    told = dict(nodeid=item.nodeid, location=item.location)
    for attempt in range(2):
        if attempt == 0 or EACH:
            item.ihook.pytest_runtest_logstart(**told)
        for report in runtestprotocol(item, nextitem=nextitem, log=False):
            if report.failed and attempt == 0:
                report.outcome = "rerun"
            item.ihook.pytest_runtest_logreport(report=report)
        if attempt == 1 or EACH:
            item.ihook.pytest_runtest_logfinish(**told)
    return True

def pytest_report_teststatus(report):
    if report.outcome == "rerun":
        return "rerun", "R", ("RERUN", {{"yellow": True}})
"""


@pytest.mark.parametrize("each", [False, True])
def test_reruns_are_one_test(pytester: pytest.Pytester, each: bool) -> None:
    """Whether the plugin that reruns begins and ends the test once or with each try."""
    pytester.makeconftest(RERUNNING.format(each=each))
    pytester.makepyfile("tries = []\ndef test_flaky():\n    tries.append(1)\n    assert len(tries) == 2")
    result, records = run(pytester)
    [end] = of_kind(records, "end")
    assert end["counted"] == ["rerun", "passed"]
    assert (end["outcome"], end["reason"], end["text"]) == ("passed", "", "")
    assert result.ret == 0


@pytest.mark.full
def test_a_test_that_dies_while_it_is_run_again_has_no_end(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(RERUNNING.format(each=True))
    dying = "tries = []\ndef test_flaky():\n    tries.append(1)\n    assert len(tries) == 2\n    {}"
    for last_word in ("__import__('os')._exit(0)", "raise KeyboardInterrupt"):
        pytester.makepyfile(dying.format(last_word))
        _, records = run(pytester)
        assert not of_kind(records, "end")


@pytest.mark.full
@pytest.mark.parametrize("asks", [False, True])
def test_a_test_that_leaves_by_ctrl_c_has_no_end_and_pytest_finishes(pytester: pytest.Pytester, asks: bool) -> None:
    statement = "pytest.exit('enough')" if asks else "raise KeyboardInterrupt"
    pytester.makepyfile(f"import pytest\ndef test_a(): pass\ndef test_b(): {statement}\ndef test_c(): pass")
    _, records = run(pytester)
    assert list(ends(records)) == ["test_a"]
    assert len(of_kind(records, "start")) == 2
    assert of_kind(records, "finish") == [{"k": "finish", "exit": 2}]
    assert [record["id"].rpartition("::")[2] for record in of_kind(records, "interrupted")] == ["test_b"][asks:]


@pytest.mark.parametrize(("statement", "counted"), [("pass", []), ("assert 0", [["failed", "error"]])])
def test_a_test_interrupted_in_its_teardown_has_no_end_unless_it_had_failed(
    pytester: pytest.Pytester, statement: str, counted: list[list[str]]
) -> None:
    pytester.makepyfile(f"""
        import pytest
        @pytest.fixture
        def interrupted():
            yield
            raise KeyboardInterrupt
        def test_a(interrupted): {statement}
    """)
    _, records = run(pytester)
    assert [end["counted"] for end in of_kind(records, "end")] == counted
    assert len(of_kind(records, "teardown")) == 1


def test_the_exit_code_is_the_one_the_process_ends_with(pytester: pytest.Pytester) -> None:
    pytester.makeconftest("""
        def pytest_sessionstart(session):
            session.config.kept = session
        def pytest_unconfigure(config):
            config.kept.exitstatus = 43
    """)
    pytester.makepyfile("def test_a(): pass")
    result, records = run(pytester)
    assert result.ret == 43
    assert of_kind(records, "finish") == [{"k": "finish", "exit": 43}]


def test_an_early_exit_leaves_no_finish(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("import os\ndef test_a(): pass\ndef test_b(): os._exit(0)")
    result, records = run(pytester)
    assert result.ret == 0
    assert [record["k"] for record in records] == ["hello", "collected", "start", "teardown", "end", "start"]


def test_a_forked_child_writes_nothing(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import os, warnings
        child = None
        def test_forks():
            global child
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()  # the child goes on as pytest would, through all its hooks
        def test_parent_waits():
            if child:
                os.waitpid(child, 0)
    """)
    _, records = run(pytester)
    assert [record["k"] for record in records] == ["hello", "collected", *["start", "teardown", "end"] * 2, "finish"]


def test_a_test_that_closes_every_descriptor_loses_no_line(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import os
        def test_closes(tmp_path):
            os.closerange(3, 64)
            for number in range(32):  # whoever writes to an old number now, writes here
                os.open(tmp_path / f"mine{number}", os.O_CREAT | os.O_RDWR)
        def test_nothing_was_written_to_them(tmp_path_factory):
            mine = list(tmp_path_factory.getbasetemp().glob("test_closes0/mine*"))
            assert len(mine) == 32
            assert [path.read_bytes() for path in mine] == [b""] * 32
    """)
    _, records = run(pytester, "-s")
    assert [end["outcome"] for end in of_kind(records, "end")] == ["passed", "passed"]
    assert of_kind(records, "finish") == [{"k": "finish", "exit": 0}]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_a_full_disk_ends_the_report_and_no_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_a(): pass\ndef test_b(): pass")
    result = pytester.runpytest_subprocess("-p", "harness.plugin", "--rlharness-report=/dev/full")
    result.assert_outcomes(passed=2)
    assert result.ret == 0
    assert result.stderr.str().count("the report /dev/full ends here") == 1


def test_a_report_that_cannot_be_opened_is_said_once(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_a(): pass")
    missing = pytester.path / "not" / "there"
    result = pytester.runpytest_subprocess("-p", "harness.plugin", f"--rlharness-report={missing}")
    result.assert_outcomes(passed=1)
    assert result.stderr.str().count(str(missing)) == 2  # ours, and the operating system's words


def test_a_test_that_changes_directory_moves_no_report(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("import os\ndef test_a(tmp_path): os.chdir(tmp_path)")
    result = pytester.runpytest_subprocess("-p", "harness.plugin", "--rlharness-report=here.jsonl")
    result.assert_outcomes(passed=1)
    assert (pytester.path / "here.jsonl").read_text().endswith('{"k":"finish","exit":0}\n')


def test_a_report_is_appended_to(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_a(): pass")
    run(pytester)
    _, records = run(pytester)
    assert len(of_kind(records, "hello")) == len(of_kind(records, "finish")) == 2


def test_an_endless_failure_text_is_shortened_in_the_middle(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("import pytest\ndef test_a(): pytest.fail('begin' + 'x' * 3_000_000 + 'end', pytrace=False)")
    _, records = run(pytester)
    [end] = of_kind(records, "end")
    assert len(end["text"]) < MAX_TEXT_CHARS + 100
    assert end["text"].startswith("begin")
    assert end["text"].endswith("end")
    assert "characters left out" in end["text"]
    assert len(end["reason"]) == 500


def test_text_that_is_no_utf8_is_written_all_the_same(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("import pytest\ndef test_a(): pytest.fail('\\udce9t\\u00e9', pytrace=False)")
    _, records = run(pytester, "-p", "no:terminal")
    [end] = of_kind(records, "end")
    assert end["text"] == "\udce9t\u00e9"


def test_without_the_option_nothing_is_written(pytester: pytest.Pytester) -> None:
    pytester.makeconftest("pytest_plugins = ['harness.plugin']")
    pytester.makepyfile("import pytest\n@pytest.mark.gpus(1)\ndef test_a(): pass")
    before = {path.name for path in pytester.path.iterdir()}
    result = pytester.runpytest_subprocess("--strict-markers", "-Werror", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=1)
    of_pytester = {"stdout", "stderr", "runpytest-0", "runpytest-current"}
    assert {path.name for path in pytester.path.iterdir()} - before - of_pytester <= {"__pycache__"}


@pytest.mark.full
def test_a_file_that_is_only_found_gives_its_doctests_and_no_functions(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(tool='def test_connection(host):\n    """\n    >>> 1 + 1\n    2\n    """\n')
    pytester.makepyfile(test_tool="def test_tool(): pass\n")
    _, named = run(pytester, "--doctest-modules", "tool.py")
    (pytester.path / "report.jsonl").unlink()
    _, found = run(pytester, "--doctest-modules", "--rlharness-as-found", "tool.py", "test_tool.py")
    assert sorted(ends(named)) == ["test_connection", "tool.test_connection"]
    assert sorted(ends(found)) == ["test_tool", "tool.test_connection"]
