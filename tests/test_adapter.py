"""Adapters in TT format: against dense layers, PEFT's LoRA, and on the card."""

import numpy as np
import pytest
import torch
from torch import nn

from bttlab.card.opening import open_trainer
from bttlab.compiler.trace import trace
from bttlab.model import Optimizer, ReferenceTrainer
from bttlab.tensor import ShapeError, TTAdapter, adapt, merge, write_lora

from training_processor import check_gradients, some_samples

WIDTH, LENGTH = 64, 12


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(40, WIDTH)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.head = nn.Linear(WIDTH, 16)

    def forward(self, tokens):
        x = self.table(tokens)
        for layer in self.layers:
            x = x + nn.functional.gelu(layer(x))
        return self.head(x)


def adapted(rank=(2, 3, 4, 3, 2)) -> Net:
    torch.manual_seed(0)
    net = Net()
    adapt(net, rank, trained=["head"])
    return net


def shaken(net: nn.Module) -> nn.Module:
    with torch.no_grad():
        for parameter in net.parameters():
            if parameter.requires_grad:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return net


def test_an_adapted_model_begins_as_it_was_and_trains_the_cores_and_named_modules_alone():
    torch.manual_seed(0)
    net, tokens = Net(), torch.arange(6)[None]
    before = net(tokens)
    assert adapt(net, 3, trained=["head"]) == ["layers.0", "layers.1"]
    torch.testing.assert_close(net(tokens), before)
    trained = {name for name, one in net.named_parameters() if one.requires_grad}
    cores = {f"layers.{n}.update.cores.{k}" for n in range(2) for k in range(6)}
    assert trained == cores | {"head.weight", "head.bias"}
    net(tokens).square().sum().backward()
    assert net.layers[0].update.cores[0].grad.abs().sum() > 0  # a way out of the zeros


def test_the_update_is_the_matrix_of_its_cores_and_lora_s_product():
    adapter = shaken(adapted()).layers[0]
    g1, g2, g3, g4, g5, g6 = (core.detach() for core in adapter.update.cores)
    matrix = torch.einsum("xia,ajb,bkc,clm,mno,opy->ijklnp", g1, g2, g3, g4, g5, g6).reshape(WIDTH, WIDTH)
    weight = adapter.layer.weight + matrix
    x = torch.randn(3, WIDTH)
    torch.testing.assert_close(adapter(x), x @ weight.T + adapter.layer.bias, rtol=1e-4, atol=1e-5)
    a, b = adapter.lora()
    assert (a.shape, b.shape) == ((4, WIDTH), (WIDTH, 4))
    torch.testing.assert_close(b @ a, matrix)
    torch.testing.assert_close(adapter.to_linear().weight, weight)


