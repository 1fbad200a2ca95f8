"""Write scikit-learn's handwritten digits as a corpus, a word for each patch: python -m learning.digits FOLDER."""

import sys
from pathlib import Path

import numpy as np

from bttlab.data import Split
from bttlab.data.corpus import store_corpus
from bttlab.data.importing import corpus_files

PATCH, STRIDE, KINDS = 4, 2, 64  # pixels, pixels, words
SIZES = {"test": 400, "dev": 300}  # images; the other 1,097 are trained on


def write_digits(folder: Path) -> Path:
    """Write the corpus: a patch becomes the nearest of the centres that k-means finds among the training patches."""
    from sklearn.cluster import KMeans
    from sklearn.datasets import load_digits

    digits = load_digits()
    corners = range(0, digits.images.shape[-1] - PATCH + 1, STRIDE)
    patches = [digits.images[:, y : y + PATCH, x : x + PATCH].reshape(-1, PATCH**2) for y in corners for x in corners]
    patches = np.stack(patches, 1)
    order, parts = np.random.Generator(np.random.PCG64(0)).permutation(len(patches)), {}
    for name, count in SIZES.items():
        parts[name], order = order[:count], order[count:]
    parts["train"] = order
    centres = KMeans(KINDS, n_init=1, random_state=0).fit(patches[order].reshape(-1, PATCH**2))
    kinds = centres.predict(patches.reshape(-1, PATCH**2)).reshape(len(patches), -1)
    splits = {}
    for name, images in parts.items():
        words = [[f"p{kind}" for kind in kinds[image]] for image in images]
        splits[name] = Split(words, [["O"] * len(one) for one in words], [str(digits.target[i]) for i in images])
    return store_corpus(corpus_files(splits), folder)


if __name__ == "__main__":
    write_digits(Path(sys.argv[1]))
