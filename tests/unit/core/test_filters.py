"""The filter language, from its documented examples to filters nobody would write."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from inorder.core.filters import MAX_NESTING, compile_filter
from inorder.errors import InvalidArgument, InvalidFilter

A = {"a": "1"}
B = {"b": "2"}
AB = {"a": "1", "b": "2"}


@pytest.mark.parametrize(
    ("text", "matching", "other"),
    [
        ("attributes:a", [A, AB, {"a": ""}], [{}, B, {"A": "1"}]),
        ('attributes.a = "1"', [A, AB], [{}, B, {"a": ""}, {"a": "10"}]),
        ('attributes.a = ""', [{"a": ""}], [{}, A]),
        ('hasPrefix(attributes.a, "1")', [A, {"a": "10"}], [{}, {"a": ""}, {"a": "01"}]),
        ('hasPrefix(attributes.a, "")', [A, {"a": ""}], [{}, B]),
        ("attributes:a AND attributes:b", [AB], [{}, A, B]),
        ("attributes:a OR attributes:b", [A, B, AB], [{}]),
        ("attributes:a AND attributes:b AND attributes:c", [AB | {"c": ""}], [AB]),
        ("attributes:a OR attributes:b OR attributes:c", [{"c": ""}], [{}, {"d": ""}]),
        ("attributes:a AND (attributes:b OR attributes:c)", [AB, A | {"c": ""}], [A, B]),
        ("(attributes:a AND attributes:b) OR attributes:c", [AB, {"c": ""}], [A, B]),
        ("((attributes:a))", [A], [B]),
    ],
)
def test_a_filter_lets_through_what_it_describes(
    text: str, matching: list[dict[str, str]], other: list[dict[str, str]]
) -> None:
    matches = compile_filter(text)
    assert [matches(attributes) for attributes in matching] == [True] * len(matching)
    assert [matches(attributes) for attributes in other] == [False] * len(other)


@pytest.mark.parametrize(
    "text",
    [
        "attributes:name",
        "NOT attributes:name",
        'attributes.name = "com"',
        'attributes.name != "com"',
        'hasPrefix(attributes.name, "co")',
        'NOT hasPrefix(attributes.name, "co")',
        'attributes."iana.org/language_tag" = "en"',
        r'attributes:"\u307F\u3093\u306A"',
        'attributes:"iana.org/language_tag" AND NOT attributes.name = "com"',
        'attributes:"iana.org/language_tag" AND (attributes.name = "net" OR attributes.name = "org")',
        'attributes.name = "com" AND -attributes:"iana.org/language_tag"',
    ],
)
def test_every_filter_that_pubsub_documents_as_valid_compiles(text: str) -> None:
    compile_filter(text)


@pytest.mark.parametrize(
    "text",
    [
        '"com" = attributes.name',
        "attributes.name = attributes.website",
        r"attributes:\u307F\u3093\u306A",
        'attributes:"iana.org/language_tag" AND attributes.name = "net" OR attributes.name = "org"',
        'attributes.name = "com" AND ("net" OR "org")',
    ],
)
def test_every_filter_that_pubsub_documents_as_invalid_is_refused(text: str) -> None:
    with pytest.raises(InvalidFilter):
        compile_filter(text)


def test_a_message_without_the_attribute_differs_from_every_value() -> None:
    differs = compile_filter('attributes.a != "1"')
    assert differs({})
    assert differs({"a": "2"})
    assert not differs(A)


@pytest.mark.parametrize("text", ["NOT attributes:a", "-attributes:a", "NOT(attributes:a)", "- NOT -attributes:a"])
def test_not_and_minus_both_negate(text: str) -> None:
    assert compile_filter(text)(B)
    assert not compile_filter(text)(A)


def test_not_binds_tighter_than_and_and_or() -> None:
    assert not compile_filter("NOT attributes:a AND attributes:b")({})
    assert compile_filter("NOT attributes:a OR attributes:b")(AB)


@pytest.mark.parametrize("key", ["my-key", "-", "1st", "_", "AND", "NOT", "attributes", "hasPrefix"])
def test_a_bare_key_is_any_run_of_letters_digits_underscores_and_hyphens(key: str) -> None:
    assert compile_filter(f"attributes:{key}")({key: ""})
    assert compile_filter(f'attributes.{key} = "v"')({key: "v"})
    assert compile_filter(f'hasPrefix(attributes.{key}, "v")')({key: "v"})


@pytest.mark.parametrize("key", ["", "iana.org/language_tag", "my key", "é", "a=b", "'", "__import__('os')"])
def test_a_quoted_key_is_any_text(key: str) -> None:
    assert compile_filter(f'attributes:"{key}"')({key: ""})
    assert compile_filter(f'attributes."{key}" = "v"')({key: "v"})


def test_white_space_may_stand_between_any_two_parts_and_need_not() -> None:
    spaced = ' - ( attributes : a\tAND\r\nhasPrefix ( attributes . b , "2" ) ) '
    tight = '-(attributes:a AND hasPrefix(attributes.b,"2"))'
    for text in (spaced, tight):
        assert compile_filter(text)(A)
        assert not compile_filter(text)(AB)


@pytest.mark.parametrize(
    ("literal", "value"),
    [
        (r"\"", '"'),
        (r"\'", "'"),
        (r"\\", "\\"),
        (r"\\n", "\\n"),
        (r"\a\b\f\n\r\t\v", "\a\b\f\n\r\t\v"),
        (r"\101\060\377", "A0ÿ"),
        (r"\1012", "A2"),
        (r"\x41\xe9\xE9f", "Aééf"),
        (r"\u307F\u3093\u306a0", "みんな0"),
        (r"\U0001F600", "😀"),
        ("😀é", "😀é"),
    ],
)
def test_an_escape_stands_for_one_character(literal: str, value: str) -> None:
    assert compile_filter(f'attributes.a = "{literal}"')({"a": value})
    assert compile_filter(f'attributes:"{literal}"')({value: ""})


@pytest.mark.parametrize(
    ("text", "position", "problem"),
    [
        ("", 0, "the filter is empty"),
        (" \n", 0, "the filter is empty"),
        # Where a condition should be
        ('data = "1"', 0, "unknown field 'data', a filter sees attributes only"),
        ("Attributes:a", 0, "unknown field 'Attributes'"),
        ("NOTattributes:a", 0, "unknown field 'NOTattributes'"),
        ('hasprefix(attributes.a, "1")', 0, "unknown function 'hasprefix', hasPrefix is the only one"),
        ("not attributes:a", 0, "'not' must be in upper case: NOT"),
        ("attributes:a AND Not(attributes:b)", 17, "'Not' must be in upper case: NOT"),
        ("AND attributes:a", 0, "expected a condition before AND"),
        ("attributes:a OR OR attributes:b", 16, "expected a condition before OR"),
        ("attributes:a AND ", 17, "expected a condition"),
        ("NOT", 3, "expected a condition"),
        ("()", 1, "expected a condition"),
        ('"a" = attributes.a', 0, "expected a condition, which begins with attributes or hasPrefix"),
        ("!attributes:a", 0, "'!' is no operator here, write NOT"),
        # After a condition
        ("attributes:a and attributes:b", 13, "'and' must be in upper case: AND"),
        ("(attributes:a Or attributes:b)", 14, "'Or' must be in upper case: OR"),
        ("attributes:a && attributes:b", 13, "'&' is no operator here, write AND"),
        ("attributes:a|attributes:b", 12, "'|' is no operator here, write OR"),
        ("attributes:a attributes:b", 13, "expected AND, OR or the end after a condition"),
        ("attributes:a NOT attributes:b", 13, "expected AND, OR or the end after a condition"),
        ("attributes:a é", 13, "expected AND, OR or the end after a condition"),
        ("(attributes:a attributes:b)", 14, "expected AND, OR or ')' after a condition"),
        ('attributes.a = "1" "2"', 19, "expected AND, OR or the end after a condition"),
        ("attributes:a AND attributes:b OR attributes:c", 30, "AND and OR need parentheses to be mixed"),
        ("attributes:a OR (attributes:b) AND attributes:c", 31, "AND and OR need parentheses to be mixed"),
        # Parentheses
        ("(attributes:a", 13, "expected ')' to close the '(' at position 0"),
        ("(attributes:a AND (attributes:b) ", 33, "expected ')' to close the '(' at position 0"),
        ("attributes:a AND (attributes:b", 30, "expected ')' to close the '(' at position 17"),
        ("attributes:a)", 12, "this ')' closes nothing"),
        # Attributes and keys
        ("attributes", 10, "expected '.' or ':' after attributes"),
        ('attributes = "1"', 11, "expected '.' or ':' after attributes"),
        ("attributes:", 11, "expected a key: letters, digits, '_', '-', or a string in double quotes"),
        ('attributes. = "1"', 12, "expected a key"),
        (r"attributes:\u307F", 11, "expected a key"),
        ("attributes:é", 11, "expected a key"),
        (
            'attributes.iana.org = "1"',
            15,
            "a key with more than letters, digits, '_' and '-' needs double quotes",
        ),
        ("attributes:a/b", 12, "a key with more than letters"),
        ("attributes:'a'", 11, "expected a key"),
        # Operators and values
        ('attributes:a = "1"', 13, "attributes:KEY is complete, a comparison is written attributes.KEY"),
        ("attributes.a", 12, "expected = or != (to ask if the key is there: attributes:KEY)"),
        ('attributes.a LIKE "1"', 13, "expected = or !="),
        ('attributes.a == "1"', 13, "unknown operator '==', expected = or !="),
        ('attributes.a<"1"', 12, "unknown operator '<'"),
        ('attributes.a:"1"', 12, "unknown operator ':'"),
        ("attributes.a = 1", 15, "expected a value in double quotes"),
        ("attributes.a = '1'", 15, "expected a value in double quotes"),
        ("attributes.a = attributes.b", 15, "expected a value in double quotes"),
        ("attributes.a !=", 15, "expected a value in double quotes"),
        # hasPrefix
        ("hasPrefix", 9, "expected '(' after hasPrefix"),
        ('hasPrefix(a, "1")', 10, "expected attributes.KEY as the first argument of hasPrefix"),
        ('hasPrefix("1", attributes.a)', 10, "expected attributes.KEY as the first argument of hasPrefix"),
        ('hasPrefix(attributes:a, "1")', 20, "expected '.' after attributes"),
        ("hasPrefix(attributes.a)", 22, "expected ',' and a prefix after the key"),
        ("hasPrefix(attributes.a, 1)", 24, "expected a prefix in double quotes"),
        ('hasPrefix(attributes.a, "1"', 27, "expected ')' after the prefix"),
        ('hasPrefix(attributes.a, "1", "2")', 27, "expected ')' after the prefix"),
        # Strings
        ('attributes.a = "1', 15, "this string has no closing quote"),
        (r'attributes.a = "1\"', 15, "this string has no closing quote"),
        ('attributes:"a', 11, "this string has no closing quote"),
        ('attributes.a = "1\n"', 17, r"'\n' must be escaped"),
        (r'attributes.a = "1\q"', 17, r"unknown escape, these are known: \" \' \\ \a"),
        (r'attributes.a = "\\\8"', 18, "unknown escape"),
        (r'attributes.a = "\x4"', 16, "unknown escape"),
        (r'attributes.a = "\400"', 16, "unknown escape"),
        (r'attributes:"ab\u30"', 14, "unknown escape"),
        (r'attributes.a = "\ud83d\ude00"', 16, r"\ud83d is no character (past \uffff, write \Uhhhhhhhh)"),
        (r'attributes.a = "\U00110000"', 16, r"\U00110000 is no character"),
    ],
)
def test_a_malformed_filter_is_refused_with_the_position_and_the_reason(text: str, position: int, problem: str) -> None:
    with pytest.raises(InvalidFilter, match=re.escape(f"at position {position}: {problem}")) as refused:
        compile_filter(text)
    assert refused.value.position == position


def test_a_refused_filter_is_an_invalid_argument_that_shows_the_text() -> None:
    with pytest.raises(InvalidArgument, match=re.escape("'attributes:'")):
        compile_filter("attributes:")


@pytest.mark.parametrize("opening", ["(", "-(", "attributes:a AND -("])
def test_parentheses_nest_as_deep_as_the_limit_says_and_no_deeper(opening: str) -> None:
    def nested(depth: int) -> str:
        return opening * depth + "attributes:a" + ")" * depth

    compile_filter(nested(MAX_NESTING))(A)
    with pytest.raises(InvalidFilter, match="nest at most") as refused:
        compile_filter(nested(MAX_NESTING + 1))
    opened_at = [position for position, character in enumerate(nested(MAX_NESTING + 1)) if character == "("]
    assert refused.value.position == opened_at[-1]


def test_the_length_of_a_filter_does_not_exhaust_the_stack() -> None:
    assert compile_filter(" AND ".join(["attributes:a"] * 10_000))(A)
    assert compile_filter("NOT " * 10_000 + "attributes:a")(A)
    with pytest.raises(InvalidFilter):
        compile_filter("(" * 1_000_000)


# Filters of any shape: a tree is evaluated directly, and again through its text.

T = TypeVar("T")
Attributes = Mapping[str, str]


@dataclass(frozen=True)
class Has:
    key: str


@dataclass(frozen=True)
class Compared:
    key: str
    operator: str
    value: str


@dataclass(frozen=True)
class Prefix:
    key: str
    prefix: str


@dataclass(frozen=True)
class Not:
    operator: str
    term: "Tree"


@dataclass(frozen=True)
class Joined:
    joint: str
    terms: tuple["Tree", ...]


Tree = Has | Compared | Prefix | Not | Joined

KEYS = st.sampled_from(["a", "b", "A-1", "OR", "a.b", "", '"\\\n\x7fé😀'])
VALUES = st.sampled_from(["", "a", "ab", "abc", '\\u"']) | st.text(st.characters(exclude_categories=["Cs"]), max_size=3)
LEAVES = st.one_of(
    st.builds(Has, KEYS),
    st.builds(Compared, KEYS, st.sampled_from(["=", "!="]), VALUES),
    st.builds(Prefix, KEYS, VALUES),
)
TREES: st.SearchStrategy[Tree] = st.recursive(
    LEAVES,
    lambda trees: (
        st.builds(Not, st.sampled_from(["NOT", "-"]), trees)
        | st.builds(Joined, st.sampled_from(["AND", "OR"]), st.lists(trees, min_size=2, max_size=4).map(tuple))
    ),
)
MAPS = st.lists(st.dictionaries(KEYS, VALUES), min_size=1, max_size=5)


def holds(tree: Tree, attributes: Attributes) -> bool:
    match tree:
        case Has(key):
            return key in attributes
        case Compared(key, "=", value):
            return key in attributes and attributes[key] == value
        case Compared(key, _, value):
            return not (key in attributes and attributes[key] == value)
        case Prefix(key, prefix):
            return key in attributes and attributes[key][: len(prefix)] == prefix
        case Not(_, term):
            return not holds(term, attributes)
        case Joined("AND", terms):
            return all(holds(term, attributes) for term in terms)
        case Joined(_, terms):
            return any(holds(term, attributes) for term in terms)


class Writer:
    """Writes trees as text, choosing the quotes, escapes, spaces and needless parentheses at random."""

    def __init__(self, data: st.DataObject) -> None:
        self._data = data

    def text(self, tree: Tree) -> str:
        text = ""
        for part in [*self.parts(tree), ""]:
            touching = re.search(r"[\w-]$", text) and re.match(r"\w", part)
            text += self._one_of([" ", "\t \r\n"] if touching else ["", " "]) + part
        return text

    def parts(self, tree: Tree) -> list[str]:
        match tree:
            case Has(key):
                return ["attributes", ":", self.key(key)]
            case Compared(key, operator, value):
                return ["attributes", ".", self.key(key), operator, self.string(value)]
            case Prefix(key, prefix):
                return ["hasPrefix", "(", "attributes", ".", self.key(key), ",", self.string(prefix), ")"]
            case Not(operator, term):
                return [operator, *self.term(term)]
            case Joined(joint, terms):
                return [part for term in terms for part in [joint, *self.term(term)]][1:]

    def term(self, tree: Tree) -> list[str]:
        if isinstance(tree, Joined) or self._one_of([False, False, True]):
            return ["(", *self.parts(tree), ")"]
        return self.parts(tree)

    def key(self, key: str) -> str:
        if re.fullmatch(r"[A-Za-z0-9_-]+", key) and self._one_of([True, False]):
            return key
        return self.string(key)

    def string(self, value: str) -> str:
        return '"' + "".join(self._one_of(spellings(character)) for character in value) + '"'

    def _one_of(self, choices: list[T]) -> T:
        return self._data.draw(st.sampled_from(choices))


def spellings(character: str) -> list[str]:
    """Every way to write the character inside a string."""
    code = ord(character)
    ways = [f"\\U{code:08X}"]
    if code <= 0xFFFF:
        ways.append(f"\\u{code:04x}")
    if code <= 0xFF:
        ways += [f"\\x{code:02x}", f"\\{code:03o}"]
    if character in "\"'\\":
        ways.append("\\" + character)
    if character not in '"\\' and code >= 0x20 and code != 0x7F:
        ways.append(character)
    return ways


@given(TREES, MAPS, st.data())
def test_a_filter_written_in_any_way_means_what_its_tree_means(
    tree: Tree, maps: list[Attributes], data: st.DataObject
) -> None:
    text = Writer(data).text(tree)
    note(text)
    matches = compile_filter(text)
    assert [matches(attributes) for attributes in maps] == [holds(tree, attributes) for attributes in maps]


PIECES = [*"().:,-=!<&'\"\\ é", "AND ", " OR ", "NOT ", "not ", "attributes", "hasPrefix", "a", '"v"', "\\x"]


@given(st.lists(st.sampled_from(PIECES)).map("".join) | st.text())
def test_any_text_is_a_filter_or_is_refused_at_one_of_its_positions(text: str) -> None:
    position = refused_at(text)
    assert position is None or 0 <= position <= len(text)


def refused_at(text: str) -> int | None:
    try:
        compile_filter(text)
    except InvalidFilter as refused:
        return refused.position
    return None
