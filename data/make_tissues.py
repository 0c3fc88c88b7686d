"""Make the packaged profiles of cell types from the sets of mean profiles of CellProfileLibrary (CC BY 4.0).

    python data/make_tissues.py FOLDER

FOLDER has a file for each collection, such as `human_adult.h5ad`: rows are cell types, X is counts per million,
`obs["tissue_source"]` is the set, `obs["cell_type"]` the type, and `var["measured_SET"]` marks the genes of the set.
`profile_sets.tsv` beside this script names the tissue of each set that is used, the types of other sets that are added
to it, and tissues that are made of a set of the other species. `profile_labels.tsv` names the types. What is no cell
type is left out, and types that are the same for every practical purpose become their mean.

It writes three files of `scperformer/model/packaged/tissues`: `sets.tsv`, `types.tsv` with a row for each profile, and
`profiles.npz` with the expression of these rows in 12 steps per power of two, for each species.
"""

import argparse
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd

TABLES = Path(__file__).parent
PACKAGED = TABLES.parent / "scperformer" / "model" / "packaged" / "tissues"
STEPS = 12  # of the 8-bit logarithm per power of two: 6 %
MIN_SETS = 3  # a gene is kept if so many sets of the species measure it,
MIN_CPM = 30.0  # one type expresses so much of it,
NUM_GENES = 12_000  # and it is among these whose log2(1 + CPM) varies most between types


def profiles_of(
    profiles: ad.AnnData, labels: pd.DataFrame, name: str
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the profiles of one set, one row per label, in counts per million of its genes.

    Also a table of these labels: columns label, id, and merged, the labels whose profiles are in the mean, too.
    """
    measured = profiles.var[f"measured_{name}"].to_numpy(bool)
    table = profiles[profiles.obs["tissue_source"] == name, measured].to_df().astype(np.float64)
    table.index = profiles.obs.loc[table.index, "cell_type"].astype(str)
    labels = labels[labels["use"] == "yes"].set_index("source_name")
    means = table.loc[labels.index].groupby(labels["same_as"].fillna(labels["name"])).mean()
    ids = labels.drop_duplicates("name").set_index("name")["cl"].reindex(means.index)
    merged = labels.groupby("same_as")["name"].agg("; ".join).reindex(means.index)
    types = pd.DataFrame({"label": means.index, "id": ids.to_numpy(), "merged": merged.to_numpy()})
    return means.div(means.sum(axis=1), axis=0) * 1e6, types


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    labels, sets = (
        pd.read_csv(TABLES / name, sep="\t", comment="#", dtype=str)
        for name in ("profile_labels.tsv", "profile_sets.tsv")
    )
    key = sets["collection"] + "." + sets["set"]
    added = set(sets["adds"].dropna().str.split(":").str[0])
    sets = sets.assign(key=key)[sets["name"].notna() | sets["set"].isin(added)]
    # of profiles of the other species, which the package has once
    by_orthologs = sets["orthologs_of"].notna()
    types: list[pd.DataFrame] = []
    arrays: dict[str, np.ndarray] = {}
    for species, own in sets[~by_orthologs].groupby("species", sort=False):
        tables = {}
        for row in own.itertuples():
            is_own = (labels["collection"] == row.collection) & (labels["set"] == row.set)
            profiles = ad.read_h5ad(folder / f"{row.collection}.h5ad")
            tables[row.key], own_types = profiles_of(profiles, labels[is_own], row.set)
            types.append(own_types.assign(set=row.key)[["set", "label", "id", "merged"]])
        number = pd.concat(
            [pd.Series(1, index=table.columns) for table in tables.values()], axis=1
        ).sum(axis=1)
        genes = sorted(number.index[number >= MIN_SETS])
        logs = np.log2(1 + pd.concat([table.reindex(columns=genes) for table in tables.values()]))
        logs = logs.loc[:, logs.max() >= np.log2(1 + MIN_CPM)]
        logs = logs[logs.std().nlargest(NUM_GENES).index]
        measured = np.stack([logs.columns.isin(table.columns) for table in tables.values()])
        # Genes in the order of the first type that they mark: similar columns side by side compress better.
        order = np.lexsort((logs.columns, logs.fillna(0).to_numpy().argmax(axis=0)))
        arrays[f"{species}_genes"] = logs.columns.to_numpy(str)[order]
        arrays[f"{species}_values"] = (
            np.round(STEPS * logs.fillna(0).to_numpy()).clip(0, 255).astype(np.uint8)[:, order]
        )
        arrays[f"{species}_measured"] = np.packbits(measured[:, order], axis=1)
        print(f"{species}: {len(tables)} sets, {len(logs)} types, {logs.shape[1]} genes")
    PACKAGED.mkdir(exist_ok=True)
    np.savez_compressed(PACKAGED / "profiles.npz", **arrays)
    pd.concat(types).to_csv(PACKAGED / "types.tsv", sep="\t", index=False)
    columns = [
        "key",
        "name",
        "species",
        "age",
        "tissue",
        "adds",
        "orthologs_of",
        "pool",
        "title",
        "url",
        "licence",
        "note",
    ]
    sets[columns].rename(columns={"key": "set"}).to_csv(
        PACKAGED / "sets.tsv", sep="\t", index=False
    )
    print(f"{(PACKAGED / 'profiles.npz').stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
