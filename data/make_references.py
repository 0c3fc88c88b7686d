"""Make a reference of each set of mean profiles in CellProfileLibrary, with readable labels and Cell Ontology ids.

    python data/make_references.py FOLDER references
    scperformer train references/human_adult.Pancreas_HCA.h5ad label_key=cell_type output=pancreas

FOLDER has a file for each collection, such as `human_adult.h5ad`: rows are cell types, X is counts per million,
`obs["tissue_source"]` is the set, `obs["cell_type"]` the type, and `var["measured_SET"]` marks the genes of the set.
Names come from `profile_labels.tsv` beside this script; what is no cell type is left out, and types that are the same
for every practical purpose become their mean.
"""

import argparse
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd

TABLES = Path(__file__).parent


def reference_of(profiles: ad.AnnData, labels: pd.DataFrame, study: pd.Series) -> ad.AnnData:
    """Return the profiles of one set with the names of `labels`, one row per type; X float32, counts per million."""
    measured = profiles.var[f"measured_{study['set']}"].to_numpy(bool)
    table = profiles[profiles.obs["tissue_source"] == study["set"], measured].to_df()
    table.index = profiles.obs.loc[table.index, "cell_type"].astype(str)
    labels = labels[labels["use"] == "yes"].set_index("source_name")
    means = table.loc[labels.index].groupby(labels["same_as"].fillna(labels["name"])).mean()
    ids = labels.drop_duplicates("name").set_index("name")["cl"].reindex(means.index).fillna("unknown")
    obs = pd.DataFrame({"cell_type": means.index, "cell_type_ontology_term_id": ids}, index=means.index)
    made = ad.AnnData(means.to_numpy(np.float32), obs=obs.rename_axis(None), var=pd.DataFrame(index=means.columns))
    made.uns["study"] = {name: str(study[name]) for name in ("species", "age", "tissue", "title", "url", "licence")}
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("output", type=Path)
    arguments = parser.parse_args()
    labels, studies = (
        pd.read_csv(TABLES / name, sep="\t", comment="#", dtype=str)
        for name in ("profile_labels.tsv", "profile_sets.tsv")
    )
    arguments.output.mkdir(parents=True, exist_ok=True)
    for collection, sets in studies.groupby("collection"):
        profiles = ad.read_h5ad(arguments.folder / f"{collection}.h5ad")
        for _, study in sets.iterrows():
            own = labels[(labels["collection"] == collection) & (labels["set"] == study["set"])]
            made = reference_of(profiles, own, study)
            made.write_h5ad(arguments.output / f"{collection}.{study['set']}.h5ad", compression="gzip")
            print(f"{collection}.{study['set']}: {made.n_obs} cell types, {made.n_vars} genes")


if __name__ == "__main__":
    main()
