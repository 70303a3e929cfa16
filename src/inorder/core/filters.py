"""Pub/Sub's filter language: a line of text becomes a predicate on a message's attributes.

    filter     = term { "AND" term } | term { "OR" term }
    term       = { "NOT" | "-" } ( condition | "(" filter ")" )
    condition  = "attributes" ":" key
               | "attributes" "." key ( "=" | "!=" ) string
               | "hasPrefix" "(" "attributes" "." key "," string ")"
    key        = letters, digits, "_" and "-" | string
    string     = '"' characters and escapes '"'

White space may stand between any two of these. Where Google's documentation is silent, what can mean only
one thing is accepted and the rest refused. This module does not know how long a filter may be, nor that a
subscription may do without one.
"""

import ast
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from inorder.errors import InvalidFilter

Predicate = Callable[[Mapping[str, str]], bool]

MAX_NESTING = 256  # more parentheses than fit into Pub/Sub's 256 bytes

_SPACE = re.compile(r"[ \t\r\n]*")
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_NOT_IN_BARE_KEY = re.compile(r"[^\s=!<>~:(),&|]")
_OPERATOR = re.compile(r"[=!<>~:]+")
_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_ESCAPE = re.compile(
    r"""\\(?:(?P<letter>["'\\abfnrtv])"""
    r"|(?P<octal>[0-3][0-7]{2})"
    r"|x(?P<hex2>[0-9A-Fa-f]{2})"
    r"|u(?P<hex4>[0-9A-Fa-f]{4})"
    r"|U(?P<hex8>[0-9A-Fa-f]{8})"
    r"|)"  # none of these: the backslash matches alone, and is refused
)
_ESCAPES = r"\" \' \\ \a \b \f \n \r \t \v \ooo \xhh \uhhhh \Uhhhhhhhh"
_LETTERS = dict(zip("\"'\\abfnrtv", "\"'\\\a\b\f\n\r\t\v", strict=True))
_SYMBOLS = {"&": "AND", "|": "OR"}


def compile_filter(text: str) -> Predicate:
    """The predicate that `text` stands for: one Python function, however many conditions it has."""
    return _compiled(_Parser(text).parse())


# A filter runs for every message, and nested closures take twice as long as one function. So conditions are
# nodes of Python's own syntax tree, compiled together; keys and values enter it as constants, never as code.


