"""Check files before a run: their content, whether a model can annotate them, and whether they can train a model.

`check` takes the same steps as `predict` or `train`, so that it refuses the same files with the same messages.
"""

import shlex
import shutil
import sys
import textwrap
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np
from anndata import AnnData

from scperformer.adaptation.coverage import find_coverage
from scperformer.adaptation.record import to_uns
from scperformer.adaptation.which_tissue import tissue_text
from scperformer.annotation.columns import require_not_annotated
from scperformer.base.errors import InputError, as_input_error, one_line
from scperformer.base.messages import shortened
from scperformer.base.outputs import require_absent
from scperformer.base.progress import progress
from scperformer.cells.batches import LIKELY, likely_batches
from scperformer.cells.detect import Findings
from scperformer.cells.opened import IN_MEMORY, OpenedCells, open_cells
from scperformer.cells.profiles import has_profiles, reference_of
from scperformer.cells.query import Query, align_to_model, require_fit
from scperformer.cells.reference_labels import label_columns, require_labels
from scperformer.config.annotation import AnnotationOptions
from scperformer.config.options import ExpressionOptions, TissueOptions
from scperformer.config.steps import CheckConfig
from scperformer.config.training import ReferenceOptions
from scperformer.io.gene_names import KIND_NAMES, guess_species, id_kind
from scperformer.io.read import default_output, read_cells
from scperformer.io.safety import reading
from scperformer.model.folder import names_model, read_model, require_annotator, resolve_model
from scperformer.model.saved_model import SavedModel

Checked = dict[str, Any]  # the findings about a file, as in its JSON; docs/formats.md lists them

SPECIES = {"unknown": "species unknown", "other": "another species"}
INDENT = 15  # columns before the text of a row
COMMANDS = ("ok", "try")  # rows with commands, which stay on one line so that they can be copied


@dataclass(repr=False)
class Checks:
    """The findings about files or cells in memory."""

    # name, path, and why the model was chosen; None: the tissue of each file is found
    model: dict[str, str] | None
    files: list[Checked]
    text: str  # all findings, as the command prints them

    @property
    def problems(self) -> list[str]:
        """The problems of the files that cannot be used."""
        return [result["problem"] for result in self.files if result["problem"] is not None]

    def __repr__(self) -> str:
        return self.text


def check_all(
    sources: Sequence[str | AnnData],
    options: CheckConfig,
    tell: Callable[[str], None] | None = None,
) -> Checks:
    """Check files or cells in memory, with a `label_key` as references; `tell` receives the text about each at once."""
    checker = Checker(options)
    checks = Checks(None, [], "")
    if names_model(options.model_path, options.tissue):
        path, why = resolve_model(options.model_path)
        checker.model = read_model(path)
        require_annotator(checker.model, path)
        checks.model = {"name": checker.model.name, "path": str(path), "why": why}
        checker.model_text = f"{checker.model.name} ({why})"
    with progress("checking", total=len(sources), unit="files") as shown:
        for source in sources:
            name = default_output(source, "").name if isinstance(source, str) else IN_MEMORY
            shown.set_description_str(f"checking {name}", refresh=False)
            result = checker.check(source)
            text = text_of(result)
            checks.files.append(result)
            checks.text += f"{text}\n"
            shown.update()
            if tell is not None:
                tell(text)
    return checks


