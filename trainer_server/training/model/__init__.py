"""The base model with a LoRA, and log-probabilities along a prefix tree."""


def checkpoint_above(layers: int, hidden_size: int, number: int = 2) -> int:
    """Tokens of a row above which the trainer uses checkpointing, which computes layers twice.

    It is 6,144 for SmolLM2-135M (30 layers, hidden size 576) in bf16, whose activations then take 4.7 GB, half as much
    in fp32, and less for larger models. Plans of memory compute with it too, so it needs no torch.

    Args:
        layers: Number of layers.
        hidden_size: Hidden size.
        number: Bytes of a number of the activations.
    """
    return 6144 * 30 * 576 * 2 // (layers * hidden_size * number)
