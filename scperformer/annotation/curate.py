"""Labels of cells by the names that a person gave to their clusters; cells of other clusters keep their calls."""

from collections.abc import Iterable
from datetime import UTC, datetime

import numpy as np
import pandas as pd

from scperformer.adaptation.record import CuratedRecord, texts
from scperformer.base.errors import InputError
from scperformer.base.messages import did_you_mean, escape_formula, listed, name_problem
from scperformer.labels.ontology import packaged_ontology
from scperformer.labels.texts import spelled_as, spelling
from scperformer.labels.tree import NO_CALL, UNKNOWN_TERM

# names of clusters that are no type
NO_TYPES = {spelling(name): name for name in ("doublet", "low quality", NO_CALL)}


def curate(
    obs: pd.DataFrame, key: str, names: Iterable[tuple[str, str]], by: str, path: str
) -> tuple[pd.DataFrame, CuratedRecord]:
    """Return the columns `CURATED_COLUMNS` of N annotated cells, and the record of what a person changed.

    `names` are pairs of a cluster and its name, or "", by which it keeps its calls; `by` is the person, `path` the
    place of the cells for messages. A name that is spelled as another one, or as a call, joins it.
    """
    if f"{key}_cluster" not in obs:
        remedy = "run 'scperformer predict ... clusters=auto markers_output=clusters.tsv', and give the file it writes"
        raise InputError(
            "no-clusters", f"no column '{key}_cluster' in obs of {path}", "clusters to name", remedy
        )
    clusters = obs[f"{key}_cluster"].astype(str)
    calls = obs[f"{key}_call"].astype(str)
    name_of = _names_of(names, clusters, calls, path)
    named = clusters.isin(list(name_of)).to_numpy()
    labels = clusters.map(name_of).where(named, calls)
    own_terms = obs.get(f"{key}_ontology_term_id", pd.Series(UNKNOWN_TERM, obs.index)).astype(str)
    own = dict(zip(calls, own_terms, strict=True)) | dict.fromkeys(NO_TYPES.values(), UNKNOWN_TERM)
    terms = {label: own.get(label, UNKNOWN_TERM) for label in labels.unique()}
    terms = {
        label: packaged_ontology().term(label) or term if term == UNKNOWN_TERM else term
        for label, term in terms.items()
    }
    columns = {
        f"{key}_curated": pd.Categorical(labels),
        f"{key}_curated_ontology_term_id": pd.Categorical(labels.map(terms)),
        f"{key}_named": named,
    }
    changed = (
        pd.DataFrame({"cluster": clusters, "before": calls, "after": labels})[named]
        .value_counts()
        .reset_index()
    )
    record = CuratedRecord(
        by=by,
        date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        **{name: texts(changed[name]) for name in ("cluster", "before", "after")},
        num_cells=changed["count"].to_numpy(np.int64),
    )
    return pd.DataFrame(columns, index=obs.index), record


def _names_of(
    names: Iterable[tuple[str, str]], clusters: pd.Series, calls: pd.Series, path: str
) -> dict[str, str]:
    """Return the name of each cluster that has one, each spelled in one way; refuse unknown and repeated clusters."""
    known = {escape_formula(cluster): cluster for cluster in clusters.unique()}
    known |= {cluster: cluster for cluster in known.values()}
    name_of: dict[str, str] = {}
    for given, name in names:
        cluster = known.get(spelled_as(known, [given])[0])
        expected = f"one of {listed(dict.fromkeys(known.values()))}"
        if cluster is None:
            remedy = f"{did_you_mean(given, known)}correct it, or name the clusters of this file"
            raise InputError(
                "unknown-cluster",
                f"cluster '{given}', which {path} does not have",
                expected,
                remedy,
            )
        if cluster in name_of:
            raise InputError(
                "cluster-twice",
                f"two rows of cluster '{cluster}'",
                "one for each",
                "remove the other",
            )
        if name and (reason := name_problem(name)):
            found = f"the name of cluster '{cluster}' {reason}"
            raise InputError("bad-label", found, "a name in a short line of text", "correct it")
        others = [*dict.fromkeys(name_of.values()), *calls.unique()]
        name_of[cluster] = NO_TYPES.get(spelling(name)) or spelled_as(others, [name])[0]
    return {cluster: name for cluster, name in name_of.items() if name}
