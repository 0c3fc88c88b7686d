"""The outputs of several inputs: their names, which of them are finished, and the errors of inputs that failed."""

import json
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import zarr
from anndata.io import read_elem

from scperformer.annotation.write import FORMATS, STORE
from scperformer.base.errors import DiskFull, InputError
from scperformer.base.outputs import FAILED_SUFFIX, new_file, require_absent
from scperformer.config.annotation import AnnotationOptions
from scperformer.io.excel import require_openpyxl
from scperformer.io.hdf5_guard import open_hdf5
from scperformer.io.read import checksum, default_output
from scperformer.io.safety import reading
from scperformer.io.sheet import sample_names
from scperformer.model.tissues import collection

if TYPE_CHECKING:
    from scperformer.annotation.fitted import Model  # needs torch

log = logging.getLogger(__name__)

# Options that change nothing in an annotation, or whose effect is in the identity in another way.
WITHOUT_EFFECT = {
    *("inputs", "model_path", "output", "output_dir", "sample_sheet", "full_sample", "key_added"),
    *("overwrite", "replace_annotation", "resume", "keep_going", "adapted_folder"),
    *("batch_size", "threads", "device"),
}


def outputs_of(
    inputs: Sequence[str], output: str | None, output_dir: str | None, sample_sheet: str | None
) -> list[tuple[str, Path]]:
    """Return each input with its output; inputs that are annotations of other inputs are left out.

    `predict *.h5ad` finds such inputs when it runs again. `{sample}` in an output is the name of a file, or its
    sample in `sample_sheet`. Two inputs with the same output are refused.
    """
    annotations = {default_output(path, f".annotated{ending}"): path for path in inputs for ending in FORMATS}
    for name in inputs:
        if (source := annotations.get(Path(name))) is not None:
            log.info("skipping %s: output of an earlier run on %s", name, source)
    inputs = [path for path in inputs if Path(path) not in annotations]
    if output is None and output_dir is not None:
        output = f"{output_dir}/{{sample}}.annotated.h5ad"
    named = [default_output(path, ".annotated.h5ad") for path in inputs]
    if output is not None:
        names = {} if sample_sheet is None else sample_names(sample_sheet)
        samples = [names.get(os.path.realpath(path), default_output(path, "").name) for path in inputs]
        named = [Path(output.replace("{sample}", sample)) for sample in samples]
    for number, path in enumerate(named):
        if path in named[:number]:
            remedy = "leave one of them out, or give each a name in the column sample of a sample_sheet"
            raise InputError("same-output", f"two inputs give {path}", "one input per output", remedy)
    return list(zip(inputs, named, strict=True))


def require_writable(output: Path, replace: bool, formats: Sequence[str] = FORMATS, option: str = "output") -> None:
    """Refuse an output that cannot be written, or whose name does not end in one of the formats."""
    require_absent(output, replace, STORE if output.suffix == ".zarr" else None)
    if not output.name.endswith(tuple(formats)):
        raise InputError(
            "output-format", f"{option}={output}", f"a name that ends in {', '.join(formats)}", "rename it"
        )
    require_openpyxl(output)


def model_hash(given: "Model | None") -> str:
    """Return what identifies the models of a run: the model that is given, or without it the packaged tissues."""
    return collection().hash if given is None else given.saved.hash


def identity_of(
    cfg: AnnotationOptions, of_model: str, sha256: str, full_sample_sha256: str, sample: dict[str, str]
) -> dict[str, Any]:
    """Return everything that the annotation of a file depends on, as JSON has it.

    Parameters
    ----------
    sha256, full_sample_sha256
        Of the file, and of the file `full_sample` ("" without).
    sample
        The columns that a sample sheet adds, with their values.
    """
    identity = {name: value for name, value in asdict(cfg).items() if name not in WITHOUT_EFFECT}
    identity |= {"input": sha256, "model": of_model, "version": version("scperformer")}
    identity |= {"full_sample": full_sample_sha256, "sheet": sample}
    return dict(json.loads(json.dumps(identity)))


def is_finished(path: str, output: Path, of_model: str, cfg: AnnotationOptions, sample: dict[str, str]) -> bool:
    """Return whether an output is the annotation of this run; refuse another one unless it may be replaced.

    `sample` has the columns that a sample sheet adds to the file `path`, with their values.
    """
    if not output.exists():
        return False
    place = f"uns/{cfg.key_added}/run/identity"
    text: Any = None
    with reading(output, "a complete annotation"):
        if output.suffix in (".h5ad", ".zarr"):  # a table has no record
            root = zarr.open_group(output, mode="r") if output.suffix == ".zarr" else open_hdf5(output)
            text = read_elem(root[place]) if place in root else None
        found = None if text is None else json.loads(text)
    why = f"no record of an annotation '{cfg.key_added}'"
    if found is not None:
        of_full_sample = "" if cfg.full_sample is None else checksum(cfg.full_sample)
        identity = identity_of(cfg, of_model, checksum(path), of_full_sample, sample)
        why = ", ".join(f"other {name}" for name in identity if found.get(name) != identity[name])
    if why and not cfg.overwrite:
        expected = f"an annotation of {path} by the same model and options"
        remedy = "choose another output=..., or add overwrite=true to replace it"
        raise InputError("other-run", f"{output} is of another run ({why})", expected, remedy)
    if not why:
        failed_file(output).unlink(missing_ok=True)
    return not why


class Failures:
    """The errors of files that could not be annotated; if `keep_going`, they do not stop the run."""

    def __init__(self, keep_going: bool):
        self.keep_going = keep_going
        self.errors: dict[str, str] = {}  # by the path of the input

    @contextmanager
    def of_file(self, path: str, output: Path) -> Iterator[None]:
        """Log an error about one file, and write it in place of the output; raise it without `keep_going`."""
        try:
            yield
        except InputError as error:
            if not self.keep_going or isinstance(error, DiskFull):
                raise
            log.error("%s: %s", path, error)
            self.errors[path] = str(error)
            if not output.exists():  # an earlier output stays as it is
                content = {"sample": _sample(output), "input": path, "error": str(error), "code": error.code}
                content["version"] = version("scperformer")
                with new_file(failed_file(output), overwrite=True) as temporary:
                    temporary.write_text(json.dumps(content, ensure_ascii=False) + "\n", encoding="utf-8")


def _sample(output: Path) -> str:
    ending = next((ending for ending in FORMATS if output.name.endswith(ending)), "")
    return output.name.removesuffix(ending).removesuffix(".annotated")


def failed_file(output: Path) -> Path:
    """Return the file that states why an output is missing; `report` shows it as a row."""
    return output.with_name(f"{_sample(output)}{FAILED_SUFFIX}")
