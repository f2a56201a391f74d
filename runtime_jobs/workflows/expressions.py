"""Reads the expressions of `${{ … }}` and `if` into trees.

The grammar is that of document 003's runner: names with dots, text in single quotes, `true`, `false`, `null`,
`== != && || !`, parentheses and seven functions. Anything else is an error: a runner would refuse it later, in the
middle of a job.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from runtime_jobs.workflows.unsupported import unsupported_character, unsupported_context

MAX_LENGTH = 4_096  # characters of one expression
MAX_DEPTH = 32  # parentheses, calls and negations inside one another

# The functions and the numbers of their arguments.
FUNCTIONS = {"contains": 2, "startsWith": 2, "endsWith": 2, "success": 0, "failure": 0, "cancelled": 0, "always": 0}
STATUS_FUNCTIONS = frozenset({"success", "failure", "cancelled", "always"})
FIELDS = ("run_id", "sha", "ref", "actor")  # of `shithub`, beside `event`
# Further fields, which the server and workers of this project know.
MORE_FIELDS = (
    *("event_name", "job", "ref_name", "ref_type", "repository", "repository_owner", "run_attempt", "run_number"),
    "workflow",
)
# Contexts of the steps, which workers of this project know: the names that each has.
STEP_CONTEXTS = {"runner": ("os", "arch", "name"), "job": ("status",)}
STEP_MEMBERS = ("outcome", "conclusion")  # of `steps.ID`, beside `outputs`

_TOKEN = re.compile(
    r"(?P<text>'(?:[^']|'')*+')|(?P<name>[^\W\d][\w-]*)|(?P<operator>&&|\|\||==|!=|[!().,])|(?P<space>[ \t\r\n]+)"
)
_LITERALS: dict[str, bool | None] = {"true": True, "false": False, "null": None}


class ExpressionError(Exception):
    """The expression is malformed, or uses a name or function that does not exist."""


@dataclass(frozen=True, slots=True)
class LiteralOperand:
    """A text, a boolean or null."""

    value: str | bool | None


@dataclass(frozen=True, slots=True)
class Reference:
    """A value of a context, such as `shithub.event.inputs.target`."""

    path: tuple[str, ...]
    start: int
    end: int

    def __str__(self) -> str:
        return ".".join(self.path)


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A call of one of `FUNCTIONS`."""

    name: str
    arguments: "tuple[Expression, ...]"


@dataclass(frozen=True, slots=True)
class Negation:
    """`!operand`."""

    operand: "Expression"


@dataclass(frozen=True, slots=True)
class Comparison:
    """`left == right`, or `left != right`."""

    left: "Expression"
    right: "Expression"
    is_equal: bool


@dataclass(frozen=True, slots=True)
class Conjunction:
    """`a && b && …`."""

    operands: "tuple[Expression, ...]"


@dataclass(frozen=True, slots=True)
class Disjunction:
    """`a || b || …`."""

    operands: "tuple[Expression, ...]"


Expression = LiteralOperand | Reference | FunctionCall | Negation | Comparison | Conjunction | Disjunction


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str  # text, name, operator or end
    text: str
    start: int
    end: int


def parse_expression(source: str) -> Expression:
    """Return the tree of an expression without its `${{ }}`.

    Args:
        source: The text, at most `MAX_LENGTH` characters.

    Raises:
        ExpressionError: The text is no expression. The message names the character.
    """
    if len(source) > MAX_LENGTH:
        raise ExpressionError(f"The expression has {len(source)} characters. At most {MAX_LENGTH} are allowed.")
    parser = _Parser(list(_tokens(source)))
    expression = parser.disjunction(0)
    parser.expect_end()
    return expression


def _tokens(source: str) -> Iterator[_Token]:
    place = 0
    while place < len(source):
        found = _TOKEN.match(source, place)
        if found is None:
            if source[place] == "'":
                raise ExpressionError(f"The text at character {place + 1} has no closing quote.")
            raise ExpressionError(unsupported_character(source, place))
        if found.lastgroup != "space":
            yield _Token(str(found.lastgroup), found[0], found.start(), found.end())
        place = found.end()
    yield _Token("end", "", place, place)


