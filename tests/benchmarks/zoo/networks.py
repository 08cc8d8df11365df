"""The networks of the zoo: one line each, built from code with seeded weights.

A line is ``family name [kind of input] [size] [options]``; ``any`` kind of input leaves the
configuration and the inputs to ``unlisted.py``. ``dynamo`` exports by
``torch.onnx.export(dynamo=True)`` at opset 20, ``free`` leaves the batch open; all else goes by the
legacy exporter at opset 17.
"""

from __future__ import annotations

import inspect
import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from tests.benchmarks.zoo import domains, own, unlisted
from tests.benchmarks.zoo.inputs import Inputs, every, image, noise, tokens, tone

CALIBRATION, FRESH = 16, 8
"""Inputs that calibration sees, and inputs that values are compared on."""
OPSETS: Final = {False: 17, True: 20}

TIMM = """
cnn resnet18 64
cnn resnet50 64
cnn resnet50_gn 64
cnn resnetv2_18 64
cnn resnetv2_50x1_bit 64
cnn resnetblur18 64
cnn skresnet18 64
cnn seresnet18 64 dynamo
cnn ecaresnet26t 64
cnn resnest14d 64
cnn resnext26ts 64
cnn res2net50_14w_8s 64
cnn regnety_002 64
cnn regnetx_002 64 free
cnn regnetz_005 64
cnn mobilenetv1_100 64
cnn mobilenetv2_050 64
cnn mobilenetv3_small_050 64 free
cnn mobilenetv3_small_100 64 dynamo
cnn mobilenetv4_conv_small_050 64
cnn mobileone_s0 64
cnn efficientnet_lite0 64
cnn efficientnet_b0 64
cnn efficientnet_b0_gn 64
cnn tf_efficientnetv2_b0 64
cnn efficientnet_es 64
cnn mixnet_s 64
cnn mnasnet_small 64
cnn fbnetc_100 64
cnn fbnetv3_b 64
cnn tinynet_e 64
cnn lcnet_050 64
cnn ghostnet_050 64
cnn ghostnetv2_100 64
cnn repghostnet_050 64
cnn hardcorenas_a 64
cnn rexnet_100 64
cnn convnext_atto 64
cnn convnext_zepto_rms 64
cnn convnextv2_atto 64 dynamo
cnn inception_next_atto 64
cnn densenet121 64
cnn dla46x_c 64
cnn dpn48b 64
cnn hrnet_w18_small 64
cnn vovnet39a 64
cnn ese_vovnet19b_slim_dw 64
cnn selecsls42 64
cnn cspresnet50 64
cnn cs3darknet_focus_s 64
cnn darknet17 64
cnn nf_regnet_b0 64
cnn eca_nfnet_l0 64
cnn repvgg_a0 64
cnn xception41 64
cnn inception_v3 96
cnn fasternet_t0 64
cnn starnet_s050 64
cnn hgnetv2_b0 64
cnn rdnet_tiny 64
cnn mambaout_femto 64
cnn focalnet_tiny_srf 64
cnn convmixer_768_32 64
cnn vgg11_bn 64 dynamo
vit vit_tiny_patch16_224 64
vit vit_tiny_patch16_224 64 dynamo
vit vit_wee_patch16_reg1_gap_256 64
vit deit_tiny_distilled_patch16_224 64 free
vit vit_tiny_r_s16_p8_224 64
vit swin_tiny_patch4_window7_224 224
vit swinv2_tiny_window8_256 64
vit eva02_tiny_patch14_224 56 dynamo
vit mixer_s32_224 224
vit resmlp_12_224 64
vit gmlp_ti16_224 64
vit gmixer_12_224 64
vit poolformer_s12 64
vit poolformerv2_s12 64
vit caformer_s18 64
vit convformer_s18 64
vit pvt_v2_b0 64
vit twins_svt_small 64
vit twins_pcpvt_small 64
vit mobilevit_xxs 64
vit mobilevitv2_050 64
vit efficientformer_l1 224
vit efficientformerv2_s0 224
vit efficientvit_b0 64
vit efficientvit_m0 224
vit edgenext_xx_small 64
vit fastvit_t8 64
vit levit_128s 224
vit repvit_m0_9 64
vit shvit_s1 64
vit swiftformer_xs 64
vit tiny_vit_5m_224 224
vit xcit_nano_12_p16_224 64
vit cait_xxs24_224 64
vit convit_tiny 64
vit pit_ti_224 224
vit coat_lite_tiny 64
vit coatnet_pico_rw_224 64
vit test_maxvit 64
vit maxvit_pico_rw_256 64
vit nest_tiny 224
vit gcvit_xxtiny 224
vit davit_tiny 64
vit hiera_tiny_224 224
vit mvitv2_tiny 64
vit botnet26t_256 64
vit sequencer2d_s 64
vit efficientvim_m1 64
vit visformer_tiny 64
vit iformer_t 64
cnn convnext_tiny 64
cnn cs3sedarknet_l 64
cnn dla60x_c 64
cnn eca_halonext26ts 256 dynamo
cnn efficientnet_blur_b0 64
cnn efficientnet_em 64
cnn ese_vovnet19b_slim 64
cnn fbnetv3_g 64
cnn gernet_l 64
cnn hardcorenas_e 64
cnn hgnetv2_b1 64
cnn lcnet_035 64
cnn mobilenet_edgetpu_v2_l 64
cnn regnetz_d8 64
cnn repghostnet_130 64
cnn resnext50_32x4d 64
cnn sebotnet33ts_256 64
cnn starnet_s1 64
cnn tf_efficientnetv2_s 64
cnn tf_mixnet_l 64
vit cait_xxs24_384 64
vit coatnet_0_rw_224 64
vit iformer_m 64
vit levit_conv_192 64
vit levit_conv_256d 64
vit mobilevitv2_100 64
vit swiftformer_l1 64
vit swinv2_cr_tiny_384 64
vit vit_small_patch16_dinov3_qkvb 64
vit vit_small_patch16_rope_ape_224 64
"""
TORCHVISION = """
cnn squeezenet1_1 image 64
cnn shufflenet_v2_x0_5 image 64
cnn googlenet image 64
cnn alexnet image 64 dynamo
cnn mnasnet0_5 image 64 free
cnn mobilenet_v3_small image 64
vit maxvit_t image 64
vit swin_t image 64
vit swin_v2_t image 64
segmentation lraspp_mobilenet_v3_large image 64
segmentation deeplabv3_mobilenet_v3_large image 64
segmentation fcn_resnet50 image 64
video r3d_18 video 32
video r2plus1d_18 video 32
video mc3_18 video 32
video mvit_v1_b video 224
detection ssdlite320_mobilenet_v3_large heads 96
detection retinanet_resnet50_fpn heads 64
detection fcos_resnet50_fpn heads 64
detection ssdlite320_mobilenet_v3_large boxes 320
detection ssd300_vgg16 boxes 300
detection retinanet_resnet50_fpn boxes 128
detection fcos_resnet50_fpn boxes 128
detection fasterrcnn_mobilenet_v3_large_320_fpn boxes 128
detection maskrcnn_resnet50_fpn boxes 128
"""
TRANSFORMERS = """
language bert text
language bert text dynamo
language bert text free
language roberta text
language distilbert text
language albert text
language electra text
language mobilebert text
language squeezebert text
language mpnet text
language deberta-v2 text
language convbert text
language roformer text
language modernbert text
language fnet text dynamo
language funnel text
language xlnet text
language megatron-bert text
language esm text
language gpt2 text
language gpt2 text dynamo
language gpt_neo text
language gpt_neox text
language gptj text
language opt text
language bloom text
language falcon text
language codegen text
language llama text
language llama text dynamo
language mistral text
language qwen2 text
language qwen3 text
language gemma text
language gemma2 text
language gemma3_text text
language phi text
language phi3 text
language stablelm text
language olmo2 text
language granite text
language cohere text dynamo
language smollm3 text
language mamba text
language mamba2 text
language mamba2 text dynamo
language rwkv text
language recurrent_gemma text
language t5 seq2seq
language t5 seq2seq dynamo
language bart seq2seq
language pegasus seq2seq
language m2m_100 seq2seq
language marian seq2seq
language blenderbot-small seq2seq
language prophetnet seq2seq
language clip_text_model text
language siglip_text_model text
language gpt_oss text
language doge text
language mpt text
language longformer text
language xlstm text
language led seq2seq
language pegasus_x seq2seq
language longt5 seq2seq
vit beit pixels 64
vit deit pixels 64
vit dinov2 pixels 56
vit dinov3_vit pixels 64 dynamo
vit vit_mae pixels 64
vit vit_msn pixels 64
vit clip_vision_model pixels 64
vit siglip_vision_model pixels 64
vit swinv2 pixels 64
vit levit pixels 64
vit ijepa pixels 64
vit pvt pixels 64
vit groupvit_vision_model pixels 64
vit focalnet pixels 64
segmentation segformer pixels 64
segmentation segformer pixels 64 dynamo
segmentation dpt pixels 64
segmentation glpn pixels 64
segmentation depth_anything pixels 56
detection yolos pixels 64
detection detr pixels 64
detection conditional_detr pixels 64
detection table-transformer pixels 64
detection rt_detr pixels 64
restoration swin2sr pixels 32
restoration superpoint gray 64
restoration superpoint gray 64 dynamo
video videomae clip 32
video timesformer clip 32
video vivit clip 32
audio wav2vec2 wave
audio hubert wave
audio wavlm wave
audio unispeech wave
audio sew wave
audio data2vec-audio wave
audio whisper mel
audio audio-spectrogram-transformer patches
time patchtst series
time patchtst series dynamo
time patchtsmixer series
time patchtsmixer series dynamo
time timesfm history
language aria any
language bridgetower any
language chinese_clip any
segmentation clipseg any
language cosmos3_edge any
vit data2vec-vision any
language deberta any
language dots1 any
language gte any
vit hiera any
language imagegpt any
language inkling2_loop_text any dynamo
language llava_next_video any
language markuplm any
segmentation maskformer any
language mellum any
language mimo_v2_flash any
language minicpmv4_6 any dynamo
vit mlcd any
audio moss_transcribe_diarize_audio any
language mvp any
language nanochat any
language nomic_bert any
language olmo any
audio pocket_tts_audio_tokenizer_encoder any dynamo
cnn pp_ocrv5_mobile_rec any
vit tipsv2_vision_model any dynamo
language video_llava any
language voxtral any
audio voxtral_realtime_encoder any dynamo
"""
OWN = """
vit window_attention
vit dit_block
segmentation segformer_head
segmentation unet_groupnorm
detection ssd_heads
restoration fsrcnn
restoration nafnet
restoration swin2sr_block
restoration espcn
restoration edsr
restoration rcan
restoration dncnn
restoration srcnn
restoration esrgan
restoration siren
restoration carn
generative vae
generative dcgan
generative cyclegan
generative style_transfer
generative vq_codebook
generative autoencoder
generative pix2pix
language bert_like
language llama_block
language t5_block
language mamba_block
language text_cnn
language lstm_tagger
audio kws_lstm
audio gru_denoiser
audio conv_tasnet
audio conformer
audio ds_cnn
audio crnn
audio wavenet
audio tcn
audio kws_lstm dynamo
time lstm_forecaster
time gru_forecaster
time nbeats
time tsmixer
time informer_conv
time inception_time
time dlinear
tabular mlp free
tabular dueling_dqn
tabular resnet_tabular
tabular tab_transformer
tabular dqn_atari
tabular sac_actor
tabular autoint
recommendation dlrm free
recommendation deepfm
recommendation ncf
recommendation two_tower
recommendation sasrec
recommendation wide_deep
graph gat
graph gcn
graph graph_sage
graph mpnn
graph edge_gcn
graph edge_gcn_cora
graph edge_gine
graph edge_gat dynamo
graph point_pillars
segmentation segnet dynamo
graph point_net
video unet3d
video conv_lstm
graph pna_edges dynamo
graph schnet
graph diff_pool
graph point_net2
graph set_transformer
graph randla_net
audio ecapa_tdnn
audio bc_resnet
audio matchbox_net
audio e_branchformer
audio dprnn
audio crn_denoiser
tabular tabnet
tabular ft_transformer
tabular oblivious_trees
recommendation dcn_v2
"""
DIFFUSERS = """
diffusion UNet2DModel
diffusion UNet2DModel dynamo
diffusion UNet2DConditionModel
diffusion AutoencoderKL
diffusion VQModel
diffusion AutoencoderTiny
diffusion DiTTransformer2DModel
diffusion PixArtTransformer2DModel
diffusion SD3Transformer2DModel
diffusion UVit2DModel
"""

