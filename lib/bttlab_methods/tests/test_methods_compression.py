"""The methods lab's compression of gradients, ranks, subspaces and core entries: what makes each what it is."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from bttlab.cli import main
from bttlab.data import load_corpus
from bttlab.model import ReferenceTrainer, predict_in_batches
from bttlab.runs import CheckpointStore
from bttlab.tensor import TTLinear, TTMEmbedding
from bttlab_methods import MethodError, Setting, Training, export, parse, run_methods, write_checkpoint
from bttlab_methods.library.galore import ProjectedAdamW
from bttlab_methods.library.ranks import cut_to
from bttlab_methods.run import measure_memory, score_split
from command_line import refused, run_json
from tiny_runs import CONFIG

DENSE = replace(CONFIG, format="dense")
TENSOR = "tensor:rank=4,embedding_rank=4"


@pytest.fixture(scope="module")
def setting(corpus):
    return Setting(load_corpus(corpus), DENSE, samples=40, batch=4)


def steps(training, count):
    """Train some steps; returns the parameters by name as before the last of them."""
    for _ in range(count):
        before = {name: tensor.detach().clone() for name, tensor in training.model.named_parameters()}
        training.step(next(training._all_batches()))
    return before


def gradients(training, batch):
    """Gradients by name, of a batch."""
    training.model.zero_grad()
    training.backward(training.forward(batch)[0])
    return {name: p.grad.clone() for name, p in training.model.named_parameters() if p.grad is not None}


def cores_of(training):
    return [parameter for name, parameter in training.model.named_parameters() if ".cores." in name]


# --- gradient compression


def test_galore_updates_lie_in_a_subspace_of_its_rank_until_the_next_choice(setting):
    training = Training(setting, parse("galore:rank=3,every=2"))
    name = "encoders.0.query.weight"
    weight = training.model.get_parameter(name)
    seen = []
    for _ in range(5):
        before = steps(training, 1)[name]
        decayed = before * (1 - training.optimizer.param_groups[0]["lr"] * 0.01)
        seen.append((weight.detach() - decayed).double())
    pair, across = torch.cat(seen[2:4]), torch.cat(seen[1:3])
    assert torch.linalg.matrix_rank(pair, rtol=1e-3) == 3  # two updates in one subspace
    assert torch.linalg.matrix_rank(across, rtol=1e-3) > 3


def test_galore_takes_the_steps_of_pytorch_optimizers():
    from pytorch_optimizer import GaLore

    torch.manual_seed(0)
    start, gradients = torch.randn(9, 6), torch.randn(5, 9, 6)
    ours, theirs = torch.nn.Parameter(start.clone()), torch.nn.Parameter(start.clone())
    folded = {"params": [ours], "rank": 2}
    first = ProjectedAdamW([folded], lr=0.1, every=9, scale=0.5, eps=1e-12, weight_decay=0.0)
    group = {"rank": 2, "update_proj_gap": 9, "scale": 0.5, "projection_type": "std"}
    second = GaLore([{"params": [theirs], **group}], lr=0.1, eps=1e-12)
    for gradient in gradients:
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        first.step()
        second.step()
    assert torch.linalg.vector_norm(ours - start) > 0.1
    assert torch.allclose(ours, theirs, atol=1e-5)


# --- ranks


@pytest.mark.long
def test_rank_pruning_cuts_ranks_to_the_size_target_and_scores_as_high(setting):
    setting = replace(setting, samples=500)
    training = Training(setting, parse("rank-pruning:rank=6,embedding_rank=6,target=0.6"))
    sizes = []
    training.run(lambda losses: sizes.append(sum(core.numel() for core in cores_of(training))))
    facts = training.finish()
    start, end = facts["numbers_in_cores_at_start"], facts["numbers_in_cores"]
    assert sizes[0] == start and sizes[-1] == end == sum(core.numel() for core in cores_of(training))
    assert 0.5 * start < end <= 0.6 * start
    assert len(set(sizes)) > 5 and sizes == sorted(sizes, reverse=True)  # step by step, while training
    ranks = [rank for layer in facts["ranks"].values() for rank in layer]
    assert min(ranks) < 5 and max(ranks) <= 6 and len(set(ranks)) > 1
    assert not any("core_map" in name for name, _ in training.model.named_parameters())
    full = run_methods(setting, parse("tensor:rank=6,embedding_rank=6"), splits=("dev",)).scores["dev"]
    scores = score_split(training, "dev")
    assert scores["frame_accuracy"] >= full["frame_accuracy"] > 0.9


def test_cutting_what_carries_nothing_changes_no_output_and_keeps_the_moments(setting):
    training = Training(setting, parse("rank-pruning:rank=4,embedding_rank=4"))
    steps(training, 2)
    layers = [layer for layer in training.model.modules() if isinstance(layer, TTLinear | TTMEmbedding)]
    with torch.no_grad():
        for layer in layers:
            for core in layer.cores[:-1]:
                core[..., 1] = 0
    tokens = torch.from_numpy(training.samples.tokens[:3, :5].astype("int64"))
    before = training.model(tokens)
    core = layers[1].cores[1]
    moment = training.optimizer.state[core]["exp_avg"].clone()
    cut_to(training.optimizer, layers, training.extra["rank-pruning"]["felt"], most=10**9)
    after = training.model(tokens)
    assert all(core.shape[-1] == 3 for layer in layers for core in layer.cores[:-1])
    assert all(torch.allclose(*pair, atol=1e-6) for pair in zip(before, after, strict=True))
    kept = torch.tensor([0, 2, 3])
    assert torch.equal(training.optimizer.state[layers[1].cores[1]]["exp_avg"], moment[kept][..., kept])
    assert core is layers[1].cores[1] and any(core is one for one in training.optimizer.param_groups[0]["params"])
    steps(training, 1)


def test_moments_in_blocks_begin_again_when_a_core_is_cut(setting):
    training = Training(setting, parse("rank-pruning:rank=4,embedding_rank=4+8bit-optimizer:smallest=1"))
    steps(training, 2)
    layers = [layer for layer in training.model.modules() if isinstance(layer, TTLinear | TTMEmbedding)]
    core = layers[1].cores[1]
    assert isinstance(training.optimizer.state[core]["first"], tuple)
    with torch.no_grad():
        layers[1].cores[0][..., 1] = 0
    cut_to(training.optimizer, layers, training.extra["rank-pruning"]["felt"], most=10**9)
    assert layers[1].cores[1].shape[0] == 3 and core not in training.optimizer.state
    steps(training, 1)
    assert training.optimizer.state[layers[1].cores[1]]["step"] == 1


def test_a_pruned_model_exports_at_its_largest_ranks_says_the_same_and_is_trained_on(setting, tmp_path, capsys):
    training = Training(replace(setting, samples=60), parse("rank-pruning:rank=5,embedding_rank=4"))
    training.run()
    ranks = training.finish()["ranks"]
    config = write_checkpoint(training, tmp_path / "run")
    assert config.linear_rank == max(max(r) for name, r in ranks.items() if name != "embedding.word")
    assert config.embedding_rank == max(ranks["embedding.word"])
    checkpoint, _ = CheckpointStore(tmp_path / "run").load()
    trainer = ReferenceTrainer(config)
    trainer.load_parameters(checkpoint.parameters)
    theirs = trainer.predict(training.samples)
    training.model.eval()
    ours = predict_in_batches(training.model, training.samples)
    assert np.allclose(ours.losses, theirs.losses, atol=1e-5)
    assert np.array_equal(ours.intents, theirs.intents) and np.array_equal(ours.slots, theirs.slots)
    resumed = run_json(capsys, "train", "--resume", tmp_path / "run", "--device", "reference")
    assert resumed["epochs_done"] == 1


def test_the_command_leaves_a_run_that_eval_scores(setting, tmp_path, capsys):
    data, folder = str(setting.corpus.folder), str(tmp_path / "run")
    arguments = ["rank-pruning:rank=2,embedding_rank=2", "--data", data, "--budget", "2", "--encoders", "1"]
    assert main(["methods", "run", *arguments, "--checkpoint", folder]) == 0
    assert run_json(capsys, "eval", "--run", folder, "--device", "reference")["epochs_done"] == 0
    assert "exists and is not empty" in refused(capsys, "methods", "run", *arguments, "--checkpoint", folder)
    two = ["methods", "run", "dense", *arguments, "--checkpoint", str(tmp_path / "other")]
    assert "is the place of one run, not of 2" in refused(capsys, *two)


def test_results_are_shown_where_the_model_has_no_checkpoint(setting, tmp_path, capsys):
    arguments = ["adapters:pretraining=2", "--data", str(setting.corpus.folder), "--budget", "2", "--encoders", "1"]
    assert main(["methods", "run", *arguments, "--checkpoint", str(tmp_path / "run")]) == 2
    printed = capsys.readouterr().err
    assert "it cannot be exported" in printed and "slot F1" in printed and not (tmp_path / "run").exists()


def test_a_model_with_parts_of_its_own_is_not_exported(setting):
    training = Training(setting)
    training.model.adapter = torch.nn.Linear(2, 2)
    with pytest.raises(MethodError, match=r"has adapter\.bias otherwise than a model of its configuration"):
        export(training)


# --- low precision


@pytest.mark.parametrize("name, bits", [("tensor-int8", 8), ("tensor-int4", 4)])
def test_quantised_cores_have_few_values_and_gradients_straight_through(setting, name, bits):
    training = Training(setting, parse(f"{name}:rank=4,embedding_rank=4"))
    steps(training, 2)
    layer = training.model.encoders[0].query
    plain = TTLinear(16, 16, layer.out_modes, layer.in_modes, 4)
    plain.set_cores(layer.used_cores())
    plain.bias = layer.bias
    assert max(core.unique().numel() for core in layer.used_cores()) <= 2**bits - 1
    for core, used in zip(layer.cores, layer.used_cores(), strict=True):
        step = core.abs().max() / (2 ** (bits - 1) - 1)
        assert (core - used).abs().max() <= 0.5001 * step
    x = torch.randn(3, 16)
    layer.zero_grad()
    assert torch.allclose(layer(x), plain(x), atol=1e-6)
    layer(x).square().sum().backward()
    plain(x).square().sum().backward()
    for core, other in zip(layer.cores, plain.cores, strict=True):
        assert torch.allclose(core.grad, other.grad, atol=1e-5)


# --- subspaces


FULL = "subspace:activation_rank=16"


@pytest.mark.parametrize("methods", [FULL, FULL + ",weights=false", TENSOR + "+" + FULL + ",weights=false"])
def test_gradients_are_exact_where_the_subspace_holds_all_activations(setting, methods):
    training = Training(setting, parse(methods))
    batch = next(training._all_batches())
    found = gradients(training, batch)
    changed = [layer for layer in training.model.modules() if layer.__dict__.pop("forward", None)]
    assert len(changed) == 8
    expected = gradients(training, batch)
    assert found.keys() == expected.keys() == dict(training.model.named_parameters()).keys()
    assert all(torch.allclose(found[name], expected[name], atol=1e-5) for name in found)


def test_activations_in_a_subspace_take_less_memory_and_still_learn(setting):
    setting = replace(setting, samples=150)
    held = {}
    for name in ("dense", "subspace:weights=false,activation_rank=2"):
        training = Training(setting, parse(name))
        losses = []
        training.run(losses.append)
        held[name] = measure_memory(training)["categories"]["activations"]["value"]
        assert np.mean([part.mean() for part in losses[-5:]]) < 0.8 * np.mean([part.mean() for part in losses[:5]])
    plain, compressed = held.values()
    assert compressed < 0.8 * plain
