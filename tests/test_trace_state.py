"""A `forward` that keeps something from one call to the next: a count is refused by name and line, a cache is not."""

import contextvars
import functools
import itertools
import random
import sys
import threading
import time
import types
import warnings

import numpy as np
import pytest
import rich
import torch
import tqdm
from torch import nn
from torch.utils.checkpoint import checkpoint

from bttlab.compiler.errors import ProgramError
from bttlab.compiler.trace import state, trace

from training_processor import check_gradients

WORDS, WIDTH, LABELS, LENGTH, MOST = 20, 16, 3, 5, 1000  # the trace calls `forward` fewer times than `MOST`

count, calls, seen, numbers, tensor = 0, {"n": 0}, [], np.zeros(1), torch.zeros(())
settings = types.SimpleNamespace(step=0)
settings_module = types.ModuleType("settings_of_this_test")
settings_module.step = 0
counter, generator, of_torch = itertools.count(), random.Random(0), torch.Generator().manual_seed(0)
variable, local = contextvars.ContextVar("variable", default=0), threading.local()
warned, waves_by_length, last, started, log = False, {}, None, 0.0, "." * MOST


class Net(nn.Module):
    """A table, a layer and a head, with a function of the test's between."""

    def __init__(self, body):
        super().__init__()
        torch.manual_seed(0)
        self.table, self.layer, self.head = (
            nn.Embedding(WORDS, WIDTH),
            nn.Linear(WIDTH, WIDTH),
            nn.Linear(WIDTH, LABELS),
        )
        self.body = body

    def forward(self, tokens):
        return self.head(self.body(self, self.table(tokens)))


def in_a_global(net, x):
    global count
    count += 1
    return net.layer(x) if count < MOST else x


def in_a_long_text(net, x):
    global log
    log += "."
    return net.layer(x) if len(log) < 2 * MOST else x


def in_a_dictionary(net, x):
    calls["n"] += 1
    return net.layer(x) if calls["n"] < MOST else x


def in_a_list(net, x):
    seen.append(0)
    return net.layer(x) if len(seen) < MOST else x


def in_an_array(net, x):
    numbers[0] += 1
    return net.layer(x) if numbers[0] < MOST else x


def in_a_tensor(net, x):
    tensor.add_(1)
    return net.layer(x) if tensor < MOST else x


def enclosed():
    n = 0

    def body(net, x):
        nonlocal n
        n += 1
        return net.layer(x) if n < MOST else x

    return body


def enclosed_twice():
    places = [0]

    def body(net, x):
        def inner(y):
            places[0] += 1
            return net.layer(y) if places[0] < MOST else y

        return inner(x)

    return body


def in_a_default(net, x, before=[]):  # noqa: B006 (the default is the point)
    before.append(0)
    return net.layer(x) if len(before) < MOST else x


def in_an_attribute_of_an_object(net, x):
    settings.step += 1
    return net.layer(x) if settings.step < MOST else x


def in_an_imported_module(net, x):
    import settings_of_this_test

    settings_of_this_test.step += 1
    return net.layer(x) if settings_of_this_test.step < MOST else x


def in_an_attribute_of_a_function(net, x):
    helper.count += 1
    return net.layer(x) if helper.count < MOST else x


def helper():
    pass


helper.count = 0


class Schedule:
    """A count in an object, and one in its class."""

    calls = 0
    __slots__ = ("own",)

    def __init__(self):
        self.own = 0

    def __call__(self):
        self.own += 1
        return self.own

    def next(self):
        Schedule.calls += 1
        return Schedule.calls


schedule = Schedule()


def in_an_object(net, x):
    return net.layer(x) if schedule() < MOST else x


def in_a_class(net, x):
    return net.layer(x) if schedule.next() < MOST else x


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x if self.calls < MOST else 2 * x


beside = Counting()


def in_a_module_beside(net, x):
    return net.layer(beside(x))


def in_an_iterator(net, x):
    return net.layer(x) if next(counter) < MOST else x


def in_a_context_variable(net, x):
    variable.set(variable.get() + 1)
    return net.layer(x) if variable.get() < MOST else x


def in_a_variable_of_the_thread(net, x):
    local.calls = getattr(local, "calls", 0) + 1
    return net.layer(x) if local.calls < MOST else x


def rarely_by_a_generator(net, x):
    return x if generator.random() < 1e-9 else net.layer(x)


def rarely_by_a_generator_of_torch(net, x):
    return x if torch.rand((), generator=of_torch) < 1e-9 else net.layer(x)


