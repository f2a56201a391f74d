"""The limits of documents: tokens, depth, aliases, nodes, and what introspection may request."""

import pytest
from graphql import get_introspection_query

from orchestrator.http.errors.problems import ApiError
from orchestrator.protocols.stella.graph.documents import ParsedDocument, parse_document
from orchestrator.protocols.stella.graph.execution import GraphRequest, InvalidDocument, check_request
from orchestrator.protocols.stella.graph.limits import BOUNDED_LISTS, FIRST, MAX_FIRST, MAX_NODES
from orchestrator.protocols.stella.graph.schema import schema


def check(query, variables=None, name=None):
    return check_request(GraphRequest(query, variables or {}, name))


def refusal(query, variables=None, name=None):
    with pytest.raises(ApiError) as refused:
        check(query, variables, name)
    return refused.value


def nested(depth):
    """A query of so many levels: `jobs` and `results`, then dependencies of dependencies, then an id."""
    inner = "jobId"
    for _ in range(depth - 3):
        inner = f"dependencies(first: 1) {{ {inner} }}"
    return f"{{ jobs(first: 1) {{ results {{ {inner} }} }} }}"


def aliased(count):
    return "{ " + " ".join(f"d{number}: dashboard {{ measuredAt }}" for number in range(count)) + " }"


def tokens(count):
    """A query of so many tokens."""
    return "{ events(first: 1 jobTypes: [" + '"scan" ' * (count - 15) + "]) { place } }"


def test_eight_levels_are_accepted_and_nine_refused():
    check(nested(8))
    error = refusal(nested(9))
    assert (error.status, error.code, error.members) == (400, "query_too_expensive", {"limit": 8})


def test_levels_of_fragments_count():
    query = nested(8).replace("jobId", "...f") + " fragment f on Job { failure { reason } }"
    assert refusal(query).members["limit"] == 8


def test_fifteen_aliases_are_accepted_and_sixteen_refused():
    check(aliased(15))
    assert refusal(aliased(16)).members["limit"] == 15


def test_aliases_of_fragments_count():
    query = "{ jobs(first: 1) { results { ...f } } } fragment f on Job { " + " ".join(
        f"a{number}: jobId" for number in range(16)
    )
    assert refusal(query + " }").members["limit"] == 15


def test_two_thousand_tokens_are_accepted_and_one_more_refused():
    check(tokens(2000))
    assert refusal(tokens(2001)).members["limit"] == 2000


@pytest.mark.parametrize(
    ("query", "variables", "nodes"),
    [
        ("{ jobs(first: 100) { results { jobId } } }", {}, 100),
        ("{ jobs(first: 50) { results { events(first: 99) { eventId } } } }", {}, 5000),
        ("{ jobs(first: 50) { results { events(first: 100) { eventId } } } }", {}, 5050),
        ("{ jobs(first: 100) { results { events(first: 100) { eventId } } } }", {}, 10_100),
        (
            "query($n: Int!) { jobs(first: $n) { results { events(first: $n) { eventId } } } }",
            {"n": 100},
            10_100,
        ),
        ("query($n: Int! = 100) { jobs(first: $n) { results { events(first: $n) { eventId } } } }", {}, 10_100),
        (
            """{ jobs(first: 10) { results { ...f } } } fragment g on Job { attempts(first: 5) { attempt } }
               fragment f on Job { a: dependents(first: 100) { ...g } b: dependents(first: 100) { ...g } }""",
            {},
            10 + 2 * (10 * 100 + 10 * 100 * 5),
        ),
        ("{ a: jobs(first: 100) { next } b: jobs(first: 100) { next } }", {}, 200),
        ("{ dashboard { incidents { newest { summary } } sources { reason } } }", {}, 100),
    ],
)
def test_nodes_are_the_products_of_first(query, variables, nodes):
    if nodes <= MAX_NODES:
        check(query, variables)
        return
    error = refusal(query, variables)
    assert (error.code, error.members) == ("query_too_expensive", {"limit": MAX_NODES})
    assert f"it requests {nodes}." in error.detail


def test_first_is_required_and_at_most_a_hundred():
    with pytest.raises(InvalidDocument, match="first"):
        check("{ jobs { results { jobId } } }")
    assert refusal("{ jobs(first: 101) { next } }").members == {"limit": MAX_FIRST}
    assert refusal("query($n: Int!) { jobs(first: $n) { next } }", {"n": 101}).code == "query_too_expensive"
    for number in ("0", "-5"):
        assert refusal(f"{{ jobs(first: {number}) {{ next }} }}").code == "invalid"


