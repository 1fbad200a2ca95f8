"""Search for the change of a model's sizes that makes it fit the machine."""

from collections.abc import Callable
from dataclasses import replace

from bttlab.compiler.builder import MAX_RANK
from bttlab.model.config import ModelConfig

Fits = Callable[[ModelConfig, bool], bool]


def what_fits(config: ModelConfig, fits: Fits, own_shapes: bool = False) -> str | None:
    """Return a text that names a smaller size with which a model fits, everything else unchanged.

    The search tries fewer encoders and smaller ranks, each alone. If neither is enough, it tries shorter sequences, a
    smaller rank of the embedding and a smaller vocabulary. Ranks and encoders are the largest that fit. Banks are
    assigned by a heuristic, so more tokens than the text says may fit.

    Parameters
    ----------
    config : ModelConfig
        The model that does not fit.
    fits : callable
        From a model, and whether to try its whole program instead of the banks alone, to whether it fits.
    own_shapes : bool
        Whether the parameters have other shapes than the configuration's: then only ranks are tried.

    Returns
    -------
    str, optional
        None if no single change is enough.
    """
    uniform = not own_shapes and not any(_is_linear(name) for name, _ in config.ranks)
    ways = [
        ("ranks up to {}", 1, min(config.linear_rank, MAX_RANK + 1) if uniform else MAX_RANK + 1, _with_rank),
        ("up to {} encoders", 1, config.encoders, _with_encoders),
    ]
    rarely = [
        ("sequences of up to {} tokens", 2, config.sequence_length, lambda c, n: replace(c, sequence_length=n)),
        ("embedding ranks up to {}", 1, config.embedding_rank, lambda c, n: replace(c, embedding_rank=n)),
        ("a vocabulary of up to {}", 1, config.vocabulary_size, ModelConfig.with_vocabulary),
    ]
    for some in (ways[:1],) if own_shapes else (ways, rarely):
        largest = [(text, _most(config, fits, *way)) for text, *way in some]
        texts = [text.format(n) for text, n in largest if n is not None]
        if texts:
            return " or ".join(filter(None, (", ".join(texts[:-1]), texts[-1])))
    return None


def _most(config: ModelConfig, fits: Fits, least: int, asked: int, made: Callable[[ModelConfig, int], ModelConfig]):
    """Return the largest number below the requested one with which the model fits, by bisection; None if none does."""

    def largest(below: int, whole: bool) -> int | None:
        if below <= least or not fits(made(config, least), whole):
            return None
        low, high = least, below  # `low` fits, `high` does not
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(made(config, middle), whole) else (low, middle)
        return low

    number = largest(asked, False)
    return number if number is None or fits(made(config, number), True) else largest(number, True)


def _is_linear(name: str) -> bool:
    return not name.startswith("embedding.")


def _with_rank(config: ModelConfig, rank: int) -> ModelConfig:
    return replace(config, linear_rank=rank, ranks=[pair for pair in config.ranks if not _is_linear(pair[0])])


def _with_encoders(config: ModelConfig, encoders: int) -> ModelConfig:
    gone = tuple(f"encoders.{n}." for n in range(encoders, config.encoders))
    return replace(config, encoders=encoders, ranks=[pair for pair in config.ranks if not pair[0].startswith(gone)])
