import bttlab.util.records

from .machine import DeviceError as DeviceError
from .modes import modes_of as modes_of
from .record import Energy as Energy
from .record import Machine as Machine
from .record import Measurement as Measurement
from .record import Memory as Memory
from .record import Quantity as Quantity
from .record import Record as Record
from .record import load_records as load_records
from .run import FORMATS as FORMATS
from .run import BaselineError as BaselineError
from .run import BaselineSetting as BaselineSetting
from .run import Listener as Listener
from .run import run_baseline as run_baseline

RecordError = bttlab.util.records.RecordError
