"""Reads YAML into nodes that keep their lines and the text of their scalars.

Scalars stay text: `on` is a word, `3.10` keeps its zero, and `no` is no boolean. The reader decides the type of each.

PyYAML's events are composed here, without recursion, instead of by PyYAML's composer. So depth, aliases and the size
after the expansion of aliases are limited while the file is read, a duplicate key is an error, and a file of 5,000
nested lists cannot exhaust the stack.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import yaml

from runtime_jobs.workflows.diagnostics import Diagnostics, item_path, member_path, quoted

MAX_BYTES = 65_536
MAX_ALIASES = 100
MAX_DEPTH = 20
MAX_NODES = 50_000  # with each alias counted as what it refers to
MAX_CHARACTERS = 4 * MAX_BYTES  # of all scalars, counted likewise

_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_BOOLEANS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
# libyaml, where it is compiled in; both parsers report the same events.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class UnreadableYamlError(Exception):
    """The file is no YAML, or exceeds a limit. There are no nodes."""

    def __init__(self, message: str, *, line: int = 1, path: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.line = line
        self.path = path


@dataclass(eq=False, slots=True)
class YamlScalar:
    """A scalar: its text, and whether the text is written without quotes."""

    line: int
    text: str
    is_plain: bool
    node_count: int = 1
    character_count: int = 0

    @property
    def is_null(self) -> bool:
        return self.is_plain and self.text in _NULLS

    @property
    def boolean(self) -> bool | None:
        """The boolean of YAML 1.2 that the text is, or None."""
        return _BOOLEANS.get(self.text) if self.is_plain else None


@dataclass(eq=False, slots=True)
class YamlSequence:
    """A list of nodes."""

    line: int
    items: "list[YamlNode]"
    node_count: int = 1
    character_count: int = 0


@dataclass(eq=False, slots=True)
class YamlMapping:
    """Pairs of a key and a node, in the order of the file. No key occurs twice."""

    line: int
    entries: "dict[str, tuple[YamlScalar, YamlNode]]"
    node_count: int = 1
    character_count: int = 0


YamlNode = YamlScalar | YamlSequence | YamlMapping
YamlCollection = YamlSequence | YamlMapping


def compose(content: bytes, diagnostics: Diagnostics) -> YamlNode:
    """Return the root node of a YAML document.

    Args:
        content: The bytes of the file, UTF-8.
        diagnostics: Receives an error for each duplicate key; the first value remains.

    Raises:
        UnreadableYamlError: The file is no YAML document in UTF-8, or exceeds a limit of this module.
    """
    if len(content) > MAX_BYTES:
        raise UnreadableYamlError(f"The file has {len(content)} bytes. At most {MAX_BYTES} are allowed.")
    composer = _Composer(diagnostics)
    try:
        for event in _events(content.decode("utf-8-sig")):
            composer.receive(event)
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise UnreadableYamlError("The file is not UTF-8.", line=line) from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = error.problem or error.context or "syntax error"
        raise UnreadableYamlError(f"The file is not YAML: {problem}.", line=mark.line + 1 if mark else 1) from error
    except yaml.YAMLError as error:
        raise UnreadableYamlError("The file is not YAML: it contains a character that YAML does not allow.") from error
    if composer.root is None:
        raise UnreadableYamlError("The file is empty.")
    return composer.root


def _events(text: str) -> Iterator[yaml.Event]:
    return yaml.parse(text, Loader=_LOADER)


@dataclass(eq=False, slots=True)
class _OpenCollection:
    """A collection that is being read, and the key that waits for its value."""

    node: YamlCollection
    path: str
    key: YamlScalar | None = None

    def next_path(self) -> str:
        if isinstance(self.node, YamlSequence):
            return item_path(self.path, len(self.node.items))
        return member_path(self.path, self.key.text) if self.key else self.path


class _Composer:
    """Builds nodes from events."""

    def __init__(self, diagnostics: Diagnostics) -> None:
        self.root: YamlNode | None = None
        self._diagnostics = diagnostics
        self._open: list[_OpenCollection] = []
        self._anchors: dict[str, YamlNode] = {}
        self._alias_count = 0
        self._document_count = 0

    def receive(self, event: yaml.Event) -> None:
        """Add the next event of the file."""
        line = event.start_mark.line + 1 if event.start_mark else 1
        match event:
            case yaml.DocumentStartEvent():
                self._document_count += 1
                if self._document_count > 1:
                    raise UnreadableYamlError("The file has more than one YAML document.", line=line)
            case yaml.AliasEvent():
                self._add(self._referred(event, line), line, is_alias=True)
            case yaml.ScalarEvent():
                self._add(self._scalar(event, line), line)
            case yaml.SequenceStartEvent():
                self._begin(YamlSequence(line, []), event, line)
            case yaml.MappingStartEvent():
                self._begin(YamlMapping(line, {}), event, line)
            case yaml.CollectionEndEvent():
                node = self._open.pop().node
                self._add(node, node.line)
            case _:
                pass

    @property
    def _path(self) -> str:
        return self._open[-1].next_path() if self._open else ""

    def _refuse(self, message: str, line: int) -> UnreadableYamlError:
        return UnreadableYamlError(message, line=line, path=self._path)

    def _scalar(self, event: yaml.ScalarEvent, line: int) -> YamlScalar:
        self._require_no_tag(event.tag, line)
        text: str = event.value
        if "\0" in text or not _is_unicode(text):
            raise self._refuse("The value contains NUL or half of a character. Remove this escape sequence.", line)
        node = YamlScalar(line, text, is_plain=not event.style, character_count=len(text))
        self._anchor(event.anchor, node)
        return node

    def _begin(self, node: YamlCollection, event: yaml.CollectionStartEvent, line: int) -> None:
        self._require_no_tag(event.tag, line)
        if len(self._open) >= MAX_DEPTH:
            raise self._refuse(f"The nesting is too deep. At most {MAX_DEPTH} levels are allowed.", line)
        if self._open and self._awaits_key:
            raise self._refuse("A key is not a text. Use a text as the key.", line)
        path = self._path
        self._anchor(event.anchor, node)
        self._open.append(_OpenCollection(node, path))

    def _require_no_tag(self, tag: str | None, line: int) -> None:
        if tag is not None:
            raise self._refuse(f"The tag {quoted(tag)} is not supported. Remove the tag.", line)

    def _anchor(self, name: str | None, node: YamlNode) -> None:
        if name is not None:
            self._anchors[name] = node

    def _referred(self, event: yaml.AliasEvent, line: int) -> YamlNode:
        self._alias_count += 1
        if self._alias_count > MAX_ALIASES:
            raise self._refuse(f"The file has too many aliases. At most {MAX_ALIASES} are allowed.", line)
        name = event.anchor or ""
        node = self._anchors.get(name)
        if node is None:
            raise self._refuse(f"The alias {quoted(name)} refers to no anchor before it.", line)
        if any(opened.node is node for opened in self._open):
            raise self._refuse(f"The alias {quoted(name)} refers to a node that contains the alias.", line)
        return node

    @property
    def _awaits_key(self) -> bool:
        return isinstance(self._open[-1].node, YamlMapping) and self._open[-1].key is None

    def _add(self, node: YamlNode, line: int, *, is_alias: bool = False) -> None:
        if not self._open:
            self.root = node
            return
        current = self._open[-1]
        if self._awaits_key:
            if is_alias or not isinstance(node, YamlScalar):
                raise self._refuse("A key is not a text. Use a text as the key.", line)
            current.key = node
            self._count(current.node, node, line)
            return
        self._count(current.node, node, line)
        if isinstance(current.node, YamlSequence):
            current.node.items.append(node)
            return
        key, current.key = current.key, None
        if key is None:
            raise AssertionError("a mapping has a key before each value")
        if key.text in current.node.entries:
            path = member_path(current.path, key.text)
            message = "This key occurs twice. Remove one of both."
            self._diagnostics.error(path, key.line, message)
        else:
            current.node.entries[key.text] = (key, node)

    def _count(self, parent: YamlCollection, child: YamlNode, line: int) -> None:
        parent.node_count += child.node_count
        parent.character_count += child.character_count
        if parent.node_count > MAX_NODES or parent.character_count > MAX_CHARACTERS:
            limits = f"{MAX_NODES} nodes and {MAX_CHARACTERS} characters"
            raise self._refuse(f"The file is too large after its aliases are expanded. At most {limits} fit.", line)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
