# SPDX-License-Identifier: Apache-2.0
"""A tokenizer without a download: one token a byte, and 256 for the end."""

import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers


def byte_tokenizer():
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {symbol: i for i, symbol in enumerate(alphabet)} | {"<end>": 256}
    byte_level = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    byte_level.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    byte_level.decoder = decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=byte_level, eos_token="<end>")
