"""Rows of the survey: each against a formula of its paper that is written out here, or against autograd."""

import math
from dataclasses import replace
from threading import Event

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.func import functional_call, grad, vmap
from torch.utils.flop_counter import FlopCounterMode

from bttlab.data import load_corpus
from bttlab.model.batches import batch_logits
from bttlab_methods import Batch, MethodError, Setting, Training, parse, run_methods
from bttlab_methods.lab_figures import draw_expert_loads
from bttlab_methods.layers import linear_layers, numbers, trains
from bttlab_methods.library import data
from bttlab_methods.library.experts import Experts
from bttlab_methods.library.galore import ProjectedAdamW
from bttlab_methods.library.ranks import relaxed_size
from tiny_runs import CONFIG

DENSE = replace(CONFIG, format="dense", encoders=2)


@pytest.fixture(scope="module")
def setting(corpus):
    return Setting(load_corpus(corpus), DENSE, samples=120, batch=4)


def begin(setting, text: str) -> Training:
    return Training(setting, parse(text))


def equal_samples(training: Training, count: int = 4):
    lengths = training.samples.lengths
    longest = max(set(lengths.tolist()), key=lengths.tolist().count)
    return training.samples[np.flatnonzero(lengths == longest)[:count]]


# --- large batches


def test_linear_scaling_multiplies_batch_and_rate_and_warms_up_longer(setting):
    training = begin(setting, "linear-scaling:factor=3")
    assert training.setting.batch == 12
    for progress, part in ((0.125, 0.5), (0.25, 1.0), (0.625, 0.5)):
        training.count = round(progress * training.setting.samples)
        training.set_rate()
        assert training.optimizer.param_groups[0]["lr"] == pytest.approx(3 * 3e-4 * part)


# --- initialisation


