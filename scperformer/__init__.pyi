from .api import pl as pl
from .api.classifier import PerformerClassifier as PerformerClassifier
from .api.making import adapt as adapt
from .api.making import import_model as import_model
from .api.making import models as models
from .api.making import preprocess as preprocess
from .api.making import pretrain as pretrain
from .api.making import train as train
from .api.using import annotate as annotate
from .api.using import check as check
from .api.using import embed as embed
from .api.using import evaluate as evaluate
from .api.using import explain as explain
from .api.using import report as report
from .api.using import tokens as tokens
from .attention.additive import Additive as Additive
from .attention.base import Attention as Attention
from .attention.base import AttentionOptions as AttentionOptions
from .attention.registry import register_attention as register_attention
from .base.errors import InputError as InputError
from .model.load import load_model as load_model

__version__: str
