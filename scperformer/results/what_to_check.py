"""Whether the labels of samples can be trusted, and what to check: each cause once, whatever number of samples."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from scperformer.annotation.expectation import MANY_UNKNOWN
from scperformer.annotation.record import Record, TissueRecord
from scperformer.annotation.which_tissue import close_tissues
from scperformer.base.messages import listed
from scperformer.labels.tree import NO_CALL
from scperformer.results.evaluate import Evaluation
from scperformer.trust.shift import FAR, LIKE, MAX_UNKNOWN, OTHER, unsure_text

# A sample beyond one of these limits is among the things to check. They are judgements, not limits of the method.
LOW_OVERLAP = 0.7
LOW_AGREEMENT = 0.6
LOW_EXPECTED = 0.8
NUM_LOST = 3  # labels that lose cells to unknown, named of each sample
NOT_NAMED = 0.1  # of the unknown cells
NUM_GENES = 3  # of a cluster to check; uns and the log have more
MIN_FAMILY = 20  # cells of a sample below a parent, whose shares are compared between conditions
# A label follows a condition if its share with one value is higher by MIN_LEAD than with another one, or is MIN_SHARE
# and MIN_FOLD times the other.
MIN_LEAD = 0.4
MIN_SHARE, MIN_FOLD = 0.2, 10
