"""Algebra of elementwise functions: which function a composition of calls is, from the calls and not from its values.

A `Form` is a quotient of sums of products of x, exponentials, error functions, absolute values and other calls. Limits
are exact in it: max(a, b) is (a + b + |a - b|) / 2. Two compositions are one function if their quotients are equal.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, reduce
from itertools import product
from typing import Any

from torch import Tensor

from bttlab.compiler.trace.names import Call, name_of
from bttlab.compiler.trace.values import Refusal

Atom = tuple  # name of a function and the key of what it is applied to; ("x",)
Monomial = tuple[tuple[Atom, float], ...]  # atoms and their powers, sorted
Sum = dict[Monomial, float]  # a sum of products, by their coefficients
SAME = 1e-7  # relative difference of coefficients that are one number, written with fewer digits
ROUNDING = 1e-15  # a coefficient that is this part of the largest one is 0
MOST_FACTORS, MOST_PRODUCTS = 8, 4096  # of a power that is multiplied out; of two sums


def _add(a: Sum, b: Sum) -> Sum:
    total = dict(a)
    for monomial, number in b.items():
        before = total.pop(monomial, 0.0)
        if abs(before + number) > 4e-16 * max(abs(before), abs(number)):  # else they cancel
            total[monomial] = before + number
    return total


def _times(a: Sum, b: Sum) -> Sum:
    if len(a) * len(b) > MOST_PRODUCTS:
        raise ValueError
    total: Sum = {}
    for (left, m), (right, n) in product(a.items(), b.items()):
        powers = dict(left)
        for atom, power in right:
            powers[atom] = _rounded(powers.get(atom, 0.0) + power)
        for atom in [
            atom for atom, power in powers.items() if atom[0] == "abs" and power >= 2 and _is_product(atom[1])
        ]:
            powers[atom] -= 2  # |u| |u| = u u
            for inner, power in atom[1][0][0][0]:
                powers[inner] = _rounded(powers.get(inner, 0.0) + 2 * power)
        total = _add(total, {_sorted((atom, power) for atom, power in powers.items() if power): m * n})
    return total


def _is_product(key: tuple) -> bool:
    top, bottom = key
    return len(top) == 1 and bottom == (((), 1.0),)


def _sorted(pairs: Iterable[tuple]) -> tuple:
    return tuple(sorted(pairs, key=repr))


def _first(total: Sum) -> float:
    """Return the coefficient of the first product of a sum, in an order that does not depend on how it was made."""
    return total[min(total, key=repr)]


def _rounded(x: float) -> float:
    return float(f"{x:.9g}")


@dataclass(frozen=True, eq=False)
class Form:
    """An elementwise function of x, a quotient. Functions of torch apply to it as to a tensor."""

    top: Sum
    bottom: Sum

    def __add__(self, other: Any) -> "Form":
        other = form(other)
        if self.bottom == other.bottom:
            return Form(_add(self.top, other.top), self.bottom)
        top = _add(_times(self.top, other.bottom), _times(other.top, self.bottom))
        return Form(top, _times(self.bottom, other.bottom))

    def __mul__(self, other: Any) -> "Form":
        other = form(other)
        return Form(_times(self.top, other.top), _times(self.bottom, other.bottom))

    def __truediv__(self, other: Any) -> "Form":
        other = form(other)
        top, bottom = _times(self.top, other.bottom), self.bottom
        if len(other.top) > 1:
            return Form(top, _times(bottom, other.top))
        ((monomial, number),) = other.top.items()
        return Form(_times(top, {tuple((atom, -power) for atom, power in monomial): 1 / number}), bottom)

    def __pow__(self, n: float) -> "Form":
        if n != int(n) or abs(n) > MOST_FACTORS:
            return called("pow", self, float(n))
        power = reduce(Form.__mul__, [self] * abs(int(n)), form(1.0))
        return power if n >= 0 else 1 / power

    def __neg__(self) -> "Form":
        return self * -1.0

    def __sub__(self, other: Any) -> "Form":
        return self + -form(other)

    def __rsub__(self, other: Any) -> "Form":
        return form(other) + -self

    def __rtruediv__(self, other: Any) -> "Form":
        return form(other) / self

    __radd__, __rmul__ = __add__, __mul__

    @classmethod
    def __torch_function__(cls, function: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        return applied(name_of(function), args, kwargs or {})

    def __getattr__(self, name: str) -> Callable[..., "Form"]:
        if name not in FORMS:
            raise AttributeError(name)
        return lambda *args, **kwargs: applied(name, (self, *args), kwargs)

    @property
    def key(self) -> tuple:
        """What identifies it inside an atom."""
        first = _first(self.bottom)
        return tuple(_sorted((m, _rounded(n / first)) for m, n in part.items()) for part in (self.top, self.bottom))

    @property
    def factor(self) -> float | None:
        """The number c of c x, not 0; None for another function."""
        a, b = self.line or (0.0, 1.0)
        return a if a and not b else None

    @property
    def line(self) -> tuple[float, float] | None:
        """The numbers of a x + b; None for another function."""
        x, one = ((("x",), 1.0),), ()
        is_line = self.top.keys() <= {x, one} and list(self.bottom) == [one]
        return (self.top.get(x, 0.0) / self.bottom[one], self.top.get(one, 0.0) / self.bottom[one]) if is_line else None

    def is_same(self, other: "Form") -> bool:
        """Return True if the two are one function."""
        a, b = _times(self.top, other.bottom), _times(other.top, self.bottom)
        size = max(map(abs, (*a.values(), *b.values())), default=0.0)
        pairs = [(a.get(monomial, 0.0), b.get(monomial, 0.0)) for monomial in a.keys() | b.keys()]
        return all(abs(m - n) <= max(SAME * max(abs(m), abs(n)), ROUNDING * size) < math.inf for m, n in pairs)


def form(x: Any) -> Form:
    """Return a form, or a number or tensor of one element as a constant form."""
    if isinstance(x, Form):
        return x
    return Form({(): float(x)} if float(x) else {}, {(): 1.0})


X = Form({((("x",), 1.0),): 1.0}, {(): 1.0})


def called(name: str, *args: Any, **kwargs: Any) -> Form:
    """Return the form of a call that is known by name alone."""
    keys = [x.key if isinstance(x, Form) else repr(x) for x in (*args, *sorted(kwargs.items()))]
    return Form({(((name, *keys), 1.0),): 1.0}, {(): 1.0})


def _odd(name: str, u: Form) -> Form:
    """Return the form of an odd function, whose sign is that of the first coefficient."""
    return -called(name, -u) if u.top and _first(u.top) < 0 else called(name, u)


def _exp(u: Any) -> Form:
    u = form(u)
    if list(u.bottom) != [()]:
        return called("exp of", u)
    parts = {monomial: number / u.bottom[()] for monomial, number in u.top.items()}
    scale = math.exp(parts.pop((), 0.0))
    return Form({_sorted((("exp", m), _rounded(n)) for m, n in parts.items()): scale}, {(): 1.0})


def _abs(u: Any) -> Form:
    u = form(u)
    if not u.top or list(u.bottom) != [()]:
        return called("abs", u) if u.top else u
    first = _first(u.top) / u.bottom[()]
    return form(abs(first)) if list(u.top) == [()] else called("abs", u / first) * abs(first)


def _most(a: Any, b: Any) -> Form:
    return (form(a) + b + _abs(form(a) - b)) / 2


def _least(a: Any, b: Any) -> Form:
    return (form(a) + b - _abs(form(a) - b)) / 2


def _clamp(x: Form, min: float | None = None, max: float | None = None) -> Form:
    x = x if min is None else _most(x, min)
    return x if max is None else _least(x, max)


def _power(x: Any, n: Any) -> Form:
    return form(x) ** float(n) if not isinstance(n, Form) else _exp(n * math.log(float(x)))


def _gelu(x: Form, approximate: str = "none") -> Form:
    if approximate == "none":
        return x * (1 + _odd("erf", x / math.sqrt(2))) / 2
    return x * (1 + _tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2


def _sigmoid(x: Form) -> Form:
    return 1 / (1 + _exp(-x))


def _tanh(x: Form) -> Form:
    return (1 - _exp(-2 * x)) / (1 + _exp(-2 * x))


def _log(x: Form) -> Form:
    return called("log", x)


def _softplus(x: Form, beta: float = 1.0, threshold: float = 20.0) -> Form:
    if threshold < 15:  # it is linear beyond, exactly enough only there
        return called("softplus", x, beta, threshold)
    return _log(1 + _exp(x * beta)) / beta


# What elementwise functions of torch are, by name. Those that are others together (`record.EXPANDED`) are added there.
FORMS: dict[str, Callable[..., Form]] = {
    "add": lambda x, y, *, alpha=1: form(x) + form(y) * alpha,
    "sub": lambda x, y, *, alpha=1: form(x) - form(y) * alpha,
    "rsub": lambda x, y, *, alpha=1: form(y) - form(x) * alpha,
    "mul": lambda x, y: form(x) * y,
    "div": lambda x, y: form(x) / y,
    "rdiv": lambda x, y: form(y) / x,
    "neg": lambda x: -x,
    "reciprocal": lambda x: 1 / x,
    "pow": _power,
    "rpow": lambda x, y: _power(y, x),
    "sqrt": lambda x: x**0.5,
    "rsqrt": lambda x: 1 / x**0.5,
    "exp": _exp,
    "expm1": lambda x: _exp(x) - 1,
    "log": _log,
    "log1p": lambda x: _log(1 + x),
    "erf": lambda x: _odd("erf", x),
    "erfc": lambda x: 1 - _odd("erf", x),
    "sin": lambda x: _odd("sin", x),
    "cos": lambda x: called("cos", x),
    "abs": _abs,
    "maximum": _most,
    "minimum": _least,
    "clamp": _clamp,
    "clamp_min": lambda x, min: _clamp(x, min),
    "clamp_max": lambda x, max: _clamp(x, None, max),
    "relu": lambda x, inplace=False: _most(x, 0),
    "sigmoid": _sigmoid,
    "silu": lambda x, inplace=False: x * _sigmoid(x),
    "tanh": _tanh,
    "gelu": _gelu,
    "softplus": _softplus,
    "mish": lambda x: x * _tanh(_softplus(x)),
    "softsign": lambda x: x / (1 + _abs(x)),
}


def applied(name: str, args: tuple, kwargs: dict[str, Any]) -> Form:
    """Return the form of a call; of a function that is not in `FORMS`, by its name alone."""
    args = tuple(float(x) if isinstance(x, Tensor) and x.numel() == 1 else x for x in args)
    kwargs = {key: float(x) if isinstance(x, Tensor) and x.numel() == 1 else x for key, x in kwargs.items()}
    kwargs.pop("inplace", None)
    return FORMS[name](*args, **kwargs) if name in FORMS else called(name, *args, **kwargs)


def apply(call: Call, args: Sequence) -> Any:
    """Call the function of a call again, with other operands: tensors or forms."""
    if any(isinstance(x, Form) for x in args):
        return applied(call.name, tuple(args), call.kwargs)
    return call.function(*args, **call.kwargs)


def form_of(function: Callable[[Any], Any]) -> Form | None:
    """Return the form of a composition of functions of torch; None if it has none."""
    try:
        found = function(X)
    except (ArithmeticError, AttributeError, Refusal, TypeError, ValueError):
        return None
    return found if isinstance(found, Form) else None


known_form = cache(form_of)  # of a function that does not change
