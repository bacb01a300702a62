"""Markers that source alone does not show: each is told, with the reason, never guessed."""

import ast
import re
import textwrap

import pytest

from harness.runner.declarations import Patterns
from harness.runner.declared_tests import declared_needs
from harness.runner.marker_values import UnknownValue

UNREADABLE = {
    "computed argument": (
        "line 3: the gpus marker's argument torch.cuda.device_count() is not literal",
        """
        import pytest, torch
        @pytest.mark.gpus(torch.cuda.device_count())
        def test_a(): pass
        """,
    ),
    "changing constant": (
        "not literal",
        """
        import os, pytest
        N = 2
        if "BIG" in os.environ:
            N = 8
        @pytest.mark.gpus(N)
        def test_a(): pass
        """,
    ),
    "conditional pytestmark": (
        "pytestmark",
        """
        import os, pytest
        if "BIG" in os.environ:
            pytestmark = pytest.mark.gpus(8)
        def test_a(): pass
        """,
    ),
    "conditional test": (
        "line 4: only running pytest.mark.gpus",
        """
        import os, pytest
        if "BIG" in os.environ:
            @pytest.mark.gpus(8)
            def test_a(): pass
        """,
    ),
    "conditional test of a marked module": (
        "only importing it shows which",
        """
        import os, pytest
        pytestmark = pytest.mark.gpus(8)
        @pytest.mark.gpus(1)
        def test_a(): pass
        if "BIG" in os.environ:
            def test_b(): pass
        """,
    ),
    "marked test replaced under a condition": (
        "test_a is bound more than once, or under a condition",
        """
        import os, pytest
        @pytest.mark.gpus(8)
        def test_a(): pass
        if "SMALL" in os.environ:
            def test_a(): pass
        """,
    ),
    "alias replaced under a condition": (
        "big is bound more than once, or under a condition",
        """
        import os, pytest
        big = pytest.mark.gpus(8)
        if "SMALL" in os.environ:
            big = pytest.mark.slow
        @big
        def test_a(): pass
        """,
    ),
    "imported test of a marked module": (
        "only importing it shows which",
        """
        import pytest
        from elsewhere import test_b
        pytestmark = pytest.mark.gpus(8)
        """,
    ),
    "local decorator": (
        "only running pytest.mark.gpus",
        """
        import pytest
        def big(test):
            return pytest.mark.gpus(8)(test)
        @big
        def test_a(): pass
        """,
    ),
    "decorator that may drop it": (
        "wrapped may drop the gpus marker below it",
        """
        import pytest
        from elsewhere import wrapped
        @wrapped
        @pytest.mark.gpus(8)
        def test_a(): pass
        """,
    ),
    "comprehension": (
        "only running",
        """
        import pytest
        @pytest.mark.parametrize("n", [pytest.param(n, marks=pytest.mark.gpus(n)) for n in (1, 2)])
        def test_a(n): pass
        """,
    ),
    "applied at run time": (
        "only running",
        """
        import pytest
        def test_a(request):
            request.applymarker(pytest.mark.gpus(2))
        """,
    ),
    "by a computed name": (
        "only running getattr",
        """
        import pytest
        NAME = "gpus"
        @getattr(pytest.mark, NAME)(2)
        def test_a(): pass
        """,
    ),
    "by its name as text": (
        "only running",
        """
        def test_a(request):
            request.node.add_marker("gpus")
        """,
    ),
    "namespace of marks": (
        "only running Marks.big",
        """
        import pytest
        class Marks:
            big = pytest.mark.gpus(8)
        @Marks.big
        def test_a(): pass
        """,
    ),
    "dictionary of marks": (
        "only running",
        """
        import pytest
        MARKS = {"big": pytest.mark.gpus(8)}
        @MARKS["big"]
        def test_a(): pass
        """,
    ),
    "star import of pytest": ("only running", "from pytest import *\n@mark.gpus(2)\ndef test_a(): pass"),
    "marked test used again": (
        "test_a carries a gpus marker and is used again",
        """
        import functools, pytest
        @pytest.mark.gpus(8)
        def test_a(n): pass
        test_b = functools.partial(test_a, 1)
        """,
    ),
    "two bases that ask for different things": (
        "a class and its base class",
        """
        import pytest
        class Base:
            pytestmark = pytest.mark.gpus(4)
        class TestA(Base):
            pytestmark = pytest.mark.gpus(2)
            def test_a(self): pass
        """,
    ),
    "wrong argument": ("number of GPUs -1", "import pytest\n@pytest.mark.gpus(-1)\ndef test_a(): pass"),
    "no argument": ("without a number", "import pytest\n@pytest.mark.gpus\ndef test_a(): pass"),
    "two models": (
        "'A100' and 'H100'",
        """
        import pytest
        @pytest.mark.gpus(1, model="A100")
        def test_a(): pass
        @pytest.mark.gpus(1, model="H100")
        def test_b(): pass
        """,
    ),
    "tuple": ("pytestmark is a tuple", "import pytest\npytestmark = (pytest.mark.gpus(2),)\ndef test_a(): pass"),
    "__test__": (
        "__test__ is set",
        """
        import pytest
        class TestA:
            __test__ = False
            @pytest.mark.gpus(2)
            def test_a(self): pass
        """,
    ),
    "fixture": (
        "only running",
        """
        import pytest
        @pytest.fixture(params=[pytest.param(1, marks=pytest.mark.gpus(2))])
        def GPUs(request): pass
        def test_a(GPUs): pass
        """,
    ),
    "abstract": (
        "only importing it shows which",
        """
        import abc, pytest
        class TestA(abc.ABC):
            @pytest.mark.gpus(2)
            @abc.abstractmethod
            def test_a(self): pass
        """,
    ),
}


@pytest.mark.parametrize(("reason", "source"), UNREADABLE.values(), ids=UNREADABLE.keys())
def test_what_cannot_be_read_is_told_with_its_reason(reason: str, source: str) -> None:
    with pytest.raises(UnknownValue, match=re.escape(reason)):
        declared_needs(ast.parse(textwrap.dedent(source)), Patterns())