def rarely_by_the_system(net, x):
    return x if np.random.default_rng().random() < 1e-9 else net.layer(x)


def at_four_tokens(net, x):
    return in_a_helper(net, x) if x.shape[1] == 4 else net.layer(x)


def in_a_helper(net, x):
    seen.append(0)
    return x * 1.0 if len(seen) > MOST else net.layer(x * 1.0)


HERE = r"\(test_trace_state.py, line \d+\)"
REMEMBERED = {
    in_a_global: rf"changes count {HERE}",
    in_a_long_text: rf"changes log {HERE}",
    in_a_dictionary: rf"changes calls.n {HERE}",
    in_a_list: rf"changes the number of items of seen {HERE}",
    at_four_tokens: rf"changes the number of items of seen {HERE}",
    in_an_array: rf"changes numbers {HERE}",
    in_a_tensor: rf"changes tensor {HERE}",
    enclosed(): rf"changes n {HERE}",
    enclosed_twice(): rf"changes places\[0\] {HERE}",
    in_a_default: rf"changes the number of items of before of in_a_default {HERE}",
    in_an_attribute_of_an_object: rf"changes settings.step {HERE}",
    in_an_imported_module: rf"changes settings_of_this_test.step {HERE}",
    in_an_attribute_of_a_function: rf"changes helper.count {HERE}",
    in_an_object: rf"changes self.own of __call__ {HERE}",
    in_a_class: rf"changes Schedule.calls {HERE}",
    in_a_module_beside: rf"changes self.calls of forward {HERE}",
    in_an_iterator: rf"changes counter {HERE}",
    in_a_context_variable: rf"changes variable {HERE}",
    in_a_variable_of_the_thread: rf"changes local.calls {HERE}",
    rarely_by_a_generator: rf"draws random numbers from generator {HERE}",
    rarely_by_a_generator_of_torch: rf"draws random numbers from of_torch {HERE}",
    rarely_by_the_system: rf"draws random numbers from the system {HERE}",
}


@pytest.mark.every_python
@pytest.mark.parametrize("body", REMEMBERED, ids=lambda body: body.__qualname__.split(".")[0])
def test_what_forward_counts_outside_of_its_module_is_refused_by_name_and_line(monkeypatch, body):
    monkeypatch.setitem(sys.modules, "settings_of_this_test", settings_module)
    with pytest.raises(ProgramError, match=REMEMBERED[body]):
        trace(Net(body), LENGTH)


def rarely_by_its_generator(net, x):
    return x if net.state.random() < 1e-9 else net.layer(x)


def by_its_object(net, x):
    return net.layer(x) if net.state() < MOST else x


def by_its_iterator(net, x):
    return net.layer(x) if next(net.state) < MOST else x


def by_its_hidden_module(net, x):
    return net.layer(net.state[0](x))


def numbers_from_one():
    n = 0
    while True:
        n += 1
        yield n


IN_MODULE = {
    "random": (rarely_by_its_generator, lambda: random.Random(0), "draws random numbers from state:"),
    "NumPy": (rarely_by_its_generator, lambda: np.random.default_rng(0), "draws random numbers from state:"),
    "an object": (by_its_object, Schedule, "changes state.own"),
    "itertools.count": (by_its_iterator, itertools.count, "changes state"),
    "a list's iterator": (by_its_iterator, lambda: iter([1] * MOST), "changes state"),
    "a generator": (by_its_iterator, numbers_from_one, "changes state.n"),
    "a module in a list": (by_its_hidden_module, lambda: [Counting()], r"changes state\[0\].calls"),
}


@pytest.mark.parametrize("name", IN_MODULE)
def test_generators_iterators_and_objects_of_a_module_are_compared(name):
    body, make, message = IN_MODULE[name]
    net = Net(body)
    net.state = make()
    with pytest.raises(ProgramError, match=message):
        trace(net, LENGTH)


@functools.lru_cache
def waves(length):
    return torch.arange(length)[:, None].sin()


def with_memoized_positions(net, x):
    return net.layer(x) + waves(x.shape[1])


def with_positions_in_a_dictionary(net, x):
    if x.shape[1] not in waves_by_length:
        waves_by_length[x.shape[1]] = torch.arange(x.shape[1])[:, None].cos()
    return net.layer(x) + waves_by_length[x.shape[1]]


def with_a_default_that_is_filled_once(net, x, cache=[]):  # noqa: B006
    if not cache:
        cache.append(torch.full((WIDTH,), 0.5))
    return net.layer(x) * cache[0]


