"""Write query.h5ad into this folder, the cells of expected.npz, for docs/from_other_tools.md#scvi-tools."""

from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd

counts = np.load(Path(__file__).parent / "expected.npz")["counts"].astype(np.float32)
genes = pd.DataFrame(index=[f"GENE{number}" for number in range(counts.shape[1])])
ad.AnnData(counts, var=genes).write_h5ad("query.h5ad")