class _Parser:
    """Parses by recursive descent, from the weakest operator to the strongest."""

    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._place = 0

    @property
    def _next(self) -> _Token:
        return self._tokens[self._place]

    def _take(self) -> _Token:
        token = self._next
        self._place += 1
        return token

    def _skip(self, operator: str) -> bool:
        if self._next.kind == "operator" and self._next.text == operator:
            self._place += 1
            return True
        return False

    def _unexpected(self, wanted: str) -> ExpressionError:
        token = self._next
        found = f"{token.text!a} at character {token.start + 1}" if token.kind != "end" else "the end"
        return ExpressionError(f"Unexpected {found}: {wanted} is missing.")

    def expect_end(self) -> None:
        if self._next.kind != "end":
            raise self._unexpected("an operator")

    def disjunction(self, depth: int) -> Expression:
        operands = [self._conjunction(depth)]
        while self._skip("||"):
            operands.append(self._conjunction(depth))
        return operands[0] if len(operands) == 1 else Disjunction(tuple(operands))

    def _conjunction(self, depth: int) -> Expression:
        operands = [self._comparison(depth)]
        while self._skip("&&"):
            operands.append(self._comparison(depth))
        return operands[0] if len(operands) == 1 else Conjunction(tuple(operands))

    def _comparison(self, depth: int) -> Expression:
        left = self._operand(depth)
        while self._next.text in {"==", "!="} and self._next.kind == "operator":
            is_equal = self._take().text == "=="
            depth += 1  # the tree grows to the left
            self._require_depth(depth)
            left = Comparison(left, self._operand(depth), is_equal)
        return left

    def _require_depth(self, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise ExpressionError(f"The expression is nested too deeply. At most {MAX_DEPTH} levels are allowed.")

    def _operand(self, depth: int) -> Expression:
        self._require_depth(depth)
        if self._skip("!"):
            return Negation(self._operand(depth + 1))
        if self._skip("("):
            inner = self.disjunction(depth + 1)
            if not self._skip(")"):
                raise self._unexpected("')'")
            return inner
        token = self._next
        if token.kind == "text":
            self._place += 1
            return LiteralOperand(token.text[1:-1].replace("''", "'"))
        if token.kind == "name":
            self._place += 1
            return self._named(token, depth)
        raise self._unexpected("a value")

    def _named(self, first: _Token, depth: int) -> Expression:
        if self._skip("("):
            return self._call(first, depth)
        if first.text in _LITERALS:
            return LiteralOperand(_LITERALS[first.text])
        path, end = [first.text], first.end
        while self._skip("."):
            if self._next.kind != "name":
                raise self._unexpected("a name after the dot")
            token = self._take()
            path.append(token.text)
            end = token.end
        if path[0] != "steps" and any("-" in name for name in path):
            name = ".".join(path)
            raise ExpressionError(unsupported_context(path[0]) or f"{name}: A name here has no '-'. Write '_' instead.")
        return Reference(tuple(path), first.start, end)

    def _call(self, name: _Token, depth: int) -> FunctionCall:
        arguments: list[Expression] = []
        if not self._skip(")"):
            arguments.append(self.disjunction(depth + 1))
            while self._skip(","):
                arguments.append(self.disjunction(depth + 1))
            if not self._skip(")"):
                raise self._unexpected("')'")
        if name.text not in FUNCTIONS:
            raise ExpressionError(f"The function {name.text!a} does not exist. There are: {', '.join(FUNCTIONS)}.")
        if len(arguments) != FUNCTIONS[name.text]:
            needed = FUNCTIONS[name.text]
            raise ExpressionError(f"The function {name.text} takes {needed} arguments; this call has {len(arguments)}.")
        return FunctionCall(name.text, tuple(arguments))


def walk(expression: Expression) -> Iterator[Expression]:
    """Yield an expression and all parts of it."""
    yield expression
    match expression:
        case FunctionCall(arguments=parts) | Conjunction(operands=parts) | Disjunction(operands=parts):
            for part in parts:
                yield from walk(part)
        case Negation(operand=operand):
            yield from walk(operand)
        case Comparison(left=left, right=right):
            yield from walk(left)
            yield from walk(right)


def references(expression: Expression) -> list[Reference]:
    """Return the references of an expression, in the order of its text."""
    found = [part for part in walk(expression) if isinstance(part, Reference)]
    return sorted(found, key=lambda reference: reference.start)


def status_functions(expression: Expression) -> frozenset[str]:
    """Return the names of the status functions that an expression calls."""
    calls = (part.name for part in walk(expression) if isinstance(part, FunctionCall))
    return frozenset(calls) & STATUS_FUNCTIONS


@dataclass(frozen=True)
class ExpressionScope:
    """The names that an expression may use at its place in a workflow file.

    Attributes:
        contexts: Of `secrets`, `vars` and `env`, those that exist there, and `steps` for the contexts of steps.
            `shithub` exists everywhere.
        has_event: Whether `shithub.event` may be used.
        has_status: Whether the status functions may be used.
    """

    contexts: frozenset[str]
    has_event: bool = True
    has_status: bool = True


# `run` and `env`: a runner evaluates them.
RUNNER_SCOPE = ExpressionScope(frozenset({"secrets", "vars", "env"}))
# `with` and `working-directory`: no runner evaluates them, so the server does, into text.
SERVER_SCOPE = ExpressionScope(frozenset({"vars", "steps"}), has_event=False, has_status=False)
# The texts of a step.
STEP_SCOPE = ExpressionScope(RUNNER_SCOPE.contexts | {"steps"})
STEP_CONDITION_SCOPE = STEP_SCOPE
# `if` of a job: decided outside of a claim, where no secret is read.
JOB_CONDITION_SCOPE = ExpressionScope(frozenset({"vars", "env"}))
# `concurrency`: decided when the run starts.
GROUP_SCOPE = ExpressionScope(frozenset(), has_status=False)


def validate_names(expression: Expression, scope: ExpressionScope) -> list[str]:
    """Return an error for each name of an expression that does not exist at its place."""
    errors = []
    if not scope.has_status and (names := status_functions(expression)):
        errors.append(f"The functions {', '.join(sorted(names))} cannot be used here.")
    found = (
        _validate_step_reference(reference, scope)
        if reference.path[0] in {"steps", *STEP_CONTEXTS}
        else _validate_reference(reference, scope)
        for reference in references(expression)
    )
    return errors + [error for error in found if error]


def _validate_reference(reference: Reference, scope: ExpressionScope) -> str | None:
    root, *members = reference.path
    if root in {"secrets", "vars", "env"}:
        if root not in scope.contexts:
            return f"{root} cannot be used here."
        return None if len(members) == 1 else f"{reference} is wrong: {root} needs exactly one name, as in {root}.NAME."
    if root not in {"shithub", "github"}:
        return unsupported_context(root) or f"{root!a} does not exist. There are: secrets, vars, env, shithub."
    fields = (*FIELDS, "event", *MORE_FIELDS)
    if not members or members[0] not in fields:
        return f"{reference} does not exist. There are: {', '.join(f'shithub.{name}' for name in fields)}."
    if members[0] == "event":
        return None if scope.has_event else "shithub.event cannot be used here: its values are not trusted."
    return None if len(members) == 1 else f"{reference} does not exist: shithub.{members[0]} has no members."


def _validate_step_reference(reference: Reference, scope: ExpressionScope) -> str | None:
    root, *members = reference.path
    if "steps" not in scope.contexts:
        return f"{root} cannot be used here."
    if root in STEP_CONTEXTS:
        if len(members) == 1 and members[0] in STEP_CONTEXTS[root]:
            return None
        return f"{reference} does not exist. There are: {', '.join(f'{root}.{name}' for name in STEP_CONTEXTS[root])}."
    match members:
        case [_, "outputs", _]:
            return None
        case [_, member] if member in STEP_MEMBERS:
            return None
    return f"{reference} is wrong: write steps.ID.outputs.NAME, steps.ID.outcome or steps.ID.conclusion."


def is_fact(reference: Reference) -> bool:
    """Return whether the server and workers of this project know a value, and runners of others do not."""
    root, *members = reference.path
    return root in {"steps", *STEP_CONTEXTS} or (root in {"shithub", "github"} and members[0] in MORE_FIELDS)


def is_for_own_workers(expression: Expression) -> bool:
    """Return whether only workers of this project can execute a step with this expression."""
    return any(map(is_fact, references(expression)))