def test_merged_adapters_are_dense_layers_again():
    net, tokens = shaken(adapted()), torch.arange(9)[None]
    before = net(tokens)
    assert not any(isinstance(module, TTAdapter) for module in merge(net).modules())
    torch.testing.assert_close(net(tokens), before, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rank", [1, (2, 3, 4, 3, 2)])
def test_peft_reads_adapters_as_lora_with_the_head_that_was_trained(tmp_path, rank):
    from peft import PeftModel

    net, tokens = shaken(adapted(rank)), torch.arange(9)[None]
    write_lora(net, tmp_path / "adapter")
    assert sorted(one.name for one in (tmp_path / "adapter").iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
    torch.manual_seed(0)
    read = PeftModel.from_pretrained(Net(), str(tmp_path / "adapter"))
    torch.testing.assert_close(read(tokens), net(tokens), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(Net()(tokens), net(tokens))
    with pytest.raises(FileExistsError):
        write_lora(net, tmp_path / "adapter")


def test_peft_gives_lora_to_no_layer_whose_name_ends_alike(tmp_path):
    from peft import PeftModel

    def made() -> nn.Module:
        torch.manual_seed(0)
        parts = {"last": nn.Linear(WIDTH, WIDTH), "block": nn.ModuleDict({"last": nn.Linear(WIDTH, WIDTH)})}
        return nn.ModuleDict(parts)

    net = made()
    net["last"] = shaken(TTAdapter(net["last"], 3))
    net["block"]["last"] = shaken(TTAdapter(net["block"]["last"], 2))
    write_lora(net, tmp_path / "both")
    net["block"]["last"] = net["block"]["last"].layer
    write_lora(net, tmp_path / "one")
    both, one = (PeftModel.from_pretrained(made(), str(tmp_path / name)) for name in ("both", "one"))
    ranks = {name: len(value) for name, value in both.named_parameters() if "lora_A" in name}
    assert sorted(ranks.values()) == [2, 3]
    assert sum("lora_A" in name for name, _ in one.named_parameters()) == 1


def test_what_peft_cannot_hold_is_refused_and_nothing_is_written(tmp_path):
    net = adapted()
    net.table.weight.requires_grad_(True)
    net.head.weight.requires_grad_(False)
    with pytest.raises(ShapeError, match=r"peft cannot hold head.bias, .*: freeze it"):
        write_lora(net, tmp_path / "adapter")
    with pytest.raises(ShapeError, match=r"no TTAdapter: call adapt"):
        write_lora(Net(), tmp_path / "adapter")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("layers", "trained"), [(["query"], []), (None, ["classifier"])])
def test_a_name_that_fits_no_layer_is_refused_and_the_model_stays(layers, trained):
    net = Net()
    with pytest.raises(ShapeError, match=r"no layer of the model fits '(query|classifier)': its linear layers are"):
        adapt(net, 3, layers, trained)
    assert all(one.requires_grad for one in net.parameters())


def test_the_card_trains_adapters_leaves_the_rest_and_peft_reads_them(fast, tmp_path):
    from peft import PeftModel

    net = adapted(rank=4)
    model = trace(net, LENGTH)
    check_gradients(fast, model, (2, 7, LENGTH), tolerance=2e-4, least=1 / 10)
    card, reference = open_trainer(model, "emulated"), ReferenceTrainer(model)
    before = model.parameters()
    card.load_parameters(before)
    samples = some_samples(model, [5, 12, 7] * 4)[np.tile(np.arange(12), 5)]
    losses = [trainer.train(samples, Optimizer("adamw"), 1e-2) for trainer in (card, reference)]
    assert np.abs(losses[0] - losses[1]).max() < 1e-3 and losses[0][-12:].mean() < losses[0][:12].mean()
    changed = {name for name, value in card.store_parameters().items() if not np.array_equal(value, before[name])}
    assert changed == {name for name in before if ".update.cores." in name or name.startswith("head.")}
    net.load_state_dict({name: torch.from_numpy(value) for name, value in card.store_parameters().items()})
    write_lora(net, tmp_path / "trained")
    torch.manual_seed(0)
    read, tokens = PeftModel.from_pretrained(Net(), str(tmp_path / "trained")), torch.arange(9)[None]
    torch.testing.assert_close(read(tokens), net(tokens), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("alpha", [4, 16])
def test_lora_of_peft_trains_beside_gelu_and_tanh(fast, alpha):
    """With alpha other than the rank a number multiplies each update, and the tables of functions are full."""
    from peft import LoraConfig, get_peft_model
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 128}
    model = BertForSequenceClassification(BertConfig(**sizes, vocab_size=60, num_labels=3, initializer_range=0.1))
    chosen = LoraConfig(
        r=4, lora_alpha=alpha, lora_dropout=0.0, target_modules=["query", "key", "value"], task_type="SEQ_CLS"
    )
    lora = get_peft_model(model, chosen).eval()
    for name, parameter in lora.named_parameters():
        if "lora_B" in name:  # zeros, of which A would have no gradient
            nn.init.normal_(parameter, std=0.1)
    traced = trace(lora, LENGTH)
    assert any("lora_A" in name and name not in traced.frozen for name in traced.shapes)
    check_gradients(fast, traced, (2, LENGTH), 2e-4, least=1 / 50)


class Twice(nn.Module):
    """One layer under two names."""

    def __init__(self):
        super().__init__()
        self.first = self.second = nn.Linear(16, 16)

    def forward(self, x):
        return self.second(self.first(x))


def test_a_layer_in_two_places_gets_one_adapter_in_both(tmp_path):
    net, x = Twice(), torch.randn(3, 16)
    adapt(net, 2)
    assert isinstance(net.first, TTAdapter) and net.first is net.second
    wanted = shaken(net)(x)
    with pytest.raises(ShapeError, match="peft cannot hold second, which is the same layer as another"):
        write_lora(net, tmp_path / "lora")
    merge(net)
    assert type(net.first) is nn.Linear and net.first is net.second
    torch.testing.assert_close(net(x), wanted)


def test_an_adapted_encoder_of_pytorch_computes_the_same_in_eval():
    net = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True), 1)
    adapt(net, 2)
    x = torch.randn(2, 3, 16)
    wanted = shaken(net)(x)
    with torch.no_grad():
        torch.testing.assert_close(net.eval()(x), wanted)
    with pytest.raises(ShapeError, match="weight of TTAdapter is computed"):
        net.layers[0].linear1.weight.zero_()


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (Net, {"layers": "layers"}, "layers is 'layers': give a list of names"),
        (Net, {"trained": "head"}, "trained is 'head': give a list of names"),
        (adapted, {}, "the model has a TTAdapter at 'layers.0': call merge"),
        (lambda: nn.Sequential(nn.Conv1d(1, 1, 1)), {}, "no layer gets an adapter"),
        (lambda: nn.Linear(4, 4), {}, "no layer gets an adapter"),
    ],
)
def test_what_cannot_be_adapted_is_refused_and_the_model_stays(model, options, message):
    net = model()
    trained = [parameter.requires_grad for parameter in net.parameters()]
    with pytest.raises(ShapeError, match=message):
        adapt(net, 2, **options)
    assert [parameter.requires_grad for parameter in net.parameters()] == trained
