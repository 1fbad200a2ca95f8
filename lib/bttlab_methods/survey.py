"""What "A Survey on Efficient Training of Transformers" (arXiv 2302.01107) names, and where each is here.

The groups are the survey's sections; those of memory are one group, and the neighbours of the tensor paper follow.
"""

from dataclasses import dataclass

GROUPS = (
    "optimizer",
    "initialisation",
    "sparse training and over-parameterisation",
    "large batches",
    "incremental learning",
    "choosing data",
    "parallelism",
    "less memory: quantised training, rematerialisation, offloading",
    "few trained parameters",
    "hardware and algorithm together",
    "neighbours of the tensor paper",
)


@dataclass(frozen=True)
class Technique:
    """A technique that the survey names."""

    name: str
    group: str  # one of `GROUPS`
    row: str = ""  # combination of methods that has it, as `bttlab_methods.parse` takes it
    gone: str = ""  # method of an earlier version: its results are in data/methods/gone.json
    # what it is for where this model is too small; of a technique without a row, why there is none
    note: str = ""
    needs_gpu: bool = False


def _group(group: str, *techniques: tuple) -> list[Technique]:
    return [Technique(name, group, **fields) for name, fields in techniques]


TECHNIQUES: tuple[Technique, ...] = (
    *_group(
        GROUPS[0],
        ("SGD with momentum", {"row": "momentum", "note": "optimizer state that does not fit"}),
        ("Adam", {"row": "adamw:weight_decay=0", "note": "it is AdamW without decay"}),
        ("AdamW", {"row": "adamw", "note": "what `dense` has"}),
        ("Lion", {"row": "lion", "note": "a moment less for each parameter"}),
    ),
    *_group(
        GROUPS[1],
        ("Fixup", {"row": "fixup", "note": "deep networks without norms"}),
        ("ReZero", {"row": "rezero", "note": "a hundred layers; two need no help"}),
        ("SkipInit", {"row": "skipinit", "note": "deep networks without norms"}),
        ("T-Fixup", {"row": "t-fixup", "note": "deep models without warm-up"}),
    ),
    *_group(
        GROUPS[2],
        ("lottery ticket", {"row": "lottery-ticket", "note": "a ticket found once and trained often"}),
        (
            "early-bird ticket",
            {"note": "a lottery ticket whose search ends as its mask settles; `lottery-ticket:search=0.2` is near"},
        ),
        ("over-parameterisation", {"row": "width", "note": "few steps for a target, then compression"}),
    ),
    *_group(
        GROUPS[3],
        ("linear scaling", {"row": "linear-scaling", "note": "many GPUs, which large batches fill"}),
        ("LARS", {"row": "lars", "note": "batches of thousands"}),
        ("LAMB", {"row": "lamb", "note": "batches of thousands"}),
    ),
    *_group(
        GROUPS[4],
        ("progressive stacking", {"row": "stacking", "note": "models of twelve encoders and more"}),
        ("stochastic depth", {"row": "stochastic-depth", "note": "deep models; half of an encoder less a step here"}),
        ("AutoProg", {"note": "it searches when a vision transformer grows, with a supernet of all depths"}),
    ),
    *_group(
        GROUPS[5],
        ("token masking", {"row": "token-dropping", "note": "long inputs, most of whose tokens can go"}),
        ("token selection by loss", {"gone": "token-selection", "note": "`token-dropping` drops at random"}),
        ("importance by gradient norm", {"row": "importance-gradient", "note": "data of very unequal worth"}),
        ("importance by error (EL2N)", {"gone": "importance-error", "note": "`importance-gradient` draws as well"}),
        ("early scores (EL2N)", {"row": "data-pruning-early", "note": "more data than a budget can see"}),
        ("k-means pruning", {"row": "data-pruning-kmeans", "note": "data without labels"}),
    ),
    *_group(
        GROUPS[6],
        ("data parallelism", {"row": "data-parallel", "note": "GPUs; two processes of a CPU share its cores"}),
        ("tensor parallelism", {"row": "tensor-parallel", "note": "a model too wide for a GPU"}),
        ("pipeline parallelism", {"row": "pipeline-parallel", "note": "a model too deep for a GPU"}),
        ("ZeRO", {"row": "zero", "note": "many encoders: the one that is gathered is then a small part"}),
        (
            "sharing parameters (ALBERT)",
            {"row": "shared-encoders", "note": "deep models, whose encoders are most of it"},
        ),
        ("data with model parallelism", {"note": "it needs four processes; a CPU of two cores shows nothing of it"}),
    ),
    *_group(
        GROUPS[7],
        ("AMP in BF16", {"row": "bf16", "note": "wide activations"}),
        ("FP16 with a scaled loss", {"row": "fp16", "note": "tensor cores; a CPU multiplies FP16 slowly"}),
        ("INT8", {"row": "int8", "note": "a CPU with VNNI"}),
        ("FP8", {"note": "products on tensor cores, torchao.float8", "needs_gpu": True}),
        ("compressed activations", {"row": "compressed-activations", "note": "activations larger than parameters"}),
        ("8-bit optimizer", {"row": "8bit-optimizer", "note": "bitsandbytes' kernels"}),
        ("rematerialisation", {"row": "rematerialisation", "note": "activations larger than parameters"}),
        ("ZeRO-Offload", {"row": "zero-offload", "note": "a GPU beside the host"}),
        ("activations in the host's memory", {"row": "activation-offloading", "note": "a GPU beside the host"}),
        ("offloading to NVMe", {"note": "DeepSpeed's, for a GPU whose host's memory is full, too", "needs_gpu": True}),
    ),
    *_group(
        GROUPS[8],
        ("adapters", {"row": "adapters", "note": "a model that is trained already"}),
        ("prompt tuning", {"row": "prompt-tuning", "note": "a model that is trained already"}),
        ("LoRA", {"row": "lora", "note": "a model that is trained already"}),
    ),
    *_group(
        GROUPS[9],
        ("window attention", {"row": "sparse-attention", "note": "long sequences: of 32 tokens a mask saves no time"}),
        ("FlashAttention", {"note": "`bttlab cost` has its coefficients (`kernels=flash`)", "needs_gpu": True}),
        ("2:4 sparsity", {"gone": "sparse-2-4", "note": "sparse tensor cores, torch.sparse", "needs_gpu": True}),
        ("multipliers of low precision", {"gone": "low-precision-multiply", "note": "an emulation: nothing is saved"}),
        ("sparse products (SpGEMM)", {"note": "no weight of these models is sparse enough for a sparse product"}),
        ("OuterSPACE", {"note": "an accelerator of other people for sparse products, by outer products"}),
        ("ViTCoD", {"note": "an accelerator of other people for sparse attention of vision transformers"}),
        ("Sanger", {"note": "an accelerator of other people for sparse attention, predicted at 4 bits"}),
        ("DOTA", {"note": "an accelerator of other people that drops weak attention, with a trained detector"}),
        ("A3", {"note": "an accelerator of other people for approximate attention, at inference"}),
        ("ELSA", {"note": "an accelerator of other people for attention, approximated by hashes"}),
    ),
    *_group(
        GROUPS[10],
        ("tensor compression (this lab)", {"row": "tensor", "note": "the same time: 77.9 % after two epochs"}),
        ("CoMERA", {"row": "comera", "note": "ranks that nobody knows before"}),
        ("ranks by pruning", {"row": "rank-pruning", "note": "ranks that nobody knows before"}),
        ("GaLore", {"row": "galore", "note": "models whose optimizer state does not fit"}),
        ("Tensor-GaLore", {"row": "tensor-galore", "note": "models whose optimizer state does not fit"}),
        ("training in a subspace", {"row": "subspace", "note": "fine-tuning of large models"}),
    ),
)
