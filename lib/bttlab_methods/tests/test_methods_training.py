"""Methods of training: optimizers, large batches, initialisation, pruning, growing, sampling; what each promises."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from bttlab.data import load_corpus
from bttlab.model import batch_losses, predict_in_batches
from bttlab.tensor import EMBEDDING_STD
from bttlab_methods import Batch, MethodError, Setting, Training, parse, run_methods
from bttlab_methods.library.data import DataPruningKMeans
from tiny_runs import CONFIG

DENSE = replace(CONFIG, format="dense", encoders=2)
TENSOR = "tensor:rank=2,embedding_rank=2"


@pytest.fixture(scope="module")
def setting(corpus):
    return Setting(load_corpus(corpus), DENSE, samples=100, batch=4)


def begin(setting, text) -> tuple[Training, Batch]:
    """A run before its first step, and a batch."""
    training = Training(setting, parse(text))
    return training, Batch(training.samples[np.arange(4)])


def values(training) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in training.model.parameters()]


def learn(training, batch, steps=1) -> None:
    """Take steps at the full learning rate."""
    for _ in range(steps):
        training.count = round(training.setting.warmup * training.setting.samples)
        training.step(batch)


def identity_error(training) -> float:
    x = torch.randn(2, 5, DENSE.hidden_size, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        return max(float((encoder(x) - x).abs().max()) for encoder in training.model.encoders)


ALONE = ["momentum", "adamw", "lion", "lars", "lamb", "linear-scaling", "fixup", "rezero", "skipinit"]
ALONE += ["t-fixup", "lottery-ticket", "width", "stacking", "stochastic-depth", "token-dropping"]
ALONE += ["importance-gradient", "importance-error", "data-pruning-early", "data-pruning-kmeans"]
ALONE += ["shared-encoders", "token-selection"]


@pytest.mark.long
@pytest.mark.parametrize("name", ALONE)
def test_each_trains_a_tensor_model_to_the_end_of_the_budget(setting, name):
    result = run_methods(setting, parse(f"{TENSOR}+{name}"), splits=("dev",))
    assert result.samples == setting.samples and np.isfinite(result.losses).all()
    assert result.memory["peak"]["value"] > 0


def test_adamw_by_name_is_what_runs_without_a_method(setting):
    named, plain = (run_methods(setting, parse(text), splits=()) for text in ("adamw", "dense"))
    assert named.losses == plain.losses


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("momentum:learning_rate=0.1,momentum=0.5,weight_decay=0.2", {"momentum": 0.5}),
        ("adamw:learning_rate=0.1,beta1=0.8,beta2=0.7,weight_decay=0.2", {"betas": (0.8, 0.7)}),
        ("lion:learning_rate=0.1,beta1=0.8,beta2=0.7,weight_decay=0.2", {"betas": (0.8, 0.7)}),
    ],
)
def test_parameters_of_a_method_reach_its_optimizer(setting, text, wanted):
    training, batch = begin(setting, text)
    learn(training, batch)
    kind, (group,) = type(training.optimizer).__name__, training.optimizer.param_groups
    assert kind.casefold() == text.partition(":")[0].replace("momentum", "sgd")
    assert group["params"] == training.trained and group["lr"] == pytest.approx(0.1)
    assert {key: group[key] for key in ("weight_decay", *wanted)} == {"weight_decay": 0.2} | wanted


def test_lars_and_lamb_take_steps_in_proportion_to_each_weights_norm(setting):
    for text, ratio in (
        ("lars:learning_rate=0.1,trust=0.02,momentum=0,weight_decay=0", 0.002),
        ("lamb:learning_rate=0.003,weight_decay=0", 0.003),
    ):
        training, batch = begin(setting, text)
        assert training.setting.batch == 4 * setting.batch
        before = values(training)
        learn(training, batch)
        steps = [
            float((new.detach() - old).norm() / old.norm())
            for old, new in zip(before, training.model.parameters(), strict=True)
            if old.ndim > 1
        ]
        assert steps == pytest.approx([ratio] * len(steps), rel=0.01)


def test_linear_scaling_multiplies_batch_and_rate_and_takes_longer_to_rise(setting):
    training, _ = begin(setting, "linear-scaling:factor=3,warmup=0.5")
    assert training.setting.batch == 12
    assert [training.setting.rate(part) for part in (0, 0.25, 0.5, 1)] == pytest.approx([0, 1.5, 3, 0])


@pytest.mark.parametrize("text", ["rezero", "skipinit", "fixup"])
@pytest.mark.parametrize("model", ["", TENSOR + "+"])
def test_encoders_without_norms_start_as_the_identity_and_can_leave_it(setting, model, text):
    assert identity_error(begin(setting, model.rstrip("+") or "dense")[0]) > 0.1
    training, batch = begin(setting, model + text)
    assert identity_error(training) == 0
    assert not [name for name, _ in training.model.encoders.named_parameters() if "norm" in name]
    learn(training, batch, 3)
    assert identity_error(training) > 0


def test_rezero_shares_a_scalar_in_an_encoder_and_skipinit_and_fixup_do_not(setting):
    for text, count, start in (("rezero", 1, 0), ("skipinit:initial=0.25", 2, 0.25), ("fixup:scalar=1", 2, 1)):
        encoder = begin(setting, text)[0].model.encoders[0]
        scalars = {id(branch.scale): branch.speed * branch.scale.item() for branch in (encoder.output, encoder.second)}
        assert list(scalars.values()) == pytest.approx([start] * count)


def test_fixup_scales_branches_by_their_number_and_starts_without_an_opinion(setting):
    plain, training = (begin(setting, text)[0] for text in ("dense", "fixup"))
    for name in ("value", "first"):
        old, new = (getattr(run.model.encoders[1], name).weight for run in (plain, training))
        torch.testing.assert_close(new, old * 4**-0.5)  # two branches in each of two encoders, two layers in each
    losses = batch_losses(training.model, training.samples[:3])
    assert losses.tolist() == pytest.approx([np.log(DENSE.intents) + np.log(DENSE.slots)] * 3)


@pytest.mark.parametrize("model", ["", TENSOR + "+"])
def test_t_fixup_scales_by_depth_and_has_no_norms_and_no_warm_up(setting, model):
    plain, training = (begin(setting, text)[0] for text in (model.rstrip("+") or "dense", model + "t-fixup"))

    def matrices(run):
        for layer in [*(getattr(run.model.encoders[0], name) for name in ("query", "value", "second"))]:
            yield layer.to_dense() if model else layer.weight
        yield run.model.embedding.word.to_dense() if model else run.model.embedding.word.weight

    scales = [1, 0.67 * 2**-0.25, 0.67 * 2**-0.25, 16**-0.5 * 18**-0.25 / EMBEDDING_STD]
    for old, new, scale in zip(matrices(plain), matrices(training), scales, strict=True):
        torch.testing.assert_close(new, scale * old, rtol=1e-4, atol=1e-6)
    assert not [name for name, _ in training.model.named_parameters() if "norm" in name]
    assert training.setting.rate(0) == 3 * plain.setting.rate_factor


def test_lottery_ticket_rewinds_what_survives_and_holds_the_rest_at_nothing(setting):
    text = "lottery-ticket:sparsity=0.75,rounds=2,search=0.5,rewind=0.2"
    training = Training(setting, parse(text))
    state, rewound = training.extra["lottery-ticket"], []
    training.restart_optimizer = lambda: rewound.append((training.progress, values(training)))
    early = []

    def seen(_):
        if state["early"] and not early:
            early.extend(value.clone() for value in state["early"])

    training.run(seen)
    assert [place for place, _ in rewound] == [0.28, 0.52]  # the first steps after 1/4 and 1/2
    facts = training.finish()
    assert facts["sparsity"] == pytest.approx(0.75, abs=0.005) and facts["pruning_rounds"] == 2
    for mask, weight in zip(state["masks"], state["pruned"], strict=True):
        assert torch.equal(weight != 0, mask.bool())
    assert all(torch.equal(*pair) for pair in zip(rewound[-1][1], early, strict=True))
    assert not all(torch.equal(*pair) for pair in zip(early, values(training), strict=True))


def test_a_ticket_goes_through_the_schedule_of_the_rate_in_every_round(setting):
    training = Training(setting, parse("lottery-ticket:rounds=1,search=0.5,rewind=0.2"))
    (method,) = training.methods
    assert [method.schedule(training, part) for part in (0, 0.25, 0.5)] == [0, 0.5, 1]
    training.extra["lottery-ticket"]["round"] = 1
    assert [method.schedule(training, part) for part in (0.5, 0.75, 1)] == pytest.approx([0.2, 0.6, 1])


def test_width_scales_heads_and_modes_and_keeps_the_size_of_a_head(setting):
    wide = run_methods(setting, parse(f"{TENSOR}+width:factor=2"), splits=())
    narrow, other_order = (
        Training(setting, parse(text)).setting.config for text in ("width:factor=0.5", f"width:factor=2+{TENSOR}")
    )
    assert (narrow.hidden_size, narrow.heads) == (8, 1)
    assert other_order.linear_out_modes == (2, 2, 8) and other_order.embedding_column_modes == (2, 2, 8)
    assert wide.parameters == other_order.parameters_count
    with pytest.raises(MethodError, match=r"width: factor is 0.3: it makes .* which must be a whole number"):
        Training(setting, parse("width:factor=0.3"))


def test_stacking_grows_by_copies_under_a_new_optimizer_state(setting):
    training = Training(replace(setting, config=replace(DENSE, encoders=4)), parse("stacking:doublings=2,share=0.5"))
    method, depths, first = training.methods[0], [], training.optimizer

    def seen(_):
        depths.append(len(training.model.encoders))

    training.run(seen)
    assert depths[0] == 1 and depths[-1] == 4 and sorted(depths) == depths and 2 in depths
    assert method.finish(training) == {"encoders": 4} and training.optimizer is not first
    assert {p for group in training.optimizer.param_groups for p in group["params"]} == set(training.trained)

    training, batch = begin(setting, "stacking")
    training.count = setting.samples // 2
    training.step(batch)
    below, above = (list(encoder.parameters()) for encoder in training.model.encoders)
    assert all(torch.equal(*pair) and pair[0] is not pair[1] for pair in zip(below, above, strict=True))
    assert not training.optimizer.state
    with pytest.raises(MethodError, match=r"stacking: doublings is 1 for 1 encoder\(s\): .*divide the encoders; take "):
        Training(replace(setting, config=replace(DENSE, encoders=1)), parse("stacking"))


def test_stochastic_depth_evaluates_the_expectation_of_what_it_trains(setting):
    training, batch = begin(setting, "stochastic-depth:survival=0.25,speed=1000")
    encoder = training.model.encoders[1]
    training.count, kept = 50, []
    for _ in range(400):
        training.methods[0].change_batch(training, batch)
        kept.append([each.kept for each in training.model.encoders])
    assert np.mean(kept, 0) == pytest.approx([0.625, 0.25], abs=0.1)
    assert encoder.keep == pytest.approx(0.25)
    x, ways = torch.randn(1, 3, DENSE.hidden_size), []
    for encoder.kept in (True, False):
        ways.append(encoder(x))
    assert torch.equal(ways[1], x)
    torch.testing.assert_close(encoder.eval()(x), 0.25 * ways[0] + 0.75 * ways[1])


def test_token_dropping_shortens_training_utterances_and_leaves_evaluation_alone(setting):
    training, batch = begin(setting, "token-dropping:share=0.4")
    plain = begin(setting, "dense")[0]
    shorter = training.methods[0].change_batch(training, batch).samples
    assert (batch.samples.lengths == 6).all() and (shorter.lengths == 4).all()
    places = training.model.embedding.positions.numpy()
    assert (places[:, 0] == 0).all() and (np.diff(places) > 0).all() and len(set(map(tuple, places))) > 1
    for whole, part in ((batch.samples.tokens, shorter.tokens), (batch.samples.slots, shorter.slots)):
        assert np.array_equal(np.take_along_axis(whole, places, 1), part[:, :4]) and not part[:, 4:].any()
    tokens = torch.from_numpy(batch.samples.tokens[:, :6].astype(np.int64))
    expected = plain.model.embedding(tokens).gather(1, torch.from_numpy(places)[..., None].expand(-1, -1, 16))
    found = training.model.embedding(torch.from_numpy(shorter.tokens[:, :4].astype(np.int64)))
    torch.testing.assert_close(found, expected)
    training.model.eval()
    for field in ("losses", "intents", "slots"):
        found, expected = (getattr(predict_in_batches(run.model, training.samples), field) for run in (training, plain))
        assert np.array_equal(found, expected)


@pytest.mark.parametrize("name", ["importance-gradient", "importance-error"])
def test_importance_samplings_expected_gradient_is_the_mean_gradient(setting, name):
    training = Training(replace(setting, samples=400).scaled(10), parse(f"{name}:uniform=0.1"))
    training.run()
    (method,) = training.methods
    candidates = training.samples[np.arange(12)]
    chances = method.chances(training, candidates)
    assert chances.sum() == pytest.approx(1) and chances.max() > 1.5 * chances.min() and chances.min() > 0.1 / 12
    losses = batch_losses(training.model, candidates)
    gradients = [
        torch.cat([g.flatten() for g in torch.autograd.grad(each, training.trained, retain_graph=True)])
        for each in losses
    ]
    weights = 1 / (len(candidates) * chances)
    expected = sum(float(p * w) * gradient for p, w, gradient in zip(chances, weights, gradients, strict=True))
    torch.testing.assert_close(expected, torch.stack(gradients).mean(0))
    batch = next(iter(method.batches(training, training.samples, 0)))
    assert len(batch.samples) == 4 and np.array_equal(batch.samples.tokens, training.samples[batch.indices].tokens)
    assert batch.weights.max() <= 1 / 0.1


def test_the_score_by_gradient_is_the_norm_that_autograd_finds_at_the_heads_inputs(setting):
    training, _ = begin(setting, "importance-gradient:uniform=0.0001")
    samples, inputs = training.samples[np.arange(5)], []
    for head in (training.model.intent_head, training.model.slot_head):
        head.register_forward_pre_hook(lambda module, given: inputs.append(given[0]))
    gradients = torch.autograd.grad(batch_losses(training.model, samples).sum(), inputs)
    norms = torch.cat([gradient.flatten(1) for gradient in gradients], 1).norm(dim=1).double()
    chances = training.methods[0].chances(training, samples)
    assert chances == pytest.approx((norms / norms.sum()).numpy(), rel=1e-3)


def test_without_a_gradient_all_utterances_are_alike(setting):
    training, batch = begin(setting, "fixup+importance-gradient")  # whose heads are 0
    assert training.methods[1].chances(training, batch.samples).tolist() == [0.25] * 4


@pytest.mark.parametrize("name", ["data-pruning-early", "data-pruning-kmeans"])
def test_data_pruning_looks_at_all_utterances_then_trains_on_those_with_the_highest_scores(setting, name):
    setting = replace(setting, samples=400)
    training = Training(setting, parse(f"{name}:share=0.25,look=0.5"))
    (method,), seen, scores = training.methods, [], []
    found, step = method.scores, training.step

    def noted(*arguments):
        scores.append(found(*arguments))
        return scores[-1]

    object.__setattr__(method, "scores", noted)
    training.step = lambda batch: seen.append((training.progress, batch.indices)) or step(batch)
    training.run()
    count = len(training.samples)
    kept = set(np.argsort(-scores[0], kind="stable")[: round(0.25 * count)].tolist())
    early, late = (
        {int(i) for progress, indices in seen for i in indices if (progress >= 0.5) == after} for after in (False, True)
    )
    assert len(scores) == 1 and early == set(range(count)) and late == kept
    assert training.finish() == {"utterances_kept": len(kept)}


def test_early_scores_are_the_norms_of_the_errors_one_utterance_at_a_time(setting):
    training, _ = begin(setting, "data-pruning-early")
    found = training.methods[0].scores(training, training.samples)
    for i in (0, 7):
        length = int(training.samples.lengths[i])
        tokens = torch.from_numpy(training.samples.tokens[i, :length].astype(np.int64))
        with torch.no_grad():
            intent, slots = (logits.softmax(-1).numpy() for logits in training.model(tokens))
        intent[training.samples.intents[i]] -= 1
        slots[np.arange(length - 1), training.samples.slots[i, 1:length]] -= 1
        assert found[i] == pytest.approx(np.linalg.norm(intent) + np.linalg.norm(slots, axis=1).mean(), rel=1e-4)


def test_k_means_scores_by_the_distance_from_the_nearest_cluster(monkeypatch):
    random = np.random.default_rng(0)
    middles = np.array([[0, 0], [10, 0], [0, 10]], np.float32)
    offsets = 0.1 * random.standard_normal((3, 50, 2))
    points = (middles[:, None] + offsets).reshape(-1, 2).astype(np.float32)
    monkeypatch.setattr("bttlab_methods.library.data._of_each", lambda *_: points)
    training = SimpleNamespace(model=SimpleNamespace(encoders=[nn.Identity()]), random=np.random.default_rng(2))
    found = DataPruningKMeans(clusters=3).scores(training, None)
    assert np.allclose(found, np.linalg.norm(offsets - offsets.mean(1, keepdims=True), axis=2).ravel(), atol=1e-5)


def test_token_selection_leaves_out_the_words_with_the_lowest_mean_losses(setting):
    training, batch = begin(setting, "token-selection:share=0.4")
    known = training.extra["losses of tokens"]
    assert np.isinf(known).all()
    losses = training.forward(batch)[1]
    known[:] = np.inf
    part = training.methods[0].change_batch(training, batch).samples
    with torch.no_grad():
        assert losses == pytest.approx(batch_losses(training.model, part).numpy(), rel=1e-5)
    known[:] = np.random.default_rng(0).permutation(len(known))
    part = training.methods[0].change_batch(training, batch).samples
    for whole, left in zip(batch.samples.tokens[:, 1:6], part.tokens[:, 1:4], strict=True):
        threshold = np.sort(known[whole])[-3]
        assert left.tolist() == [word for word in whole if known[word] >= threshold]
    training.methods[0].losses(training, replace(batch, samples=part))  # moves the means of its words by a tenth
    logits = training.model(torch.from_numpy(part.tokens[:, :4].astype(np.int64)))[1].log_softmax(2).detach().numpy()
    word = int(part.tokens[0, 1])
    seen = [-logits[i, j, part.slots[i, 1 + j]] for i, j in zip(*np.nonzero(part.tokens[:, 1:4] == word), strict=True)]
    before = np.random.default_rng(0).permutation(len(known))[word]
    assert known[word] == pytest.approx(0.9 * before + 0.1 * np.mean(seen), rel=1e-4)
