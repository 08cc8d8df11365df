"""Any model type of transformers: a small configuration and inputs that nobody wrote.

Fields are set where the class of the configuration has them, its parts too; inputs are tried by the
arguments of ``forward``. A type that takes none raises ``NotBuiltError`` with every attempt.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final

import torch
from torch import Tensor, nn

from tests.benchmarks.zoo.inputs import Inputs, every, image, noise, tokens, tone

MOST_PARAMETERS: Final = 30_000_000
TOKENS, ANSWERS, SIZE = 24, 12, 64
FIELDS: Final[dict[str, Any]] = {
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_top_k"), 2),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 64),
    **dict.fromkeys(("n_shared_experts", "n_group", "topk_group", "first_k_dense_replace"), 1),
    **dict.fromkeys(("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "kv_lora_rank"), 16),
    **dict.fromkeys(("q_lora_rank", "qk_head_dim", "projection_dim", "index_head_dim"), 32),
    **dict.fromkeys(("mamba_n_heads", "mamba_num_heads", "mamba_d_state", "ssm_state_size"), 8),
    **dict.fromkeys(("mamba_d_head", "mamba_head_dim", "mamba_chunk_size", "chunk_size"), 16),
    **dict.fromkeys(("n_groups", "mamba_n_groups", "num_hidden_groups"), 1),
    **dict.fromkeys(("linear_num_key_heads", "attn_layer_period", "depth", "num_kv_heads"), 2),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim", "kv_channels"), 16),
    **dict.fromkeys(("linear_num_value_heads", "linear_conv_kernel_dim", "index_n_heads"), 4),
    **dict.fromkeys(("max_source_positions", "max_target_positions", "out_hidden_size"), 64),
    **dict.fromkeys(("encoder_hidden_size", "decoder_hidden_size"), 64),
    "attn_layer_offset": 1,
    "hidden_size_per_layer_input": 16,
    "index_topk": 8,
    "intermediate_sizes": 128,
    "max_window_layers": 2,
    "mlp_ratio": 2,
    "num_mel_bins": 40,
    "num_nextn_predict_layers": 0,
    "num_queries": 16,
    "sliding_window": 16,
    "use_pretrained_backbone": False,
    "vocab_size_per_layer_input": 1000,
    "window_size": 4,
}
"""Beside those of ``networks.SMALL``."""
ONE_EACH: Final = ("depths", "num_layers", "layer_depths", "stage_num_blocks", "num_blocks")
WIDTHS: Final = ("hidden_sizes", "embed_dims", "encoder_hidden_sizes", "neck_hidden_sizes")
KINDS: Final = ("layer_types", "mlp_layer_types", "layers_block_type")
LEFT: Final = (
    (),
    ("head_dim", "d_kv", "d_head", "num_key_value_heads"),
    ("window_size", "mlp_ratio", "depth", "embed_dim"),
)
"""Fields that are left as they are, in one attempt each."""
CLASSES: Final = (
    *("AutoModel", "AutoModelForCausalLM", "AutoModelForObjectDetection"),
    *("AutoModelForPreTraining", "AutoModelForImageClassification", "AutoModelForTextToWaveform"),
    *("AutoModelForKeypointDetection", "AutoModelForSpeechSeq2Seq", "AutoModelForImageTextToText"),
)
Draw = Callable[[torch.Generator], Tensor]


class NotBuiltError(Exception):
    """No attempt made a model that runs."""


def built(name: str, fields: dict[str, Any]) -> tuple[nn.Module, tuple[str, ...], Inputs, Any]:
    """A model by its type: the module, its arguments in order, inputs, and fixed arguments."""
    import transformers

    kind = transformers.CONFIG_MAPPING[name]
    makers = [getattr(transformers, each) for each in CLASSES if hasattr(transformers, each)]
    makers = [maker for maker in makers if maker._model_mapping.get(kind, None)]
    failed: list[str] = []
    for left in LEFT:
        for maker in makers[:2]:
            try:
                config = small(kind, {**fields, **FIELDS, "image_size": SIZE}, left)
                with torch.device("meta"):
                    count = sum(p.numel() for p in maker.from_config(config).parameters())
                if count > MOST_PARAMETERS:
                    raise NotBuiltError(f"{count:,} parameters")
                torch.manual_seed(0)
                model = maker.from_config(config).float().eval()
                return model, *_runs(model, config)
            except Exception as error:  # whatever a class says of fields that do not fit it
                failed.append(f"{maker.__name__}: {type(error).__name__}: {error}"[:300])
    raise NotBuiltError(f"{name}: {'; '.join(failed) or 'no class of a model'}")


def small(kind: Any, fields: dict[str, Any], left: tuple[str, ...]) -> Any:
    """A configuration with small numbers for the fields that it has."""
    fresh: Any = None
    with suppress(Exception):
        fresh = kind()
    known = set(inspect.signature(kind.__init__).parameters) | set(vars(fresh) if fresh else ())
    if dataclasses.is_dataclass(kind):
        known |= {field.name for field in dataclasses.fields(kind)}
    given: dict[str, Any] = {}
    for field in known - set(left):
        old = getattr(fresh, field, None)
        whole = isinstance(old, list | tuple) and all(type(x) is int for x in old) and old
        if field in KINDS and isinstance(old, list | tuple) and old:
            given[field] = (list(dict.fromkeys(old)) * 2)[:2]
        elif whole and field in ONE_EACH:
            given[field] = [1] * len(old)
        elif whole and field in WIDTHS:
            given[field] = [16 * (place + 1) for place in range(len(old))]
        elif whole and field == "image_size":
            given[field] = [SIZE] * len(old)
        elif field in fields and not isinstance(old, list | tuple):
            value = None if field == "window_size" and not isinstance(old, int) else fields[field]
            given |= {} if value is None else {field: value}
    for part, of in (getattr(kind, "sub_configs", None) or {}).items():
        old = getattr(fresh, part, None)
        of = type(old) if hasattr(old, "model_type") else of
        if inspect.isclass(of) and of.__name__ != "AutoConfig":
            given[part] = small(of, fields, left)
    config = kind(**given)
    wanted = {"_experts_implementation": "batched_mm", "_attn_implementation": "eager"}
    for field, value in {**wanted, "use_cache": False, "return_dict": True}.items():
        with suppress(Exception):
            setattr(config, field, value)
    return config


def _parts(config: Any) -> Iterator[Any]:
    yield config
    for name in getattr(type(config), "sub_configs", None) or {}:
        part = getattr(config, name, None)
        if hasattr(part, "model_type"):
            yield from _parts(part)


def _number(config: Any, *names: str, other: int) -> int:
    found = (getattr(part, name, None) for part in _parts(config) for name in names)
    return next((value for value in found if type(value) is int), other)


def _sets(model: nn.Module, config: Any) -> Iterator[dict[str, Draw]]:
    """Inputs that the arguments of a model ask for, the likeliest first."""
    taken = inspect.signature(model.forward).parameters
    words = max(8, min(_number(config, "vocab_size", other=900), 900))
    channels = _number(config, "num_channels", "in_channels", "in_chans", other=3)
    bins = _number(config, "num_mel_bins", "feature_size", "input_feat_per_channel", other=40)
    text: dict[str, Draw] = {"input_ids": tokens(TOKENS, words)}
    answer: dict[str, Draw] = {"decoder_input_ids": tokens(ANSWERS, words)}
    sides = [(channels, side, side) for side in (SIZE, 128, 224)]
    pixels = [image(1, *shape) for shape in sides]
    if "decoder_input_ids" not in taken:
        answer = {}
    if "input_ids" in taken:
        if answer:
            yield {**text, **answer}
        if "pixel_values" in taken:
            yield {**text, "pixel_values": pixels[0]}
        yield text
    if "pixel_values" in taken:
        yield from ({"pixel_values": draw} for draw in pixels)
    spectra = [noise(1, *s) for n in (64, 128) for s in ((bins, n), (n, bins))]
    waves = [tone(1, 2000), tone(1, 1, 1920), tone(1, 1, 4800), tone(1, 8000)]
    for name, draws in (("input_features", spectra + waves), ("input_values", waves + spectra)):
        if name in taken:
            yield from ({name: draw, **answer} for draw in draws)
    width = _number(config, "hidden_size", "d_model", other=64)
    for name in ("inputs_embeds", "hidden_states"):
        if name in taken:
            yield {name: noise(1, TOKENS, width)}


def _runs(model: nn.Module, config: Any) -> tuple[tuple[str, ...], Inputs, dict[str, Any]]:
    """The first inputs that a model takes."""
    taken, failed = inspect.signature(model.forward).parameters, []
    for draws in _sets(model, config):
        fixed: dict[str, Any] = {"use_cache": False} if "use_cache" in taken else {}
        masked = dict(fixed)
        for name, length in (("", TOKENS), ("decoder_", ANSWERS)):
            if f"{name}input_ids" in draws and f"{name}attention_mask" in taken:
                masked[f"{name}attention_mask"] = torch.ones(1, length, dtype=torch.long)
        for extra in (masked, fixed):
            given = every(**draws)(torch.Generator().manual_seed(2))
            try:
                with torch.no_grad():
                    model(**given, **extra)
                return tuple(draws), every(**draws), extra
            except Exception as error:  # whatever a forward says of inputs that do not fit it
                failed.append(f"{', '.join(draws)}: {type(error).__name__}: {error}"[:200])
    raise NotBuiltError("; ".join(failed) or f"takes {', '.join(taken)}")
