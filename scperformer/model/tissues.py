"""The packaged profiles of cell types: mean expression in tissues of two species, and the labels of each tissue.

data/make_tissues.py writes `sets.tsv` (a set is a study of one tissue), `types.tsv` (a row for each profile) and
`profiles.npz`. `common.tsv` names the types that occur in every tissue. They are fitted to all studies of a species,
and added to tissues that lack them. Where the tissue is not known, cells are called by them alone. The other types of
this table are then known, and named by their kind: the broader type above them in the tree, or in the column `kind`.

Shape letters: C labels, G genes.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd

from scperformer.base.errors import InputError
from scperformer.base.messages import did_you_mean, listed
from scperformer.io.gene_table import human_genes
from scperformer.labels.ontology import joined_by_terms, packaged_ontology
from scperformer.labels.tree import LabelTree
from scperformer.model.common_types import fit_common_types

FOLDER = Path(__file__).parent / "packaged" / "tissues"
LICENCE = "LICENCE.txt"  # beside them
STEPS = 12  # of the 8-bit logarithm per power of two, as in data/make_tissues.py
# in place of a tissue that is not known
COMMON = {"human": "common types", "mouse": "mouse common types"}
AND = " + "  # between the names of two tissues of one file
MIN_STUDIES = 3  # of a common type; others join a broader one, if there is one
BLOOD_CELL = "CL:0000988"  # hematopoietic cell
CYCLING = "cycling"  # labels that begin with it are of no common type
PSEUDO = 5.0  # counts per million, added to profiles whose quotient is taken
MAX_FACTOR = 12.0
# Other names of tissues, also behind words such as "mouse" or "fetal".
SYNONYMS = {
    "airway": ("nasal swab", "bronchus", "trachea"),
    "blood": ("PBMC", "bone marrow", "cord blood"),
    "breast": ("mammary gland",),
    "bronchoalveolar lavage": ("BAL", "BALF"),
    "cerebrum": ("brain",),
    "large intestine": ("colon", "rectum"),
    "mammary gland": ("breast",),
    "skeletal muscle": ("muscle",),
    "small intestine": ("duodenum", "jejunum", "ileum"),
}
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
    sources: list[str]  # the set of each label; the first labels are of the tissue's own
    # of common types: labels of types that do not occur in every tissue
    others: tuple[str, ...] = ()
    # broader types that the ontology does not have
    kinds: dict[str, str] = field(default_factory=dict)

    @cached_property
    def symbols(self) -> pd.Index:
        """The genes in capitals."""
        return self.profiles.columns.str.upper()

    @cached_property
    def families(self) -> np.ndarray:
        """The number of the family of each label, int64 C: labels of types that differ little."""
        return np.unique([family_of(term) for term in self.terms], return_inverse=True)[1]

    @cached_property
    def tree(self) -> LabelTree | None:
        """The labels under the terms that join them."""
        tree = joined_by_terms(
            self.profiles.index.tolist(), self.terms, packaged_ontology(), by_name=True
        )
        return tree and replace(tree, parents=tree.parents | self.kinds)


def family_of(term: str) -> str:
    """Return the term of `FAMILIES` that is, or contains, a type, or the term itself."""
    if term in FAMILY_OF:
        return FAMILY_OF[term]
    above = packaged_ontology().ancestors(term)
    return next((family for family in FAMILIES if family in above), term)


class Collection:
    """The packaged sets of profiles."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self.sets = pd.read_csv(folder / "sets.tsv", sep="\t", keep_default_na=False).set_index(
            "set", drop=False
        )
        types = pd.read_csv(folder / "types.tsv", sep="\t")
        by_orthologs = self.sets["orthologs_of"][self.sets["orthologs_of"] != ""]
        copies = [
            types[types["set"] == source].assign(set=name) for name, source in by_orthologs.items()
        ]
        self.types = pd.concat([types, *copies], ignore_index=True)
        self.common = pd.read_csv(folder / "common.tsv", sep="\t", keep_default_na=False)
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
        """Return all profiles of a species: the set of each, P; ln(1 + cp10k), float32 P x G; measured genes, P x G.

        The last sets are those of the other species, by the orthologs of their genes.
        """
        orthologs = human_genes().orthologs
        if species == "human":
            orthologs = {human: mouse for mouse, human in orthologs.items()}
        other_species = "human" if species == "mouse" else "mouse"
        other = self._expression(other_species)
        genes = [orthologs.get(gene, "") for gene in self.genes(species)]
        # of the ortholog of each gene; -1: none
        places = pd.Index(self.genes(other_species)).get_indexer(genes)
        parts = [self._expression(species)]
        for row in self.sets[
            (self.sets["species"] == species) & (self.sets["orthologs_of"] != "")
        ].itertuples():
            is_of = other[0] == row.orthologs_of
            values = np.expm1(other[1][is_of][:, places]) * (places >= 0)
            logs = np.log1p(values / values.sum(axis=1, keepdims=True) * np.float32(1e4))
            has_gene = other[2][is_of][:, places] & (places >= 0)
            parts.append((pd.Index([row.set] * len(logs)), logs, has_gene))
        sets, logs, measured = zip(*parts, strict=True)
        return sets[0].append(list(sets[1:])), np.concatenate(logs), np.concatenate(measured)

    @cache  # noqa: B019
    def _expression(self, species: str) -> tuple[pd.Index, np.ndarray, np.ndarray]:
        """Return the profiles of the studies of a species, as `expression` does."""
        names = self.sets.index[
            (self.sets["species"] == species) & (self.sets["orthologs_of"] == "")
        ]
        sets = pd.Index(self.types.loc[self.types["set"].isin(names), "set"])
        packed = self._arrays[f"{species}_measured"]
        measured = np.unpackbits(packed, axis=1, count=len(self.genes(species))).astype(bool)[
            names.get_indexer(sets)
        ]
        values = np.exp2(self._arrays[f"{species}_values"] / np.float32(STEPS)) - 1
        return (
            sets,
            np.log1p(values / values.sum(axis=1, keepdims=True) * np.float32(1e4)),
            measured,
        )

    @cache  # noqa: B019
    def profiles(self, name: str) -> pd.DataFrame:
        """Return the profiles of a set: labels x measured genes, counts per million of these genes."""
        species = self.sets.loc[name, "species"]
        sets, logs, measured = self.expression(species)
        genes = measured[sets == name][0]
        values = 100 * np.expm1(logs[sets == name][:, genes])
        return pd.DataFrame(
            values, index=self.terms(name).index, columns=self.genes(species)[genes]
        )

    @cache  # noqa: B019
    def symbols(self, name: str) -> pd.Index:
        """Return the measured genes of a set in capitals."""
        species = self.sets.loc[name, "species"]
        sets, _, measured = self.expression(species)
        return self.capitals(species)[measured[sets == name][0]]

    @cache  # noqa: B019
    def capitals(self, species: str) -> pd.Index:
        """Return the symbols of the genes of a species in capitals."""
        return pd.Index(self.genes(species)).str.upper()

    @cache  # noqa: B019
    def terms(self, name: str) -> pd.Series:
        """Return the Cell Ontology id of each label of a set."""
        return self.types[self.types["set"] == name].set_index("label")["id"]

    def is_study(self, sets: pd.Index) -> np.ndarray:
        """Return which sets are studies of their species, and no profiles by orthologs."""
        return (self.sets.loc[sets, "orthologs_of"] == "").to_numpy()

    @cached_property
    def _common_rows(self) -> pd.DataFrame:
        return self.common.set_index("name")

    @cached_property
    def others(self) -> frozenset[str]:
        """The names of common.tsv that do not occur in every tissue: known where there is no tissue, but not named."""
        return frozenset(self.common["name"][self.common["use"] == "other"])

    @cached_property
    def kinds(self) -> frozenset[str]:
        """The terms of common.tsv that are not too broad: types of one of them, such as T cells, are siblings."""
        return frozenset(self.common["id"][self.common["use"] != "broad"])

    def is_common(self, term: str) -> bool:
        """Return whether a type occurs in every tissue, such as leukocytes, vessels and fibroblasts."""
        return self._common_type(term)[1] != "other"

    @cache  # noqa: B019
    def _common_type(self, term: str) -> tuple[str, str]:
        """Return name and use of the first row of common.tsv that is, or contains, a type."""
        above = packaged_ontology().ancestors(term)
        rows = self.common.itertuples()
        return next(((row.name, row.use) for row in rows if row.id in above), ("", "other"))

    @cache  # noqa: B019
    def common_types(self, species: str) -> Tissue:
        """Return the common types of a species, fitted to all of its studies, in the place of a tissue."""
        sets, logs, measured = self._expression(species)
        types = self.types[self.types["set"].isin(sets)]
        names = self._names_of_common(types)
        is_used = (names != "").to_numpy() & ~types["label"].str.startswith(CYCLING).to_numpy()
        rows = self.common[self.common["name"].isin(names[is_used])]
        codes = pd.Index(rows["name"]).get_indexer(names[is_used])
        studies = pd.factorize(sets[is_used])[0]
        means, is_measured = fit_common_types(logs[is_used], measured[is_used], codes, studies)
        values = np.expm1(means[:, is_measured])
        values *= 1e6 / values.sum(axis=1, keepdims=True)
        table = pd.DataFrame(
            values, index=pd.Index(rows["name"]), columns=self.genes(species)[is_measured]
        )
        others = tuple(rows["name"][rows["use"] == "other"])
        name = COMMON[species]
        used = self.sets.loc[sets[is_used].unique()]
        kinds = rows[rows["kind"] != ""].set_index("name")["kind"].to_dict()
        return Tissue(
            name,
            self.title(name),
            used,
            table,
            rows["id"].tolist(),
            [name] * len(rows),
            others,
            kinds,
        )

    def _names_of_common(self, types: pd.DataFrame) -> pd.Series:
        """Return the row of common.tsv of each type, "" if it is too broad; those of few studies join a broader row."""
        pairs = [self._common_type(term) for term in types["id"]]
        found = pd.DataFrame(pairs, columns=["name", "use"], index=types.index)
        names = found["name"].where(found["use"] != "broad", "")
        rows = self._common_rows
        for row in self.common[self.common["use"] == "common"].itertuples():
            is_of = names == row.name
            above = packaged_ontology().ancestors(row.id) - {row.id}
            broader = rows.index[rows["id"].isin(above) & (rows["use"] == "common")]
            if types["set"][is_of].nunique() < MIN_STUDIES and len(broader):
                names[is_of] = broader[0]
        return names

    @cache  # noqa: B019
    def tissue(self, name: str) -> Tissue:
        """Return a tissue by its name, with types of other sets that its own lacks.

        The name may be that of the common types of a species, or those of two tissues of one file.
        """
        if name in COMMON.values():
            return self.common_types("mouse" if self.is_mouse(name) else "human")
        if AND in name:
            return self._both(*name.split(AND))
        (source, ids), *added = self._parts(name)
        own = self.profiles(source)
        others = [(other, self._in_scale(other, terms.index, own), terms) for other, terms in added]
        return self._joined(name, [(source, own, ids), *others])

    def _parts(self, name: str) -> list[tuple[str, pd.Series]]:
        """Return the sets of the types of a tissue, its own set first, each with the ids of these labels."""
        rows = self.tissues()
        row = rows[rows["name"] == name].iloc[0]
        return [(row["set"], self.terms(row["set"])), *self._added(row)]

    def _both(self, name: str, second: str) -> Tissue:
        """Return a tissue with the types that only a second one has."""
        first = self.tissue(name)
        source = self.tissues().set_index("name").loc[second, "set"]
        ids = self.terms(source)
        is_new = [not self.is_common(term) and term not in first.terms for term in ids]
        ids = ids[is_new & ~ids.index.isin(first.profiles.index)]
        own = pd.Series(first.terms, index=first.profiles.index)
        sources = pd.Series(first.sources, index=own.index)
        parts = [
            (each, first.profiles[sources == each], own[sources == each])
            for each in sources.unique()
        ]
        return self._joined(
            f"{name}{AND}{second}",
            [*parts, (source, self._in_scale(source, ids.index, first.profiles), ids)],
        )

    def _joined(self, name: str, parts: list[tuple[str, pd.DataFrame, pd.Series]]) -> Tissue:
        """Return a tissue of profiles of several sets, each with the ids of its labels."""
        table = pd.concat([profiles for _, profiles, _ in parts])
        terms = pd.concat([ids for _, _, ids in parts])
        sources = [source for source, _, ids in parts for _ in ids]
        studies = self.sets.loc[
            [each for each in dict.fromkeys(sources) if each in self.sets.index]
        ]
        table = table.div(table.sum(axis=1), axis=0) * 1e6
        return Tissue(name, self.title(name), studies, table, terms.tolist(), sources)

    def labels(self, name: str) -> pd.DataFrame:
        """Return the labels of a tissue, its own and the added ones: columns label, term, set of origin, and merged."""
        if name in COMMON.values():
            tissue = self.tissue(name)
            parts = [(name, pd.Series(tissue.terms, index=tissue.profiles.index))]
        else:
            parts = self._parts(name)  # without the profiles, which take a while
        rows = [(label, term, source) for source, ids in parts for label, term in ids.items()]
        table = pd.DataFrame(rows, columns=["label", "term", "set"])
        merged = self.types.fillna({"merged": ""}).set_index(["set", "label"])["merged"]
        keys = pd.MultiIndex.from_frame(table[["set", "label"]])
        return table.assign(merged=merged.reindex(keys).fillna("").to_numpy())

    def _added(self, row: pd.Series) -> list[tuple[str, pd.Series]]:
        """Return the sets whose types are added to a tissue, each with the ids of these labels."""
        known = self.terms(row["set"]).copy()
        found = []
        if row["adds"]:
            source, _, names = row["adds"].partition(": ")
            source = next(name for name in self.sets.index if name.endswith(f".{source}"))
            ids = self.terms(source)
            ids = ids[names.split(", ")] if names else ids[~ids.index.isin(known.index)]
            found.append((source, ids))
            known = pd.concat([known, ids])
        common = self.common_types(row["species"])
        ids = pd.Series(common.terms, index=common.profiles.index)
        ids = ids[[self._is_added(label, row["pool"], known) for label in ids.index]]
        return [*found, (common.name, ids)] if len(ids) else found

    def _is_added(self, label: str, pool: str, known: pd.Series) -> bool:
        """Return whether a tissue with known terms gets a common type: one that it lacks, or blood cells that it names.

        Leukocytes of a tissue of few cells are poor profiles, so that those of all studies are added to them.
        """
        row = self._common_rows.loc[label]
        ancestors = packaged_ontology().ancestors
        is_blood = BLOOD_CELL in ancestors(row["id"])
        if (
            not row["lacks"]
            or label in known.index
            or pool == "no"
            or (pool == "stroma" and is_blood)
        ):
            return False
        if is_blood:
            return row["id"] not in set(known)
        terms = row["lacks"].split("; ")
        broader = ancestors(terms[0])  # a label of these has the cells already
        return not any(term in broader or not ancestors(term).isdisjoint(terms) for term in known)

    def _in_scale(self, source: str, labels: Sequence[str], own: pd.DataFrame) -> pd.DataFrame:
        """Return profiles of another set in the scale of a tissue's own set.

        The factor of a gene is the quotient of its medians over the types of the two sets: genes of few types have
        small medians, the ambient RNA, and genes of all types show the difference of the chemistries. A gene that the
        other set does not measure, such as INS of lung, gets the median of the own set.
        """
        other = self.tissue(source).profiles if source in COMMON.values() else self.profiles(source)
        genes = own.columns.intersection(other.columns, sort=False)
        medians = own.median()
        factors = (medians[genes] + PSEUDO) / (other[genes].median() + PSEUDO)
        scaled = other.loc[list(labels), genes] * factors.clip(1 / MAX_FACTOR, MAX_FACTOR)
        filled = scaled.reindex(columns=own.columns)
        return filled.where(filled.notna(), np.tile(medians, (len(filled), 1)))

    def title(self, name: str) -> str:
        """Return the name of a tissue with age and species, as in "pancreas (adult human)"."""
        if name in COMMON.values():
            return f"{name.removeprefix('mouse ')} ({'mouse' if self.is_mouse(name) else 'human'})"
        if AND in name:
            return AND.join(map(self.title, name.split(AND)))
        row = self.tissues().set_index("name").loc[name]
        how = ", by orthologs" if row["orthologs_of"] else ""
        return f"{name.removeprefix('mouse ')} ({'adult ' if row['age'] == 'adult' else ''}{row['species']}{how})"

    def is_mouse(self, name: str) -> bool:
        if name in COMMON.values():
            return name == COMMON["mouse"]
        return bool(self.tissues().set_index("name").loc[name.split(AND)[0], "species"] == "mouse")

    @cached_property
    def synonyms(self) -> dict[str, dict[str, str]]:
        """Other names of each tissue, without those of other tissues, and each without words such as "mouse"."""
        names = sorted(self.tissues()["name"])
        found: dict[str, dict[str, str]] = {name: {} for name in names}
        for name, (part, others) in product(names, SYNONYMS.items()):
            if f" {name}".endswith(f" {part}"):
                whole = {name.removesuffix(part) + other: other for other in others}
                found[name] = {each: other for each, other in whole.items() if each not in names}
        return found

    def with_synonyms(self, species: str | None = None) -> dict[str, str]:
        """Return the tissues of one species or of both, sorted, as in "large intestine (colon, rectum)"."""
        names = sorted(self.tissues(species)["name"])
        return {
            name: f"{name} ({', '.join(others)})"
            if (others := self.synonyms[name].values())
            else name
            for name in names
        }

    def named(self, name: str, species: str | None = None) -> str | None:
        """Return the name of the tissue that a user means, such as "pancreas" or "PBMC", or None.

        `species` None: not known.
        """
        wanted = name.strip().lower().replace("_", " ")
        candidates = (
            [f"mouse {wanted}", wanted] if species == "mouse" else [wanted, f"mouse {wanted}"]
        )
        names = {
            other.lower(): own for own, others in self.synonyms.items() for other in (own, *others)
        }
        names |= {common: common for common in COMMON.values()}
        return next((names[candidate] for candidate in candidates if candidate in names), None)

    def find(self, name: str, species: str | None) -> str:
        """Return the name of the tissue that a user means, as `named` does, or of two joined by +; or refuse it."""
        if AND.strip() in name:
            return AND.join(self.find(part, species) for part in name.split(AND.strip(), 1))
        found = self.named(name, species)
        if found is None:
            near = did_you_mean(
                name, [other for own, others in self.synonyms.items() for other in (own, *others)]
            )
            remedy = f"{near}'scperformer models list' shows all, or name a model by model_path"
            known = listed(self.with_synonyms(species).values())
            raise InputError("unknown-tissue", f"no tissue '{name}'", known, remedy)
        return found


@cache
def collection() -> Collection:
    """Return the packaged collection, read once."""
    return Collection()
