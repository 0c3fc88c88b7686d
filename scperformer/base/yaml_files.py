"""YAML that may come from anywhere: plain values alone, of a limited size and depth."""

import re
from pathlib import Path
from typing import Any

import yaml

MAX_BYTES = 2**20
MAX_DEPTH = 20  # of lists and mappings in each other


class _Loader(yaml.SafeLoader):
    """YAML as Hydra reads it: 1e-4 is a number, too; PyYAML follows YAML 1.1, which asks for a point."""


_Loader.add_implicit_resolver(  # before the others: "1e-4" matches none of them
    "tag:yaml.org,2002:float", re.compile(r"[-+]?\d[\d_]*[eE][-+]?\d+$"), list("-+0123456789")
)


def read_yaml(text: str) -> Any:
    """Return the content of a YAML text; the text of a ValueError says why it is refused.

    Aliases are refused, as a few lines of them stand for gigabytes, and so are repeated keys, of which the last would
    count. The limits are checked before any value is made.
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
    except RecursionError as error:
        raise ValueError("too many lists or mappings in each other") from error


def _require_each_key_once(node: yaml.Node | None) -> None:
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
    """Return the content of a YAML file; as `read_yaml`, and an OSError or ValueError if it cannot be read."""
    with Path(path).open("rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ValueError(f"more than {MAX_BYTES:,} bytes")
    return read_yaml(content.decode("utf-8-sig"))
