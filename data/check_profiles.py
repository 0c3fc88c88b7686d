"""Check the packaged profiles of cell types by marker genes, and by the profiles of other tissues of their species.

    python data/check_profiles.py

`profile_markers.tsv` beside this script has marker genes of types. A profile is judged by those of the narrowest type
that is, or contains, its own. The evidence for a type is the log2 quotient of its markers, between the profile and the
median of the profiles of the set that are of other types: the ambient RNA, which all types of a set have, cancels out.
It is the mean or the median over the markers, whichever is lower, so that no single gene decides.

It writes `profile_checks.tsv` with a row for each profile:

- `judged_as`, `own`, `rank`: the type whose markers judge it, their evidence, and its rank in the set by this evidence
- `other`, `best`: the type of another group with the most evidence, and this evidence
- `without`: genes of other types that it has, with their log2 quotients
- `sister`, `sister_is`, `similarity`: the profile of another set with the highest correlation, both centred by their
  sets, the type that judges it, and the correlation
- `verdict`: `ok`; `fails`; or what was decided by hand, from `profile_decisions.tsv`

and prints the profiles that fail. Dropped profiles are at the end of the table, with the decision only.
"""

from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

from scperformer.labels.ontology import packaged_ontology
from scperformer.model.tissues import collection

TABLES = Path(__file__).parent
PSEUDO = 10.0  # counts per million: less is noise
MIN_OWN = 1.0  # evidence that a profile needs for its type, log2
MARGIN = 1.5  # by which the evidence for another type must not exceed it
MAX_WITHOUT = 3.0  # log2 quotient of a gene of other types
MIN_MARKERS = 3  # of a type that a profile is compared with; fewer prove little
MIN_UNRELATED = 2  # profiles of other types in a set; with fewer, the median is that of the species


def read(name: str) -> pd.DataFrame:
    """Return a table of this folder."""
    return pd.read_csv(TABLES / name, sep="\t", comment="#", keep_default_na=False)


def symbols(genes: str, species: str) -> list[str]:
    """Return the symbols of a species in a field of the table of markers, such as "CD3D CD14/Ccr2"."""
    pairs = [gene.partition("/") for gene in genes.split()]
    if species == "human":
        return [human for human, _, _ in pairs]
    return [mouse or human.capitalize() for human, _, mouse in pairs]


@cache
def are_related(first: str, second: str) -> bool:
    """Return whether one of two terms is, or contains, the other."""
    ontology = packaged_ontology()
    return first in ontology.ancestors(second) or second in ontology.ancestors(first)


def narrowest(term: str, terms: pd.Index) -> str:
    """Return the narrowest of some terms that is, or contains, a term."""
    ontology = packaged_ontology()
    above = ontology.ancestors(term)
    return max(
        (known for known in terms if known in above),
        key=lambda known: len(ontology.ancestors(known)),
    )


def nearest(centred: pd.DataFrame) -> pd.DataFrame:
    """Return the most similar profile of another set for each profile; columns sister (set, label) and similarity."""
    measured, values = centred.notna().to_numpy(float), centred.fillna(0).to_numpy()
    cosine = values @ values.T / np.sqrt((values**2 @ measured.T) * (measured @ (values**2).T))
    sets = centred.index.get_level_values(0).to_numpy()
    cosine[sets[:, None] == sets] = -1
    return pd.DataFrame(
        {"sister": centred.index[cosine.argmax(axis=1)], "similarity": cosine.max(axis=1)},
        index=centred.index,
    )


