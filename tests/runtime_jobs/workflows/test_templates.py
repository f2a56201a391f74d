"""Texts with expressions: what a runner receives of them, and what it can make of that."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime_jobs.workflows.evaluation import ExpressionContext, UndecidedError
from runtime_jobs.workflows.expressions import ExpressionError
from runtime_jobs.workflows.templates import (
    parse_condition,
    render,
    render_for_runner,
    render_variables,
    template_expressions,
    use_canonical_names,
)

CONTEXT = ExpressionContext(
    event={"title": "t", "n": 1},
    run_id="7",
    sha="c" * 40,
    ref="refs/heads/main",
    actor="alice",
    variables={"A": "one", "QUOTE": "it's", "BRACES": "{{ x }}", "LINES": "a\nb"},
    env={},
)


def as_a_runner_reads(text, *, secrets=None):
    """The text after the evaluation by a runner, which knows neither `vars` nor `actor`."""
    known = ExpressionContext(
        event=CONTEXT.event, run_id="7", sha="c" * 40, ref=CONTEXT.ref, actor="", variables={}, env={},
        secrets={"TOKEN": "hunter2"} if secrets is None else secrets,
    )  # fmt: skip
    return render(text, known)


@pytest.mark.parametrize(
    ("text", "rendered"),
    [
        ("", ""),
        ("plain $ {{ text }}", "plain $ {{ text }}"),
        ("a ${{ shithub.sha }} b", f"a {'c' * 40} b"),
        ("${{ vars.A }}${{ vars.A }}", "oneone"),
        ("${{ vars.QUOTE }}", "it's"),
        ("${{true}}|${{ null }}|${{ '' }}", "true||"),
        ("${{ shithub.event.title }}", "t"),
    ],
)
def test_a_text_is_rendered_with_its_values(text, rendered):
    assert render(text, CONTEXT).text == rendered


def test_a_text_is_tainted_if_one_expression_is():
    assert render("x ${{ shithub.event.title }}", CONTEXT).is_tainted
    assert not render("x ${{ vars.A }}", CONTEXT).is_tainted


@pytest.mark.parametrize("text", ["${{", "a ${{ vars.A", "${{ }}", "${{ 'a}}' }}", "${{ ${{ vars.A }} }}"])
def test_a_malformed_text_is_refused(text):
    with pytest.raises(ExpressionError):
        render(text, CONTEXT)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("${{ github.sha }}", "${{ shithub.sha }}"),
        ("${{github.event.a == 'github.b'}} github.c", "${{shithub.event.a == 'github.b'}} github.c"),
        ("${{ contains(github . ref, github.sha) }}", "${{ contains(shithub.ref, shithub.sha) }}"),
        ("${{ shithub.sha }}", "${{ shithub.sha }}"),
        ("${{ env.github }}", "${{ env.github }}"),
    ],
)
def test_a_runner_receives_the_names_that_it_knows(text, canonical):
    assert use_canonical_names(text) == canonical


@pytest.mark.parametrize(
    ("text", "sent"),
    [
        ("echo ${{ vars.A }}", "echo ${{ 'one' }}"),
        ("${{ vars.QUOTE }}", "${{ 'it''s' }}"),
        ("${{ vars.LINES }}", "${{ 'a\nb' }}"),
        ("${{ vars.missing }}", "${{ '' }}"),
        ("${{ shithub.actor }}", "${{ 'alice' }}"),
        ("${{ github.actor }} ${{ env.actor }}", "${{ 'alice' }} ${{ env.actor }}"),
        ("${{ secrets.TOKEN }} ${{ shithub.event.title }}", "${{ secrets.TOKEN }} ${{ shithub.event.title }}"),
        ("${{ vars.A == shithub.event.title }}", "${{ 'one' == shithub.event.title }}"),
        ("${{ vars.BRACES }}", "${{ '' }}{{ x }}${{ '' }}"),
        ("$${{ vars.BRACES }}", "$${{ '' }}{{ x }}${{ '' }}"),
    ],
)
def test_a_runner_receives_the_values_that_it_does_not_know(text, sent):
    assert render_for_runner(text, CONTEXT) == sent


def test_a_value_that_would_end_its_expression_is_refused_within_a_larger_one():
    with pytest.raises(ExpressionError, match="BRACES"):
        render_for_runner("${{ contains(vars.BRACES, 'x') }}", CONTEXT)


def test_a_value_that_is_an_expression_is_refused():
    context = ExpressionContext(variables={"A": "${{ secrets.TOKEN }}"}, actor="a")
    with pytest.raises(ExpressionError):
        render_for_runner("${{ vars.A }}", context)


VALUES = st.text(alphabet="ab'$ {}\n", max_size=12).filter(lambda value: "${{" not in value)
LITERALS = st.text(alphabet="ab'$ {}\n", max_size=6).filter(lambda text: "${{" not in text and not text.endswith("$"))


@given(LITERALS, VALUES, LITERALS, VALUES)
def test_no_value_becomes_an_expression(before, a, between, b):
    """A runner that evaluates what it received finds the values themselves, and no secret."""
    context = ExpressionContext(variables={"A": a, "B": b}, actor="x")
    text = f"{before}${{{{ vars.A }}}}{between}${{{{ vars.B }}}}"
    if text.count("${{") != 2:  # the literals joined to an expression of their own
        return
    sent = render_for_runner(text, context)
    assert as_a_runner_reads(sent).text == f"{before}{a}{between}{b}"


@given(st.text(alphabet="ab'$ {}\n", max_size=12))
def test_event_data_is_never_pasted(title):
    context = ExpressionContext(event={"title": title}, variables={"A": "one"}, actor="x")
    sent = render_for_runner("x=${{ shithub.event.title }} ${{ vars.A }}", context)
    assert sent == "x=${{ shithub.event.title }} ${{ 'one' }}"


def test_variables_of_the_environment_are_evaluated_as_far_as_they_are_known():
    env = {"PLAIN": "1", "SHA": "${{ shithub.sha }}", "TITLE": "${{ shithub.event.title }}", "KEY": "${{ secrets.K }}"}
    values = render_variables(env, CONTEXT).env
    assert values["PLAIN"].text == "1"
    assert values["SHA"].text == "c" * 40
    assert values["TITLE"].is_tainted
    assert values["KEY"] is None
    with pytest.raises(UndecidedError):
        render("${{ env.KEY }}", render_variables(env, CONTEXT))


@pytest.mark.parametrize("text", ["success()", " success() ", "${{ success() }}", "${{success()}}"])
def test_a_condition_needs_no_braces(text):
    assert parse_condition(text) == parse_condition("success()").__class__("success", ())


@pytest.mark.parametrize("text", ["a ${{ success() }}", "${{ true }} && ${{ false }}", "${{ true"])
def test_a_condition_is_one_expression(text):
    with pytest.raises(ExpressionError):
        parse_condition(text)


def test_an_empty_condition_is_none():
    assert parse_condition("") is None
    assert parse_condition("${{ }}") is None


@given(st.text(alphabet="${} 'ab", max_size=40))
def test_any_text_has_expressions_or_is_refused(text):
    try:
        found = template_expressions(text)
    except ExpressionError:
        return
    assert len(found) == len(re.findall(r"\$\{\{", text)) or "'" in text
