"""Models of Hugging Face: parameters as published, odd files refused in one line."""

import json
import sys
from pathlib import Path

import huggingface_hub
import pytest

from bttlab_cost.configuration import CostError
from bttlab_cost.models import find_model
from bttlab_cost.operators import operators
from command_line import refused, run_json

PUBLIC = json.loads((Path(__file__).parent / "public_models.json").read_text())["models"]
LLAMA = PUBLIC["llama-3-8b"][1]


@pytest.fixture
def write(tmp_path):
    def write(values):
        path = tmp_path / "config.json"
        path.write_text(values if isinstance(values, str) else json.dumps(values))
        return str(path)

    return write


@pytest.mark.parametrize("name", PUBLIC)
def test_parameters_are_the_published_ones(write, name):
    billions, values = PUBLIC[name]
    found = find_model(write(values))
    assert found.parameters == pytest.approx(1e9 * billions, rel=1e-4)
    repeated = 12 if name == "albert-base-v2" else 1  # one layer, twelve times
    # The matrices that the step multiplies with are all of the model's but the tables, norms and vision towers.
    assert 0.55 * found.parameters / repeated < found.linear_elements() / repeated < 1.001 * found.parameters or (
        billions < 0.5 or name == "gemma-3-4b"
    )


LLAMA_2 = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "vocab_size": 32000,
    "tie_word_embeddings": False,
}


@pytest.mark.parametrize("method", ["lora", "qlora", "full"])
def test_a_config_json_and_the_name_of_a_model_give_the_same_parts_of_a_step(write, capsys, method):
    def parts(model):
        words = (
            "cost",
            "--model",
            f"{model},sequence_length=512,method={method}",
            "--gpu",
            "H200",
            "--tokens",
            "1M",
            "--batch",
            "1",
        )
        found = run_json(capsys, *words)["step"]["parts"]
        return {(part["stage"], part["kind"], part["layer"]): part["seconds"] for part in found}

    mine, named = parts(write(LLAMA_2)), parts("llama-2-7b,padding=none")
    assert mine.keys() == named.keys()
    matrices = [key for key in mine if key[1] in ("feed-forward", "mixer")]
    assert {layer for _, _, layer in matrices} == {"feed-forward", "mixer"}
    assert mine == pytest.approx(named, rel=1e-3)


def scores(config):
    """Return the operations of attention's scores in a forward pass, which no weights take part in."""
    step = operators(config, config.sequence_length)
    found = [
        one for one in step if (one.stage, one.kind, one.layer) == ("forward", "mixer", "mixer") and one.elementwise
    ]
    return sum(one.times * one.flops for one in found)


@pytest.mark.parametrize(("name", "width"), [("deepseek-v3", 192 + 128), ("llama-3-8b", 2 * 128)])
def test_attention_takes_the_widths_of_queries_and_of_values(write, name, width):
    """Latent attention has wider queries than `head_dim` says, which is their part with positions."""
    config = find_model(write(PUBLIC[name][1]))
    heads, layers = PUBLIC[name][1]["num_attention_heads"], PUBLIC[name][1]["num_hidden_layers"]
    assert scores(config) == 2 * 512**2 * width * heads * layers


@pytest.mark.parametrize("tokens", [1024, 8192])
@pytest.mark.parametrize("kernels", ["flash", "eager"])
def test_flash_attention_skips_what_a_window_hides(write, tokens, kernels):
    """Gemma 3 has a window of 1,024 tokens in 29 of 34 layers; its pairs are counted one by one."""
    config = find_model(f"{write(PUBLIC['gemma-3-4b'][1])},sequence_length={tokens},kernels={kernels}")
    full = sum(range(1, tokens + 1))
    window = sum(min(place, 1024) for place in range(1, tokens + 1)) if kernels == "flash" else full
    every = 4 * tokens**2 * 256 * 8 * 34
    assert scores(config) == pytest.approx(every * (5 * full + 29 * window) / (34 * full), rel=1e-3)


NLLB_MOE = {
    "model_type": "nllb-moe",
    "d_model": 64,
    "vocab_size": 1000,
    "num_experts": 8,
    **{
        f"{part}_{name}": value
        for part in ("encoder", "decoder")
        for name, value in (("layers", 4), ("attention_heads", 4), ("ffn_dim", 128), ("sparse_step", 2))
    },
}
DEEPSEEK_V2 = {
    **{
        "model_type": "deepseek_v2",
        "hidden_size": 64,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "vocab_size": 1000,
    },
    **{"num_key_value_heads": 4, "intermediate_size": 128, "moe_intermediate_size": 32, "n_routed_experts": 8},
    **{"q_lora_rank": None, "first_k_dense_replace": 1},
}


def test_a_token_goes_to_as_many_experts_as_the_architecture_says(write):
    """NLLB's router takes two without a field; DeepSeek V2 has a field without a default."""
    assert find_model(write(NLLB_MOE)).top_k == 2
    assert find_model(write(DEEPSEEK_V2 | {"num_experts_per_tok": 3})).top_k == 3
    with pytest.raises(CostError, match="num_experts_per_tok is missing: it says to how many of its 8 experts"):
        find_model(write(DEEPSEEK_V2))


