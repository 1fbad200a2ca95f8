from .executor import open_executor as open_executor
from .spec import SpecError as SpecError
from .spec import SweepSpec as SweepSpec
from .spec import read_spec as read_spec
from .sweep import Progress as Progress
from .sweep import Sweep as Sweep
from .task import ClusterError as ClusterError
