"""Code is written to be read: what only saves lines is as rare in it as in TRL's own code."""

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import ROOT


LITERALS = (ast.Tuple, ast.List, ast.Set, ast.Dict, ast.Constant, ast.IfExp, ast.ListComp, ast.SetComp, ast.DictComp)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
SIMPLE_FIELD = 14  # nodes of a syntax tree; {", ".join(sorted(names))} has 9


def several_values(tree: ast.Module) -> Iterator[ast.AST]:
    """Several values in one assignment, unless they swap places or are constants of one type."""
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Tuple(elts=targets), *_], value=ast.Tuple(elts=[_, _, *_] as values)):
                is_swap = {*map(ast.unparse, targets)} == {*map(ast.unparse, values)}
                # a value that is no constant stands for itself
                types = {type(value.value) if isinstance(value, ast.Constant) else value for value in values}
                if not is_swap and len(types) > 1:
                    yield node


def starred_literals(tree: ast.Module) -> Iterator[ast.AST]:
    """Literals that are unpacked into a literal or a call, so that a formatter cannot give each value its line."""
    for node in ast.walk(tree):
        unpacked = []
        match node:
            case ast.Starred(value=value) | ast.keyword(arg=None, value=value):
                unpacked = [value]
            case ast.Dict(keys=keys, values=values):
                unpacked = [value for key, value in zip(keys, values, strict=True) if key is None]
        yield from (value for value in unpacked if isinstance(value, LITERALS))


def several_loops(tree: ast.Module) -> Iterator[ast.AST]:
    """Comprehensions with several loops."""
    for node in ast.walk(tree):
        if isinstance(node, COMPREHENSIONS) and len(node.generators) > 1:
            yield node


def walruses(tree: ast.Module) -> Iterator[ast.AST]:
    """Assignments inside expressions, unless they are the condition of an `if` or `while`, or a side of it."""
    plain = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If | ast.While):
            plain.add(node.test)
            if isinstance(node.test, ast.Compare | ast.UnaryOp):
                plain.update(ast.iter_child_nodes(node.test))
    for node in ast.walk(tree):
        if isinstance(node, ast.NamedExpr) and node not in plain:
            yield node


def nested_conditionals(tree: ast.Module) -> Iterator[ast.AST]:
    """Conditional expressions inside others."""
    for node in ast.walk(tree):
        if isinstance(node, ast.IfExp) and sum(isinstance(inner, ast.IfExp) for inner in ast.walk(node)) > 1:
            yield node


def computed_messages(tree: ast.Module) -> Iterator[ast.AST]:
    """Texts with a computation in a field, whose value should have a name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            fields = [part.value for part in node.values if isinstance(part, ast.FormattedValue)]
            if any(len([*ast.walk(field)]) > SIMPLE_FIELD for field in fields):
                yield node


def sentences_as_keys(tree: ast.Module) -> Iterator[ast.AST]:
    """Texts with fields as keys of a mapping, as of messages and the conditions for them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            yield from (key for key in node.keys if isinstance(key, ast.JoinedStr))


@functools.cache
def trees(folder: str) -> dict[Path, ast.Module]:
    paths = sorted((ROOT / folder).rglob("*.py"))
    return {path.relative_to(ROOT): ast.parse(path.read_text(encoding="utf-8")) for path in paths}


# how many there may be in leash_trl and in tests
BOUNDS = [
    (several_values, 30, 50),
    (starred_literals, 5, 10),
    (several_loops, 10, 20),
    (walruses, 6, 4),
    (nested_conditionals, 4, 4),
    (computed_messages, 2, 2),
    (sentences_as_keys, 0, 8),
]


@pytest.mark.parametrize(("idiom", "in_code", "in_tests"), BOUNDS)
def test_what_only_saves_lines_is_rare(idiom, in_code, in_tests):
    for folder, bound in (("leash_trl", in_code), ("tests", in_tests)):
        places = []
        for path, tree in trees(folder).items():
            places += [f"{path}:{node.lineno}" for node in idiom(tree)]
        assert len(places) <= bound, "\n".join(places)


@pytest.mark.parametrize(
    ("idiom", "example", "counterexample"),
    [
        (several_values, "low, names = min(x), []", "low, high = high, low"),
        (several_values, "size, name = 1, 'x'", "size, count = 1, 2"),
        (several_values, "low, high = x[0], x[1]", "low, high = x"),
        (starred_literals, "[*(1, 2), *x]", "[1, 2, *x]"),
        (starred_literals, "{**{'a': 1}, **x}", "{'a': 1, **x}"),
        (starred_literals, "f(*x, **{'a': 1})", "f(*x, **y)"),
        (several_loops, "[value for row in x for value in row]", "[[value for value in row] for row in x]"),
        (walruses, "if a and (b := f(a)): pass", "if b := f(a): pass"),
        (walruses, "x = [b := f(a), b]", "while (b := f(a)) > 1: pass"),
        (nested_conditionals, "a if x else b if y else c", "(a if x else b) + (c if y else d)"),
        (computed_messages, "f'{100 * sum(x) / len(x) + y[0]} %'", "f'{max(sorted(names), key=len)} is missing'"),
        (sentences_as_keys, "{f'{name} is missing': name is None}", "{'missing': f'{name} is missing'}"),
    ],
)
def test_an_idiom_is_told_from_plain_code(idiom, example, counterexample):
    assert len([*idiom(ast.parse(example))]) == 1
    assert not [*idiom(ast.parse(counterexample))]