def encoder_change(training: Training) -> float:
    """Return by how much the encoders change what goes in, at most."""
    x = torch.randn(2, 5, DENSE.hidden_size, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        return max(float((encoder(x) - x).abs().max()) for encoder in training.model.encoders)


@pytest.mark.parametrize("name", ["fixup", "skipinit", "rezero"])
@pytest.mark.parametrize("together", ["", "tensor:rank=2,embedding_rank=2+"])
def test_encoders_start_as_the_identity_and_learn_from_there(setting, name, together):
    training = begin(setting, together + name)
    assert encoder_change(training) == 0
    assert not any("norm" in part for part, _ in training.model.encoders.named_parameters())
    for _ in range(3):
        training.count = 12
        training.step(Batch(equal_samples(training)))
    assert encoder_change(training) > 0


def test_fixup_starts_with_the_loss_of_a_guess_and_scales_the_first_layer_of_a_branch(setting):
    plain, training = begin(setting, "dense"), begin(setting, "fixup")
    loss, _ = training.forward(Batch(equal_samples(training)))
    assert loss.item() == pytest.approx(math.log(DENSE.intents) + math.log(DENSE.slots), rel=1e-5)
    for before, after in zip(plain.model.encoders, training.model.encoders, strict=True):
        # L^(-1 / (2 m - 2)) for the L = 4 branches of m = 2 layers that two encoders have
        torch.testing.assert_close(after.value.weight, 4**-0.5 * before.value.weight)
        torch.testing.assert_close(after.query.weight, before.query.weight)
    scales = [p for part, p in training.model.named_parameters() if part.endswith("scale")]
    assert len(scales) == 4 and all(one.item() == pytest.approx(0.01) for one in scales)


def test_t_fixup_scales_by_the_depth_and_needs_no_warm_up(setting):
    deep = replace(setting, config=replace(DENSE, encoders=3, vocabulary_size=DENSE.vocabulary_size))
    plain, training = begin(deep, "dense"), begin(deep, "t-fixup")
    assert training.setting.warmup == 0
    wanted = DENSE.hidden_size**-0.5 * (9 * 3) ** -0.25
    assert training.model.embedding.word.weight.std().item() == pytest.approx(wanted, rel=0.1)
    assert not [part for part, _ in training.model.named_parameters() if "norm" in part]
    for name, factor in (("value", 0.67 * 3**-0.25), ("second", 0.67 * 3**-0.25), ("query", 1.0)):
        before, after = (getattr(one.model.encoders[2], name).weight for one in (plain, training))
        torch.testing.assert_close(after, factor * before)


# --- sparse training


def test_a_lottery_ticket_keeps_the_largest_weights_rewound_and_the_others_at_0(setting):
    training = begin(setting, "lottery-ticket:sparsity=0.75,rounds=1,search=0.5,rewind=0.2")
    layers = linear_layers(training.model)
    early, largest = None, None
    for batch in training._all_batches():
        before = [layer.weight.detach().clone() for layer in layers]
        training.step(batch)
        state = training.extra["lottery-ticket"]
        if early is None and state["early"] is not None:
            early = [layer.weight.detach().clone() for layer in layers]
        if largest is None and state["round"] == 1:
            largest = before
            for layer, first in zip(layers, early, strict=True):
                kept = layer.weight != 0
                torch.testing.assert_close(layer.weight[kept], first[kept])  # rewound
                assert (~kept).sum() == round(0.75 * kept.numel())
    masks = [layer.weight != 0 for layer in layers]
    for mask, layer in zip(masks, training.extra["lottery-ticket"]["masks"], strict=True):
        assert torch.equal(mask, layer.bool())  # zeros stay zeros to the end
    assert training.finish() == {"pruning_rounds": 1, "sparsity": pytest.approx(0.75, abs=0.01)}


def test_width_scales_hidden_size_and_heads(setting):
    config = begin(setting, "width:factor=2").setting.config
    assert (config.hidden_size, config.heads) == (2 * DENSE.hidden_size, 2 * DENSE.heads)
    assert math.prod(config.linear_out_modes) == config.hidden_size
    with pytest.raises(MethodError, match=r"width: factor is 0\.3: it makes .* must be a whole number"):
        begin(setting, "width:factor=0.3")


# --- incremental learning


def test_stochastic_depth_drops_deeper_encoders_more_often_and_evaluates_the_expectation(setting):
    training = begin(setting, "stochastic-depth:survival=0.5,speed=1000")
    training.count, kept = 60, []
    for _ in range(2000):
        training.methods[0].change_batch(training, None)
        kept.append([encoder.kept for encoder in training.model.encoders])
    assert np.mean(kept, 0) == pytest.approx([0.75, 0.5], abs=0.05)  # 1 - l/L (1 - theta)
    x, encoder = torch.randn(1, 4, DENSE.hidden_size), training.model.encoders[1]
    encoder.kept = True
    with torch.no_grad():
        whole = encoder.train()(x)
        torch.testing.assert_close(encoder.eval()(x), x + 0.5 * (whole - x))
        encoder.kept = False
        assert torch.equal(encoder.train()(x), x)


# --- data


def test_dropped_tokens_are_not_computed_and_the_others_keep_their_places(setting):
    training = begin(setting, "token-dropping:share=0.5")
    samples = equal_samples(training, 2)
    length = int(samples.lengths[0])
    shorter = training.methods[0].change_batch(training, Batch(samples)).samples
    places = training.model.embedding.positions.numpy()
    staying = max(1, round(0.5 * (length - 1)))
    assert shorter.lengths.tolist() == [staying + 1] * 2 and (places[:, 0] == 0).all()
    assert (np.diff(places) > 0).all()  # in their order
    for row, (sample, place) in enumerate(zip(samples.tokens, places, strict=True)):
        assert shorter.tokens[row, : staying + 1].tolist() == sample[place].tolist()
        assert shorter.slots[row, : staying + 1].tolist() == samples.slots[row][place].tolist()
    tokens = torch.from_numpy(shorter.tokens[:, : staying + 1].astype(np.int64))
    embedding = training.model.embedding
    with torch.no_grad():
        expected = embedding.norm(embedding.word.weight[tokens] + embedding.position.weight[places])
        torch.testing.assert_close(embedding.train()(tokens), expected)
        whole = torch.from_numpy(samples.tokens[:, :length].astype(np.int64))
        expected = embedding.norm(embedding.word.weight[whole] + embedding.position.weight[:length])
        torch.testing.assert_close(embedding.eval()(whole), expected)


def sample_loss(intent_logits, slot_logits, intent, slots):
    return F.cross_entropy(intent_logits, intent) + F.cross_entropy(slot_logits, slots)


def test_scores_are_gradients_of_each_sample_by_autograd(setting):
    """EL2N is the norm of a loss' gradient at the logits (Paul et al., section 2), of slots for each word."""
    training = begin(setting, "dense")
    model, samples = training.model.eval(), equal_samples(training, 5)
    with torch.no_grad():
        intent_logits, slot_logits, intents, slots = batch_logits(model, samples)
        errors = data.error_norms(model, samples)
        norms = data.gradient_norms(model, samples)
    of_intent, of_slots = vmap(grad(sample_loss, argnums=(0, 1)))(intent_logits, slot_logits, intents, slots)
    words = slots.shape[1]
    torch.testing.assert_close(errors, of_intent.norm(dim=1) + (words * of_slots).norm(dim=2).mean(1))

    heads, seen = (model.intent_head, model.slot_head), []
    for head in heads:
        head.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].detach()))
    with torch.no_grad():
        batch_logits(model, samples)

    def of_inputs(behind_intent, behind_slots, intent, slot):
        (row,), logits = (functional_call(heads[i], {}, x) for i, x in enumerate((behind_intent, behind_slots)))
        return sample_loss(row, logits, intent, slot)

    gradients = vmap(grad(of_inputs, argnums=(0, 1)))(*seen, intents, slots)
    expected = torch.cat([one.flatten(1) for one in gradients], 1).norm(dim=1)
    torch.testing.assert_close(norms, expected)


