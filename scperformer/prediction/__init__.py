"""From a model folder and cells to annotations."""

from scperformer.prediction.annotation import (
    describe_input,
    describe_model,
    describe_overlap,
    make_query,
    package_versions,
)

__all__ = ["describe_input", "describe_model", "describe_overlap", "make_query", "package_versions"]
