"""YAML that may come from anywhere: plain values alone, of a limited size and depth."""

import re
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

from scperformer.base.inputs import special_kind

MAX_YAML_BYTES = 2**20  # of a file: far above the size of any file of options
MAX_YAML_DEPTH = 20  # of nested lists and mappings; files of options have four levels
YAML_KINDS = ("null", "bool", "int", "float", "str", "seq", "map")  # of values


class _Loader(yaml.SafeLoader):
    """YAML as Hydra reads it: 1e-4 is a number, too; PyYAML follows YAML 1.1, in which it must be 1.0e-4.

    Dates are texts, and the other kinds of YAML, such as `!!binary` and `!!set`, are refused.
    """

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise ValueError(f"an alias, *{self.peek_event().anchor}")
        nested = self.check_event(yaml.CollectionStartEvent)
        self.depth += nested
        if self.depth > MAX_YAML_DEPTH:
            raise ValueError(f"more than {MAX_YAML_DEPTH} lists or mappings in each other")
        node = super().compose_node(parent, index)
        self.depth -= nested
        if isinstance(node, yaml.MappingNode):
            keys = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
            if repeated := [key for key, num in keys.items() if num > 1]:
                raise ValueError(f"'{repeated[0]}' twice in a mapping")
        return node


_Loader.yaml_constructors = {
    tag: make
    for tag, make in yaml.SafeLoader.yaml_constructors.items()
    if tag is None or tag.rpartition(":")[2] in YAML_KINDS
}
_Loader.yaml_implicit_resolvers = {
    start: [pair for pair in pairs if pair[0] != "tag:yaml.org,2002:timestamp"]
    for start, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?\d[\d_]*[eE][-+]?\d+$"), list("-+0123456789")
)


def read_yaml_file(path: str | Path) -> Any:
    """Return the content of a YAML file: plain values, lists and mappings.

    A ValueError says that it is no file, has too many bytes, or is not YAML in UTF-8 or nested too deeply; that
    it has an alias, as a few lines of them can stand for gigabytes; or that it repeats a key, of which the last would
    count. Depth, aliases and keys are checked before any value is made.
    """
    if kind := special_kind(path):
        raise ValueError(kind)
    with Path(path).open("rb") as file:
        content = file.read(MAX_YAML_BYTES + 1)
    if len(content) > MAX_YAML_BYTES:
        raise ValueError(f"more than {MAX_YAML_BYTES:,} bytes")
    try:
        return yaml.load(content.decode("utf-8-sig"), Loader=_Loader)  # a SafeLoader
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error
