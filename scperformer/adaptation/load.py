"""Load a saved model as what it is: the one place that asks for the kind of a model."""

import logging
import os
from dataclasses import replace
from pathlib import Path

from scperformer.adaptation.fitted import FittedModel, Model, network_of
from scperformer.adaptation.imported import ImportedModel
from scperformer.adaptation.joint import JointModel
from scperformer.base.messages import listed
from scperformer.base.progress import progress
from scperformer.model.folder import parts_of, read_model, require_annotator, resolve_model
from scperformer.model.imported import ImportedNetwork
from scperformer.model.inference import torch_state_kept
from scperformer.model.saved_model import SavedModel, encoder_is_silent

log = logging.getLogger(__name__)


@progress("loading the model")
@torch_state_kept()
def load_model(model_path: str | os.PathLike[str] | None = None) -> Model:
    """Load a model folder, or if None, $SCPERFORMER_MODEL or else the packaged pbmc3k; refuse one without labels."""
    path, why = resolve_model(None if model_path is None else os.fspath(model_path))
    saved = read_model(path)
    if why == "imported":  # it is called what its user calls it
        saved = replace(saved, name=path.name)
    require_annotator(saved, path)
    text = "model %s (%s, %s): %s genes, %d labels: %s%s"
    by_person = (
        f"; labels by a person: {listed(saved.provenance.named)}" if saved.provenance.named else ""
    )
    facts = f"{len(saved.genes):,}", len(saved.labels), listed(saved.labels), by_person
    log.info(text, saved.name, why, saved.hash[:12], *facts)
    if saved.studies:
        log.info(
            "its reference has %d studies: %s",
            len(saved.studies),
            listed(study.name for study in saved.studies),
        )
        model: Model = JointModel(
            saved, path, members=[single_model(*part) for part in parts_of(saved, path)]
        )
    else:
        model = single_model(saved, path)
    if saved.lacks:
        text = "model %s was imported from %s without: %s"
        log.info(text, saved.name, saved.imported["tool"], ", ".join(saved.lacks))
    if encoder_is_silent(saved.scales):
        log.info(
            "the encoder has no influence in this model: its labels come from the linear branch alone"
        )
    return model


def single_model(saved: SavedModel, path: Path) -> FittedModel:
    """Return the model of one study that was saved in the folder `path`; refuse weights that do not fit its options."""
    network = network_of(saved, path)
    kind = ImportedModel if isinstance(network, ImportedNetwork) else FittedModel
    return kind(saved, path, network)