Arrays = dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True, slots=True)
class Row:
    """A network of the zoo.

    Attributes:
        library: that its code comes from.
        words: after family and name.
    """

    family: str
    library: str
    name: str
    words: tuple[str, ...]

    @property
    def key(self) -> str:
        """Unique."""
        marks = [word for word in self.words if word in ("boxes", "dynamo", "free")]
        return ".".join([self.library, self.name, *marks])

    @property
    def size(self) -> int:
        """Pixels of a side."""
        return next((int(word) for word in self.words if word.isdigit()), 64)

    def build(self) -> tuple[nn.Module, Inputs]:
        """The network, lively, ready to export; and what makes inputs of it."""
        torch.manual_seed(0)
        torch.set_num_threads(1)
        warnings.simplefilter("ignore")
        model, inputs = BUILDERS[self.library](self)
        enliven(model, inputs)
        return model.eval(), inputs


def rows() -> tuple[Row, ...]:
    """Every network."""
    tables = {
        "timm": TIMM,
        "torchvision": TORCHVISION,
        "transformers": TRANSFORMERS,
        "own": OWN,
        "diffusers": DIFFUSERS,
    }
    words = [(library, line.split()) for library, t in tables.items() for line in t.split("\n")]
    return tuple(Row(w[0], library, w[1], tuple(w[2:])) for library, w in words if w)


