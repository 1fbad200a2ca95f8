"""Mixtral as Hugging Face transformers builds it, with small random weights; nothing is downloaded."""

from torch import Tensor, nn

from bttlab.cost.configuration import CostError, FineTuning


class Mixtral(nn.Module):
    """`transformers.MixtralForCausalLM` with the calls of `MixtureTransformer`.

    Raises
    ------
    CostError
        If transformers is not installed.
    """

    def __init__(self, config: FineTuning):
        super().__init__()
        try:
            from transformers import MixtralConfig, MixtralForCausalLM
        except ModuleNotFoundError as error:
            raise CostError(
                f"architecture mixtral needs {error.name}, which is not installed; install it with: "
                "pip install 'bttlab[mixtral]'"
            ) from None
        self.model = MixtralForCausalLM(
            MixtralConfig(
                vocab_size=config.vocabulary,
                hidden_size=config.hidden,
                intermediate_size=config.expert_hidden,
                num_hidden_layers=config.layers,
                num_attention_heads=config.heads,
                num_key_value_heads=config.heads,
                num_local_experts=config.experts,
                num_experts_per_tok=config.top_k,
                max_position_embeddings=config.sequence_length,
                tie_word_embeddings=False,
                use_cache=False,
            )
        )
        self.model.enable_input_require_grads()
        for layer in self.model.model.layers:  # backward hooks see positional inputs only
            layer.self_attn.register_forward_pre_hook(_first_by_position, with_kwargs=True)

    def forward(self, tokens: Tensor) -> Tensor:
        """(B,S) token ids to logits (B,S,V)."""
        return self.model(tokens).logits


def _first_by_position(module: nn.Module, inputs: tuple, named: dict) -> tuple[tuple, dict]:
    return (named.pop("hidden_states"), *inputs), named
