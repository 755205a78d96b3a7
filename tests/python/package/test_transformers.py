# SPDX-License-Identifier: Apache-2.0
"""attn_implementation="tegula" against transformers' "eager" on tiny random models, offline."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is imported

import pytest
import torch
import transformers
from transformers_util import (
    ARCHITECTURES,
    WINDOW,
    assert_as_good,
    assert_same_text,
    configs,
    model_of,
    padding,
    tokens,
)

import tegula.transformers

tegula.transformers.register()
transformers.utils.logging.set_verbosity_error()

# Distance of two half-precision runs of these models, whose logits are below 1.
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 0.1, torch.float16: 0.02}


@pytest.fixture(params=["fp32", "bf16"])
def dtype(request, device):
    if request.param == "fp32" and str(device) != "cpu":
        pytest.skip("fp32 is the CPU's")
    return {"fp32": torch.float32, "bf16": torch.bfloat16}[request.param]


@pytest.fixture(autouse=True)
def inference():
    with torch.no_grad():
        yield


def outputs(architecture, dtype, device, **inputs):
    """Logits of tegula and of "eager" in `dtype`, and of "eager" in fp32."""
    on_device = {
        name: value.to(device) if isinstance(value, torch.Tensor) else value
        for name, value in inputs.items()
    }
    ours = model_of(architecture, "tegula", dtype, str(device))(**on_device).logits
    eager = model_of(architecture, "eager", dtype, str(device))(**on_device).logits
    return ours, eager, model_of(architecture, "eager", torch.float32, "cpu")(**inputs).logits


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("side", ["none", "left", "right"])
def test_prefill(architecture, side, dtype, device):
    inputs = {"input_ids": tokens(3, 29)}
    if side != "none":
        inputs["attention_mask"] = padding(side)
    assert_as_good(*outputs(architecture, dtype, device, **inputs), rows=padding(side))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_packed(architecture, dtype, device):
    """Sequences one behind the other in a row, told by their positions, twice."""
    positions = torch.cat([torch.arange(n) for n in (9, 1, 12, 7)]).expand(2, -1)
    logits = outputs(
        architecture,
        dtype,
        device,
        input_ids=tokens(2, 29),
        position_ids=positions,
        use_cache=False,
    )
    assert_as_good(*logits)


@pytest.mark.parametrize("architecture", ["llama", "gemma2", "gpt_oss"])
@pytest.mark.parametrize("ones", [False, True])
def test_packed_by_lengths(architecture, ones, dtype, device):
    """cu_seq_lens_q/k, as DataCollatorWithFlattening passes them: each sequence as if alone.

    With an attention_mask, and in gpt_oss always, transformers does not look at the positions:
    then the lengths are all that tells the sequences apart.
    """
    ids, lengths = tokens(1, 29), (9, 1, 12, 7)
    boundaries = torch.tensor([0, 9, 10, 22, 29], dtype=torch.int32, device=device)
    packed = model_of(architecture, "tegula", dtype, str(device))(
        ids.to(device),
        attention_mask=torch.ones_like(ids).to(device) if ones else None,
        position_ids=torch.cat([torch.arange(n) for n in lengths])[None].to(device),
        use_cache=False,
        cu_seq_lens_q=boundaries,
        cu_seq_lens_k=boundaries,
        max_length_q=12,
        max_length_k=12,
    ).logits
    alone = [
        torch.cat(
            [
                model_of(architecture, "eager", *kind)(part.to(kind[1])).logits.cpu()
                for part in parts
            ],
            dim=1,
        )
        for parts in [ids.split(lengths, dim=1)]
        for kind in [(dtype, str(device)), (torch.float32, "cpu")]
    ]
    assert_as_good(packed, *alone)


def generated(architecture, implementation, dtype, device, side, **options):
    model = model_of(architecture, implementation, dtype, str(device))
    return model.generate(
        tokens(3, 29, device), attention_mask=padding(side, device), max_new_tokens=10,
        do_sample=False, output_logits=True, return_dict_in_generate=True, **options,
    )  # fmt: skip


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("side", ["none", "left", "right"])
def test_generate(architecture, cache, side, dtype, device):
    if dtype != torch.float32 and side == "none":
        pytest.skip("left padding is the same path and more")
    if side == "right" and str(device) != "cpu":
        pytest.skip("right-padded generation needs a bias")
    options = {} if cache == "dynamic" else {"cache_implementation": "static"}
    if str(device) != "cpu":
        options["disable_compile"] = True
    runs = [
        generated(architecture, implementation, dtype, device, side, **options)
        for implementation in ("tegula", "eager")
    ]
    assert_same_text(*runs, TOLERANCE[dtype])


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_beams(architecture, dtype, device):
    if dtype != torch.float32:
        pytest.skip("beams part at near ties")
    runs = [
        generated(architecture, implementation, dtype, device, "left", num_beams=3).sequences
        for implementation in ("tegula", "eager")
    ]
    assert torch.equal(*runs)


def test_compiled(dtype, device):
    """Under torch.compile (dynamo without a code generator): the same values, with graph breaks."""
    if dtype != torch.float32 and str(device) == "cpu":
        pytest.skip("one type is enough")
    model = model_of("qwen2", "tegula", dtype, str(device))
    compiled = torch.compile(model, backend="eager")
    ids, mask = tokens(3, 29, device), padding("left", device)
    logits = [run(ids, attention_mask=mask).logits for run in (compiled, model)]
    torch.testing.assert_close(*logits, rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("architecture", ["llama", "gemma2"])
def test_a_second_turn(architecture, dtype, device):
    """Several queries on a filled cache: the next turn of a chat, chunked prefill."""
    ids, mask = tokens(3, 29), padding("left")
    results = []
    for implementation, kind, where in (
        ("tegula", dtype, str(device)),
        ("eager", dtype, str(device)),
        ("eager", torch.float32, "cpu"),
    ):
        model, cache = model_of(architecture, implementation, kind, where), None
        for begin, end in ((0, 13), (13, 22), (22, 23), (23, 29)):
            result = model(
                ids[:, begin:end].to(where), attention_mask=mask[:, :end].to(where), cache=cache,
                use_cache=True,
            )  # fmt: skip
            cache = result.cache
        results.append(result.logits)
    assert_as_good(*results)


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "gemma2", "gpt_oss", "mistral"])
def test_continuous_batching(architecture, dtype, device, monkeypatch):
    """generate_batch: prompts of four lengths share steps of at most 64 tokens."""
    if dtype != torch.float32 and architecture != "gpt_oss" and str(device) == "cpu":
        pytest.skip("one is enough where fp32 runs too")
    calls = []
    own = tegula.transformers.attention_forward

    def counted(module, query, key, *rest, **named):
        calls.append((query.shape[2], key.shape[2], named["cu_seq_lens_q"].numel() - 1))
        return own(module, query, key, *rest, **named)

    monkeypatch.setitem(transformers.AttentionInterface._global_mapping, "tegula", counted)
    prompts = [tokens(1, n, device, seed=n) for n in (5, 23, 11, 40)]
    results = model_of(architecture, "tegula", dtype, str(device)).generate_batch(
        [prompt[0].tolist() for prompt in prompts],
        generation_config=transformers.GenerationConfig(
            max_new_tokens=10, do_sample=False, eos_token_id=-1, pad_token_id=0
        ),
        continuous_batching_config=transformers.ContinuousBatchingConfig(
            page_size=16, num_blocks=64, max_batch_tokens=64, use_cuda_graph=False
        ),
        progress_bar=False,
    )  # fmt: skip
    ours = [results[key].generated_tokens for key in sorted(results)]
    assert max(q for q, _, _ in calls) > 40 and max(n for _, _, n in calls) == 4
    assert any(k > q for q, k, _ in calls)
    # "paged|eager" knows no softcap, so "eager" runs each prompt alone.
    model = model_of(architecture, "eager", dtype, str(device))
    same = []
    for prompt, tail in zip(prompts, ours):
        alone = model.generate(prompt, max_new_tokens=10, do_sample=False)[0, prompt.shape[1] :]
        same += [a == b for a, b in zip(tail, alone.tolist(), strict=True)]
    # Half precision parts from eager where two logits nearly tie; fp32 does not here.
    assert all(same) if dtype == torch.float32 else sum(same) >= 0.5 * len(same)


def prefix_lm(batch, head, query, key):
    return (key < 9) & (query < 9)


def test_masks_of_the_callers(dtype, device):
    """A boolean and an additive 4-D mask, and a prefix that sees itself, become a bias."""
    if str(device) != "cpu":
        pytest.skip("a bias is the CPU's")
    ids = tokens(3, 29)
    seen = torch.rand(3, 1, 29, 29, generator=torch.Generator().manual_seed(1)) < 0.5
    seen |= torch.eye(29, dtype=torch.bool)
    added = torch.where(seen, 0.0, torch.finfo(torch.float32).min)
    exact = model_of("llama", "eager", torch.float32, "cpu")(ids, attention_mask=added).logits
    eager = model_of("llama", "eager", dtype, "cpu")(
        ids, attention_mask=torch.where(seen, 0.0, torch.finfo(dtype).min).to(dtype)
    ).logits
    model = model_of("llama", "tegula", dtype, "cpu")
    for mask in (seen, torch.where(seen, 0.0, torch.finfo(dtype).min).to(dtype)):
        assert_as_good(model(ids, attention_mask=mask).logits, eager, exact)


def test_image_blocks(dtype, device):
    """Gemma 3's text model with blocks of tokens that see each other (as its images do)."""
    if str(device) != "cpu":
        pytest.skip("a bias is the CPU's")
    ids, blocks = tokens(2, 29), torch.full((2, 29), -1)
    blocks[0, 3:8], blocks[0, 20:26], blocks[1, 11:17] = 0, 1, 0
    logits = []
    for implementation, kind in (("tegula", dtype), ("eager", dtype), ("eager", torch.float32)):
        model = model_of("gemma3", implementation, kind, "cpu")
        masks = transformers.masking_utils.create_masks_for_generate(
            config=model.config,
            inputs_embeds=model.get_input_embeddings()(ids),
            attention_mask=None,
            cache=None,
            block_sequence_ids=blocks,
        )
        logits.append(model(ids, attention_mask=masks, use_cache=False).logits)
    assert_as_good(*logits)