def test_importance_sampling_leaves_the_mean_of_the_losses_as_it_is(setting, monkeypatch):
    training = begin(setting, "importance-gradient:candidates=5")
    method, asked = training.methods[0], []

    def chances_of(self, training, candidates):
        asked.append((candidates, chances := scored(self, training, candidates)))
        return chances

    scored = type(method).chances
    monkeypatch.setattr(type(method), "chances", chances_of)
    batch = next(iter(method.batches(training, 0)))
    candidates, chances = asked[0]
    assert chances.sum() == pytest.approx(1) and chances.min() >= 0.2 / len(chances) and chances.std() > 0
    assert len(batch.samples) == -(-len(chances) // 5)
    for row, weight in zip(batch.samples.tokens, batch.weights, strict=True):
        places = np.flatnonzero((candidates.tokens == row).all(1))
        # A sum of chance times weight times loss over all candidates is their mean: each weight is 1 / (n chance).
        assert any(weight == pytest.approx(1 / (len(chances) * chances[place])) for place in places)


@pytest.mark.parametrize("name", ["data-pruning-early", "data-pruning-kmeans:clusters=2"])
def test_pruned_data_are_those_with_the_highest_scores(setting, name, monkeypatch):
    training = begin(setting, f"{name}:share=0.25,look=0.2".replace("2:share", "2,share"))
    count = len(training.samples)
    scores = np.random.default_rng(0).permutation(count).astype(np.float64)
    # Features in two tight groups; what lies off them has the highest score.
    groups = np.where(np.arange(count) % 2, 1000.0, -1000.0)
    features = np.stack([groups, 1e-2 * scores], 1)
    monkeypatch.setattr(data, "_of_each", lambda *_: features if "kmeans" in name else scores)
    seen = [batch.samples.tokens.tolist() for batch in training._all_batches() if _took(training, batch)]
    kept = training.extra[training.methods[0].name]
    assert len(kept) == round(0.25 * count) and training.finish()["utterances_kept"] == len(kept)
    if "early" in name:
        assert set(kept) == set(np.argsort(-scores)[: len(kept)])
    else:
        distance = np.abs(features[:, 1] - [features[groups == side, 1].mean() for side in groups])
        assert set(kept) == set(np.argsort(-distance)[: len(kept)])
    late = [row for tokens in seen[math.ceil(0.2 * 120 / 1) :] for row in tokens]
    assert {tuple(row) for row in late} <= {tuple(row) for row in training.samples.tokens[kept].tolist()}


def _took(training: Training, batch: Batch) -> bool:
    training.count += len(batch.samples)
    return True


# --- the paper's neighbours


def hooi(tensor: np.ndarray, ranks) -> list[np.ndarray]:
    """One round of higher-order orthogonal iteration from the unfoldings' singular vectors (De Lathauwer, 2000)."""

    def leading(values: np.ndarray, mode: int, rank: int) -> np.ndarray:
        unfolded = np.moveaxis(values, mode, 0).reshape(values.shape[mode], -1)
        return np.linalg.svd(unfolded, full_matrices=False)[0][:, :rank]

    bases = [leading(tensor, mode, rank) for mode, rank in enumerate(ranks)]
    for mode, rank in enumerate(ranks):
        projected = tensor
        for other, basis in enumerate(bases):
            if other != mode:
                projected = np.moveaxis(np.tensordot(basis.T, projected, (1, other)), 0, other)
        bases[mode] = leading(projected, mode, rank)
    return bases


def test_tensor_galores_first_step_is_adam_in_the_gradients_tucker_core():
    random = np.random.default_rng(0)
    x, g, ranks = random.normal(size=(8, 6, 5)), random.normal(size=(8, 6, 5)), (4, 3, 2)
    parameter = torch.nn.Parameter(torch.tensor(x))
    optimizer = ProjectedAdamW([{"params": [parameter], "shape": x.shape, "ranks": ranks}], 0.01, every=100, scale=2.0)
    parameter.grad = torch.from_numpy(g)
    optimizer.step()
    bases = hooi(g, ranks)
    core = np.einsum("abc,ai,bj,ck->ijk", g, *bases)
    update = np.einsum("ijk,ai,bj,ck->abc", core / (np.abs(core) + 1e-8), *bases)  # Adam's first direction: the sign
    expected = x * (1 - 0.01 * 0.01) - 0.01 * 2.0 * update
    np.testing.assert_allclose(parameter.detach().numpy(), expected, atol=1e-9)
    assert optimizer.state[parameter]["exp_avg"].shape == ranks


def test_comeras_objective_is_the_papers_in_both_stages(setting):
    training = begin(setting, "comera:rank=3,embedding_rank=3,size_weight=0.5,core_weight=0.01")
    method, layers = training.methods[0], trains(training.model)
    assert sum(map(relaxed_size, layers)).item() == pytest.approx(numbers(layers), rel=1e-5)  # all gates are 1
    with torch.no_grad():
        for layer in layers:
            for gate in layer.core_map.gates:
                gate.mul_(0.5)
    squares = sum(core.square().sum().item() for layer in layers for core in layer.cores)
    size = sum(relaxed_size(layer).item() for layer in layers) / numbers(layers)
    assert 0.25 < size < 0.5  # inner cores have a quarter of their numbers, outer ones half
    found = method.objective(training, torch.tensor(2.0)).item()
    assert found == pytest.approx(2.0 + 0.5 * size + 0.01 * squares, rel=1e-5)
    training.count = 60  # the late stage: the loss is 1 above its target, the size is below it
    found = method.objective(training, torch.tensor(2.0)).item()
    assert found == pytest.approx(1.5 * 2.0 + 0.5 * size + 0.01 * squares, rel=1e-5)


def test_comera_cuts_what_is_gone_and_leaves_the_matrices(setting):
    training = begin(setting, "comera:rank=3,embedding_rank=3")
    layer = trains(training.model)[1]
    with torch.no_grad():
        layer.core_map.gates[0][1] = 0.0  # carries nothing
        before = layer.to_dense().clone()
    training.steps = 5
    training.methods[0].after_update(training)
    assert layer.cores[0].shape[-1] == 2 and layer.cores[1].shape[0] == 2
    torch.testing.assert_close(layer.to_dense(), before)
    facts = training.finish()
    torch.testing.assert_close(layer.to_dense(), before)
    assert facts["numbers_in_cores"] < facts["numbers_in_cores_at_start"] and layer.core_map is None


# --- FP16


def test_fp16_gradients_are_those_of_fp32_to_its_rounding_and_an_overflow_updates_nothing(setting):
    exact, training = begin(setting, "dense"), begin(setting, "fp16:scale=1024")
    batch = Batch(equal_samples(training))
    for one in (exact, training):
        value, _ = one.forward(batch)
        one.backward(value)
    assert value.item() == pytest.approx(1024 * exact.forward(batch)[0].item(), rel=1e-2)
    training.methods[0].before_update(training)
    for right, found in zip(exact.trained, training.trained, strict=True):
        if right.ndim > 1:
            assert (right.grad - found.grad).norm() < 0.02 * right.grad.norm()
    training.optimizer.zero_grad()
    before = [parameter.detach().clone() for parameter in training.trained]
    value, _ = training.forward(batch)
    training.backward(value)
    training.trained[0].grad[0, 0] = torch.inf
    training.update()
    assert all(map(torch.equal, before, training.trained))
    assert training.finish() == {"loss_scale": 512.0, "skipped_steps": 1}


# --- experts


def written_out(layer: Experts, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what every expert gives times its odds, of the chosen ones alone, and the odds."""
    odds = torch.softmax(x @ layer.gate.weight.T, -1)
    limit = odds.sort(-1).values[:, -layer.active, None]
    kept = torch.where(odds >= limit, odds, 0)
    if layer.active > 1:
        kept = kept / kept.sum(-1, keepdim=True)
    each = [
        F.gelu(x @ a.weight.T + a.bias) @ b.weight.T + b.bias for a, b in zip(layer.first, layer.second, strict=True)
    ]
    return sum(kept[:, e, None] * y for e, y in enumerate(each)), odds


@pytest.mark.parametrize("active", [1, 2, 4])
def test_experts_are_the_sum_of_the_chosen_times_their_odds_and_have_its_gradients(active):
    torch.manual_seed(0)
    layer, x = Experts(16, 8, 4, active, F.gelu), torch.randn(3, 10, 16)
    found, (wanted, odds) = layer(x), written_out(layer, x.flatten(0, 1))
    torch.testing.assert_close(found.flatten(0, 1), wanted)
    slope = torch.randn(3, 10, 16)
    gradients = (
        torch.autograd.grad((y.reshape(slope.shape) * slope).sum(), list(layer.parameters())) for y in (found, wanted)
    )
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)
    chosen = odds.argsort(-1, descending=True)[:, :active]
    torch.testing.assert_close(layer.loads, torch.stack([(chosen == e).sum() / 30 for e in range(4)]))


@pytest.mark.parametrize("active", [1, 2])
def test_the_balance_is_that_of_transformers(active):
    from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

    torch.manual_seed(1)
    layer, x = Experts(16, 8, 4, active, F.gelu), torch.randn(30, 16)
    layer(x)
    wanted = load_balancing_loss_func((layer.gate(x),), num_experts=4, top_k=active)
    torch.testing.assert_close(layer.balance, wanted)
    assert wanted.item() != pytest.approx(active)


@pytest.mark.parametrize("active", [1, 2, 4])
def test_a_token_takes_as_many_multiplications_as_in_the_dense_layer(setting, active):
    dense, mixture = begin(setting, "dense"), begin(setting, f"mixture-of-experts:active={active}")
    x, counts = torch.randn(12, DENSE.hidden_size), []
    for encoder in (dense.model.encoders[1], mixture.model.encoders[1]):
        with FlopCounterMode(display=False) as counter:
            encoder.second(encoder.activate(encoder.first(x)))
        counts.append(counter.get_total_flops())
    assert counts[1] - counts[0] == 2 * 12 * DENSE.hidden_size * 4  # the gate's


def test_the_objective_has_the_balance_and_a_run_has_the_loads_of_its_tokens(setting):
    training = begin(setting, "mixture-of-experts:balance=0.5")
    batch = Batch(equal_samples(training))
    value, losses = training.forward(batch)
    balance = sum(encoder.second.balance for encoder in training.model.encoders)
    assert value.item() == pytest.approx(losses.mean() + 0.5 * balance.item())
    seen = []
    training.run(lambda losses: seen.append([encoder.second.loads.tolist() for encoder in training.model.encoders]))
    loads = np.array(training.finish()["expert_loads"])
    assert loads.shape[1:] == (2, 4) and np.allclose(loads.sum(2), 1, atol=1e-3)
    assert np.allclose(loads.mean(0), np.mean(seen, 0), atol=0.1)  # parts of the budget have other numbers of steps
    picture = draw_expert_loads(run_methods(setting, parse("mixture-of-experts"), splits=()))
    assert len(picture.figure.axes) == 2 and "4 experts in 2 encoders" in picture.words
    with pytest.raises(MethodError, match="dense has no experts: train with mixture-of-experts"):
        draw_expert_loads(run_methods(replace(setting, samples=4), (), splits=()))


def test_the_loads_of_a_run_that_was_stopped_end_where_it_was(setting):
    stop, count = Event(), 0

    def stop_at_half(losses):
        nonlocal count
        count += len(losses)
        if 2 * count >= setting.samples:
            stop.set()

    result = run_methods(setting, parse("mixture-of-experts"), stop_at_half, stop, splits=())
    axes = draw_expert_loads(result).figure.axes[0]
    end = max(area.get_paths()[0].vertices[:, 0].max() for area in axes.collections)
    part = 100 / 20  # per cent of the budget
    assert end - part <= 100 * result.samples / setting.samples <= end < 100 == axes.get_xlim()[1]
    old = {"expert_loads": result.facts["expert_loads"]}
    axes = draw_expert_loads(replace(result, facts=old)).figure.axes[0]
    assert max(area.get_paths()[0].vertices[:, 0].max() for area in axes.collections) == 100


@pytest.mark.parametrize("text", ["mixture-of-experts:active=5", "mixture-of-experts:active=3"])
def test_experts_that_do_not_divide_the_width_are_refused(setting, text):
    with pytest.raises(MethodError, match=r"active is [35]: it must be at most experts, 4, and divide the hidden size"):
        begin(setting, text)
