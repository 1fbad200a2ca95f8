"""A user's own module on the emulated card: it trains as with torch.optim, or is refused in one clear line."""

import copy
import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bttlab.card import open_trainer
from bttlab.compiler.errors import ProgramError
from bttlab.compiler.hazards import check_program
from bttlab.compiler.trace import trace
from bttlab.model import Optimizer, ReferenceTrainer
from bttlab.model.module import config_of
from bttlab.tensor import TTLinear, TTMEmbedding
from bttlab.util.errors import BttlabError

from training_processor import check_gradients, equal_bits, some_samples

WORDS, WIDTH, LABELS, LENGTH = 40, 32, 7, 12


class Own(nn.Module):
    """A table, a layer and a head; `forward` tags each token unless a subclass returns something else."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table, self.layer = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, LABELS)
        self.make()

    def make(self):
        pass

    def body(self, x):
        return x + self.layer(x)

    def forward(self, tokens):
        return self.head(self.body(self.table(tokens)))


def trained_in_pytorch(net, samples, learning_rate):
    """Return the parameters after a step of SGD for each sample."""
    net = copy.deepcopy(net)
    optimizer = torch.optim.SGD(net.parameters(), learning_rate)
    for i, length in enumerate(samples.lengths):
        optimizer.zero_grad()
        outputs = net(torch.from_numpy(samples.tokens[i : i + 1, :length]).long())
        outputs = [outputs] if isinstance(outputs, torch.Tensor) else outputs
        loss = 0.0
        for logits in outputs:
            labels = samples.intents[i : i + 1] if logits.ndim == 2 else samples.slots[i, 1:length]
            rows = logits if logits.ndim == 2 else logits[0, 1 - length :]
            loss = loss + F.cross_entropy(rows, torch.from_numpy(labels).long())
        loss.backward()
        optimizer.step()
    return {name: p.detach().numpy() for name, p in net.named_parameters()}


class LayerTwice(Own):
    def body(self, x):
        return x + self.layer(torch.tanh(self.layer(x)))


class TrainTwice(Own):
    def make(self):
        self.layer = TTLinear(WIDTH, WIDTH, (4, 8), (8, 4), 4)

    def body(self, x):
        return self.layer(x + self.layer(x))


class HeadTwice(Own):
    def forward(self, tokens):
        x = self.body(self.table(tokens))
        return self.head(x[:, 0]), self.head(x[:, 1:])


@pytest.mark.parametrize("module", [LayerTwice, TrainTwice, HeadTwice])
def test_parameters_with_two_uses_train_on_the_card_as_in_pytorch(module):
    model = trace(module(), LENGTH)
    samples = some_samples(model, [7, 2, 12, 3])
    card = open_trainer(model, "emulated")
    card.load_parameters(model.parameters())
    card.train(samples, Optimizer("sgd"), 0.1)
    wanted, found = trained_in_pytorch(model.network, samples, 0.1), card.store_parameters()
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, atol=1e-5, err_msg=name)


class Positions(Own):
    """Rows 5 and on of a table of 100 positions, row 70 of it, row 1 of a table of types, and a frozen layer unused."""

    def make(self):
        self.position, self.types = nn.Embedding(100, WIDTH), nn.Embedding(9, WIDTH)
        self.unused = nn.Linear(WIDTH, WIDTH).requires_grad_(False)

    def body(self, x):
        x = x + self.position(torch.arange(x.shape[1]) + 5) + self.types(torch.tensor(1))
        return torch.tanh(self.layer(x)) + self.position.weight[70]


def test_rows_that_no_sample_reads_take_no_space_and_are_stored_as_they_were(fast):
    net = Positions()
    model = trace(net, LENGTH)
    program = check_gradients(fast, model, (2, 7, LENGTH), 1e-4)
    vectors = WIDTH // 16
    sizes = {block.name: block.vectors for block in program.layout.blocks}
    assert sizes["types.weight"] == vectors and "unused.weight" not in sizes and "unused.bias" not in sizes
    assert sum(size for name, size in sizes.items() if name.startswith("position")) == 2 * (71 - 5) * vectors
    samples, before = some_samples(model, [7, 2, LENGTH, 3]), model.parameters()
    card = open_trainer(model, "emulated", optimizer=Optimizer("momentum"))
    card.load_parameters(before)
    card.train(samples, Optimizer("momentum", momentum=0.0), 0.1)
    wanted, found = trained_in_pytorch(net, samples, 0.1), card.store_parameters()
    state = card.store_optimizer_state()
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, atol=1e-5, err_msg=name)
    for name, rows in (("position.weight", np.r_[0:5, 71:100]), ("types.weight", np.r_[0:1, 2:9])):
        assert found[name][rows].tobytes() == before[name][rows].tobytes()
        assert not any(moment[rows].any() for key, moment in state.items() if key.endswith(name))
    card.load_parameters(found, state)  # a state of another order of samples keeps rows, too
    assert equal_bits(card.store_parameters(), found) and equal_bits(card.store_optimizer_state(), state)


class Types(Own):
    """A table of words, and one of three types of 16 features; token ids are type * WORDS + word."""

    def make(self):
        self.types, self.wide = nn.Embedding(3, 16), nn.Linear(16, WIDTH)

    def type_of(self, tokens):
        return self.types(tokens // WORDS)

    def word_of(self, tokens):
        return self.table(tokens % WORDS)

    def forward(self, tokens):
        return self.head(self.body(self.word_of(tokens) + self.wide(self.type_of(tokens))))


def test_words_and_types_of_tokens_train_as_in_pytorch(fast):
    net = Types()
    model = trace(net, LENGTH)
    assert (model.vocabulary_size, model.token_types) == (WORDS, 3) and "40 tokens of 3 types" in str(model)
    assert config_of(model.config.to_dict()) == model.config
    assert check_program(check_gradients(fast, model, (2, 7, LENGTH), 1e-4), (2, 7)) == []
    samples = some_samples(model, [7, 2, LENGTH, 3])
    assert samples.tokens.max() >= 2 * WORDS
    card = open_trainer(model, "emulated")
    card.load_parameters(model.parameters())
    card.train(samples, Optimizer("sgd"), 0.1)
    wanted, found = trained_in_pytorch(net, samples, 0.1), card.store_parameters()
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, atol=1e-5, err_msg=name)
    samples.tokens[0, 0] = 3 * WORDS
    with pytest.raises(BttlabError, match="token 120: it must be at least 0 and below 120"):
        card.predict(samples)


def test_types_alone_and_words_alone_and_padding(fast):
    alone = type("Words", (Types,), {"forward": lambda net, t: net.head(net.body(net.word_of(t)))})()
    for layer in (alone.types, alone.wide):
        layer.requires_grad_(False)
    assert trace(alone, LENGTH).token_types == 1
    padded = Types()
    padded.table.padding_idx = 0
    model = trace(padded, LENGTH)
    check_gradients(fast, model, (7,), 1e-4)
    samples = some_samples(model, [7])
    samples.tokens[0, 3] = WORDS  # word 0 of the second type
    with pytest.raises(BttlabError, match="position 3: token 40: the model takes id 0 as padding"):
        samples.validate(model)


TYPES = {
    "does not embed the token ids": lambda net, t: net.head(net.wide(net.type_of(t))),
    "two tables of tokens, not of words and of their types,": lambda net, t: net.head(
        net.table(t) + net.wide(net.type_of(t))
    ),
    "two tables of tokens, not of words": lambda net, t: net.head(net.word_of(t) + net.wide(net.types(t // 5))),
    "a table of 40 rows for 50 words is not supported": lambda net, t: net.head(net.table(t % 50)),
    "remainder of the token ids|__mod__ of the token ids": lambda net, t: net.head(net.table(t % WORDS % 7)),
    "embedding of the tokens for the second time": lambda net, t: net.head(
        net.word_of(t) + net.wide(net.type_of(t)) + net.wide(net.others(t // WORDS))
    ),
    "a table in tensor format of words or types in token ids": lambda net, t: net.head(net.cut(t % WORDS)),
}


@pytest.mark.parametrize("message", TYPES)
def test_other_uses_of_types_are_refused(message):
    class Net(Types):
        def make(self):
            super().make()
            self.others = nn.Embedding(3, 16)
            self.cut = TTMEmbedding(WORDS, WIDTH, (4, 5, 2), (4, 2, 4), 4)

        def forward(self, tokens):
            return TYPES[message](self, tokens)

    with pytest.raises(ProgramError, match=message):
        trace(Net(), LENGTH)


class TensorPositions(Own):
    def make(self):
        self.position = TTMEmbedding(64, WIDTH, (4, 4, 4), (4, 2, 4), 4)

    def body(self, x):
        return self.layer(x + self.position(torch.arange(x.shape[1])))


def test_a_table_of_positions_in_tensor_format_is_refused_by_name_unless_it_is_frozen(fast):
    net = TensorPositions()
    what = r'position: a table of positions or types in tensor format.*skip=\["position"\]'
    with pytest.raises(ProgramError, match=what):
        trace(net, LENGTH)
    net.position.requires_grad_(False)
    check_gradients(fast, trace(net, LENGTH), (2, LENGTH), 1e-4)


class Refused(Own):
    """In a form that the card does not train: `message` is what the error says."""

    message = ""


def refused(message, **members):
    return type("Net", (Refused,), {"message": message, **members})


def set_alias(net):
    net.copy = net.layer.bias.data


def set_transposed_view(net):
    net.other = nn.Linear(WIDTH, WIDTH)
    net.other.weight = nn.Parameter(net.layer.weight.data.t())


def set_expanded(net):
    net.layer.bias = nn.Parameter(torch.ones(1).expand(WIDTH))


def set_count(net):
    net.count = 0


def count_calls(net, x):
    net.count += 1
    return x + net.layer(x) if net.count < 1000 else x


def normalize_weight(net, x):
    net.layer.weight.data = F.normalize(net.layer.weight.data)
    return x + net.layer(x)


def drop_layer_rarely(net, x, draw):
    return x if net.training and draw() < 1e-9 else x + net.layer(x)


def in_autocast(net, x):
    with torch.autocast("cpu", torch.bfloat16):
        y = net.layer(x)
    return x + y.float()


def by_token_id(net, tokens):
    x = net.table(tokens)
    return net.head(net.layer(x) if 3 in tokens.numpy() else torch.tanh(net.layer(x)))


def output_twice(net, tokens):
    y = net.head(net.body(net.table(tokens)))
    return y[:, 0], y[:, 1:]


def set_state(net):
    net.state = {"step": 0}


def count_in_state(net, x):
    net.state["step"] += 1
    return net.layer(x) if net.state["step"] < 1000 else x


def set_number(net):
    net.number = torch.zeros(())


def count_in_tensor(net, x):
    net.number += 1
    return net.layer(x) if net.number < 1000 else x


def count_in_class(net, x):
    type(net).calls += 1
    return net.layer(x) if net.calls < 1000 else x


def set_list(net):
    net.lengths = []


def count_in_list(net, x):
    net.lengths.append(x.shape[1])
    return net.layer(x) if len(net.lengths) < 1000 else x


def stop_gradient_of_4_tokens(net, x):
    y = net.layer(x)
    return x + (y.detach() if x.shape[1] == 4 else y)


def hook_for_4_tokens(net, x):
    y = net.layer(x)
    if y.requires_grad and x.shape[1] == 4:
        y.register_hook(lambda d: 0 * d)
    return x + y


class Reversed(torch.autograd.Function):
    """x, with the gradient reversed."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, d):
        return -d


