"""Compiled programs are kept on disk: another process reads them. A cache that is damaged or not ours is not used."""

import os
from dataclasses import astuple, replace

import pytest

import bttlab.compiler.program as program_module
from bttlab.compiler import stored
from bttlab.compiler.errors import ProgramError
from bttlab.compiler.image import packed
from bttlab.compiler.program import Options, compile
from bttlab.compiler.trace import trace
from bttlab.model import Optimizer
from sample_modules import Tagger

from training_processor import SMALL

MODEL = replace(SMALL, encoders=1, slots=SMALL.slots + 3)  # a model that no other test compiles
SUMS = Options("mixed", Optimizer("momentum", batch_size=4))


def forget() -> None:
    """Empty the caches in memory."""
    for name in ("_compiled", "_draft", "_lowerings", "_fastest"):
        getattr(program_module, name).cache_clear()


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("BTTLAB_PROGRAMS", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    forget()
    return stored.folder()


def in_another_process(monkeypatch) -> None:
    """Empty the cache in memory, and let nothing be compiled."""
    forget()
    monkeypatch.setattr(program_module, "Lowerings", None)


@pytest.mark.parametrize("options", [Options(), SUMS, Options("auto", lengths={9: 3, 5: 1}), Options((2, 2))], ids=str)
def test_a_program_is_read_from_disk(folder, monkeypatch, options):
    program = compile(MODEL, options)
    in_another_process(monkeypatch)
    found = compile(MODEL, options)
    assert found is not program and found is compile(MODEL, options)
    assert found.sections == program.sections and found.sha256 == program.sha256
    assert not found.image.flags.writeable
    assert (
        packed(found.sections, found.tables, found.limits, found.offset_span, sums=found.has_sums) == program.image
    ).all()
    for name in ("config", "limits", "transfer_vectors", "token_table", "regions", "flow", "window", "sums"):
        assert getattr(found, name) == getattr(program, name), name
    assert (found.has_order, found.why_no_sums) == (program.has_order, program.why_no_sums)
    assert found.layout.shapes == program.layout.shapes and len(found.layout.blocks) == len(program.layout.blocks)
    for block, other in zip(found.layout.blocks, program.layout.blocks, strict=True):
        assert replace(block, buffer=other.buffer) == other and astuple(block.buffer) == astuple(other.buffer)


def test_why_there_is_no_program_is_read_from_disk(folder, monkeypatch):
    does_not_fit = replace(MODEL, heads=8)
    with pytest.raises(ProgramError) as error:
        compile(does_not_fit)
    in_another_process(monkeypatch)
    with pytest.raises(ProgramError) as found:
        compile(does_not_fit)
    assert str(found.value) == str(error.value) and "heads of a multiple of 16" in str(error.value)


def test_other_models_options_and_sources_have_other_programs(folder, monkeypatch):
    options = (Options(), Options("mixed"), Options(window=12000), Options(sums=True))
    programs = {compile(MODEL, each) for each in options} | {compile(replace(MODEL, intents=9))}
    assert len(programs) == len(list(folder.iterdir())) == 5
    in_another_process(monkeypatch)
    assert {compile(MODEL, each).sha256 for each in options} < {program.sha256 for program in programs}
    monkeypatch.setattr(stored, "_sources", lambda: ["another compiler"])
    forget()
    with pytest.raises(TypeError):  # it is compiled
        compile(MODEL)


def test_a_damaged_entry_is_replaced(folder):
    sha256 = compile(MODEL).sha256
    (entry,) = folder.iterdir()
    whole = entry.read_bytes()
    for damaged in (b"", whole[:-1], whole[:40] + bytes([whole[40] ^ 1]) + whole[41:]):
        entry.write_bytes(damaged)
        forget()
        assert compile(MODEL).sha256 == sha256 and entry.read_bytes() == whole


def test_programs_that_others_could_have_written_are_not_read(folder, monkeypatch):
    program = compile(MODEL)
    (entry,) = folder.iterdir()
    for place in (entry, folder, folder.parent):
        mode = place.stat().st_mode
        place.chmod(0o777)
        forget()
        with monkeypatch.context() as patch:
            patch.setattr(program_module, "Lowerings", None)
            with pytest.raises(TypeError):  # it is compiled
                compile(MODEL)
        if place.is_dir():
            compile(replace(MODEL, intents=9))
            assert list(folder.iterdir()) == [entry]  # nothing is written there
        place.chmod(mode)
    in_another_process(monkeypatch)
    assert compile(MODEL).sha256 == program.sha256


def test_the_entries_used_last_stay(folder, monkeypatch):
    compile(MODEL)
    (first,) = folder.iterdir()
    compile(replace(MODEL, intents=9))
    (second,) = {*folder.iterdir()} - {first}
    draft = folder / f".{first.name}.0123456789abcdef.draft"
    draft.write_bytes(b"of a process that was killed")
    for age, path in enumerate((first, second, draft)):
        os.utime(path, (1e9 - age, 1e9 - age))
    forget()
    compile(replace(MODEL, intents=9))  # the second was used last
    monkeypatch.setattr(stored, "MOST_BYTES", int(2.5 * second.stat().st_size))
    compile(replace(MODEL, intents=10))
    assert len(list(folder.iterdir())) == 2 and second.exists() and not first.exists()


def test_the_folder_has_a_variable(folder, tmp_path, monkeypatch):
    assert folder == tmp_path / "bttlab" / "programs"
    monkeypatch.setenv("BTTLAB_PROGRAMS", str(tmp_path / "here"))
    assert stored.folder() == tmp_path / "here"


def test_a_folder_that_cannot_be_written_and_a_traced_module(tmp_path, monkeypatch):
    model = trace(Tagger(), 12)
    compile(model)
    assert not stored.folder().exists()
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert compile(MODEL).sha256
