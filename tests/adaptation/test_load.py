"""Each kind of model is one class, chosen in one place."""

from support.refusal import refusal

from scperformer.adaptation.fitted import FittedModel, NoBaseline
from scperformer.adaptation.load import load_model
from scperformer.adaptation.tissue_model import TissueModel, tissue_model
from scperformer.model.network import LinearModel


def test_models_are_of_the_class_of_their_kind(tiny_model):
    model = load_model(tiny_model)
    assert type(model) is FittedModel
    assert isinstance(model.baseline, LinearModel)
    tissue = tissue_model("pancreas")
    assert isinstance(tissue, TissueModel)
    assert tissue.saved.is_tissue
    assert isinstance(tissue.baseline, NoBaseline)
    assert not model.saved.is_tissue


def test_a_missing_model_is_refused(tmp_path):
    with refusal("no-model", "nothing"):
        load_model(tmp_path / "nothing")
