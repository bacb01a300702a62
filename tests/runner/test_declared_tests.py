"""Markers that are read from source: where they may stand, and which of several counts."""

import ast
import textwrap

import pytest

from harness.plugin import NOTHING, NeedJson
from harness.runner.declarations import Patterns
from harness.runner.declared_tests import declared_needs


def need(source: str, patterns: Patterns | None = None) -> NeedJson:
    together, _ = declared_needs(ast.parse(textwrap.dedent(source)), patterns or Patterns())
    return together


READABLE = {
    "no marker": (0, "def test_a(): pass"),
    "function": (2, "import pytest\n@pytest.mark.gpus(2)\ndef test_a(): pass"),
    "async function": (2, "import pytest\n@pytest.mark.gpus(2)\nasync def test_a(): pass"),
    "keyword": (3, "import pytest\n@pytest.mark.gpus(n=3)\ndef test_a(): pass"),
    "module, single": (2, "import pytest\npytestmark = pytest.mark.gpus(2)\ndef test_a(): pass"),
    "module, list": (2, "import pytest\npytestmark = [pytest.mark.slow, pytest.mark.gpus(2)]\ndef test_a(): pass"),
    "module, sum of lists": (
        2,
        """
        import pytest
        from common import SLOW
        pytestmark = SLOW + [pytest.mark.gpus(2)] + [*SLOW]
        def test_a(): pass
        """,
    ),
    "module, added to": (
        4,
        """
        import pytest
        pytestmark = [pytest.mark.slow]
        pytestmark += (pytest.mark.gpus(4),)
        def test_a(): pass
        """,
    ),
    "module, annotated": (
        2,
        """
        import pytest
        pytestmark: list[pytest.MarkDecorator] = [pytest.mark.gpus(2)]
        def test_a(): pass
        """,
    ),
    "no test to mark": (0, "import pytest\npytestmark = pytest.mark.gpus(2)\ndef helper(): pass"),
    "closest wins": (
        1,
        """
        import pytest
        pytestmark = pytest.mark.gpus(8)
        @pytest.mark.gpus(4)
        class TestA:
            pytestmark = [pytest.mark.gpus(2)]
            @pytest.mark.gpus(1)
            def test_a(self): pass
        """,
    ),
    "class body over its decorator": (
        2,
        """
        import pytest
        @pytest.mark.gpus(4)
        class TestA:
            pytestmark = pytest.mark.gpus(2)
            def test_a(self): pass
        """,
    ),
    "lowest decorator": (1, "import pytest\n@pytest.mark.gpus(2)\n@pytest.mark.gpus(1)\ndef test_a(): pass"),
    "maximum": (
        4,
        """
        import pytest
        @pytest.mark.gpus(4)
        def test_a(): pass
        @pytest.mark.gpus(2)
        def test_b(): pass
        def test_c(): pass
        """,
    ),
    "nested classes": (
        4,
        """
        import pytest
        class TestA:
            class TestB:
                pytestmark = pytest.mark.gpus(4)
                class TestC:
                    def test_a(self): pass
        """,
    ),
    "aliases": (
        4,
        """
        import pytest as pt
        from pytest import mark as m
        big = pt.mark.gpus(4)
        gpu = m.gpus
        @gpu(2)
        def test_a(): pass
        @big
        def test_b(): pass
        """,
    ),
    "alias in a list": (
        4,
        """
        import pytest
        MARKS = [pytest.mark.slow, pytest.mark.gpus(4)]
        pytestmark = [*MARKS]
        def test_a(): pass
        """,
    ),
    "constants": (
        6,
        """
        import pytest
        N = 2
        M = N * 3
        @pytest.mark.gpus(M)
        def test_a(): pass
        N = 8
        """,
    ),
    "constant of a class": (
        2,
        """
        import pytest
        N = 8
        class TestA:
            N = 2
            @pytest.mark.gpus(N)
            def test_a(self): pass
        """,
    ),
    "parameters": (
        4,
        """
        import pytest
        @pytest.mark.parametrize("n", [1, pytest.param(4, marks=pytest.mark.gpus(4)),
                                       pytest.param(2, marks=[pytest.mark.slow, pytest.mark.gpus(2)])])
        def test_a(n): pass
        """,
    ),
    "a function's own marker over its parameters'": (
        1,
        """
        import pytest
        @pytest.mark.gpus(1)
        @pytest.mark.parametrize("n", [pytest.param(4, marks=pytest.mark.gpus(4))])
        def test_a(n): pass
        """,
    ),
    "parameters elsewhere": (
        4,
        """
        import pytest
        SETS = [pytest.param(4, marks=pytest.mark.gpus(4)), pytest.param(1)]
        @pytest.mark.parametrize(argnames="n", argvalues=SETS)
        def test_a(n): pass
        """,
    ),
    "test case of unittest": (
        2,
        """
        import unittest
        import pytest
        class Whatever(unittest.TestCase):
            pytestmark = pytest.mark.gpus(2)
            def __init__(self, *args): super().__init__(*args)
            def test_a(self): pass
        """,
    ),
    "class that pytest leaves out": (
        0,
        """
        import pytest
        @pytest.mark.gpus(2)
        class TestA:
            def __init__(self): pass
            def test_a(self): pass
        class Helper:
            @pytest.mark.gpus(4)
            def test_a(self): pass
        """,
    ),
    "inherited": (
        3,
        """
        import pytest
        class Base:
            pytestmark = pytest.mark.gpus(3)
            def test_a(self): pass
        class TestA(Base):
            pass
        """,
    ),
    "overridden": (
        1,
        """
        import pytest
        class Base:
            @pytest.mark.gpus(8)
            def test_a(self): pass
        class TestA(Base):
            @pytest.mark.gpus(1)
            def test_a(self): pass
        """,
    ),
    "base class from elsewhere, own tests": (
        2,
        """
        import pytest
        from elsewhere import Base
        @pytest.mark.gpus(2)
        class TestA(Base):
            def test_a(self): pass
        """,
    ),
    "defined again": (
        0,
        """
        import pytest
        @pytest.mark.gpus(8)
        def test_a(): pass
        def test_a(): pass
        """,
    ),
    "unknown decorator below": (
        2,
        """
        import pytest
        from elsewhere import retry
        @pytest.mark.gpus(2)
        @retry(3)
        def test_a(): pass
        """,
    ),
    "known decorator above": (
        2,
        """
        import pytest, torch
        from unittest import mock
        @torch.no_grad()
        @mock.patch("os.getpid")
        @pytest.mark.gpus(2)
        def test_a(getpid): pass
        """,
    ),
    "other things called gpus": (
        0,
        """
        import ray
        from config import cfg
        def test_a(gpus):
            ray.init(num_gpus=2)
            cfg.trainer.gpus = len(cfg["gpus"])
        """,
    ),
    "never run": (
        2,
        """
        import pytest
        N = 2
        @pytest.mark.gpus(N)
        def test_a(): pass
        if __name__ == "__main__":
            N = 4
        """,
    ),
}


@pytest.mark.parametrize(("num_gpus", "source"), READABLE.values(), ids=READABLE.keys())
def test_literal_markers_are_read(num_gpus: int, source: str) -> None:
    assert need(source) == {**NOTHING, "gpus": num_gpus}


def test_every_argument_is_read() -> None:
    source = """
        import pytest
        @pytest.mark.gpus(2, memory_gb=40, model="H100", min_capability=(9, 0), exclusive=True)
        def test_a(): pass
    """
    wanted = {"gpus": 2, "memory_gb": 40.0, "model": "H100", "min_capability": [9, 0], "exclusive": True}
    assert need(source) == wanted


def test_the_patterns_of_the_suite_decide_what_is_a_test() -> None:
    source = "import pytest\n@pytest.mark.gpus(2)\ndef check_a(): pass\nclass ASuite:\n  def check_b(self): pass"
    assert need(source)["gpus"] == 0
    assert need(source, Patterns(("check_*",), ("*Suite",)))["gpus"] == 2
