"""Write query.h5ad into this folder, the cells of expected.npz, for docs/panhumanpy.md."""

from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd

HERE = Path(__file__).parent
genes = (HERE / "panel.txt").read_text().split()
counts = np.load(HERE / "expected.npz")["counts"].astype(np.float32)
ad.AnnData(counts, var=pd.DataFrame(index=genes)).write_h5ad("query.h5ad")
