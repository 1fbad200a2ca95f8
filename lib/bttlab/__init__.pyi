from . import baseline as baseline
from . import card as card
from . import compiler as compiler
from . import data as data
from . import estimate as estimate
from . import lab as lab
from . import model as model
from . import runs as runs
from . import teaching as teaching
from . import tensor as tensor
from .card import load_overlay as load_overlay
from .card import open_trainer as open_trainer
from .compiler.trace import trace as trace
from .data import load_corpus as load_corpus

__version__: str
