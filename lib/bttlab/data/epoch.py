"""The paper's epoch."""

EPOCH_SAMPLES = 4478  # training utterances of ATIS, and of airline