def text_of(result: Checked) -> str:
    """Return the findings about a file as text that fits the terminal, except for commands."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    rows = [(name, text) for name, texts in result["rows"].items() for text in texts]
    rows += [("note", note) for note in result["notes"]]
    if result["problem"] is None:
        rows.append(("ok", result["command"] or "no problem"))
    else:
        rows += [("problem", result["problem"]), *(("try", command) for command in result["fixes"])]
    lines = [one_line(result["file"])]
    for name, text in rows:
        # Names of columns, layers and genes may hold characters that control the terminal; one_line replaces them.
        line = f"  {name:<{INDENT - 3}} {one_line(text)}"
        if name not in COMMANDS and width >= 3 * INDENT:
            blanks = " " * INDENT
            line = textwrap.fill(
                line,
                width,
                subsequent_indent=blanks,
                break_long_words=False,
                break_on_hyphens=False,
            )
        lines.append(line)
    return "\n".join([*lines, ""])


@dataclass
class Checker:
    """A model and options, against which files are checked."""

    options: CheckConfig
    model: SavedModel | None = None  # None: the tissue of each file is found
    model_text: str = ""  # its name, and why it was chosen

    def check(self, source: str | AnnData) -> Checked:
        """Return the findings about a file or cells in memory, and the next command.

        A problem ends the check, so later findings are missing. Cells in memory have no next command.
        """
        path = source if isinstance(source, str) else IN_MEMORY
        result: Checked = {
            "file": path,
            "problem": None,
            "fixes": [],
            "command": None,
            "rows": {},
            "notes": [],
        }
        step, ending = (
            ("predict", ".annotated.h5ad")
            if self.options.label_key is None
            else ("train", ".model")
        )
        output = default_output(path, ending)
        try:
            # As the next step does: `train` reads whole files, `predict` leaves matrices on disk.
            if self.options.label_key is not None and isinstance(source, str):
                adata = read_cells(source, self.options.orientation)
                opened: AbstractContextManager[OpenedCells] = nullcontext(
                    OpenedCells(adata, self._predict(path), path)
                )
            else:
                opened = open_cells(source, self._predict(path))
            with opened as cells:
                self._describe_tables(cells, result)
                if output.exists():
                    result["notes"].append(
                        f"{output} exists: {step} needs output=..., or overwrite=true to replace it"
                    )
                self._check_expression(cells, result)
            if isinstance(source, str) and not output.exists():
                require_absent(output, overwrite=False)  # refuses a folder that cannot be written
        except (InputError, MemoryError) as error:
            problem = as_input_error(error)
            assert problem is not None
            result["problem"] = str(problem)
            result["fixes"] = list(problem.fixes)
        if isinstance(source, str):
            more = ["output=NEW_NAME"] if output.exists() else []
            result["fixes"] = [
                self._next_command(step, path, *more, fix) for fix in result["fixes"]
            ]
            result["command"] = (
                self._next_command(step, path, *more) if result["problem"] is None else None
            )
        return result

    def _predict(self, path: str) -> AnnotationOptions:
        """Return the options with which `predict` would open a file."""
        of_predict = {
            name: getattr(self.options, name) for name in ("tissue", "genes", "min_overlap")
        }
        return AnnotationOptions(
            inputs=[path], **self._shared_with(ExpressionOptions), **of_predict
        )

    def _shared_with(self, kind: type[ExpressionOptions]) -> dict[str, Any]:
        """Return the options that a step with options of this kind has, too."""
        names = [field.name for field in fields(kind) if field.name not in ("inputs", "overwrite")]
        return {name: getattr(self.options, name) for name in names}

    def _next_command(self, step: str, path: str, *more: str) -> str:
        """Return the next command for a file, quoted for a shell, with options of `check`, which `more` may replace."""
        kind = TissueOptions if self.options.label_key is None else ExpressionOptions
        values = {} if self.options.label_key is None else {"label_key": self.options.label_key}
        values |= {
            name: value
            for name, value in self._shared_with(kind).items()
            if value != getattr(kind, name)
        }
        texts = {
            name: value if isinstance(value, str) else f"{value:.15g}"
            for name, value in values.items()
        }
        texts |= dict(option.split("=", 1) for option in more)
        file = f"./{path}" if path.startswith("-") else path
        return shlex.join(
            ["scperformer", step, file, *(f"{name}={value}" for name, value in texts.items())]
        )

    def _describe_tables(self, cells: OpenedCells, result: Checked) -> None:
        """Add the findings that do not need the expression: cells, genes and the columns of obs."""
        names = list(map(str, cells.adata.var.index))
        result["num_cells"] = cells.n_obs
        result["rows"]["cells"] = [f"{cells.n_obs:,}"]
        species = guess_species(names) if self.options.species == "auto" else self.options.species
        self._add_genes(result, len(names), id_kind(names), species)
        try:
            with reading(cells.path):
                columns = label_columns(cells.obs)
        except InputError:  # predict works without obs
            result["label_columns"] = None
            result["notes"].append("the columns of obs cannot be read")
            return
        result["label_columns"] = columns
        if columns:
            texts = [f"{shortened(key)} ({num} values)" for key, num in columns.items()]
            result["rows"]["obs columns"] = [", ".join(texts)]
        if num := int(cells.obs_names.duplicated().sum()):
            result["notes"].append(f"repeated cell names, which are kept: {num:,}")
        if self.options.label_key is None:
            if (key := likely_batches(cells)) is not None:
                result["rows"]["batches"] = [LIKELY.format(key)]
            return
        with suppress(InputError):  # make_reference raises the same error later
            labels = require_labels(cells.obs, self.options.label_key, cells.path)
            text = f"{labels.nunique()} in {self.options.label_key}, {labels.notna().sum():,} cells"
            if num := int(labels.isna().sum()):
                text += f"; {num:,} cells without a label"
            result["rows"]["labels"] = [text]

    def _add_genes(self, result: Checked, num_genes: int, kind: str, species: str) -> None:
        result |= {"num_genes": num_genes, "id_kind": kind, "species": species}
        result["rows"]["genes"] = [
            f"{num_genes:,}, {KIND_NAMES[kind]}, {SPECIES.get(species, species)}"
        ]

    def _check_expression(self, cells: OpenedCells, result: Checked) -> None:
        """Add the findings about the expression, and check it as `predict` or, with `label_key`, `train` does."""
        findings = cells.findings
        self._add_genes(result, findings.num_genes, findings.id_kind, result["species"])
        self._add_expression(result, findings, cells.typical_quality())
        if self.options.label_key is not None:
            shared = self._shared_with(ExpressionOptions) | {"inputs": [cells.path]}
            options = ReferenceOptions(label_key=self.options.label_key, **shared)
            reference = OpenedCells(cells.to_adata(), options, cells.path, findings)
            if has_profiles(reference):
                result["notes"].append("rows are profiles, from which train simulates cells")
            reference_of([reference])
            return
        model, model_text = self.model, self.model_text
        if model is None:
            from scperformer.adaptation.tissue_model import find_tissue  # imports torch

            tissue_model, tissue = find_tissue(cells, self.options.tissue)
            # JSON has no arrays.
            result["tissue"] = {
                name: np.asarray(value).tolist() for name, value in to_uns(tissue).items()
            }
            model = tissue_model.saved
            model_text = f"profiles of {tissue_model.saved.name}"
            result["rows"]["tissue"] = [tissue_text(tissue)]
        plan = align_to_model(cells, model)
        overlap = plan.overlap
        result["overlap"] = asdict(overlap)
        text = f"{model_text}: {overlap.num_shared:,} of {overlap.num_model:,} genes found "
        text += f"({overlap.share_of_model:.1%}), with {overlap.informative_share:.1%} of its informative expression"
        if overlap.absent:
            text += f"; missing: {', '.join(overlap.absent[:3])}" + (
                " ..." if overlap.num_absent > 3 else ""
            )
        result["rows"]["model"] = [text]
        result["notes"] += overlap.notes
        self._add_genes(result, findings.num_genes, findings.id_kind, plan.mapping.species)
        require_fit(cells, plan, model)
        find_coverage(Query(cells, plan, cells.path))  # refuses damaged cells as predict does
        require_not_annotated(cells, AnnotationOptions.key_added)

    def _add_expression(self, result: Checked, findings: Findings, quality: dict[str, Any]) -> None:
        """Add the used and unused matrices, genes, counts and mitochondrial expression."""
        droplets = findings.droplets
        values = asdict(replace(findings, droplets=None, sample=None)) | {"text": findings.text}
        # too long for JSON; the notes describe them
        for name in ("droplets", "is_gene", "is_foreign", "sample"):
            del values[name]
        result |= {"findings": values, "quality": quality}
        num_seen = quality["num_seen"]
        counts = (
            ""
            if quality["median_counts"] is None
            else f" and {quality['median_counts']:,.0f} counts"
        )
        text = f"median {quality['median_genes']:,.0f} genes{counts} per cell"
        if quality["median_mitochondrial"] is not None:
            text += f"; median {quality['median_mitochondrial']:.1%} mitochondrial"
        if droplets is not None:
            result["droplets"] = {"floor": droplets.floor, "num_empty": droplets.num_empty}
            text += f"; measured on {num_seen:,} barcodes with {droplets.floor:,} counts or more"
        elif num_seen < result["num_cells"]:
            text += f"; measured on {num_seen:,} cells, evenly spread over the file"
        unused = findings.unused
        result["rows"] |= {
            "expression": [f"{findings.text}: {findings.why}"],
            "not used": [f"{shortened(source)}: {why}" for source, why in unused.items()],
            "quality": [text],
        }
        shown = {f"{source} is not used: {why}" for source, why in unused.items()}
        result["notes"] += [
            note for note in (*findings.notes, findings.doubt) if note and note not in shown
        ]