@pytest.mark.parametrize("kind", ["encoder", "encoder-decoder"])
def test_attention_that_is_not_causal(kind, dtype, device):
    """BERT with right padding; T5 with its position bias and its attention across."""
    if str(device) != "cpu" and kind == "encoder-decoder":
        pytest.skip("a bias is the CPU's")
    sizes = dict(vocab_size=97, num_hidden_layers=2, num_attention_heads=3, hidden_size=48)
    ids, mask = tokens(3, 29), padding("right")
    results = []
    for implementation, type_, where in (
        ("tegula", dtype, str(device)),
        ("eager", dtype, str(device)),
        ("eager", torch.float32, "cpu"),
    ):
        torch.manual_seed(4)
        if kind == "encoder":
            config = transformers.BertConfig(**sizes, intermediate_size=64)
            inputs = {}
        else:
            config = transformers.T5Config(
                vocab_size=97, d_model=48, d_kv=16, d_ff=64, num_layers=2, num_heads=3
            )
            inputs = {"decoder_input_ids": ids[:, :12].to(where)}
        model = transformers.AutoModel.from_config(config, attn_implementation=implementation)
        model = model.eval().to(device=where, dtype=type_)
        results.append(
            model(
                input_ids=ids.to(where), attention_mask=mask.to(where), **inputs
            ).last_hidden_state
        )
    assert_as_good(*results, rows=mask if kind == "encoder" else None)