def test_a_window_that_is_off_or_of_other_layers_is_none(write):
    assert find_model(write(PUBLIC["qwen2-7b"][1] | {"sliding_window": 256, "use_sliding_window": False})).windows == ()
    assert find_model(write(PUBLIC["gpt-oss-20b"][1])).windows == ((128, 12),)
    mistral = {**LLAMA_2, "model_type": "mistral", "sliding_window": 256}
    assert find_model(write(mistral)).windows == ((256, 32),)
    assert find_model(write(mistral | {"sliding_window": None})).windows == ()


def test_blocks_that_share_their_matrices_have_one_adapter_for_all(write):
    """As peft adds them to ALBERT; the packed weights are those of one block."""
    config = find_model(f"{write(PUBLIC['albert-base-v2'][1])},method=qlora")
    matrices = [(768, 768)] * 5 + [(768, 3072), (3072, 768), (128, 768)]  # the pooler and the map of embeddings, too
    assert config.adapters == 16 * sum(map(sum, matrices))
    packed = sum(inputs * outputs for inputs, outputs in matrices)
    assert config.weight_bytes == int((0.5 + 1 / 64) * packed) + 2 * (config.parameters - packed)


def test_the_shared_experts_of_a_mixture_are_feed_forward_layers(write):
    counted = operators(find_model(write(PUBLIC["deepseek-v3"][1])), 512)
    matrices = {one.layer for one in counted if one.kind == one.layer and one.flops}
    assert matrices == {"experts", "feed-forward", "mixer", "output"}


def test_without_transformers_a_config_json_is_refused_in_one_line(write, monkeypatch):
    monkeypatch.delitem(sys.modules, "bttlab_cost.architectures", raising=False)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(CostError, match=r"needs transformers, which is not installed: pip install 'transformers"):
        find_model(write(LLAMA))


def test_what_a_step_lacks_is_named(write):
    vit = {"model_type": "vit", "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12}
    with pytest.raises(CostError, match=r"its step is not modelled \(it has no vocabulary"):
        find_model(write(vit))
    with pytest.raises(CostError, match="num_experts_per_tok is 9, but the model has 8 experts"):
        find_model(write(PUBLIC["mixtral-8x7b"][1] | {"num_experts_per_tok": 9}))


def test_shared_and_routed_experts(write):
    found = find_model(write(PUBLIC["deepseek-v3"][1]))
    assert (found.experts, found.top_k, found.expert_hidden, found.expert_layers) == (256, 8, 2048, 58)
    assert found.active == pytest.approx(37e9, rel=0.02)  # published: 37 billion for each token
    assert find_model(write(PUBLIC["qwen1.5-moe-a2.7b"][1])).active == pytest.approx(2.7e9, rel=0.15)


ODD = {  # values that are refused with the name of the field
    "hidden_size": ("4096", 0),
    "num_hidden_layers": (True, 10**6),
    "num_key_value_heads": (7,),
    "tie_word_embeddings": ("false",),
    "num_experts": ([8] * 32,),
    "num_local_experts": ("8",),
    "model_type": (None, "gpt-9"),
    "vocab_size": ("many",),
}
OF_TRANSFORMERS = [
    ("num_attention_heads", 33, "attention heads (33)"),
    ("hidden_act", "nope", "'nope'"),
    ("rope_scaling", {"type": "weird"}, "'weird'"),
    ("intermediate_size", -1, "negative dimension -1"),
]


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [*((field, value, field) for field, values in ODD.items() for value in values), *OF_TRANSFORMERS],
)
def test_odd_values_are_one_line(write, capsys, field, value, said):
    odd = write(LLAMA | {field: value})
    assert said in refused(capsys, "cost", "--model", odd, "--gpu", "H100", "--tokens", "1M")


@pytest.mark.parametrize("field", ["num_hidden_layers", "hidden_size"])
def test_a_missing_shape_is_not_taken_from_defaults(write, field):
    with pytest.raises(CostError, match=field):
        find_model(write({name: value for name, value in LLAMA.items() if name != field}))


def test_files_that_are_no_configuration(tmp_path, write, capsys):
    twice = json.dumps(LLAMA)[:-1] + ', "hidden_size": 8192}'
    assert "the key 'hidden_size' occurs several times" in refused(
        capsys, "cost", "--model", write(twice), "--gpu", "H100", "--tokens", "1M"
    )
    for text in ("[1]", "{", '{"hidden_size": 4}', "[" * 100_000):
        with pytest.raises(CostError, match=r"model_type is None|not valid JSON"):
            find_model(write(text))
    with pytest.raises(CostError, match=r"none\.json cannot be read"):
        find_model(str(tmp_path / "none.json"))


def test_a_folder_a_byte_order_mark_and_a_name_in_the_local_cache(tmp_path, write, monkeypatch):
    path = Path(write("\ufeff" + json.dumps(LLAMA)))
    assert find_model(str(path)).parameters == find_model(f"{tmp_path},method=qlora").parameters == 8_030_261_248
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda name, file: str(path.parent / file))
    assert find_model("meta-llama/Meta-Llama-3-8B,lora_rank=4").parameters == 8_030_261_248
    with pytest.raises(CostError, match=r"layers: the shapes of .* are counted; change its config\.json"):
        find_model(f"{tmp_path},layers=4")
    with pytest.raises(CostError, match="name in the local cache"):
        monkeypatch.undo()
        find_model("nobody/nothing")