def _compiled(condition: ast.expr) -> Predicate:
    parameters = ast.arguments(posonlyargs=[ast.arg("attributes")], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
    function = ast.Expression(ast.Lambda(parameters, condition))
    for node in ast.walk(function):  # ast.fix_missing_locations would recurse
        if isinstance(node, ast.expr | ast.arg):
            node.lineno, node.col_offset = 1, 0
    predicate: Predicate = eval(compile(function, "<filter>", "eval"), {"__builtins__": {}})
    return predicate


def _has(key: str) -> ast.expr:
    return ast.Compare(ast.Constant(key), [ast.In()], [_attributes()])


def _compared(key: str, operator: ast.cmpop, value: str) -> ast.expr:
    """A missing attribute compares as None, which equals no value: `!=` is true of it."""
    return ast.Compare(_call(_attributes(), "get", key), [operator], [ast.Constant(value)])


def _has_prefix(key: str, prefix: str) -> ast.expr:
    if not prefix:
        return _has(key)  # the "" below, which stands for a missing value, has this prefix too
    return _call(_call(_attributes(), "get", key, ""), "startswith", prefix)


def _negated(condition: ast.expr) -> ast.expr:
    if isinstance(condition, ast.UnaryOp):
        return condition.operand
    return ast.UnaryOp(ast.Not(), condition)


def _attributes() -> ast.expr:
    return ast.Name("attributes", ast.Load())


def _call(target: ast.expr, method: str, *arguments: str) -> ast.expr:
    return ast.Call(ast.Attribute(target, method, ast.Load()), [ast.Constant(each) for each in arguments], [])


@dataclass(slots=True)
class _Group:
    """The terms in one pair of parentheses, or outside of all, and the word that joins them."""

    opened_at: int
    negated: bool
    joint: str = ""  # "AND" or "OR" once there is a second term
    terms: list[ast.expr] = field(default_factory=list)

    def add(self, term: ast.expr, negated: bool) -> None:
        self.terms.append(_negated(term) if negated else term)

    def condition(self) -> ast.expr:
        if len(self.terms) == 1:
            return self.terms[0]
        return ast.BoolOp(ast.And() if self.joint == "AND" else ast.Or(), self.terms)


class _Parser:
    """Reads one filter, once. Open parentheses wait in a list, so deep nesting cannot exhaust the stack."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0
        self._group = _Group(opened_at=0, negated=False)
        self._enclosing: list[_Group] = []

    def parse(self) -> ast.expr:
        if not self._peek():
            raise self._invalid(0, "the filter is empty")
        while True:
            self._term()
            while self._take(")"):
                self._close()
            if not self._peek():
                return self._whole()
            self._joint()

    # Groups of terms

    def _term(self) -> None:
        """Reads up to the end of the next condition, opening the groups on the way."""
        negated = self._negation()
        while self._take("("):
            self._open(negated)
            negated = self._negation()
        self._group.add(self._condition(), negated)

    def _negation(self) -> bool:
        negated = False
        while self._take("-") or self._take_word("NOT"):
            negated = not negated
        return negated

    def _open(self, negated: bool) -> None:
        opened_at = self._position - 1
        if len(self._enclosing) == MAX_NESTING:
            raise self._invalid(opened_at, f"parentheses nest at most {MAX_NESTING} deep")
        self._enclosing.append(self._group)
        self._group = _Group(opened_at, negated)

    def _close(self) -> None:
        if not self._enclosing:
            raise self._invalid(self._position - 1, "this ')' closes nothing")
        closed, self._group = self._group, self._enclosing.pop()
        self._group.add(closed.condition(), closed.negated)

    def _whole(self) -> ast.expr:
        if self._enclosing:
            raise self._invalid_here(f"expected ')' to close the '(' at position {self._group.opened_at}")
        return self._group.condition()

    def _joint(self) -> None:
        position, word = self._position, self._read(_WORD)
        if word not in ("AND", "OR"):
            raise self._not_a_joint(position, word)
        if self._group.joint not in ("", word):
            raise self._invalid(position, "AND and OR need parentheses to be mixed")
        self._group.joint = word

    # Conditions

    def _condition(self) -> ast.expr:
        self._peek()
        position, word = self._position, self._read(_WORD)
        match word:
            case "attributes":
                return self._attribute()
            case "hasPrefix":
                return self._prefix()
        raise self._not_a_condition(position, word)

    def _attribute(self) -> ast.expr:
        if self._take(":"):
            return self._presence()
        self._expect(".", "expected '.' or ':' after attributes")
        key = self._key()
        operator = self._operator()
        return _compared(key, operator, self._string("a value"))

    def _presence(self) -> ast.expr:
        key = self._key()
        self._peek()
        if _OPERATOR.match(self._text, self._position):
            raise self._invalid_here("attributes:KEY is complete, a comparison is written attributes.KEY")
        return _has(key)

    def _operator(self) -> ast.cmpop:
        self._peek()
        position, operator = self._position, self._read(_OPERATOR)
        match operator:
            case "=":
                return ast.Eq()
            case "!=":
                return ast.NotEq()
            case "":
                raise self._invalid(position, "expected = or != (to ask if the key is there: attributes:KEY)")
            case _:
                raise self._invalid(position, f"unknown operator {operator!r}, expected = or !=")

    def _prefix(self) -> ast.expr:
        self._expect("(", "expected '(' after hasPrefix")
        if not self._take_word("attributes"):
            raise self._invalid_here("expected attributes.KEY as the first argument of hasPrefix")
        self._expect(".", "expected '.' after attributes")
        key = self._key()
        self._expect(",", "expected ',' and a prefix after the key")
        prefix = self._string("a prefix")
        self._expect(")", "expected ')' after the prefix")
        return _has_prefix(key, prefix)

    # Keys and strings

    def _key(self) -> str:
        if self._peek() == '"':
            return self._string("a key")
        key = self._read(_BARE_KEY)
        if not key:
            raise self._invalid_here("expected a key: letters, digits, '_', '-', or a string in double quotes")
        if _NOT_IN_BARE_KEY.match(self._text, self._position):
            raise self._invalid_here("a key with more than letters, digits, '_' and '-' needs double quotes")
        return key

    def _string(self, role: str) -> str:
        if self._peek() != '"':
            raise self._invalid_here(f"expected {role} in double quotes")
        position, literal = self._position, self._read(_STRING)
        if not literal:
            raise self._invalid(position, "this string has no closing quote")
        if control := _CONTROL.search(literal):
            raise self._invalid(position + control.start(), f"{control[0]!r} must be escaped")
        return _ESCAPE.sub(lambda escape: self._escaped(position + 1 + escape.start(), escape), literal[1:-1])

    def _escaped(self, position: int, escape: re.Match[str]) -> str:
        match escape.lastgroup:
            case None:
                raise self._invalid(position, f"unknown escape, these are known: {_ESCAPES}")
            case "letter":
                return _LETTERS[escape["letter"]]
            case kind:
                code = int(escape[kind], 8 if kind == "octal" else 16)
        if 0xD800 <= code <= 0xDFFF or code > 0x10FFFF:
            raise self._invalid(position, f"{escape[0]} is no character (past \\uffff, write \\Uhhhhhhhh)")
        return chr(code)

    # Reading

    def _peek(self) -> str:
        """The next character behind any space, or "" at the end."""
        self._read(_SPACE)
        return self._text[self._position : self._position + 1]

    def _read(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self._text, self._position)
        if found is None:
            return ""
        self._position = found.end()
        return found[0]

    def _take(self, character: str) -> bool:
        if self._peek() != character:
            return False
        self._position += 1
        return True

    def _take_word(self, word: str) -> bool:
        self._peek()
        position = self._position
        if self._read(_WORD) == word:
            return True
        self._position = position
        return False

    def _expect(self, character: str, problem: str) -> None:
        if not self._take(character):
            raise self._invalid_here(problem)

    # What is wrong

    def _not_a_joint(self, position: int, word: str) -> InvalidFilter:
        if word.upper() in ("AND", "OR"):
            return self._invalid(position, f"{word!r} must be in upper case: {word.upper()}")
        if symbol := _SYMBOLS.get(self._text[position]):
            return self._invalid(position, f"{self._text[position]!r} is no operator here, write {symbol}")
        end = "')'" if self._enclosing else "the end"
        return self._invalid(position, f"expected AND, OR or {end} after a condition")

    def _not_a_condition(self, position: int, word: str) -> InvalidFilter:
        if word in ("AND", "OR"):
            return self._invalid(position, f"expected a condition before {word}")
        if word.upper() in ("AND", "OR", "NOT"):
            return self._invalid(position, f"{word!r} must be in upper case: {word.upper()}")
        if word and self._peek() == "(":
            return self._invalid(position, f"unknown function {word!r}, hasPrefix is the only one")
        if word:
            return self._invalid(position, f"unknown field {word!r}, a filter sees attributes only")
        if self._peek() == "!":
            return self._invalid(position, "'!' is no operator here, write NOT")
        return self._invalid(position, "expected a condition, which begins with attributes or hasPrefix")

    def _invalid_here(self, problem: str) -> InvalidFilter:
        return self._invalid(self._position, problem)

    def _invalid(self, position: int, problem: str) -> InvalidFilter:
        return InvalidFilter(self._text, position, problem)