def test_refusals(device):
    model = model_of("llama", "tegula", torch.bfloat16, str(device))
    ids = tokens(1, 5, device)
    with torch.enable_grad(), pytest.raises(RuntimeError, match="requires grad.*no backward"):
        model(ids)
    with pytest.raises(NotImplementedError, match="output_attentions"):
        tegula.transformers.attention_forward(
            model.model.layers[0].self_attn, *torch.zeros(3, 1, 2, 4, 16), None,
            output_attentions=True,
        )  # fmt: skip
    call = tegula.transformers.attention_forward
    module = model.model.layers[0].self_attn
    q, k = torch.zeros(1, 2, 3, 16), torch.zeros(1, 2, 5, 16)
    for named, error, text in (
        ({"dropout": 0.1}, NotImplementedError, "dropout 0.1"),
        ({"sinks": torch.zeros(2)}, NotImplementedError, "sinks: LlamaAttention passes it"),
        ({}, ValueError, "None for 3 queries on 5 keys with a causal edge"),
        ({"is_causal": False, "sliding_window": 2}, NotImplementedError, "sliding_window 2 on 5"),
        ({"attention_mask": torch.ones(1, 5)}, ValueError, r"shape \(1, 5\), expected"),
        (
            {"attention_mask": tegula.transformers.mask_function(1, 3, 6)},
            ValueError,
            "made for 3 queries and 6 keys, called with 3 and 5",
        ),
    ):
        with pytest.raises(error, match=text):
            call(module, q, k, k, **{"attention_mask": None, **named})
    module = model_of("gpt_oss", "eager", torch.float32, "cpu").model.layers[0].self_attn
    with pytest.raises(NotImplementedError, match="has sinks and does not pass them"):
        call(module, q, k, k, None)


def test_a_mask_that_a_gpu_cannot_take_is_refused_by_name():
    with pytest.raises(NotImplementedError, match="prefix_lm. needs a bias tensor.*on cuda"):
        tegula.transformers.mask_function(
            2, 29, 29, mask_function=transformers.masking_utils.or_masks(prefix_lm), device="cuda"
        )


def test_names():
    tegula.transformers.register("also_tegula")
    config = configs()["llama"]
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="also_tegula")
    assert model(tokens(1, 3)).logits.shape == (1, 3, 97)
    for name in ("flash_tegula", "a/b", "paged|tegula"):
        with pytest.raises(ValueError, match="gives names with"):
            tegula.transformers.register(name)


def test_no_square_masks():
    """Padding, windows and static caches stay descriptions; WINDOW bounds what a layer reads."""
    from transformers.masking_utils import sliding_window_causal_mask_function

    mask = tegula.transformers.mask_function(
        3, 29, 40, mask_function=sliding_window_causal_mask_function(WINDOW),
        attention_mask=padding("left").bool(), q_offset=torch.tensor(0),
    )  # fmt: skip
    assert mask.visible is None and mask.causal and mask.window_left == WINDOW - 1
    assert mask.leftpad_k.tolist() == [0, 5, 11] and mask.seqused_k.tolist() == [29] * 3
