"""The equations of Xia et al. (arXiv 2408.04693, §V), fitted to their own measurements in their own reading.

Their scripts take equation 2 as Throughput = C4 + C2 ln(batch^(1 / (sparsity C3))), with C3 set to 1.8 for Mixtral and
2.5 for BlackMamba and the other two fitted by least squares to one model, data set and GPU at a time. Equation 1 has
C0 = 62 and C1 = 0.89 there for Mixtral, whose weights take 23.35 GB.
"""

import numpy as np

from bttlab.baseline.gpus import find_gpu
from bttlab_cost.calibration import Errors, errors_of
from bttlab_cost.xia2024 import LargestBatch, Throughput

C3 = {"Mixtral-8x7B": 1.8, "BlackMamba-2.8B": 2.5}
C0, C1, MODEL_GB = 62.0, 0.89, 23.35


def curve(points: list[Throughput]):
    """Fit equation 2 to points of one model, data set and GPU.

    Returns
    -------
    callable
        Batch size and sparsity to sequences a second.
    """
    c3 = C3[points[0].model]
    batch, sparsity, rate = np.array(
        [(point.batch, point.config.sparsity, point.sequences_per_second) for point in points]
    ).T
    terms = np.stack([np.log(batch) / (sparsity * c3), np.ones_like(rate)], axis=1)
    (c2, c4), *_ = np.linalg.lstsq(terms, rate, rcond=None)
    return lambda batch, sparsity: c2 * np.log(batch) / (sparsity * c3) + c4


def curve_errors(points: list[Throughput]) -> Errors:
    """Return the errors of equation 2 on the very points that each of its curves is fitted to."""
    series: dict[tuple[str, str, str], list[Throughput]] = {}
    for point in points:
        series.setdefault((point.model, point.data_set, point.gpu), []).append(point)
    ordered, predicted = [], []
    for members in series.values():
        fitted = curve(members)
        ordered += members
        predicted += [float(fitted(point.batch, point.config.sparsity)) for point in members]
    return errors_of(ordered, predicted)


def largest_batch(point: LargestBatch) -> int:
    """Return what equation 1 gives, with the nominal memory of the GPU."""
    memory = round(find_gpu(point.gpu).memory_mib / 1024 / 8) * 8  # 45 GiB are sold as 48 GB
    share = (1 - C1) + C1 * point.config.sparsity
    return int(C0 * (memory - MODEL_GB) / (point.config.sequence_length * share))
