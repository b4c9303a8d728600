"""Code is written to be read: what only saves lines is as rare in it as in TRL's own code."""

import ast
import functools

import pytest
from conftest import ROOT


LITERALS = (ast.Tuple, ast.List, ast.Set, ast.Dict, ast.Constant, ast.IfExp, ast.ListComp, ast.SetComp, ast.DictComp)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
SIMPLE_FIELD = 14  # nodes of a syntax tree; {", ".join(sorted(names))} has 9


def nodes_of(code):
    """The nodes of the syntax tree, each with its `parent`."""
    nodes = [*ast.walk(ast.parse(code))]
    nodes[0].parent = None
    for node in nodes:
        for child in ast.iter_child_nodes(node):
            child.parent = node
    return nodes


@functools.cache
def files_in(folder):
    paths = sorted((ROOT / folder).rglob("*.py"))
    return {path.relative_to(ROOT): nodes_of(path.read_text(encoding="utf-8")) for path in paths}


def several_values(node):
    """Several values in one assignment, unless they swap places or are constants of one type."""
    match node:
        case ast.Assign(targets=[ast.Tuple(elts=targets), *_], value=ast.Tuple(elts=[_, _, *_] as values)):
            is_swap = {*map(ast.unparse, targets)} == {*map(ast.unparse, values)}
            # a value that is no constant stands for itself
            types = {type(value.value) if isinstance(value, ast.Constant) else value for value in values}
            return not is_swap and len(types) > 1
    return False


def starred_literal(node):
    """A literal that is unpacked into a literal or a call, so that a formatter cannot give each value its line."""
    match node.parent:
        case ast.Starred() | ast.keyword(arg=None):
            return isinstance(node, LITERALS)
        case ast.Dict(keys=keys, values=values):
            return isinstance(node, LITERALS) and (None, node) in zip(keys, values, strict=True)
    return False


def several_loops(node):
    """A comprehension with several loops."""
    return isinstance(node, COMPREHENSIONS) and len(node.generators) > 1


def walrus(node):
    """An assignment inside an expression, unless it is the condition of an `if` or `while`, or a side of it."""
    holder = node.parent
    if isinstance(holder, ast.Compare | ast.UnaryOp):
        holder = holder.parent
    return isinstance(node, ast.NamedExpr) and not isinstance(holder, ast.If | ast.While)


def nested_conditional(node):
    """A conditional expression with another one inside."""
    return isinstance(node, ast.IfExp) and sum(isinstance(inner, ast.IfExp) for inner in ast.walk(node)) > 1


def computed_message(node):
    """A text with a computation in a field, whose value should have a name."""
    if not isinstance(node, ast.JoinedStr):
        return False
    fields = [part.value for part in node.values if isinstance(part, ast.FormattedValue)]
    return any(len([*ast.walk(field)]) > SIMPLE_FIELD for field in fields)


def sentence_as_key(node):
    """A text with fields as a key, as of messages and the conditions for them."""
    return isinstance(node, ast.JoinedStr) and isinstance(node.parent, ast.Dict) and node in node.parent.keys


# how many there may be in leash_trl and in tests
BOUNDS = [
    (several_values, 30, 50),
    (starred_literal, 5, 10),
    (several_loops, 10, 20),
    (walrus, 6, 4),
    (nested_conditional, 4, 4),
    (computed_message, 2, 2),
    (sentence_as_key, 0, 8),
]


@pytest.mark.parametrize(("idiom", "in_code", "in_tests"), BOUNDS)
def test_what_only_saves_lines_is_rare(idiom, in_code, in_tests):
    for folder, bound in (("leash_trl", in_code), ("tests", in_tests)):
        places = []
        for path, nodes in files_in(folder).items():
            places += [f"{path}:{node.lineno}" for node in nodes if idiom(node)]
        assert len(places) <= bound, "\n".join(places)
