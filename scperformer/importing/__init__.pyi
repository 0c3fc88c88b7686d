from .folders import described as described
from .folders import import_model as import_model
from .folders import run_import as run_import
from .recognise import FORMATS as FORMATS
from .recognise import recognise as recognise
