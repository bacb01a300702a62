"""Prose of the pages, the length of its sentences, and the texts in code that users read."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

MAX_WORDS = 30

_ERRORS = ("Error", "BadParameter")
_HELP = ("help", "short_help", "epilog")
_FENCED = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_CODE = re.compile(r"``.+?``|`[^`]+`")
_LINK = re.compile(r"!?\[([^]]*)\]\([^)]*\)")
_MARKER = re.compile(r"^ *(?:[-*#>]+|\d+\.) +", re.MULTILINE)
_BLOCK = re.compile(r"\n\s*\n|\|")
_END = re.compile(r"(?<=[.!?])(?<!e\.g\.)(?<!i\.e\.)[)\"*]*\s+")
_WORD = re.compile(r"[^\W_][\w'.,/-]*")


class Text(NamedTuple):
    """A text of a program that its users read."""

    path: str
    line: int
    text: str


def prose(page: str) -> str:
    """Return the prose of a page: without code blocks and comments, words in code font as one underscore."""
    page = _COMMENT.sub("", _FENCED.sub("", page))
    return _CODE.sub("_", _LINK.sub(r"\1", _CODE.sub(lambda code: code[0].replace("]", ""), page)))


def sentences(page: str) -> list[str]:
    """Return the sentences of a page's prose; a heading, a list item and a cell of a table end one."""
    blocks = (" ".join(block.split()) for block in _BLOCK.split(_MARKER.sub("\n\n", prose(page))))
    return [sentence for block in blocks for sentence in _END.split(block) if _WORD.search(sentence)]


def num_words(sentence: str) -> int:
    """Return the number of words of a sentence, a piece of code being one."""
    return len(_WORD.findall(re.sub(r"_+", " code ", sentence)))


def long_sentences(page: str) -> list[str]:
    """Return the sentences of a page that have too many words."""
    return [sentence for sentence in sentences(page) if num_words(sentence) > MAX_WORDS]


def texts_for_users(path: Path) -> Iterator[Text]:
    """Yield the texts of a module that users read: help, messages of errors, docstrings of what is public."""
    tree = ast.parse(path.read_text("utf-8"))
    raised = {node.exc for node in ast.walk(tree) if isinstance(node, ast.Raise)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (node in raised or _name(node.func).endswith(_ERRORS)):
            yield from _literals(path, [*node.args, *(keyword.value for keyword in node.keywords)])
        elif isinstance(node, ast.Call):
            yield from _literals(path, [each.value for each in node.keywords if each.arg in _HELP])
    if path.stem == "__init__" or not path.stem.startswith("_"):
        yield from _docstrings(path, tree)


def _docstrings(path: Path, node: ast.Module | ast.ClassDef) -> Iterator[Text]:
    """Yield the docstring of a module or a class, and those of its public members and attributes."""
    for each in node.body:
        if isinstance(each, ast.Expr):
            yield from _literals(path, [each.value])
        elif isinstance(each, ast.ClassDef) and not each.name.startswith("_"):
            yield from _docstrings(path, each)
        elif isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and not each.name.startswith("_"):
            yield from _literals(path, [first.value for first in each.body[:1] if isinstance(first, ast.Expr)])


def _literals(path: Path, nodes: list[ast.expr]) -> Iterator[Text]:
    """Yield the literal texts of expressions, and the literal parts of their f-strings as one text."""
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else "_" for part in node.values]
            yield Text(path.as_posix(), node.lineno, "".join(map(str, parts)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield Text(path.as_posix(), node.lineno, node.value)
        else:
            children = [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
            yield from _literals(path, children)


def _name(node: ast.expr) -> str:
    """Return the last name of what is called."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