def with_a_warning(net, x):
    global warned
    if not warned:
        warned = True
        warnings.warn("slow", stacklevel=1)
    return net.layer(x)


def with_a_variable_that_it_only_writes(net, x):
    global last
    last = time.perf_counter()
    return net.layer(x)


def with_a_count_that_begins_anew(net, x):
    global started
    started = 0
    for _ in range(2):
        started += 1
        x = torch.tanh(net.layer(x)) * started
    return x


def with_a_list_that_its_functions_fill(net, x):
    outputs, start = [], time.perf_counter()

    def step(y, kept):
        kept.append((y, time.perf_counter() - start))
        return torch.tanh(net.layer(y))

    return step(step(x, outputs), outputs)


HARMLESS = (
    with_memoized_positions,
    with_positions_in_a_dictionary,
    with_a_default_that_is_filled_once,
    with_a_warning,
    with_a_variable_that_it_only_writes,
    with_a_count_that_begins_anew,
    with_a_list_that_its_functions_fill,
)


@pytest.mark.filterwarnings("ignore:slow")
@pytest.mark.parametrize("body", HARMLESS, ids=lambda body: body.__name__)
def test_what_a_second_call_finds_as_it_was_is_no_memory(fast, body):
    check_gradients(fast, trace(Net(body), LENGTH), (2, 3, LENGTH), 1e-4)


def with_a_print(net, x):
    print("shape", x.shape)
    list(tqdm.tqdm(range(2), file=sys.stdout))
    rich.print("shape", x.shape)
    return net.layer(x)


KERNEL = """
class Stream:
    def __init__(self):
        self.events = []

    def write(self, text):
        self.events.append(text)

    def flush(self):
        self.events.append("")
"""


def test_what_forward_prints_in_a_notebook_is_no_memory(fast, monkeypatch, tmp_path):
    """The kernel keeps what is to be sent to the page; a package of the user's that does so is seen."""
    for package, is_seen in (("ipykernel", False), ("of_the_user", True)):
        path = tmp_path / "site-packages" / package / "iostream.py"
        path.parent.mkdir(parents=True)
        names = {}
        exec(compile(KERNEL, str(path), "exec"), names)
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", names["Stream"]())
            if is_seen:
                with pytest.raises(ProgramError, match=r"items of self.events of write .*iostream\.py"):
                    trace(Net(with_a_print), LENGTH)
            else:
                check_gradients(fast, trace(Net(with_a_print), LENGTH), (2, 3, LENGTH), 1e-4)


def test_a_module_is_traced_without_a_gradient_around_but_not_in_inference_mode():
    net = Net(lambda net, x: net.layer(x))
    with torch.no_grad():
        trace(net, LENGTH)
    with (
        torch.inference_mode(),
        pytest.raises(ProgramError, match=r"traced in torch.inference_mode, .*: trace it outs"),
    ):
        trace(net, LENGTH)


def test_a_profiler_goes_on_after_a_trace():
    events = []

    def profile(frame, event, argument):
        events.append(event)

    sys.setprofile(profile)
    try:
        trace(Net(lambda net, x: net.layer(x)), LENGTH)
        assert sys.getprofile() is profile
    finally:
        sys.setprofile(None)
    assert events


# ---- hooks on gradients at one length -------------------------------------------------------------------------------


def twice(*gradients):
    return tuple(2 * d for d in gradients[0])


def with_hook_of_node(net, x):
    y = net.layer(x)
    if x.shape[1] == 4:
        y.grad_fn.register_hook(twice)
    return y


def with_prehook_of_node(net, x):
    y = net.layer(x)
    if x.shape[1] == 4:
        y.grad_fn.register_prehook(lambda gradients: twice(gradients))
    return y


def with_hook_of_edge(net, x):
    y = net.layer(x)
    if x.shape[1] == 4:
        torch.autograd.graph.get_gradient_edge(y).node.register_prehook(lambda gradients: twice(gradients))
    return y


def with_other_saved_tensors(net, x):
    if x.shape[1] != 4:
        return torch.tanh(net.layer(x))
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: 1.5 * t):
        return torch.tanh(net.layer(x))


def with_multi_grad_hook(net, x):
    y = net.layer(x)
    if x.shape[1] == 4:
        torch.autograd.graph.register_multi_grad_hook([y], lambda gradients: gradients[0].mul_(2))
    return y


BY_HOOKS = (with_hook_of_node, with_prehook_of_node, with_hook_of_edge, with_other_saved_tensors, with_multi_grad_hook)


