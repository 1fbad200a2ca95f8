"""Train a model by a recipe in PyTorch in batches, to compare with the card, which trains on one sample at a time.

With one sample at a time, a dense epoch takes minutes on a CPU. This tool uses batches of utterances of equal length,
which need neither padding nor masks.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bttlab.data import Augmenter, Corpus, Vocabulary, encode, epoch_order, load_corpus
from bttlab.model import ConfigError, ModelConfig, ReferenceTrainer, Transformer, batch_losses, equal_length_batches
from bttlab.model.loop import train_segments
from bttlab.runs import Recipe, read_recipe
from bttlab.runs.evaluation import predict, scores_of
from bttlab.runs.progress import ProgressBar
from bttlab.runs.scores import scores_in_words
from bttlab.util.errors import BttlabError
from bttlab.util.files import write_file
from bttlab.util.terminal import say


def train_in_batches(
    config: ModelConfig, recipe: Recipe, corpus: Corpus, seed: int, size: int
) -> Iterator[tuple[float, ReferenceTrainer, Vocabulary]]:
    """Train, and yield after each epoch its mean loss, a trainer with the parameters, and the vocabulary."""
    if recipe.optimizer.name != "adamw":
        raise ConfigError(f"optimizer is {recipe.optimizer.name}: batches are trained with adamw")
    vocabulary = Vocabulary.from_sentences(corpus.train.words, config.vocabulary_size, recipe.word_classes)
    augmenter = Augmenter(recipe.augmentation, corpus, vocabulary, config)
    trainer = ReferenceTrainer(config, seed=seed)
    model = Transformer(config, seed=seed)
    rule = recipe.optimizer
    update = torch.optim.AdamW(
        model.parameters(), betas=(rule.beta1, rule.beta2), eps=rule.epsilon, weight_decay=rule.weight_decay, fused=True
    )
    total = len(corpus.train)

    def train_epoch(epoch: int) -> np.ndarray:
        """Train for an epoch and return its losses."""
        samples = augmenter.samples(np.arange(total), seed, epoch)
        losses: list[np.ndarray] = []
        random = np.random.Generator(np.random.PCG64([seed, epoch]))

        def step(batch: np.ndarray) -> np.ndarray:
            number = np.array([epoch * total + sum(map(len, losses))])
            rates = recipe.schedule.rates(recipe.learning_rate, number, recipe.epochs * total)
            update.param_groups[0]["lr"] = float(rates[0])
            update.zero_grad()
            value = batch_losses(model, samples[batch], recipe.label_smoothing).mean()
            value.backward()
            update.step()
            return np.full(len(batch), value.item())

        batches = equal_length_batches(epoch_order(total, seed, epoch), samples.lengths, size, random)
        train_segments(batches, step, lambda batch, segment, seconds: losses.append(segment))
        return np.concatenate(losses)

    for epoch in range(recipe.epochs):
        mean_loss = float(train_epoch(epoch).mean())
        trainer.load_parameters({name: tensor.detach().numpy() for name, tensor in model.state_dict().items()})
        yield mean_loss, trainer, vocabulary


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--encoders", type=int, default=2, metavar="N")
    parser.add_argument("--format", choices=("dense", "tensor"), default="dense")
    parser.add_argument("--data", default="atis", metavar="NAME|PATH")
    parser.add_argument("--recipe", default="atis_dense", metavar="NAME|FILE")
    parser.add_argument("--batch", type=int, default=16, metavar="N", help="utterances of a batch (default: 16)")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument("--record", type=Path, required=True, metavar="FILE", help="JSON file for the scores")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    try:
        record = _train(options)
        write_file(options.record, json.dumps(record, indent=1) + "\n")
    except (BttlabError, OSError) as error:
        say(error)
        return 2
    return 0


def _train(options: argparse.Namespace) -> dict[str, Any]:
    config, recipe = ModelConfig(encoders=options.encoders, format=options.format), read_recipe(options.recipe)
    corpus, progress = load_corpus(options.data), ProgressBar()
    curve: list[dict[str, Any]] = []

    def scores(split: str, trainer: ReferenceTrainer, vocabulary: Vocabulary) -> dict[str, Any]:
        samples = encode(corpus.split(split), vocabulary, corpus, config)
        predictions = predict(trainer, samples, corpus, recipe.decode_tags, f"{split} split", progress)
        return scores_of(predictions, corpus, split, config)

    for mean_loss, trainer, vocabulary in train_in_batches(config, recipe, corpus, options.seed, options.batch):
        curve.append({"epoch": len(curve) + 1, "dev": scores("dev", trainer, vocabulary)})
        progress.note(f"epoch {len(curve)}: mean loss {mean_loss:.3f}; dev {scores_in_words(curve[-1]['dev'])}")
    return {
        "format": options.format,
        "encoders": options.encoders,
        "corpus": corpus.name,
        "recipe": Path(options.recipe).stem,
        "batch": options.batch,
        "seed": options.seed,
        "decode_tags": recipe.decode_tags,
        "epochs": curve,
        "test": scores("test", trainer, vocabulary),
    }


if __name__ == "__main__":
    sys.exit(main())
