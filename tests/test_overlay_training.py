"""Models on the overlay against the PyTorch reference, on the emulated card."""

import re
import subprocess
import threading
import time

import numpy as np
import pytest

import tiny_baseline
from bttlab.card import U50, EmulatedU50, OverlayError, open_trainer
from bttlab.card.manifest import overlays_folder, read_file
from bttlab.card.xclbin import read_xclbin
from bttlab.compiler.machine import M
from bttlab.data import Augmenter, Vocabulary, epoch_order, load_corpus
from bttlab.estimate.geometry import Blocks, capacity_bits
from bttlab.model import ModelConfig, NumericalFault, Optimizer, ReferenceTrainer, StateError, initial_parameters
from bttlab.runs import read_recipe, tensors_digest
from bttlab.util.errors import BttlabError
from bttlab.util.threads import Thread

SGD, MOMENTUM, ADAMW = Optimizer("sgd"), Optimizer("momentum"), Optimizer("adamw")


@pytest.fixture(scope="module")
def corpus():
    return load_corpus("airline")


@pytest.fixture(scope="module")
def samples():
    return tiny_baseline.samples(4478, ModelConfig())


@pytest.fixture(scope="module")
def card():
    return EmulatedU50()


@pytest.fixture
def trainer(card):
    trainer = open_trainer(ModelConfig(), card)
    trainer.load_parameters(initial_parameters(trainer.config, 0))
    return trainer


@pytest.fixture
def reference():
    return ReferenceTrainer(ModelConfig(), seed=0)


def fingerprint(trainer) -> str:
    return tensors_digest(trainer.store_parameters())


def relative(got, want) -> float:
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_one_step_gives_the_parameters_of_the_reference(trainer, reference, samples, label_smoothing):
    before = trainer.store_parameters()
    trainer.train(samples[:1], SGD, 4e-3, label_smoothing)
    reference.train(samples[:1], SGD, 4e-3, label_smoothing)
    got, want = trainer.store_parameters(), reference.store_parameters()
    for name in want:
        if name.endswith("key.bias"):
            # A key's bias adds the same to every score of a row, which softmax ignores: its gradient is zero, and what
            # either implementation finds is rounding.
            assert np.abs(got[name]).max() < 1e-9 and np.abs(want[name]).max() < 1e-9
        else:
            assert relative(got[name], want[name]) <= 1e-5, name
    moved = [name for name in want if not np.array_equal(got[name], before[name])]
    assert len(moved) == len(want)


def test_a_recipe_gives_the_losses_of_the_reference(trainer, reference, corpus):
    recipe = read_recipe("atis")
    vocabulary = Vocabulary.from_sentences(corpus.train.words, ModelConfig().vocabulary_size, recipe.word_classes)
    augmenter = Augmenter(recipe.augmentation, corpus, vocabulary, ModelConfig())
    samples = augmenter.samples(epoch_order(len(corpus.train), 0, 0)[:100], 0, 0)
    rates = recipe.schedule.rates(recipe.learning_rate, np.arange(100), 100)
    assert rates[0] == 0 < rates[-1] < rates.max() and recipe.label_smoothing > 0
    got, want = (one.train(samples, recipe.optimizer, rates, recipe.label_smoothing) for one in (trainer, reference))
    assert np.abs(got / want - 1).max() <= 1e-3
    assert want[-30:].mean() < want[:30].mean() * 0.8, "it learns"


def test_predictions_are_those_of_the_reference(trainer, reference, samples):
    got, want = trainer.predict(samples[:50]), reference.predict(samples[:50])
    np.testing.assert_allclose(got.losses, want.losses, rtol=1e-5)
    assert (got.intents == want.intents).mean() > 0.95 and (got.slots == want.slots).mean() > 0.95


@pytest.mark.parametrize("optimizer", [SGD, ADAMW], ids=lambda o: o.name)
def test_every_image_and_every_run_gives_the_same_bits(samples, optimizer, monkeypatch):
    prints = set()
    for image in ("avx2", "best", "best"):
        monkeypatch.delenv("BTTLAB_IMAGE", raising=False)
        if image == "avx2":
            monkeypatch.setenv("BTTLAB_IMAGE", "avx2")
        card = EmulatedU50()
        trainer = open_trainer(ModelConfig(), card)
        assert image != "avx2" or card.image == "avx2"
        trainer.load_parameters(initial_parameters(trainer.config, 0))
        trainer.train(samples[:60], optimizer, 1e-3)
        prints.add(fingerprint(trainer))
    assert len(prints) == 1


def test_a_fault_beside_the_caller_is_raised_by_wait(trainer, samples):
    rates = np.full(20, 1e-3)
    rates[7] = 1e9
    run = trainer.start(samples[:20], SGD, rates)
    with pytest.raises(NumericalFault, match=r"sample 8 .* go on with a lower learning rate") as caught:
        run.wait()
    assert caught.value.sample == 8 and len(run.losses) == 8