def enliven(model: nn.Module, inputs: Inputs) -> None:
    """Weights that do something: no gamma of zero, no layer scale of 1e-6, statistics from data."""
    embeddings = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    with torch.no_grad():
        for name, value in model.named_parameters():
            if not value.is_floating_point() or value.numel() == 0:
                continue
            spread, top = float(value.max() - value.min()), float(value.abs().max())
            fan = value[0].numel() if value.dim() > 1 else 1
            if id(value) in embeddings:
                value.normal_(0, 0.5)
            elif value.dim() > 1 and fan > 1 and spread and float(value.std()) < 0.5 / fan**0.5:
                value.mul_(fan**-0.5 / float(value.std()))
            elif spread == 0 and ("bias" in name or "beta" in name):
                value.normal_(0, 0.1)
            elif spread == 0 and value.dim() > 1 and top < 0.1 and fan > 1 and "gamma" not in name:
                value.normal_(0, fan**-0.5)
            elif spread == 0:
                value.uniform_(0.6, 1.4) if top > 0.5 or top == 0 else value.uniform_(0.2, 0.6)
        model.eval()
        norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None
            norm.train()
        generator = torch.Generator().manual_seed(1)
        for _ in range(4 if norms else 0):
            batches = [inputs(generator) for _ in range(4)]
            try:
                model(*(torch.cat([b[name] for b in batches]) for name in batches[0]))
            except (RuntimeError, ValueError, TypeError):
                model(*batches[0].values())
    model.eval()


