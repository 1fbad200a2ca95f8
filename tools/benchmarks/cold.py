"""Run a fresh process up to its first training step: python cold.py CONTENDER CORPUS ENCODERS.

It prints the seconds of each stage as JSON. Nothing but time is imported before the clock starts; the interpreter's own
start is counted by the process that starts it.
"""

import time

START = time.perf_counter()


def main(contender: str, corpus: str, encoders: int) -> dict[str, float]:
    """Import, set up and take one step; return the seconds of each stage."""
    from bttlab.data import Vocabulary, encode, load_corpus
    from bttlab.model import ModelConfig, Optimizer, ReferenceTrainer, initial_parameters

    if contender == "emulated U50":
        from bttlab.card import EmulatedU50, open_trainer
    stages = {"import": time.perf_counter() - START}

    start = time.perf_counter()
    config = ModelConfig(encoders=encoders, format="dense" if contender == "PyTorch dense" else "tensor")
    data = load_corpus(corpus)
    vocabulary = Vocabulary.from_sentences(data.train.words, config.vocabulary_size)
    sample = encode(data.train, vocabulary, data, config)[:1]
    stages["corpus"] = time.perf_counter() - start

    start = time.perf_counter()
    if contender == "emulated U50":
        trainer = open_trainer(config, EmulatedU50())
        trainer.load_parameters(initial_parameters(config, 0))
    else:
        trainer = ReferenceTrainer(config)
    stages["load"] = time.perf_counter() - start

    start = time.perf_counter()
    trainer.train(sample, Optimizer("sgd"), 1e-3)
    stages["first step"] = time.perf_counter() - start
    return stages


if __name__ == "__main__":
    import json
    import sys

    print(json.dumps(main(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
