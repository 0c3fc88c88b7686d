from .api import PerformerClassifier as PerformerClassifier
from .api import adapt as adapt
from .api import annotate as annotate
from .api import check as check
from .api import embed as embed
from .api import evaluate as evaluate
from .api import explain as explain
from .api import import_model as import_model
from .api import models as models
from .api import pl as pl
from .api import preprocess as preprocess
from .api import pretrain as pretrain
from .api import report as report
from .api import train as train
from .attention import Additive as Additive
from .attention import Attention as Attention
from .attention import AttentionOptions as AttentionOptions
from .attention import register_attention as register_attention
from .base.errors import InputError as InputError
from .network import load_model as load_model

__version__: str