class Only(nn.Module):
    """A module by positional arguments: its floating-point outputs, at most ``most`` of them."""

    def __init__(
        self, model: nn.Module, names: tuple[str, ...] = (), most: int = 1, **fixed: Any
    ) -> None:
        super().__init__()
        self.model, self.names, self.most, self.fixed = model, names, most, fixed

    def forward(self, *given: Tensor) -> tuple[Tensor, ...]:
        named = dict(zip(self.names, given))
        return tuple(flat(self.model(*given[len(named) :], **named, **self.fixed))[: self.most])


def flat(value: Any) -> list[Tensor]:
    """The tensors of floats in an output, in order."""
    if isinstance(value, Tensor):
        return [value] if value.is_floating_point() else []
    if isinstance(value, dict):
        value = list(value.values())
    return [x for part in value for x in flat(part)] if isinstance(value, list | tuple) else []


def from_timm(row: Row) -> tuple[nn.Module, Inputs]:
    import timm

    timm.layers.set_fused_attn(False)
    size = row.size
    try:
        model = timm.create_model(row.name, img_size=size, num_classes=100)
    except TypeError:
        model = timm.create_model(row.name, num_classes=100)
    return model, every(x=image(1, 3, size, size))


class Heads(nn.Module):
    """A detector of torchvision without the choice of boxes."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.backbone, self.head = model.backbone, model.head

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(flat(self.head(list(self.backbone(x).values()))))


class Boxes(nn.Module):
    """A detector of torchvision with its choice of boxes: those of the first image."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.model(list(x))[0].values())


