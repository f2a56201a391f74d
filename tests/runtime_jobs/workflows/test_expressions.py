"""Expressions: the grammar, the values, taint, and what is decided although a value is not known."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime_jobs.workflows.evaluation import (
    ConditionStatus,
    ExpressionContext,
    ExpressionValue,
    UndecidedError,
    decide,
    decide_condition,
    evaluate,
)
from runtime_jobs.workflows.expressions import (
    GROUP_SCOPE,
    JOB_CONDITION_SCOPE,
    MAX_LENGTH,
    RUNNER_SCOPE,
    SERVER_SCOPE,
    ExpressionError,
    parse_expression,
    references,
    status_functions,
    validate_names,
)

EVENT = {
    "action": "opened",
    "number": 42,
    "ratio": 0.5,
    "whole": 7.0,
    "draft": False,
    "labels": ["bug"],
    "pull_request": {"title": "x'; rm -rf /", "head": {"ref": "topic"}},
    "empty": "",
    "nothing": None,
}
KNOWN = ExpressionContext(
    event=EVENT,
    run_id="7",
    sha="c" * 40,
    ref="refs/heads/main",
    actor="alice",
    variables={"REGION": "eu", "EMPTY": ""},
    secrets={"TOKEN": "hunter2"},
    env={"CI": ExpressionValue("1"), "TITLE": ExpressionValue("t", is_tainted=True), "HIDDEN": None},
    status=ConditionStatus(),
)


def value_of(source, context=KNOWN):
    return evaluate(parse_expression(source), context)


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("'text'", "text"),
        ("'it''s'", "it's"),
        ("''", ""),
        ("true", True),
        ("null", None),
        ("secrets.TOKEN", "hunter2"),
        ("secrets.token", "hunter2"),
        ("vars.region", "eu"),
        ("vars.missing", ""),
        ("env.CI", "1"),
        ("env.missing", ""),
        ("shithub.run_id", "7"),
        ("github.sha", "c" * 40),
        ("shithub . ref", "refs/heads/main"),
        ("shithub.actor", "alice"),
        ("shithub.event.action", "opened"),
        ("shithub.event.number", "42"),
        ("shithub.event.whole", "7"),
        ("shithub.event.ratio", "0.5"),
        ("shithub.event.draft", False),
        ("shithub.event.labels", '["bug"]'),
        ("shithub.event.pull_request.head.ref", "topic"),
        ("shithub.event.missing.deeper", None),
        ("shithub.event.action.deeper", None),
        ("1 == 1".replace("1", "'1'"), True),
        ("'a' == 'A'", False),
        ("'a' != 'b'", True),
        ("null == null", True),
        ("null == ''", False),
        ("'' != null", True),
        ("true == 'true'", True),
        ("shithub.event.missing == null", True),
        ("shithub.event.nothing == null", True),
        ("!'' && !null && !false", True),
        ("!'false'", False),
        ("'a' && 'b'", "b"),
        ("'' && 'b'", ""),
        ("'a' || 'b'", "a"),
        ("'' || null || 'c'", "c"),
        ("'' || ''", ""),
        ("true || false && false", True),
        ("(true || false) && false", False),
        ("!true == false", True),
        ("'a' == 'b' == false", True),
        ("contains('abc', 'b')", True),
        ("contains('abc', 'B')", False),
        ("startsWith(shithub.ref, 'refs/heads/')", True),
        ("endsWith(shithub.ref, 'main')", True),
        ("contains(null, '')", True),
        ("always()", True),
        ("success() && !failure() && !cancelled()", True),
    ],
)
def test_the_value_of(source, value):
    found = value_of(source).value
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("", "a value is missing"),
        ("  ", "a value is missing"),
        ("'open", "no closing quote"),
        ("'a''", "no closing quote"),
        ('"a"', "Unexpected character"),
        ("1", "Unexpected character"),
        ("a[0]", "Unexpected character"),
        ("a.*", "Unexpected character"),
        ("a & b", "Unexpected character"),
        ("a | b", "Unexpected character"),
        ("a = b", "Unexpected character"),
        ("a < b", "Unexpected character"),
        ("a - b", "Unexpected character"),
        ("a b", "an operator is missing"),
        ("(a", "')' is missing"),
        ("a)", "an operator is missing"),
        ("a.", "a name after the dot"),
        ("a.'b'", "a name after the dot"),
        (".a", "a value is missing"),
        ("a ==", "a value is missing"),
        ("== a", "a value is missing"),
        ("a &&", "a value is missing"),
        ("!", "a value is missing"),
        ("contains('a')", "takes 2 arguments"),
        ("contains('a', 'b', 'c')", "takes 2 arguments"),
        ("success('a')", "takes 0 arguments"),
        ("contains('a',)", "a value is missing"),
        ("contains('a' 'b')", "')' is missing"),
        ("fromJSON('{}')", "does not exist"),
        ("hashFiles('a')", "does not exist"),
        ("Contains('a', 'b')", "does not exist"),
        ("x()", "does not exist"),
        ("!" * 40 + "true", "nested too deeply"),
        ("(" * 40 + "true" + ")" * 40, "nested too deeply"),
        ("'a'" + " == 'a'" * 40, "nested too deeply"),
        ("'" + "x" * MAX_LENGTH + "'", "characters"),
        ("a\u00a0b", "Unexpected character"),
    ],
)
def test_what_is_no_expression_is_refused(source, message):
    with pytest.raises(ExpressionError) as caught:
        parse_expression(source)
    assert message in str(caught.value)
    assert str(caught.value).isascii()


def test_a_long_chain_of_operators_does_not_recurse():
    assert value_of(" && ".join(["true"] * 400)).value is True
    assert value_of(" || ".join(["false"] * 400)).value is False


def test_a_secret_that_does_not_exist_is_an_error():
    with pytest.raises(ExpressionError, match="NONE"):
        value_of("secrets.NONE")


TAINTED = [
    "shithub.event.action",
    "shithub.event",
    "shithub.event.missing",
    "github.event.number",
    "!shithub.event.draft",
    "shithub.event.action == 'opened'",
    "'opened' != shithub.event.action",
    "true && shithub.event.action",
    "shithub.event.action && true",
    "shithub.event.draft || 'a'",
    "'' || shithub.event.action",
    "contains(shithub.event.action, 'a')",
    "contains('a', shithub.event.action)",
    "startsWith(shithub.event.action, 'a') == false",
    "(shithub.event.action)",
    "env.TITLE",
    "true && (false || env.TITLE)",
    "secrets.TOKEN",
    "'' || secrets.TOKEN",
]


@pytest.mark.parametrize("source", TAINTED)
def test_what_comes_from_the_event_or_a_secret_is_tainted_through_every_operator(source):
    assert value_of(source).is_tainted


@pytest.mark.parametrize(
    "source",
    [
        *("'a'", "vars.REGION", "env.CI", "shithub.sha", "shithub.actor", "success()"),
        *("contains(shithub.ref, 'main')", "true || shithub.event.action", "false && shithub.event.action"),
    ],
)
def test_what_depends_on_neither_is_not_tainted(source):
    assert not value_of(source).is_tainted


UNKNOWN = ExpressionContext(event=EVENT)


@pytest.mark.parametrize("name", ["shithub.sha", "vars.A", "secrets.A", "env.A", "success()"])
def test_a_value_that_is_not_known_decides_nothing(name):
    with pytest.raises(UndecidedError):
        value_of(name, UNKNOWN)
    assert decide(parse_expression(name), UNKNOWN) is None


def test_a_variable_that_depends_on_a_secret_is_not_known():
    with pytest.raises(UndecidedError):
        value_of("env.HIDDEN")


@pytest.mark.parametrize(
    ("source", "decision"),
    [
        ("false && vars.A", False),
        ("vars.A && false", False),
        ("vars.A && true", None),
        ("true || vars.A", True),
        ("vars.A || true", True),
        ("vars.A || false", None),
        ("!(vars.A && false)", True),
        ("!vars.A", None),
        ("vars.A == vars.A", None),
        ("contains(vars.A, '')", None),
        ("shithub.event.action == 'closed' && success()", False),
        ("shithub.event.action == 'opened' && success()", None),
    ],
)
def test_a_condition_is_decided_as_far_as_its_values_are_known(source, decision):
    assert decide(parse_expression(source), UNKNOWN) is decision


SUCCESS = ConditionStatus()
FAILURE = ConditionStatus(is_success=False, is_failure=True)
CANCELLED = ConditionStatus(is_success=False, is_cancelled=True)


@pytest.mark.parametrize(
    ("source", "after_success", "after_failure", "after_cancel"),
    [
        (None, True, False, False),
        ("true", True, False, False),
        ("'x'", True, False, False),
        ("false", False, False, False),
        ("success()", True, False, False),
        ("failure()", False, True, False),
        ("cancelled()", False, False, True),
        ("always()", True, True, True),
        ("always() && false", False, False, False),
        ("success() || failure()", True, True, False),
        ("!cancelled()", True, True, False),
    ],
)
def test_success_is_implied_unless_a_status_function_is_called(source, after_success, after_failure, after_cancel):
    expression = None if source is None else parse_expression(source)
    decisions = [
        decide_condition(expression, ExpressionContext(status=status)) for status in (SUCCESS, FAILURE, CANCELLED)
    ]
    assert decisions == [after_success, after_failure, after_cancel]


@pytest.mark.parametrize(
    ("source", "scope", "message"),
    [
        ("runner.os", RUNNER_SCOPE, "runner cannot be used here"),
        ("matrix.a", RUNNER_SCOPE, "'matrix' does not exist"),
        ("needs.a.result", JOB_CONDITION_SCOPE, "'needs' does not exist"),
        ("secrets", RUNNER_SCOPE, "exactly one name"),
        ("secrets.A.B", RUNNER_SCOPE, "exactly one name"),
        ("shithub", RUNNER_SCOPE, "does not exist"),
        ("shithub.workflows", RUNNER_SCOPE, "does not exist"),
        ("shithub.sha.x", RUNNER_SCOPE, "has no members"),
        ("secrets.A", JOB_CONDITION_SCOPE, "secrets cannot be used here"),
        ("secrets.A", SERVER_SCOPE, "secrets cannot be used here"),
        ("env.A", SERVER_SCOPE, "env cannot be used here"),
        ("shithub.event.action", SERVER_SCOPE, "not trusted"),
        ("vars.A", GROUP_SCOPE, "vars cannot be used here"),
        ("always()", GROUP_SCOPE, "always cannot be used here"),
        ("success()", SERVER_SCOPE, "success cannot be used here"),
    ],
)
def test_a_name_that_does_not_exist_at_its_place_is_an_error(source, scope, message):
    assert message in " ".join(validate_names(parse_expression(source), scope))


@pytest.mark.parametrize(
    ("source", "scope"),
    [
        ("secrets.A == vars.B && env.C != shithub.event.x.y || github.actor == success()", RUNNER_SCOPE),
        ("vars.A && env.B && shithub.event.x && always()", JOB_CONDITION_SCOPE),
        ("vars.A == shithub.ref", SERVER_SCOPE),
        ("shithub.event.x || shithub.run_id", GROUP_SCOPE),
    ],
)
def test_names_that_exist_are_no_error(source, scope):
    assert validate_names(parse_expression(source), scope) == []


def test_references_are_in_the_order_of_the_text():
    found = references(parse_expression("contains(vars.A, env.B) && !(shithub.sha == secrets.C)"))
    assert [str(reference) for reference in found] == ["vars.A", "env.B", "shithub.sha", "secrets.C"]
    assert status_functions(parse_expression("!failure() && contains('a', always())")) == {"failure", "always"}


@given(st.text(alphabet="ab.'()!&|=, \ntrue", max_size=60))
def test_any_text_is_an_expression_or_refused(source):
    try:
        expression = parse_expression(source)
    except ExpressionError:
        return
    if not validate_names(expression, RUNNER_SCOPE):
        decide(expression, UNKNOWN)


OPERANDS = st.sampled_from(["true", "false", "null", "''", "'a'", "vars.A", "vars.B", "shithub.event.action"])
SOURCES = st.recursive(
    OPERANDS,
    lambda inner: st.one_of(
        st.builds("!({})".format, inner),
        st.builds("({} && {})".format, inner, inner),
        st.builds("({} || {})".format, inner, inner),
        st.builds("({} == {})".format, inner, inner),
        st.builds("contains({}, {})".format, inner, inner),
    ),
    max_leaves=8,
)


@given(SOURCES, st.sampled_from(["", "a"]), st.sampled_from(["", "b"]))
def test_what_is_decided_early_is_true_whatever_the_values_are(source, a, b):
    expression = parse_expression(source)
    early = decide(expression, UNKNOWN)
    late = evaluate(expression, ExpressionContext(event=EVENT, variables={"A": a, "B": b})).is_true
    assert early in (None, late)


@given(SOURCES)
def test_a_value_that_another_event_changes_is_tainted(source):
    expression = parse_expression(source)
    values = [
        evaluate(expression, ExpressionContext(event={"action": action}, variables={}))
        for action in (None, "", "a", "opened")
    ]
    if len({value.value for value in values}) > 1:
        assert all(value.is_tainted for value in values)
