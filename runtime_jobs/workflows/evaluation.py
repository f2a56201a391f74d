"""Evaluates expressions of workflow files, as far as their values are known.

Each value carries whether it is tainted: it depends on the event, whose texts a stranger may have written, or on a
secret. Operators and functions pass the taint on. A tainted value is never pasted into text that a shell reads.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from runtime_jobs.workflows.expressions import (
    Comparison,
    Conjunction,
    Disjunction,
    Expression,
    ExpressionError,
    FunctionCall,
    LiteralOperand,
    Negation,
    Reference,
    is_fact,
    status_functions,
)

T = TypeVar("T")


class UndecidedError(Exception):
    """The expression depends on a value that is not known yet."""


@dataclass(frozen=True, slots=True)
class ExpressionValue:
    """A value of an expression.

    Attributes:
        value: A text, a boolean, or None for null.
        is_tainted: The value depends on the event or on a secret.
    """

    value: str | bool | None
    is_tainted: bool = False

    @property
    def is_true(self) -> bool:
        """Whether the value counts as true: `true`, or a text that is not empty."""
        return bool(self.value)

    @property
    def text(self) -> str:
        """The value as text: null is empty."""
        if isinstance(self.value, bool):
            return "true" if self.value else "false"
        return self.value or ""


@dataclass(frozen=True, slots=True)
class ConditionStatus:
    """The ends of the jobs or steps before a condition.

    Attributes:
        is_success: All of them succeeded.
        is_failure: One of them failed.
        is_cancelled: The run or one of them was canceled.
    """

    is_success: bool = True
    is_failure: bool = False
    is_cancelled: bool = False


@dataclass(frozen=True)
class ExpressionContext:
    """The values that expressions may refer to. None: the value is not known yet.

    Attributes:
        event: The payload of the event.
        run_id: The id of the run.
        sha: The commit of the run.
        ref: The ref of the run.
        actor: The name of the person or program that caused the run.
        variables: The values of `vars`, by name in upper case. A name that is missing is empty.
        secrets: The values of `secrets`, by name in upper case. A name that is missing is an error.
        env: The values of `env`, already evaluated; None: not known. A name that is missing is empty.
        status: The values of the status functions.
        facts: Other values by their whole name, such as `shithub.ref_name` and `steps.build.outputs.version`. A name
            that is missing is empty.
    """

    event: Mapping[str, Any] = field(default_factory=dict)
    run_id: str | None = None
    sha: str | None = None
    ref: str | None = None
    actor: str | None = None
    variables: Mapping[str, str] | None = None
    secrets: Mapping[str, str] | None = None
    env: Mapping[str, ExpressionValue | None] | None = None
    status: ConditionStatus | None = None
    facts: Mapping[str, ExpressionValue] | None = None


def evaluate(expression: Expression, context: ExpressionContext) -> ExpressionValue:  # noqa: PLR0911 a kind each
    """Return the value of an expression.

    Raises:
        UndecidedError: A value that decides the result is not known yet.
        ExpressionError: A secret does not exist, or a name does not.
    """
    match expression:
        case LiteralOperand(value=value):
            return ExpressionValue(value)
        case Reference():
            return _refer(expression, context)
        case FunctionCall():
            return _call(expression, context)
        case Negation(operand=operand):
            inner = evaluate(operand, context)
            return ExpressionValue(not inner.is_true, inner.is_tainted)
        case Comparison(left=left, right=right, is_equal=is_equal):
            a, b = evaluate(left, context), evaluate(right, context)
            return ExpressionValue(_are_equal(a, b) is is_equal, a.is_tainted or b.is_tainted)
        case Conjunction(operands=operands):
            return _first(operands, context, stop_at=False)
        case Disjunction(operands=operands):
            return _first(operands, context, stop_at=True)


def _first(operands: tuple[Expression, ...], context: ExpressionContext, *, stop_at: bool) -> ExpressionValue:
    """Return the first operand that decides the result, or the last one. Each one before has passed on its taint."""
    is_tainted = False
    for operand in operands:
        value = evaluate(operand, context)
        is_tainted = is_tainted or value.is_tainted
        if value.is_true is stop_at:
            break
    return ExpressionValue(value.value, is_tainted)


def _are_equal(a: ExpressionValue, b: ExpressionValue) -> bool:
    if a.value is None or b.value is None:
        return a.value is b.value
    return a.text == b.text


def _call(call: FunctionCall, context: ExpressionContext) -> ExpressionValue:
    if call.name == "always":
        return ExpressionValue(value=True)
    if not call.arguments:
        if context.status is None:
            raise UndecidedError(call.name)
        values = {
            "success": context.status.is_success,
            "failure": context.status.is_failure,
            "cancelled": context.status.is_cancelled,
        }
        return ExpressionValue(values[call.name])
    whole, part = (evaluate(argument, context) for argument in call.arguments)
    match call.name:
        case "startsWith":
            found = whole.text.startswith(part.text)
        case "endsWith":
            found = whole.text.endswith(part.text)
        case _:
            found = part.text in whole.text
    return ExpressionValue(found, whole.is_tainted or part.is_tainted)


def _refer(reference: Reference, context: ExpressionContext) -> ExpressionValue:
    root, *members = reference.path
    match root:
        case "secrets":
            secrets = _known(context.secrets, reference)
            if members[0].upper() not in secrets:
                raise ExpressionError(f"The secret {members[0]} does not exist.")
            return ExpressionValue(secrets[members[0].upper()], is_tainted=True)
        case "vars":
            return ExpressionValue(_known(context.variables, reference).get(members[0].upper(), ""))
        case "env":
            return _known(_known(context.env, reference).get(members[0], ExpressionValue("")), reference)
        case "steps" | "runner" | "job" | "shithub" | "github" if is_fact(reference):
            name = ".".join(("shithub" if root == "github" else root, *members))
            return _known(context.facts, reference).get(name, ExpressionValue(""))
        case "shithub" | "github":
            if members[0] == "event":
                return _event_value(context.event, members[1:])
            return ExpressionValue(_known(getattr(context, members[0]), reference))
    raise ExpressionError(f"{root!a} does not exist.")


def _known(value: T | None, reference: Reference) -> T:
    if value is None:
        raise UndecidedError(str(reference))
    return value


def _event_value(event: Mapping[str, Any], path: list[str]) -> ExpressionValue:
    """Return a member of the event. A member that does not exist is null, and tainted too: its absence says much."""
    value: Any = event
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    if value is None or isinstance(value, str | bool):
        return ExpressionValue(value, is_tainted=True)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return ExpressionValue(json.dumps(value, ensure_ascii=False, sort_keys=True), is_tainted=True)


def decide(expression: Expression, context: ExpressionContext) -> bool | None:
    """Return whether a condition is true, or None if a value that decides it is not known yet.

    `a && b` is false if one of both is false, although the other one is not known.

    Raises:
        ExpressionError: A secret does not exist, or a name does not.
    """
    match expression:
        case Negation(operand=operand):
            inner = decide(operand, context)
            return None if inner is None else not inner
        case Conjunction(operands=operands):
            return _any_or_all(operands, context, decisive=False)
        case Disjunction(operands=operands):
            return _any_or_all(operands, context, decisive=True)
        case _:
            try:
                return evaluate(expression, context).is_true
            except UndecidedError:
                return None


def _any_or_all(operands: tuple[Expression, ...], context: ExpressionContext, *, decisive: bool) -> bool | None:
    decisions = [decide(operand, context) for operand in operands]
    if decisive in decisions:
        return decisive
    return None if None in decisions else not decisive


def decide_condition(expression: Expression | None, context: ExpressionContext) -> bool | None:
    """Return whether a job or step with this `if` runs, or None if that is not known yet.

    Without a status function, `success()` is implied.

    Args:
        expression: The condition, or None for a job or step without one.
        context: The known values.

    Raises:
        ExpressionError: A secret does not exist.
    """
    success = FunctionCall("success", ())
    if expression is None:
        return decide(success, context)
    if status_functions(expression):
        return decide(expression, context)
    return decide(Conjunction((success, expression)), context)