def from_torchvision(row: Row) -> tuple[nn.Module, Inputs]:
    import torchvision

    kind, size = row.words[0], row.size
    named: dict[str, Any] = {"weights": None}
    if "backbone" in inspect.signature(torchvision.models.get_model_builder(row.name)).parameters:
        named["weights_backbone"] = None
    if "weights_backbone" not in named and row.family in ("detection", "segmentation"):
        named["weights_backbone"] = None
    if row.name == "googlenet":
        named |= {"init_weights": False, "aux_logits": False}
    if row.name == "maxvit_t":
        model = torchvision.models.MaxVit(
            (size, size), 32, 4, [32, 64], [1, 1], 16, 0.0, num_classes=100
        )
        return model, every(x=image(1, 3, size, size))
    if kind == "boxes":
        named |= {"num_classes": 6}
        if "ssd" not in row.name:  # SSDs have one size
            named |= {"min_size": size, "max_size": size}
    model = torchvision.models.get_model(row.name, **named)
    if kind == "boxes":
        return Boxes(model), every(x=image(1, 3, size, size))
    if kind == "heads":
        return Heads(model), every(x=image(1, 3, size, size))
    if kind == "video":
        frames = 16 if row.name.startswith("mvit") else 8
        return model, every(x=image(1, 3, frames, size, size))
    return Only(model), every(x=image(1, 3, size, size))


