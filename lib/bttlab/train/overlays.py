"""Overlays for models: which have a prebuilt one; for others, one is built once and kept in the user's cache."""

import hashlib
import json

import platformdirs

from bttlab.files import writable_by_others
from bttlab.model import ModelConfig
from bttlab.terminal import say
from bttlab.train.files import held
from bttlab.train.settings import RunError


def has_overlay(config: ModelConfig) -> bool:
    """Whether there is a prebuilt overlay for a model."""
    from bttlab.u50 import OverlayError, overlay_for

    try:
        return bool(overlay_for(config))
    except OverlayError:
        return False


def built_overlay(config: ModelConfig) -> bytes:
    """Return the .xclbin of a model for the emulated card, from the cache or from the compiler.

    The cache knows it by the digest of its sources.

    Raises
    ------
    bttlab.u50.OverlayError
        If there is no compiler, the source does not compile for the model, or another process builds it just now.
    """
    from bttlab.u50.build import HLS_SOURCE, build, sources_digest, training_overlay
    from bttlab.u50.kernel import OverlayError
    from bttlab.u50.manifest import read_file

    name = f"sweep_{hashlib.sha256(json.dumps(config.to_dict()).encode()).hexdigest()[:12]}"
    definition = training_overlay(name, config)
    cache = platformdirs.user_cache_path("bttlab")
    folder = cache / "overlays" / sources_digest(definition, HLS_SOURCE)[:16]
    path = folder / f"{name}.xclbin"
    if not path.exists():
        say(f"bttlab: building an overlay of rank {config.linear_rank}, once")
        for made in (*reversed(folder.relative_to(cache).parents), folder.relative_to(cache)):
            (cache / made).mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            with held(folder):
                build([definition], HLS_SOURCE, folder)
                path.chmod(0o600)  # whatever the umask
                path.chmod(0o600)  # whatever the umask
        except RunError:
            raise OverlayError(
                f"another process builds {path} just now; when it has ended, run the same command again"
            ) from None
    # It holds native code, which is trusted for lying here.
    if place := writable_by_others(path, owned=True):
        raise OverlayError(
            f"{path} holds native code, and others can change {place}; make that yours alone, remove the overlay, and "
            "run the same command again"
        )
    return read_file(path)
