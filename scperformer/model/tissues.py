"""The packaged profiles of cell types: mean expression in tissues of two species, and the labels of each tissue.

data/make_tissues.py writes `sets.tsv` (a set is a study of one tissue), `types.tsv` (a row for each profile) and
`profiles.npz`. `pool.tsv` names types that occur in every tissue, or `only` in some, and the terms that a tissue must
lack to get them. Their names and ids may be broader than their profiles: the macrophage is the interstitial macrophage
of the lung.

Shape letters: C labels, G genes.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from scperformer.base.errors import InputError
from scperformer.base.messages import did_you_mean, listed
from scperformer.labels.ontology import packaged_ontology

FOLDER = Path(__file__).parent / "packaged" / "tissues"
LICENCE = "LICENCE.txt"  # beside them
STEPS = 12  # of the 8-bit logarithm per power of two, as in data/make_tissues.py
CYCLING = "cycling"  # in place of a term in pool.tsv: labels that begin with it
PSEUDO = 5.0  # counts per million, added to profiles whose quotient is taken
MAX_FACTOR = 12.0
# Terms whose narrower types differ little: their labels are called together, and the best of them afterwards.
FAMILIES = [
    "CL:0000624",  # CD4-positive, alpha-beta T cell
    "CL:0000625",  # CD8-positive, alpha-beta T cell
    "CL:0000236",  # B cell
    "CL:0000946",  # antibody secreting cell
    "CL:0000623",  # natural killer cell
    "CL:0000576",  # monocyte
    "CL:0000451",  # dendritic cell
    "CL:0000235",  # macrophage
    "CL:0000094",  # granulocyte
    "CL:0000764",  # erythroid lineage cell
    "CL:0008001",  # hematopoietic precursor cell
    "CL:0000115",  # endothelial cell
    "CL:0000057",  # fibroblast
    "CL:0000182",  # hepatocyte
    "CL:0000312",  # keratinocyte
    "CL:0002306",  # epithelial cell of proximal tubule
    "CL:0000018",  # spermatid
]
# Regulatory T cells and MAIT cells, which the ontology does not put there, as they occur among other cells, too.
FAMILY_OF = {"CL:0000815": "CL:0000624", "CL:0000940": "CL:0000625"}


@dataclass(frozen=True)
class Tissue:
    """A tissue of one species and age, with the profiles of its types; `studies` has the rows of sets.tsv it uses."""

    name: str
    title: str  # with age and species
    studies: pd.DataFrame
    profiles: pd.DataFrame  # C x G, counts per million of these genes; the index has the labels
    terms: list[str]  # Cell Ontology id of each label
    num_added: int  # labels, the last ones, from other sets

    @cached_property
    def families(self) -> np.ndarray:
        """The number of the family of each label, int64 C: labels of types that differ little."""
        return np.unique([family_of(term) for term in self.terms], return_inverse=True)[1]


def family_of(term: str) -> str:
    """Return the term of `FAMILIES` that is, or contains, a type, or the term itself."""
    if term in FAMILY_OF:
        return FAMILY_OF[term]
    above = packaged_ontology().ancestors(term)
    return next((family for family in FAMILIES if family in above), term)


class Collection:
    """The packaged sets of profiles."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self.sets = pd.read_csv(folder / "sets.tsv", sep="\t", keep_default_na=False).set_index("set", drop=False)
        self.types = pd.read_csv(folder / "types.tsv", sep="\t")
        self.pool = pd.read_csv(folder / "pool.tsv", sep="\t", keep_default_na=False)
        self.file = folder / "profiles.npz"

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the profiles and their tables."""
        files = [self.file, *sorted(self.file.parent.glob("*.tsv"))]
        return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()

    @cached_property
    def _arrays(self) -> dict[str, np.ndarray]:
        with np.load(self.file) as arrays:
            return dict(arrays)

    def genes(self, species: str) -> np.ndarray:
        """Return the symbols of the genes of a species."""
        return self._arrays[f"{species}_genes"]

    def tissues(self, species: str | None = None) -> pd.DataFrame:
        """Return the rows of the sets that are tissues, of one species or of both."""
        rows = self.sets[self.sets["name"] != ""]
        return rows if species is None else rows[rows["species"] == species]

    @cache  # noqa: B019 (there is one collection)
    def expression(self, species: str) -> tuple[pd.Index, np.ndarray, np.ndarray]:
        """Return all profiles of a species: the set of each, P; ln(1 + cp10k), float32 P x G; measured genes, P x G."""
        names = self.sets.index[self.sets["species"] == species]
        sets = pd.Index(self.types.loc[self.types["set"].isin(names), "set"])
        packed = self._arrays[f"{species}_measured"]
        measured = np.unpackbits(packed, axis=1, count=len(self.genes(species))).astype(bool)[names.get_indexer(sets)]
        values = np.exp2(self._arrays[f"{species}_values"] / np.float32(STEPS)) - 1
        return sets, np.log1p(values / values.sum(axis=1, keepdims=True) * np.float32(1e4)), measured

    @cache  # noqa: B019
    def profiles(self, name: str) -> pd.DataFrame:
        """Return the profiles of a set: labels x measured genes, counts per million of these genes."""
        species = self.sets.loc[name, "species"]
        sets, logs, measured = self.expression(species)
        genes = measured[sets == name][0]
        values = 100 * np.expm1(logs[sets == name][:, genes])
        return pd.DataFrame(values, index=self.terms(name).index, columns=self.genes(species)[genes])

    @cache  # noqa: B019
    def terms(self, name: str) -> pd.Series:
        """Return the Cell Ontology id of each label of a set."""
        return self.types[self.types["set"] == name].set_index("label")["id"]

    @cache  # noqa: B019
    def tissue(self, name: str) -> Tissue:
        """Return a tissue by its name, with types of other sets that its own lacks."""
        rows = self.tissues()
        row = rows[rows["name"] == name].iloc[0]
        parts = [(self.profiles(row["set"]), self.terms(row["set"]))]
        sources = [row["set"]]
        for source, labels in self._added(row):
            parts.append((self._in_scale(source, labels.index, parts[0][0]).set_axis(labels["name"]), labels["term"]))
            sources.append(source)
        table = pd.concat([profiles for profiles, _ in parts])
        table = table.div(table.sum(axis=1), axis=0) * 1e6
        terms = [term for _, ids in parts for term in ids]
        studies = self.sets.loc[list(dict.fromkeys(sources))]
        num_added = len(table) - len(parts[0][0])
        return Tissue(name, self.title(name), studies, table, terms, num_added)

    def labels(self, name: str) -> pd.DataFrame:
        """Return the labels of a tissue, its own and the added ones: columns label, term, merged, and set of origin."""
        row = self.tissues().set_index("name", drop=False).loc[name]
        own = self.terms(row["set"])
        parts = [(row["set"], pd.DataFrame({"name": own.index, "term": own}, index=own.index)), *self._added(row)]
        merged = self.types.fillna({"merged": ""}).set_index(["set", "label"])["merged"]
        tables = [labels.assign(set=source, merged=merged[source][labels.index]) for source, labels in parts]
        return pd.concat(tables, ignore_index=True).rename(columns={"name": "label"})

    def _added(self, row: pd.Series) -> list[tuple[str, pd.DataFrame]]:
        """Return the sets and labels (index; columns name, term) that are added to a tissue."""
        known = self.terms(row["set"])
        found = []
        if row["adds"]:
            source, _, names = row["adds"].partition(": ")
            source = next(name for name in self.sets.index if name.endswith(f".{source}"))
            ids = self.terms(source)
            ids = ids[names.split(", ")] if names else ids[~ids.index.isin(known.index)]
            found.append((source, pd.DataFrame({"name": ids.index, "term": ids})))
            known = pd.concat([known, ids])
        of_species = self.pool[self.pool["set"].map(self.sets["species"]) == row["species"]]
        for source, labels in of_species[of_species["set"] != row["set"]].groupby("set", sort=False):
            labels = labels[[_is_meant(entry, row) and _is_lacking(entry, known) for entry in labels.itertuples()]]
            if len(labels):
                found.append((source, labels.set_index("label")[["name", "id"]].rename(columns={"id": "term"})))
        return found

    def _in_scale(self, source: str, labels: Sequence[str], own: pd.DataFrame) -> pd.DataFrame:
        """Return profiles of another set in the scale of a tissue's own set.

        The factor of a gene is the quotient of its medians over the types of the two sets: genes of few types have
        small medians, the ambient RNA, and genes of all types show the difference of the chemistries. A gene that the
        other set does not measure, such as INS of lung, gets the median of the own set.
        """
        other = self.profiles(source)
        genes = own.columns.intersection(other.columns, sort=False)
        medians = own.median()
        factors = (medians[genes] + PSEUDO) / (other[genes].median() + PSEUDO)
        scaled = other.loc[list(labels), genes] * factors.clip(1 / MAX_FACTOR, MAX_FACTOR)
        filled = scaled.reindex(columns=own.columns)
        return filled.where(filled.notna(), np.tile(medians, (len(filled), 1)))

    def title(self, name: str) -> str:
        """Return the name of a tissue with age and species, as in "pancreas (adult human)"."""
        row = self.tissues().set_index("name").loc[name]
        return f"{name.removeprefix('mouse ')} ({'adult ' if row['age'] == 'adult' else ''}{row['species']})"

    def is_mouse(self, name: str) -> bool:
        """Return whether a tissue is of the mouse."""
        return bool(self.tissues().set_index("name").loc[name, "species"] == "mouse")

    def named(self, name: str, species: str | None = None) -> str | None:
        """Return the name of the tissue that a user means, such as "pancreas", or None; species None: not known."""
        wanted = name.strip().lower().replace("_", " ")
        candidates = [f"mouse {wanted}", wanted] if species == "mouse" else [wanted, f"mouse {wanted}"]
        return next((candidate for candidate in candidates if candidate in set(self.tissues()["name"])), None)

    def find(self, name: str, species: str | None) -> str:
        """Return the name of the tissue that a user means, as `named` does, or refuse it."""
        found = self.named(name, species)
        if found is None:
            near = did_you_mean(name, self.tissues()["name"])
            remedy = f"{near}'scperformer models list' shows all, or name a model by model_path"
            raise InputError(f"no tissue '{name}'", listed(self.tissues(species)["name"]), remedy)
        return found


def _is_meant(entry: Any, row: pd.Series) -> bool:
    """Return whether a row of pool.tsv is meant for a tissue, a row of the sets."""
    return row["tissue"] in entry.only.split("; ") if entry.only else row["pool"] == "yes"


def _is_lacking(entry: Any, known: pd.Series) -> bool:
    """Return whether labels with known terms lack all terms of a row of pool.tsv, and any broader than its type."""
    if entry.lacks == CYCLING:
        return not any(label.startswith(CYCLING) for label in known.index)
    ontology = packaged_ontology()
    broader, lacked = ontology.ancestors(entry.id), entry.lacks.split("; ")
    return not any(term in broader or not ontology.ancestors(term).isdisjoint(lacked) for term in known)


@cache
def collection() -> Collection:
    """Return the packaged collection, read once."""
    return Collection()
