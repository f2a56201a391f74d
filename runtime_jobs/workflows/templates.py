"""Texts that contain expressions as `${{ … }}`: their parts, their values, and the form that a runner receives."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from runtime_jobs.workflows.evaluation import ExpressionContext, ExpressionValue, UndecidedError, evaluate
from runtime_jobs.workflows.expressions import Expression, ExpressionError, Reference, parse_expression, references

_OPEN, _CLOSE = "${{", "}}"
_EMPTY = "${{ '' }}"  # an expression without text: separates characters that must not join to `${{`


@dataclass(frozen=True, slots=True)
class TemplateExpression:
    """An expression in a text.

    Attributes:
        source: The text between `${{` and `}}`.
        expression: The tree of it.
    """

    source: str
    expression: Expression


def split_template(text: str) -> Iterator[str | TemplateExpression]:
    """Yield the literal parts and the expressions of a text, in order.

    An expression ends at the first `}}`, also within quotes: a runner splits the text so.

    Raises:
        ExpressionError: An expression is malformed, or has no `}}`.
    """
    place = 0
    while (start := text.find(_OPEN, place)) >= 0:
        if start > place:
            yield text[place:start]
        end = text.find(_CLOSE, start + len(_OPEN))
        if end < 0:
            raise ExpressionError("'${{' has no closing '}}'.")
        source = text[start + len(_OPEN) : end]
        yield TemplateExpression(source, parse_expression(source))
        place = end + len(_CLOSE)
    if place < len(text):
        yield text[place:]


def template_expressions(text: str) -> list[Expression]:
    """Return the expressions of a text.

    Raises:
        ExpressionError: An expression is malformed, or has no `}}`.
    """
    return [part.expression for part in split_template(text) if isinstance(part, TemplateExpression)]


def condition_source(text: str) -> str:
    """Return the expression of an `if`, with or without `${{ }}` around it."""
    stripped = text.strip()
    if stripped.startswith(_OPEN) and stripped.endswith(_CLOSE) and stripped.count(_OPEN) == 1:
        return stripped[len(_OPEN) : -len(_CLOSE)]
    return stripped


def parse_condition(text: str) -> Expression | None:
    """Return the tree of an `if`, or None if the text is empty.

    Raises:
        ExpressionError: The text is no expression.
    """
    source = condition_source(text)
    return parse_expression(source) if source.strip() else None


def render(text: str, context: ExpressionContext) -> ExpressionValue:
    """Return a text with the values of its expressions. It is tainted if one of them is.

    Raises:
        UndecidedError: A value is not known yet.
        ExpressionError: An expression is malformed, or a secret does not exist.
    """
    rendered, is_tainted = [], False
    for part in split_template(text):
        if isinstance(part, str):
            rendered.append(part)
            continue
        value = evaluate(part.expression, context)
        rendered.append(value.text)
        is_tainted = is_tainted or value.is_tainted
    return ExpressionValue("".join(rendered), is_tainted)


def render_for_shell(text: str, context: ExpressionContext, prefix: str) -> tuple[str, dict[str, str]]:
    """Return a script with the values of its expressions, and variables of the environment that it refers to.

    Tainted values are not pasted: the script refers to a variable, whose content is no part of a command.

    Args:
        text: The script.
        context: All values.
        prefix: Begins the names of the variables.

    Raises:
        ExpressionError: An expression is malformed, or a secret does not exist.
    """
    parts: list[str] = []
    variables: dict[str, str] = {}
    for part in split_template(text):
        if isinstance(part, str):
            parts.append(part)
            continue
        value = evaluate(part.expression, context)
        if value.is_tainted:
            name = f"{prefix}{len(variables)}"
            variables[name] = value.text
            parts.append(f"${{{name}}}")
        else:
            parts.append(value.text)
    return "".join(parts), variables


def render_variables(env: Mapping[str, str], context: ExpressionContext) -> ExpressionContext:
    """Return the context with the evaluated variables of a job as `env`.

    A variable that depends on an unknown value, such as a secret, is not known either. Nor is one that cannot be
    evaluated: a runner fails the steps then.

    Args:
        env: The texts of the variables by name.
        context: The known values. Within the texts `env` refers to these.
    """
    values: dict[str, ExpressionValue | None] = {}
    for name, text in env.items():
        try:
            values[name] = render(text, context)
        except (UndecidedError, ExpressionError):
            values[name] = None
    return replace(context, env=values)


def use_canonical_names(text: str) -> str:
    """Return a text with `github.` replaced by `shithub.` in its expressions: a runner knows the latter only.

    Raises:
        ExpressionError: An expression is malformed.
    """
    return _rewrite(text, lambda part: _OPEN + use_canonical_names_in_condition(part.source) + _CLOSE)


def use_canonical_names_in_condition(source: str) -> str:
    """Return an expression with `github.` replaced by `shithub.`; see `use_canonical_names`.

    Raises:
        ExpressionError: The expression is malformed.
    """
    expression = parse_expression(source)
    return _replace(source, expression, lambda found: f"shithub.{'.'.join(found.path[1:])}", _is_alias)


def uses_alias(expression: Expression) -> bool:
    """Return whether an expression names `github` instead of `shithub`."""
    return any(_is_alias(reference) for reference in references(expression))


def _is_alias(reference: Reference) -> bool:
    return reference.path[0] == "github"


def render_for_runner(text: str, context: ExpressionContext) -> str:
    """Return a text in which `vars` and `shithub.actor` are replaced by their values, which no runner knows.

    All other expressions stay as they are: the runner evaluates them, and hands event data to the shell by variables
    of the environment. A value becomes a quoted text within its expression, so it is not read as an expression.

    Args:
        text: A text of `run` or `env`.
        context: `variables` and `actor` are known.

    Raises:
        ExpressionError: An expression is malformed, or a value with `}}` is part of a larger expression.
    """
    return _rewrite(text, lambda part: _for_runner(part, context))


def _for_runner(part: TemplateExpression, context: ExpressionContext) -> str:
    if not any(_is_unknown_to_runners(reference) for reference in references(part.expression)):
        return _OPEN + part.source + _CLOSE
    if isinstance(part.expression, Reference):
        value = evaluate(part.expression, context).text
        if _CLOSE in value:  # would end the expression early
            if _OPEN in value:
                raise ExpressionError(f"The value of {part.expression} contains '${{{{'. Remove it from the value.")
            return _EMPTY + value + _EMPTY
    return _OPEN + _replace(part.source, part.expression, _quoted(context), _is_unknown_to_runners) + _CLOSE


def _quoted(context: ExpressionContext) -> Callable[[Reference], str]:
    def quote(reference: Reference) -> str:
        value = evaluate(reference, context).text
        if _CLOSE in value:
            raise ExpressionError(f"The value of {reference} contains '}}}}'. Use {reference} alone in '${{{{ }}}}'.")
        return "'" + value.replace("'", "''") + "'"

    return quote


def _is_unknown_to_runners(reference: Reference) -> bool:
    return reference.path[0] == "vars" or reference.path in {("shithub", "actor"), ("github", "actor")}


def _rewrite(text: str, render_part: Callable[[TemplateExpression], str]) -> str:
    return "".join(part if isinstance(part, str) else render_part(part) for part in split_template(text))


def _replace(
    source: str,
    expression: Expression,
    replacement: Callable[[Reference], str],
    is_replaced: Callable[[Reference], bool],
) -> str:
    parts, place = [], 0
    for reference in references(expression):
        if is_replaced(reference):
            parts += [source[place : reference.start], replacement(reference)]
            place = reference.end
    return "".join(parts) + source[place:]