def test_every_list_has_first_or_a_bound():
    lists = {
        (name, field)
        for name, kind in schema.core.type_map.items()
        if hasattr(kind, "fields") and not name.startswith("__")
        for field, definition in kind.fields.items()
        if "[" in str(definition.type) and FIRST not in definition.args and field != "results"
    }
    assert lists == set(BOUNDED_LISTS)
    pages = {name for name, kind in schema.core.type_map.items() if "results" in getattr(kind, "fields", {})}
    returned = {
        str(definition.type): FIRST in definition.args
        for definition in schema.core.query_type.fields.values()
        if str(definition.type) in pages
    }
    assert returned == dict.fromkeys(pages, True)


@pytest.mark.parametrize(
    "query",
    [
        "{" * 1500,
        "[" * 1500,
        "{ jobs(first: " + "[" * 70 + " } }",
        "{ dashboard { measuredAt } } #" + "x" * 70_000,
    ],
)
def test_hostile_texts_are_refused_quickly(query):
    assert refusal(query).code == "query_too_expensive"


def test_fragments_within_fragments_are_visited_once():
    spreads = " ".join(f"fragment f{n} on Job {{ ...f{n + 1} ...f{n + 1} ...f{n + 1} }}" for n in range(100))
    query = "{ jobs(first: 1) { results { ...f0 } } } " + spreads + " fragment f100 on Job { jobId }"
    check(query)


def test_a_cycle_of_fragments_is_an_invalid_document():
    query = "{ jobs(first: 1) { results { ...f } } } fragment f on Job { dependencies(first: 1) { ...f } }"
    with pytest.raises(InvalidDocument, match="itself"):
        check(query)


@pytest.mark.parametrize(
    "query", ["{ dashboard {", '{ job(jobId: "a', "{ jobs(first: 99999999999) { next } }", "{ nothing }", "", "{}"]
)
def test_an_invalid_document_is_one(query):
    with pytest.raises(InvalidDocument):
        check(query)


def test_a_string_with_a_nul_character_is_refused():
    assert refusal(r'{ quota(id: "a\u0000:*") { id } }').code == "invalid"


@pytest.mark.parametrize("digits", [20, 5000])
@pytest.mark.parametrize("sign", ["", "-"])
def test_a_number_with_too_many_digits_is_refused_wherever_it_is(digits, sign):
    """Python converts no text of more than 4,300 digits."""
    number = sign + "9" * digits
    for text in (
        f"{{ jobs(first: {number}) {{ results {{ jobId }} }} }}",
        f"query Q($n: Int = {number}) {{ jobs(first: $n) {{ results {{ jobId }} }} }}",
        f"{{ quota(id: {number}) {{ id }} }}",
        f"{{ __typename @include(if: {number}) }}",
    ):
        found = refusal(text)
        assert (found.status, found.code) == (400, "invalid")
        assert found.detail == f"A number of the document has {digits} digits; at most 19 are allowed."


def test_the_operation_must_be_named_if_there_are_several():
    query = "query a { dashboard { measuredAt } } query b { dashboard { measuredAt } }"
    check(query, name="b")
    for name in (None, "c"):
        assert refusal(query, name=name).members["errors"].keys() == {"operationName"}


def test_introspection_of_tools_is_accepted():
    check(get_introspection_query())
    check(get_introspection_query(descriptions=True, input_value_deprecation=True))


@pytest.mark.parametrize(
    "query",
    [
        "{ " + "a: __schema { types { name } } " * 2 + "}",
        "{ __schema { a: types { name } b: types { name } } }",
        "{ __schema { types { ...t } } } fragment t on __Type { x: name }",
        "{ __schema { types { " + "ofType { " * 20 + "name" + " }" * 23,
    ],
)
def test_costly_introspection_is_refused(query):
    assert refusal(query).code == "query_too_expensive"


def test_introspection_does_not_nest_lists():
    with pytest.raises(InvalidDocument, match="introspection"):
        check("{ __schema { types { fields { type { fields { type { fields { name } } } } } } } }")


def test_a_document_is_parsed_once():
    first, again = (parse_document(schema.core, "{ dashboard { measuredAt } }") for _ in range(2))
    assert isinstance(first, ParsedDocument)
    assert again is first
