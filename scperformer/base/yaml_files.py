"""YAML that may come from anywhere: plain values alone, of a limited size and depth."""

import re
from pathlib import Path
from typing import Any

import yaml

from scperformer.base.inputs import special_kind

MAX_BYTES = 2**20  # of a file: far above the size of any file of options
MAX_DEPTH = 20  # of nested lists and mappings; files of options have four levels
KINDS = ("null", "bool", "int", "float", "str", "seq", "map")  # of values


class _Loader(yaml.SafeLoader):
    """YAML as Hydra reads it: 1e-4 is a number, too; PyYAML follows YAML 1.1, in which it must be 1.0e-4.

    Dates are texts, and the other kinds of YAML, such as `!!binary` and `!!set`, are refused.
    """


_Loader.yaml_constructors = {
    tag: make
    for tag, make in yaml.SafeLoader.yaml_constructors.items()
    if tag is None or tag.rpartition(":")[2] in KINDS
}
_Loader.yaml_implicit_resolvers = {
    start: [pair for pair in pairs if pair[0] != "tag:yaml.org,2002:timestamp"]
    for start, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?\d[\d_]*[eE][-+]?\d+$"), list("-+0123456789")
)


def read_yaml(text: str) -> Any:
    """Return the content of a YAML text: plain values, lists and mappings.

    Raises
    ------
    ValueError
        The text is not YAML, or nested too deeply; it has an alias, as a few lines of them can stand for gigabytes; or
        it repeats a key, of which the last would count. Depth, aliases and keys are checked before any value is made.
    """
    depth = 0
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            if isinstance(event, yaml.AliasEvent):
                raise ValueError(f"an alias, *{event.anchor}")
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH:
                raise ValueError(f"more than {MAX_DEPTH} lists or mappings in each other")
        _require_each_key_once(yaml.compose(text, Loader=_Loader))
        return yaml.load(text, Loader=_Loader)  # a SafeLoader
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error


def _require_each_key_once(node: yaml.Node | None) -> None:
    """Raise a ValueError if a mapping in a node, at any depth, repeats a key."""
    parts = node.value if isinstance(node, yaml.SequenceNode) else []
    if isinstance(node, yaml.MappingNode):
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise ValueError(f"'{key.value}' twice in a mapping")
            seen.add(key.value if isinstance(key, yaml.ScalarNode) else id(key))
        parts = [value for _, value in node.value]
    for part in parts:
        _require_each_key_once(part)


def read_yaml_file(path: str | Path) -> Any:
    """Return the content of a YAML file, as `read_yaml`.

    Raises
    ------
    OSError
        The file cannot be opened or read.
    ValueError
        It is no file, has more than `MAX_BYTES` or is no text in UTF-8, or `read_yaml` refuses it.
    """
    if kind := special_kind(path):
        raise ValueError(kind)
    with Path(path).open("rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ValueError(f"more than {MAX_BYTES:,} bytes")
    return read_yaml(content.decode("utf-8-sig"))
