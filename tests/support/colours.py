"""Colours as the eye sees them."""

import numpy as np
from matplotlib.colors import to_rgb


def linear(colours) -> np.ndarray:
    values = np.array([to_rgb(colour) for colour in colours])
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def oklab(values: np.ndarray) -> np.ndarray:
    """Linear RGB to OKLab (Ottosson 2020), in which distances are about as large as they look."""
    to_cones = [[0.4122214708, 0.5363325363, 0.0514459929], [0.2119034982, 0.6806995451, 0.1073969566]]
    to_cones.append([0.0883024619, 0.2817188376, 0.6299787005])
    to_lab = [[0.2104542553, 0.793617785, -0.0040720468], [1.9779984951, -2.428592205, 0.4505937099]]
    to_lab.append([0.0259040371, 0.7827717662, -0.808675766])
    return np.cbrt(np.clip(values, 0, None) @ np.array(to_cones).T) @ np.array(to_lab).T
