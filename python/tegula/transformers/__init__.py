# SPDX-License-Identifier: Apache-2.0
"""tegula as an attention implementation of transformers.

    import tegula.transformers
    tegula.transformers.register()
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="tegula")

Works for every model whose attention goes through transformers' AttentionInterface; docs/python.md
says what is native, what becomes a bias tensor and what is refused.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

from transformers import AttentionInterface, AttentionMaskInterface

from .attention import attention_forward
from .mask import Mask, read_mask

__all__ = ["Mask", "attention_forward", "mask_function", "register"]

NAME = "tegula"


def mask_function(*args: Any, attention_mask: Any = None, **kwargs: Any) -> Mask:
    """The mask function of `register()`; arguments as of `transformers.masking_utils.sdpa_mask`.

    Returns a `Mask`. generate() with a static cache makes masks ahead and passes them through the
    model, which asks again: such a mask comes back as it is.
    """
    if isinstance(attention_mask, Mask):
        return attention_mask
    return read_mask(*args, attention_mask=attention_mask, **kwargs)


def _allow_continuous_batching(name: str) -> None:
    """Lets ContinuousBatchingManager take `name`.

    transformers 5 has one attention function for padded and paged calls, but its manager accepts
    "sdpa", "paged|eager" and names with "flash" in them only, and looks the latter up on a hub.
    Everything behind that one check works with any function that takes cu_seq_lens_q/k.
    """
    from transformers.generation.continuous_batching.continuous_api import (
        ContinuousBatchingManager as Manager,
    )

    own = Manager.switch_to_cb_friendly_attn
    names: set[str] = getattr(own, "tegula_names", set())
    if not names:

        @wraps(own)
        def switch(self: Any, model: Any, *args: Any, **kwargs: Any) -> None:
            if model.config._attn_implementation not in names:
                own(self, model, *args, **kwargs)

        switch.tegula_names = names
        Manager.switch_to_cb_friendly_attn = switch
    names.add(name)


def register(name: str = NAME) -> None:
    """Makes `attn_implementation=name` known to transformers; calling it again changes nothing.

    Registers the attention function and its mask function, and makes continuous batching
    (`model.generate_batch`) accept the name. Inference only: inputs that require grad raise.
    """
    if "flash" in name or "/" in name or "|" in name:
        raise ValueError(
            f"name {name!r}: transformers gives names with 'flash', '/', '|' a meaning"
        )
    AttentionInterface.register(name, attention_forward)
    AttentionMaskInterface.register(name, mask_function)
    _allow_continuous_batching(name)