def set_checks(
    logs: pd.DataFrame, terms: list[str], markers: pd.DataFrame, usual: pd.Series
) -> pd.DataFrame:
    """Return the evidence of the profiles of a set: logarithms of labels x genes, and their terms."""
    known_genes = list(dict.fromkeys(markers["genes"].sum() + markers["alien"].sum()))
    logs, usual = logs[known_genes], usual[known_genes]

    @cache
    def above(*is_unrelated: bool) -> pd.DataFrame:
        return logs - (
            logs[list(is_unrelated)].median() if sum(is_unrelated) >= MIN_UNRELATED else usual
        )

    def above_others(genes: list[str], term: str) -> pd.DataFrame:
        """Return the log2 quotients of genes between the profiles and the median of those of other types."""
        return above(*(not are_related(term, known) for known in terms))[genes]

    quotients = {term: above_others(genes, term) for term, genes in markers["genes"].items()}
    evidence = pd.DataFrame(
        {
            term: np.minimum(each.mean(axis=1), each.median(axis=1))
            for term, each in quotients.items()
        }
    )
    comparable = markers.index[markers["genes"].map(len) >= MIN_MARKERS]
    rows = []
    for label, term in zip(logs.index, terms, strict=True):
        own = narrowest(term, markers.index)
        others = comparable[(markers.loc[comparable, "group"] != markers.loc[own, "group"])]
        others = evidence.loc[label, [other for other in others if not are_related(other, term)]]
        alien = above_others(markers.loc[own, "alien"], own).loc[label]
        rows.append(
            {
                "label": label,
                "id": term,
                "judged_as": own,
                "own": evidence.loc[label, own],
                "rank": int((evidence[own] > evidence.loc[label, own]).sum()) + 1,
                "other": others.idxmax(),
                "best": others.max(),
                "without": ", ".join(
                    f"{gene} {value:.1f}" for gene, value in alien.items() if value > MAX_WITHOUT
                ),
            }
        )
    return pd.DataFrame(rows)


def checks(species: str) -> pd.DataFrame:
    """Return the rows of the profiles of a species, without the verdict."""
    sets = collection().sets
    names = sets.index[(sets["species"] == species) & (sets["orthologs_of"] == "")]  # the studies
    tables = {name: np.log2(collection().profiles(name) + PSEUDO) for name in names}
    logs = pd.concat(tables, names=["set", "label"])
    usual = logs.median()
    markers = read("profile_markers.tsv").set_index("id")
    for column, field in (("genes", "markers"), ("alien", "without")):
        markers[column] = [
            [gene for gene in symbols(genes, species) if gene in logs] for genes in markers[field]
        ]
    markers = markers[markers["genes"].map(len) > 0]
    rows = [
        set_checks(logs.loc[name], collection().terms(name).tolist(), markers, usual).assign(
            set=name
        )
        for name in names
    ]
    table = (
        pd.concat(rows)
        .set_index(["set", "label"])
        .join(nearest(logs - logs.groupby(level=0).transform("mean")))
    )
    table["sister_is"] = table["judged_as"].loc[table["sister"]].map(markers["type"]).to_numpy()
    table["sister"] = [": ".join(sister) for sister in table["sister"]]
    for column in ("judged_as", "other"):
        table[column] = table[column].map(markers["type"])
    return table.reset_index()


def main() -> None:
    table = pd.concat([checks(species) for species in collection().sets["species"].unique()])
    fails = (
        (table["own"] < MIN_OWN)
        | (table["best"] > table["own"] + MARGIN)
        | (table["without"] != "")
    )
    table["verdict"] = np.where(fails, "fails", "ok")
    decisions = read("profile_decisions.tsv")
    table = table.merge(decisions, on=["set", "label"], how="outer", sort=False)
    table["verdict"] = table.pop("decision").fillna(table["verdict"])
    columns = ["set", "label", "id", "judged_as", "own", "rank", "other", "best", "without"]
    columns += ["sister", "sister_is", "similarity", "verdict"]
    table = table.sort_values("id", key=pd.isna, kind="stable")[columns]
    table["rank"] = table["rank"].astype("Int64")
    table.to_csv(TABLES / "profile_checks.tsv", sep="\t", index=False, float_format="%.1f")
    failing = table[table["verdict"] == "fails"]
    print(failing.drop(columns=["id", "sister_is"]).to_string(index=False, float_format="%.1f"))
    print(
        f"{len(failing)} of {table['id'].notna().sum()} profiles fail; {len(decisions)} decisions"
    )


if __name__ == "__main__":
    main()