@pytest.mark.parametrize("body", BY_HOOKS, ids=lambda body: body.__name__)
def test_a_hook_on_gradients_of_samples_of_one_length_is_refused_by_its_line(body):
    with pytest.raises(ProgramError, match=rf"for 4 tokens differs .* may change them {HERE}: remove it"):
        trace(Net(body), LENGTH)


def with_hook_that_counts(net, x):
    def hook(d):
        seen.append(0)
        return d if len(seen) < MOST else 2 * d

    y = net.layer(x)
    if y.requires_grad:
        y.register_hook(hook)
    return y


def with_hook_that_draws(net, x):
    y = net.layer(x)
    if y.requires_grad:
        y.register_hook(lambda d: 2 * d if torch.rand(()) < 1e-9 else d)
    return y


class Counted(torch.autograd.Function):
    calls = 0

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, d):
        Counted.calls += 1
        return d if Counted.calls < MOST else 2 * d


def with_function_that_counts(net, x):
    return Counted.apply(net.layer(x))


COUNTED = {
    with_hook_that_counts: rf"changes the number of items of seen {HERE}",
    with_function_that_counts: rf"changes Counted.calls {HERE}",
    with_hook_that_draws: "draws random numbers in training mode",
}


@pytest.mark.parametrize("body", COUNTED, ids=lambda body: body.__name__)
def test_what_a_hook_or_a_backward_counts_is_refused(body):
    with pytest.raises(ProgramError, match=COUNTED[body]):
        trace(Net(body), LENGTH)


def with_hook_of_parameter(net, x):
    if x.shape[1] == 4:
        net.layer.weight.register_hook(lambda d: 2 * d)
    return net.layer(x)


def with_hook_after_accumulation(net, x):
    if x.shape[1] == 4:
        net.layer.weight.register_post_accumulate_grad_hook(lambda p: None)
    return net.layer(x)


def with_prehook_of_the_sum(net, x):
    if x.shape[1] == 4:
        node = net.layer.weight.view_as(net.layer.weight).grad_fn.next_functions[0][0]
        node.register_prehook(lambda gradients: twice(gradients))
        net.kept = node
    return net.layer(x)


OF_PARAMETERS = (with_hook_of_parameter, with_hook_after_accumulation, with_prehook_of_the_sum)


@pytest.mark.parametrize("body", OF_PARAMETERS, ids=lambda body: body.__name__)
def test_a_hook_on_the_gradient_of_a_parameter_is_refused_by_name_and_line(body):
    with pytest.raises(
        ProgramError, match=rf"a hook on the gradient of layer.weight, which the card .*: remove it {HERE}"
    ):
        trace(Net(body), LENGTH)


def with_hook_that_changes_nothing(net, x):
    y = net.layer(x)
    if y.requires_grad:
        torch.autograd.graph.register_multi_grad_hook([y], lambda gradients: None)
    return y


def with_saved_tensors_as_they_are(net, x):
    with torch.autograd.graph.save_on_cpu():
        return torch.tanh(net.layer(x))


def with_checkpoint(net, x):
    return checkpoint(net.layer, x, use_reentrant=False)


@pytest.mark.parametrize("body", [with_hook_that_changes_nothing, with_saved_tensors_as_they_are, with_checkpoint])
def test_hooks_that_change_no_gradient_are_accepted(fast, body):
    check_gradients(fast, trace(Net(body), LENGTH), (2, 4, LENGTH), 1e-4)


# ---- limits ---------------------------------------------------------------------------------------------------------


def test_an_object_is_looked_into_once_and_no_more_values_are_compared_than_the_limit():
    inner = [0.5] * state.MOST_ITEMS
    for _ in range(state.DEEPEST):  # 10^15 items, each list in 1,000 places
        inner = [inner] * state.MOST_ITEMS
    snapshot = state.Snapshot()
    snapshot.add("nested", inner)
    assert len(snapshot.values) < 2 * state.MOST_ITEMS
    snapshot.add("many", [list(range(1000)) for _ in range(2 * state.MOST // 1000)])
    assert state.MOST <= len(snapshot.values) <= state.MOST + 1
    circle = []
    circle.append(circle)
    state.Snapshot().add("circle", circle)


def test_a_module_that_holds_much_is_traced(fast):
    net = Net(lambda net, x: net.layer(x))
    net.data = {n: [float(n)] * 900 for n in range(900)}
    net.data["of itself"] = net.data
    check_gradients(fast, trace(net, LENGTH), (2, LENGTH), 1e-4)
