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

__version__: str
