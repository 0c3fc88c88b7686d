"""Make the small Keras model of this folder: `KERAS_BACKEND=torch python make_levels.py` with Keras 3.15.1.

It has the form of panhumanpy's models: a probability for each label of three levels, an encoder of labels for each
level (inference_encoders.pkl, of scikit-learn 1.9.1) and a panel of genes. Its weights are random. expected.npz holds
cells, ln(1 + counts per 10,000) in the order of the panel, and what Keras says about them.
"""

import pickle
from pathlib import Path

import keras
import numpy as np
from keras import layers
from sklearn.preprocessing import LabelEncoder

HERE = Path(__file__).parent
LEVELS = [
    ["Immune", "Stroma"],
    ["Immune|B", "Immune|T", "Stroma|"],
    ["Immune|B|", "Immune|T|CD4", "Immune|T|CD8", "Immune|T|", "Stroma||"],
]
GENES = [f"GENE{number}" for number in range(40)]

keras.utils.set_random_seed(0)
rng = np.random.default_rng(3)
expression = layers.Input((len(GENES),), name="expression")
hidden = layers.Dense(16, activation="relu", name="dense_first")(expression)
hidden = layers.BatchNormalization(name="norm_first")(hidden)
hidden = layers.Dropout(0.2)(hidden)
hidden = layers.Dense(8, name="embedding_layer")(hidden)
hidden = layers.LayerNormalization(name="norm_second")(hidden)
hidden = layers.Activation("gelu")(hidden)
outputs = []
read = hidden
for number, labels in enumerate(LEVELS, start=1):
    outputs.append(layers.Dense(len(labels), activation="softmax", name=f"level_{number}")(read))
    read = layers.Concatenate(name=f"with_level_{number}")([hidden, outputs[-1]])
model = keras.Model(expression, outputs)
for weight in model.weights:  # also of the norms, which are 0 and 1 at first
    is_variance = "variance" in weight.path
    weight.assign(rng.uniform(0.5, 2, weight.shape) if is_variance else rng.normal(0, 0.8, weight.shape))
counts = rng.poisson(rng.gamma(0.6, 3.0, (20, len(GENES))))
x = np.log1p(counts / counts.sum(axis=1, keepdims=True) * 1e4).astype(np.float32)
proba = model.predict(x, verbose=0)
model.save(HERE / "levels.keras")
encoders = [LabelEncoder().fit(labels) for labels in LEVELS]
(HERE / "inference_encoders.pkl").write_bytes(pickle.dumps(encoders))
(HERE / "panel.txt").write_text("\n".join(GENES) + "\n")
np.savez_compressed(HERE / "expected.npz", counts=counts, **{f"level_{i}": p for i, p in enumerate(proba, start=1)})