class ReversedOf4(Reversed):
    """x, with the gradient reversed for 4 tokens."""

    @staticmethod
    def backward(ctx, d):
        return -d if d.shape[1] == 4 else d


def set_hook(net):
    net.layer.register_full_backward_hook(lambda layer, of_inputs, of_outputs: tuple(-g for g in of_inputs))


def set_scale(net):
    net.scale = nn.Parameter(torch.tensor(0.7))


def scaled_by_item(net, x):
    return x + net.layer(x) * net.scale.item()


def half_in_place(net, x):
    y = net.layer(x)
    y[..., :16].mul_(2.0)
    return y


def relu_in_place_of_view(net, x):
    y = net.layer(x)
    return F.relu(y.view(-1, WIDTH), inplace=True).view(x.shape) + y


def assigned_beside_view(net, x):
    y = net.layer(x).clone()
    rows = y.view(-1, WIDTH)
    y[..., 3] = 0.0
    return rows.view(x.shape)


def masked_in_part(net, x):
    hidden = torch.ones(x.shape[1], x.shape[1]).triu(1) == 1
    return (net.layer(x) @ x.mT).masked_fill(hidden, -1e4).softmax(-1) @ x


@torch.jit.script
def doubled_by_script(x: torch.Tensor) -> torch.Tensor:
    return 2 * torch.tanh(x)