SMALL: Final = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "embed_dim", "dim", "hidden_dim"), 64),
    **dict.fromkeys(
        ("num_hidden_layers", "num_layers", "n_layer", "n_layers", "encoder_layers"), 2
    ),
    **dict.fromkeys(("decoder_layers", "num_decoder_layers", "num_encoder_layers"), 2),
    **dict.fromkeys(("encoder_num_hidden_layers", "decoder_num_hidden_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("encoder_num_attention_heads", "decoder_num_attention_heads"), 4),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "d_ff", "encoder_ffn_dim"), 128),
    **dict.fromkeys(("decoder_ffn_dim", "n_inner"), 128),
    "vocab_size": 1000,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "d_kv": 16,
    "d_head": 16,
    "embedding_size": 64,
    "max_position_embeddings": 128,
    "rotary_dim": 8,
    "d_inner": 128,
    "num_channels": 3,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "attention_hidden_size": 64,
    "state_size": 8,
    "expand": 2,
    "conv_kernel": 4,
    "decoder_start_token_id": 1,
    "forced_eos_token_id": None,
    "use_cache": False,
    "n_positions": 128,
    "attention_probs_dropout_prob": 0.0,
    "hidden_dropout_prob": 0.0,
}
"""Fields of a configuration, where it has them."""
FIELDS = """
albert embedding_size=32
mobilebert true_hidden_size=32 intra_bottleneck_size=32 num_feedforward_networks=2
gpt_neo attention_types=[[["global","local"],1]] window_size=16
funnel -num_hidden_layers block_sizes=[1,1] d_inner=128 num_decoder_layers=1 block_repeats=null
convbert head_ratio=2 conv_kernel_size=5
mamba2 num_heads=8 head_dim=16 n_groups=1 chunk_size=16
rwkv context_length=64
recurrent_gemma lru_width=64 num_hidden_layers=3 num_key_value_heads=1
phi3 rope_scaling=null
prophetnet -num_hidden_layers num_encoder_attention_heads=4 num_decoder_attention_heads=4
xlnet -max_position_embeddings
falcon -head_dim
cohere logit_scale=0.5
deberta-v2 relative_attention=true pos_att_type=["p2c","c2p"]
levit hidden_sizes=[32,64,96] num_attention_heads=[2,4,6] depths=[1,1,1] key_dim=[16,16,16]
swinv2 embed_dim=24 depths=[2,2] num_heads=[2,4] window_size=4 -num_attention_heads
swinv2 -num_hidden_layers -hidden_size
swin2sr embed_dim=24 depths=[2,2] num_heads=[2,2] window_size=8 -num_attention_heads
swin2sr -num_hidden_layers -hidden_size
focalnet embed_dim=24 depths=[1,1,2,1]
pvt hidden_sizes=[16,32,48,64] depths=[1,1,1,1] num_attention_heads=[1,2,3,4]
segformer hidden_sizes=[16,32,48,64] depths=[1,1,1,1] decoder_hidden_size=64
segformer num_attention_heads=[1,2,3,4]
glpn hidden_sizes=[16,32,48,64] depths=[1,1,1,1] decoder_hidden_size=32
glpn num_attention_heads=[1,2,3,4]
dpt neck_hidden_sizes=[16,32,48,64] fusion_hidden_size=32 is_hybrid=false
dpt backbone_out_indices=[0,1,2,3] num_hidden_layers=4
detr use_pretrained_backbone=false num_queries=16
table-transformer use_pretrained_backbone=false num_queries=16
conditional_detr use_pretrained_backbone=false num_queries=16
yolos image_size=[64,64] num_detection_tokens=10
rt_detr anchor_image_size=[64,64] num_queries=16
superpoint encoder_hidden_sizes=[16,16,32,32] decoder_hidden_size=32
videomae num_frames=4 image_size=32 patch_size=8 tubelet_size=2
timesformer num_frames=4 image_size=32 patch_size=8
vivit num_frames=4 image_size=32 tubelet_size=[2,8,8]
wav2vec2,hubert,wavlm,unispeech,data2vec-audio conv_dim=[32,32,32,32] conv_kernel=[10,3,3,2]
wav2vec2,hubert,wavlm,unispeech,data2vec-audio conv_stride=[5,2,2,2] num_feat_extract_layers=4
wav2vec2,hubert,wavlm,unispeech,data2vec-audio num_conv_pos_embeddings=16
wav2vec2,hubert,wavlm,unispeech,data2vec-audio num_conv_pos_embedding_groups=4 num_feat_extract=4
sew conv_dim=[32,32,32,32] conv_kernel=[10,3,3,2] conv_stride=[5,2,2,2] squeeze_factor=2
sew num_conv_pos_embeddings=16 num_conv_pos_embedding_groups=4
whisper max_source_positions=32 max_target_positions=32 num_mel_bins=40
audio-spectrogram-transformer max_length=64 num_mel_bins=32
patchtst context_length=64 prediction_length=16 num_input_channels=4 patch_length=8 patch_stride=8
patchtsmixer context_length=64 prediction_length=16 num_input_channels=4 patch_length=8
patchtsmixer patch_stride=8
gpt_oss num_local_experts=4 num_experts_per_tok=2 sliding_window=16 rope_parameters=null
gpt_oss layer_types=["sliding_attention","full_attention"]
mpt max_seq_len=64
longformer attention_window=8 max_position_embeddings=130
xlstm num_blocks=2 embedding_dim=64 chunk_size=16 return_last_states=false
led attention_window=8 max_encoder_position_embeddings=64 max_decoder_position_embeddings=64
pegasus_x block_size=8 num_global_tokens=4
longt5 local_radius=7
groupvit_vision_model depths=[1,1,1] num_group_tokens=[8,4,0] num_output_groups=[8,4,4]
groupvit_vision_model num_hidden_layers=3
timesfm context_length=64 patch_length=16 horizon_length=16
"""
"""Other fields of a configuration, values as JSON; ``-field`` leaves one as it is."""
HEADS: Final = {
    "language": "AutoModel",
    "segformer": "AutoModelForSemanticSegmentation",
    "dpt": "AutoModelForDepthEstimation",
    "glpn": "AutoModelForDepthEstimation",
    "depth_anything": "AutoModelForDepthEstimation",
    "siglip_text_model": "SiglipTextModel",
    "groupvit_vision_model": "GroupViTVisionModel",
    "timesfm": "TimesFmModel",
    "patchtst": "PatchTSTForPrediction",
    "patchtsmixer": "PatchTSMixerForPrediction",
    "swin2sr": "Swin2SRForImageSuperResolution",
    "superpoint": "AutoModelForKeypointDetection",
    **dict.fromkeys(
        ("detr", "yolos", "conditional_detr", "table-transformer", "rt_detr"),
        "AutoModelForObjectDetection",
    ),
}
"""Class by model, where it is not AutoModel."""


def from_transformers(row: Row) -> tuple[nn.Module, Inputs]:
    import transformers

    kind, size, name = row.words[0], row.size, row.name
    transformers.logging.set_verbosity_error()
    if kind == "any":
        model, arguments, inputs, fixed = unlisted.built(name, SMALL)
        return Only(model, arguments, **fixed), inputs
    kind_of = transformers.AutoConfig.for_model(name).__class__
    known = inspect.signature(kind_of.__init__).parameters
    fresh = kind_of()
    wanted = {**SMALL, "image_size": size}
    for line in filter(None, FIELDS.split("\n")):
        names, *words = line.split()
        for word in words if name in names.split(",") else ():
            field, _, value = word.partition("=")
            if value:
                wanted[field] = json.loads(value)
            else:
                wanted.pop(field.removeprefix("-"), None)
    given = {k: v for k, v in wanted.items() if k in known or hasattr(fresh, k)}
    config = kind_of(**(given if name != "depth_anything" else {}))
    config._attn_implementation, config.architectures = "eager", []
    config._experts_implementation = "batched_mm"
    config.return_dict = True
    maker = getattr(transformers, HEADS.get(name, "AutoModel"))
    make = getattr(maker, "from_config", None) or maker
    model = make(config).float()
    extra: dict[str, Any] = {"use_cache": False} if row.family == "language" else {}
    wave = tone(1, 2000)
    made: dict[str, dict[str, Callable[[torch.Generator], Tensor]]] = {
        "text": {"input_ids": tokens(32, 900)},
        "seq2seq": {"input_ids": tokens(32, 900), "decoder_input_ids": tokens(16, 900)},
        "pixels": {"pixel_values": image(1, 3, size, size)},
        "gray": {"pixel_values": image(1, 3, size, size)},
        "clip": {"pixel_values": image(1, 4, 3, size, size)},
        "wave": {"input_values": wave},
        "mel": {"input_features": noise(1, 40, 64), "decoder_input_ids": tokens(16, 900)},
        "patches": {"input_values": noise(1, 64, 32)},
        "series": {"past_values": noise(1, 64, 4)},
        "history": {
            "past_values": tone(1, 64),
            "past_values_padding": lambda g: (
                torch.arange(64) < 16 * torch.randint(0, 3, (1, 1), generator=g)
            ).long(),
        },
    }
    # Given a mask, a decoder does not look for sequences that are packed into one.
    taken = inspect.signature(model.forward).parameters
    masks = (
        ("input_ids", "attention_mask", 32),
        ("decoder_input_ids", "decoder_attention_mask", 16),
    )
    for argument, mask, length in masks:
        if argument in made[kind] and mask in taken:
            extra[mask] = torch.ones(1, length, dtype=torch.long)
    if kind == "history":
        extra["freq"] = torch.zeros(1, 1, dtype=torch.long)
    names = tuple(made[kind])
    return Only(model, names, 2 if row.family == "detection" else 1, **extra), every(**made[kind])


def from_diffusers(row: Row) -> tuple[nn.Module, Inputs]:
    import diffusers

    time = {"timestep": lambda g: torch.randint(0, 1000, (1,), generator=g)}
    latent = {"sample": image(1, 4, 16, 16)}
    down, up = "DownBlock2D", "UpBlock2D"
    table: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "UNet2DModel": (
            {
                "sample_size": 16,
                "in_channels": 4,
                "out_channels": 4,
                "norm_num_groups": 8,
                "block_out_channels": (32, 64),
                "layers_per_block": 1,
                "down_block_types": (down, "AttnDownBlock2D"),
                "up_block_types": ("AttnUpBlock2D", up),
            },
            {**latent, **time},
        ),
        "UNet2DConditionModel": (
            {
                "sample_size": 16,
                "block_out_channels": (32, 64),
                "layers_per_block": 1,
                "norm_num_groups": 8,
                "cross_attention_dim": 32,
                "attention_head_dim": 8,
                "down_block_types": ("CrossAttnDownBlock2D", down),
                "up_block_types": (up, "CrossAttnUpBlock2D"),
            },
            {**latent, **time, "encoder_hidden_states": noise(1, 8, 32)},
        ),
        "AutoencoderKL": (
            {
                "block_out_channels": (16, 32),
                "norm_num_groups": 8,
                "sample_size": 32,
                "down_block_types": ("DownEncoderBlock2D",) * 2,
                "up_block_types": ("UpDecoderBlock2D",) * 2,
            },
            {"sample": image(1, 3, 32, 32)},
        ),
        "VQModel": (
            {
                "block_out_channels": (16, 32),
                "norm_num_groups": 8,
                "num_vq_embeddings": 64,
                "down_block_types": ("DownEncoderBlock2D",) * 2,
                "up_block_types": ("UpDecoderBlock2D",) * 2,
            },
            {"sample": image(1, 3, 32, 32)},
        ),
        "AutoencoderTiny": (
            {"encoder_block_out_channels": (16,) * 4, "decoder_block_out_channels": (16,) * 4},
            {"sample": image(1, 3, 32, 32)},
        ),
        "DiTTransformer2DModel": (
            {
                "num_attention_heads": 4,
                "attention_head_dim": 16,
                "in_channels": 4,
                "num_layers": 2,
                "sample_size": 16,
                "num_embeds_ada_norm": 10,
                "out_channels": 4,
            },
            {
                "hidden_states": image(1, 4, 16, 16),
                **time,
                "class_labels": lambda g: torch.randint(0, 10, (1,), generator=g),
            },
        ),
        "PixArtTransformer2DModel": (
            {
                "num_attention_heads": 4,
                "attention_head_dim": 16,
                "num_layers": 2,
                "sample_size": 16,
                "caption_channels": 32,
                "cross_attention_dim": 64,
                "use_additional_conditions": False,
            },
            {
                "hidden_states": image(1, 4, 16, 16),
                "encoder_hidden_states": noise(1, 8, 32),
                **time,
            },
        ),
        "SD3Transformer2DModel": (
            {
                "sample_size": 16,
                "num_layers": 2,
                "attention_head_dim": 16,
                "num_attention_heads": 4,
                "joint_attention_dim": 32,
                "caption_projection_dim": 64,
                "pooled_projection_dim": 32,
                "in_channels": 4,
                "out_channels": 4,
                "pos_embed_max_size": 16,
            },
            {
                "hidden_states": image(1, 4, 16, 16),
                "encoder_hidden_states": noise(1, 8, 32),
                "pooled_projections": noise(1, 32),
                **time,
            },
        ),
        "UVit2DModel": (
            {
                "hidden_size": 64,
                "cond_embed_dim": 32,
                "encoder_hidden_size": 32,
                "vocab_size": 64,
                "codebook_size": 63,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "intermediate_size": 128,
                "block_out_channels": 32,
                "micro_cond_encode_dim": 8,
                "micro_cond_embed_dim": 40,
                "in_channels": 32,
                "sample_size": 8,
                "block_num_heads": 4,
            },
            {
                "input_ids": lambda g: torch.randint(0, 60, (1, 8, 8), generator=g),
                "encoder_hidden_states": noise(1, 8, 32),
                "pooled_text_emb": noise(1, 32),
                "micro_conds": noise(1, 5),
            },
        ),
    }
    config, made = table[row.name]
    model = getattr(diffusers, row.name)(**config)
    if hasattr(model, "set_attn_processor") and not row.name.startswith("SD3"):
        model.set_attn_processor(diffusers.models.attention_processor.AttnProcessor())
    return Only(model, tuple(made)), every(**made)


