"""The checks of the packaged profiles by marker genes: their table is in step, and what failed is renamed or gone."""

from pathlib import Path

import pandas as pd

from scperformer.model.tissues import collection

DATA = Path(__file__).parents[2] / "data"


def table(name: str) -> pd.DataFrame:
    return pd.read_csv(DATA / name, sep="\t", comment="#", keep_default_na=False)


def test_every_profile_is_checked():
    checks = table("profile_checks.tsv")
    used = checks[~checks["verdict"].str.startswith("dropped: ")]
    columns = ["set", "label", "id"]
    is_study = collection().sets.loc[collection().types["set"], "orthologs_of"].to_numpy() == ""
    assert (
        used[columns].to_numpy().tolist()
        == collection().types.loc[is_study, columns].to_numpy().tolist()
    )


def test_what_fails_has_a_decision_with_a_reason():
    checks = table("profile_checks.tsv").set_index(["set", "label"])["verdict"]
    assert not (checks == "fails").any()
    decisions = table("profile_decisions.tsv").set_index(["set", "label"])["decision"]
    assert decisions.str.fullmatch(r"(kept|renamed|dropped): .+").all()
    assert checks[decisions.index].tolist() == decisions.tolist()
    assert (checks.drop(decisions.index) == "ok").all()


def test_types_have_one_row_of_markers():
    markers = table("profile_markers.tsv")
    assert markers["id"].is_unique
    assert (markers["markers"].str.split().map(len) >= 3).all()
    shared = [
        row.type for row in markers.itertuples() if {*row.markers.split()} & {*row.without.split()}
    ]
    assert not shared


def test_profiles_of_mixed_cells_do_not_name_others():
    # half smooth muscle
    assert "atrial cardiomyocyte" not in collection().terms("mouse_neonatal.Heart_MCA").index
    # with macrophages
    assert "dendritic cell" not in collection().terms("human_adult.Esophagus_HCA").index
    assert "stromal cell" not in collection().terms("mouse_adult.Liver_MCA").index  # mesothelium


def test_the_mammary_gland_has_basal_cells():
    labels = collection().labels("mouse mammary gland").set_index("label")
    assert labels.loc["myoepithelial cell", "term"] == "CL:0002324"
    mammary = collection().tissue("mouse mammary gland").profiles
    assert mammary["Mylk"].idxmax() == "myoepithelial cell"