def set_script(net):
    net.script = torch.jit.trace(nn.Linear(WIDTH, WIDTH), torch.zeros(1, 3, WIDTH))


def set_hidden(net):
    net.hidden = [nn.Linear(WIDTH, WIDTH)]


def set_hidden_frozen(net):
    net.hidden = [nn.Linear(WIDTH, WIDTH).requires_grad_(False)]


def with_check_of_values(net, x):
    y = net.layer(x)
    if torch.isnan(y).any():
        raise ValueError
    return y


def with_log(net, x):
    net.mean = float(x.detach().mean())
    return net.layer(x)


def freeze_at_4_tokens(net, x):
    if x.shape[1] == 4:
        net.layer.weight.requires_grad_(False)
    return net.layer(x)


def count_at_4_tokens(net, x):
    net.state["step"] += x.shape[1] == 4
    return net.layer(x) if net.state["step"] < 1000 else x


def clamp_weight(net, x):
    net.layer.weight.data.clamp_(-0.1, 0.1)
    return net.layer(x)


def clamp_weight_without_gradient(net, x):
    with torch.no_grad():
        net.layer.weight.clamp_(-0.1, 0.1)
    return net.layer(x)


@torch.library.custom_op("bttlab_test::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


doubled.register_autograd(lambda ctx, d: 3 * d)

REFUSED = {
    "a weight is limited": refused("clamp in place of layer.weight, a trained parameter,", body=clamp_weight),
    "a weight is limited without a gradient": refused(
        "clamp in place of layer.weight, a trained parameter,", body=clamp_weight_without_gradient
    ),
    "a custom operator": refused(
        "doubled.default, a custom operator, is not", body=lambda net, x: doubled(net.layer(x))
    ),
    "a layer of torch.jit": refused(
        "script is of torch.jit, whose functions are not seen: take the layer",
        make=set_script,
        body=lambda net, x: net.script(x),
    ),
    "a function of torch.jit": refused(
        "use functions of torch that forward calls itself, not in torch.jit",
        body=lambda net, x: net.layer(doubled_by_script(x)),
    ),
    "a layer in a list": refused(
        "use a parameter, or a layer, that the module has before it is traced",
        make=set_hidden,
        body=lambda net, x: net.hidden[0](x),
    ),
    "a frozen layer in a list": refused(
        "in double precision, as the check calls it: register its tensors and layers",
        make=set_hidden_frozen,
        body=lambda net, x: net.layer(net.hidden[0](x)),
    ),
    "a check of values": refused("use no check of values in forward", body=with_check_of_values),
    "a number for a log": refused("take numbers for a log outside of forward", body=with_log),
    "features by a mask": refused(
        "for features their products with a constant",
        body=lambda net, x: torch.where(torch.arange(WIDTH) < 16, net.layer(x), x),
    ),
    "constants by a generator": refused(
        "draws constants (make them a buffer)",
        body=lambda net, x: net.layer(x) + torch.rand(WIDTH, generator=torch.Generator().manual_seed(3)),
    ),
    "frozen from 4 tokens on": refused("changes requires_grad of layer.weight", body=freeze_at_4_tokens),
    "a count of samples of 4 tokens": refused("changes state.step", make=set_state, body=count_at_4_tokens),
    "a count of calls in a dictionary": refused("forward changes state.step", make=set_state, body=count_in_state),
    "a count of calls in a tensor": refused("forward changes number", make=set_number, body=count_in_tensor),
    "a count of calls in the class": refused("forward changes Net.calls", calls=0, body=count_in_class),
    "a list that grows": refused("changes the number of items of lengths", make=set_list, body=count_in_list),
    "no gradient of 4 tokens": refused("for 4 tokens differs from what was traced", body=stop_gradient_of_4_tokens),
    "a hook for 4 tokens": refused("for 4 tokens differs from what was traced", body=hook_for_4_tokens),
    "a gradient reversed": refused(
        "Reversed, an autograd.Function, has a backward", body=lambda net, x: Reversed.apply(net.layer(x))
    ),
    "a gradient reversed for 4 tokens": refused(
        "for 4 tokens differs from what was traced", body=lambda net, x: ReversedOf4.apply(net.layer(x))
    ),
    "a backward hook": refused("a backward hook of layer may change gradients", make=set_hook),
    "the number of a trained parameter": refused(
        "item of scale, which is trained, is not supported on the card; use the parameter itself",
        make=set_scale,
        body=scaled_by_item,
    ),
    "a part in place": refused("mul in place of a tensor of which another one is a view", body=half_in_place),
    "a view in place": refused("relu in place of a tensor of which another one is", body=relu_in_place_of_view),
    "a part assigned beside a view": refused("setitem in place of a tensor of which", body=assigned_beside_view),
    "a mask that does not hide": refused("masked_fill of scores with -10000 is not", body=masked_in_part),
    "a function of scores": refused(
        "tanh of attention scores is not supported on the card; use one number for all scores",
        body=lambda net, x: (50 * (net.layer(x) @ x.mT / 50).tanh()).softmax(-1) @ x,
    ),
    "a comparison with an id": refused(
        "the id of padding is the padding_idx of an nn.Embedding",
        forward=lambda net, tokens: net.head(net.table(tokens) * (tokens != 1).unsqueeze(-1)),
    ),
    "a tensor shares memory with a parameter": refused(
        "shares memory with layer.bias", make=set_alias, body=lambda net, x: net.layer(x) + torch.tanh(net.copy)
    ),
    "two parameters share memory": refused(
        "share memory", make=set_transposed_view, body=lambda net, x: net.other(net.layer(x))
    ),
    "a parameter is expanded": refused("elements of layer.bias share memory", make=set_expanded),
    "a count of calls": refused("forward changes count", make=set_count, body=count_calls),
    "a weight is normalized in place": refused("forward changes layer.weight", body=normalize_weight),
    **{
        f"{name} in training, rarely": refused(
            "draws random numbers in training mode", body=lambda net, x, draw=draw: drop_layer_rarely(net, x, draw)
        )
        for name, draw in {"torch": lambda: torch.rand(()), "random": random.random, "NumPy": np.random.rand}.items()
    },
    "another function in eval()": refused(
        "other outputs in eval()", body=lambda net, x: x + net.layer(x) * (0.5 if net.training else 1.0)
    ),
    "another function of 5 tokens": refused(
        "output for 5 tokens", body=lambda net, x: net.layer(x) if x.shape[1] == 5 else x + net.layer(x)
    ),
    "half precision": refused("is bfloat16", make=lambda net: net.bfloat16()),
    "autocast": refused("in bfloat16", body=in_autocast),
    "ids by NumPy": refused("values of the token ids (numpy)", forward=by_token_id),
    "one output twice": refused("one output of head twice", forward=output_twice),
    "tags without the last token": refused(
        "other tokens than a tagging task has",
        forward=lambda net, tokens: net.head(net.layer(net.table(tokens)[:, :-1])),
    ),
    "next words without the first token": refused(
        "other tokens than a language model task",
        task="language model",
        forward=lambda net, tokens: net.head(net.layer(net.table(tokens)[:, 1:])),
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_module_that_the_card_would_train_otherwise_is_refused(name):
    module = REFUSED[name]()
    with pytest.raises(ProgramError) as error:
        trace(module, LENGTH, getattr(module, "task", None))
    assert module.message in str(error.value) and "\n" not in str(error.value)


def set_cache(net):
    net.longest, net.waves = 0, None


def with_cache(net, x):
    """Waves for the longest sequence so far, as rotary embeddings of Hugging Face have them."""
    net.tokens = x.shape[1]
    if net.tokens > net.longest:
        net.longest, net.waves = net.tokens, torch.arange(net.tokens)[:, None].sin()
    return net.layer(x) + net.waves[: net.tokens]


def set_parts(net):
    both = torch.randn(WIDTH, 2 * WIDTH)
    net.layer.weight = nn.Parameter(both[:, :WIDTH])
    net.head.weight = nn.Parameter(both[:LABELS, WIDTH:])


@pytest.mark.parametrize("members", [{"make": set_cache, "body": with_cache}, {"make": set_parts}])
def test_a_cache_and_parts_of_one_tensor_are_accepted(members):
    trace(refused("", **members)(), LENGTH)


def set_waves(net):
    net.waves, net.seen = {}, None


def with_waves(net, x):
    """A constant for each length, and the activations of the last sample, as for a picture of them."""
    waves = net.waves.setdefault(x.shape[1], torch.arange(x.shape[1])[:, None].sin())
    y = net.layer(x) + waves
    net.seen = y.detach()
    return y


def slice_in_place(net, x):
    y = net.layer(x)
    first, second = y[..., :16], y[..., 16:]
    first.mul_(2.0)
    return torch.cat([first, second], -1)


def set_frozen_scale(net):
    net.scale = nn.Parameter(torch.tensor(0.7), requires_grad=False)


ACCEPTED = {
    "token ids as long": refused("", forward=lambda net, tokens: net.head(net.body(net.table(tokens.int().long())))),
    "constants by length, activations kept": refused("", make=set_waves, body=with_waves),
    "one of two slices in place": refused("", body=slice_in_place),
    "a view in place": refused("", body=lambda net, x: F.relu(net.layer(x).view(-1, WIDTH), True).view(x.shape)),
    "the number of a frozen parameter": refused("", make=set_frozen_scale, body=scaled_by_item),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_what_a_forward_may_keep_and_change(fast, name):
    check_gradients(fast, trace(ACCEPTED[name](), LENGTH), (2, 5, LENGTH), 1e-4)


def test_no_length_above_the_cards_longest_is_checked_but_the_modules():
    seen = set()

    def forward(net, tokens):
        seen.add(tokens.shape[1])
        return net.head(net.body(net.table(tokens)))

    trace(refused("", forward=forward)(), 300)
    assert seen == {*range(2, 64), 151, 300}


def test_what_is_no_traced_module_is_refused():
    with pytest.raises(ProgramError, match="trace takes a PyTorch module, not <class"):
        trace(Own, LENGTH)
    with pytest.raises(ProgramError, match=r"not Own; trace\(module, sequence_length\) makes one"):
        open_trainer(Own(), "emulated")


class AsksForGradients(Own):
    def body(self, x):
        return self.layer(x) * (2.0 if torch.is_grad_enabled() else 1.0)


class AsksATensor(Own):
    def body(self, x):
        x = self.layer(x)
        return x * 2.0 if x.requires_grad else x


class AsksInOneMode(Own):
    def body(self, x):
        return self.layer(x) * (1.0 if torch.is_grad_enabled() or self.training else 2.0)


@pytest.mark.parametrize("kind", [AsksForGradients, AsksATensor, AsksInOneMode])
def test_other_outputs_without_gradients_are_refused(kind):
    with pytest.raises(
        ProgramError, match=rf"^{kind.__name__}.forward has other outputs under torch.no_grad\(\): "
    ) as e:
        trace(kind(), LENGTH)
    assert "\n" not in str(e.value)


class AsksInVain(Own):
    def body(self, x):
        with torch.set_grad_enabled(torch.is_grad_enabled() and x.requires_grad):
            return x + self.layer(x)


class Intent(Own):
    def forward(self, tokens):
        return self.head(self.body(self.table(tokens)).mean(1))


@pytest.mark.parametrize("kind", [AsksInVain, Intent])
def test_the_card_predicts_labels_of_the_module_alone(kind):
    model = trace(kind(), LENGTH)
    samples = some_samples(model, [12, 3, 5, 2])
    card, reference = open_trainer(model), ReferenceTrainer(model)
    card.load_parameters(model.parameters())
    found, wanted = card.predict(samples), reference.predict(samples)
    assert np.array_equal(found.slots, wanted.slots) and np.array_equal(found.intents, wanted.intents)


class WeightFirst(Own):
    def body(self, x):
        centred = self.layer.weight[0] * (x - x.mean(-1, keepdim=True))
        return centred / torch.sqrt(x.var(-1, keepdim=True, unbiased=False) + 1e-5)


class WeightFirstWithoutMean(Own):
    def body(self, x):
        return self.layer.bias * x / torch.sqrt(x.square().mean(-1, keepdim=True) + 1e-5)


@pytest.mark.parametrize("kind", [WeightFirst, WeightFirstWithoutMean])
def test_a_norm_with_the_weight_before_the_division_is_told_to_multiply_after_it(kind):
    with pytest.raises(ProgramError, match=r"by the weight after the division \(test_own_modules.py, line \d+\)$"):
        trace(kind(), LENGTH)