def from_own(row: Row) -> tuple[nn.Module, Inputs]:
    return {**own.NETWORKS, **domains.NETWORKS}[row.name]()


BUILDERS: Final[dict[str, Callable[[Row], tuple[nn.Module, Inputs]]]] = {
    "timm": from_timm,
    "torchvision": from_torchvision,
    "transformers": from_transformers,
    "diffusers": from_diffusers,
    "own": from_own,
}


def written(row: Row, folder: Path) -> Path:
    """Export a network; its folder holds model.onnx, calib.npz and fresh.npz."""
    place = folder / row.key
    if (place / "fresh.npz").exists():
        return place
    place.mkdir(parents=True, exist_ok=True)
    model, inputs = row.build()
    example = inputs(torch.Generator().manual_seed(2))
    dynamo, free = "dynamo" in row.words, "free" in row.words
    named: dict[str, Any] = {"input_names": list(example)}
    if free:
        named["dynamic_axes"] = {name: {0: "batch"} for name in example}
    if dynamo:
        named |= {"external_data": False, "verbose": False}
    with torch.no_grad():
        wanted = flat(model(*example.values()))
        torch.onnx.export(
            model,
            tuple(example.values()),
            str(place / "model.onnx"),
            dynamo=dynamo,
            opset_version=OPSETS[dynamo],
            **named,
        )
    assert all(bool(torch.isfinite(x).all()) for x in wanted), "not finite"
    generator = torch.Generator().manual_seed(3)
    for part, count in (("calib", CALIBRATION), ("fresh", FRESH)):
        drawn = [inputs(generator) for _ in range(count)]
        arrays: Arrays = {n: torch.cat([d[n] for d in drawn]).numpy() for n in example}
        np.savez(place / f"{part}.npz", **arrays)
    return place