def test_an_id_out_of_range_is_refused_before_it_reaches_the_card(trainer, samples):
    wrong = samples[[0, 1, 2]]
    wrong.slots[1, 1] = 122
    before = fingerprint(trainer)
    with pytest.raises(BttlabError, match=r"sample 1.*slot.*122"):
        trainer.train(wrong, SGD, 1e-3)
    assert fingerprint(trainer) == before


def test_training_goes_on_beside_the_caller_and_stops(trainer, samples):
    threads = set(threading.enumerate())
    run = trainer.start(samples, MOMENTUM, 1e-4)
    seen = set()
    for call in (
        lambda: trainer.train(samples[:1], MOMENTUM, 1e-4),
        lambda: trainer.start(samples[:1], MOMENTUM, 1e-4),
        lambda: trainer.load_program(ModelConfig(linear_rank=8)),
    ):
        with pytest.raises(OverlayError, match="training already"):
            call()
    while len(seen) < 5 and not run.done:
        seen.add(run.progress)
        time.sleep(0.02)
    run.stop()
    losses = run.wait()
    assert len(seen) == 5 and 0 < len(losses) < len(samples)
    # The kernel's second thread waits for its next call.
    assert all(", second" in thread.name for thread in set(threading.enumerate()) - threads)
    trainer.load_parameters(initial_parameters(trainer.config, 0))
    assert np.array_equal(trainer.train(samples[: len(losses)], MOMENTUM, 1e-4), losses)
    lost = trainer.start(samples, MOMENTUM, 1e-4)  # nobody has it, as after an interrupt
    trainer.stop()
    assert lost.done and 0 < lost.seconds
    trainer.stop()
    trainer.train(samples[:1], MOMENTUM, 1e-4)


@pytest.mark.parametrize("thread_exists", [False, True])
def test_an_interrupt_of_start_leaves_no_run(trainer, samples, monkeypatch, thread_exists):
    def interrupted(self):
        if thread_exists:
            threading.Thread.start(self)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Thread, "start", interrupted)
        trainer.start(samples, MOMENTUM, 1e-4)
    assert len(trainer.predict(samples[:1]).losses) == 1


@pytest.mark.parametrize(
    ("argument", "command", "samples"),
    [
        ("_records", M.TRAIN, 40),
        ("_results", M.PREDICT, 80),
        ("_memory", M.STORE, 0),
        ("_image", M.LOAD_PROGRAM, 9_000),
    ],
)
def test_a_buffer_that_is_too_short_for_a_call_is_refused(trainer, argument, command, samples):
    name = "program_image" if argument == "_image" else argument[1:]
    trainer._records, trainer._results = (trainer._banks[n].allocate((1 << 16,)) for n in ("records", "results"))
    short = trainer._banks[name].allocate((1024,))
    if argument == "_memory":
        trainer._memories = [short]
    else:
        setattr(trainer, argument, short)
    with pytest.raises(
        BttlabError, match=rf"argument {name}, .* has 4,096 bytes to the end of its buffer, but this call "
    ):
        trainer._run(command, samples)


def test_parameters_of_another_model_are_refused(trainer, samples):
    before = fingerprint(trainer)
    with pytest.raises(StateError, match=r"another model.*but not there in this model"):
        trainer.load_parameters(initial_parameters(ModelConfig(encoders=4), 0))
    assert fingerprint(trainer) == before
    trainer.train(samples[:2], ADAMW, 1e-3)
    with pytest.raises(StateError, match=r"first_moment.*momentum needs first_moment"):
        trainer.train(samples[:2], MOMENTUM, 1e-3)


# bytes of `Plan` for each length of 0 to 64 tokens and for FLUSH, of `Before`'s bits (threads.h in
# hls_src/processor/emulation), of `resolved_memory` (instructions.h), and of the maps of shuffles (shuffle.h)
HOST_PLANS = 66 * 15 * 4096 + 4096 * 4096 // 8 + (344 + 190) * 65536


def test_the_images_allocate_nothing_and_fit_on_the_card(tmp_path):
    """No image imports an allocator; its static arrays, the on-chip memories, stay below BRAM plus URAM.

    Beside them are the plans of the host's threads, the resolved instructions for each length of a sample, and maps.
    """
    for name, image in read_xclbin(read_file(overlays_folder() / "trainer.xclbin")).images.items():
        path = tmp_path / f"{name}.so"
        path.write_bytes(image)
        symbols = subprocess.run(["nm", "-D", "--undefined-only", path], capture_output=True, text=True, check=True)
        imported = set(re.findall(r" [Uw] (\w+)", symbols.stdout))
        assert imported <= {"memcmp", "memcpy", "memset", "memmove", "__cxa_finalize", "__gmon_start__"} | {
            "sched_yield",
            "_ITM_deregisterTMCloneTable",
            "_ITM_registerTMCloneTable",
        }
        sections = subprocess.run(["size", "-A", "-d", path], capture_output=True, text=True, check=True).stdout
        static = sum(int(size) for size in re.findall(r"^\.(?:bss|data)\s+(\d+)", sections, re.MULTILINE))
        assert 1e6 < static - HOST_PLANS < capacity_bits(Blocks(U50.bram36, U50.uram)) / 8
