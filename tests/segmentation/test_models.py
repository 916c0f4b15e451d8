"""The models: shapes, strides, gradients, the rectification module and where weights come from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.error import URLError

import pytest
import torch
import torchvision
from torch import Tensor, nn

from segmentation.losses import IGNORE_INDEX, cross_entropy_sum
from segmentation.models import LAYERS, MODEL_TYPES, build_model
from segmentation.models.backbone import ResNetBackbone
from segmentation.models.deeplab import DeepLab, DeepLabV3PlusHead
from segmentation.models.lorm import LocalizationRectification, foreground_attention, foreground_mask
from segmentation.models.pretrained import load_backbone_weights
from segmentation.models.swin import SwinSegmenter

LORM_TYPES = tuple(name for name in MODEL_TYPES if name.endswith("_lorm"))
CHANNELS = 16


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def make_label(num_images: int, height: int, width: int) -> Tensor:
    """Return a label whose left half is background and whose right half is class 1, with an ignored row."""
    label = torch.zeros(num_images, height, width, dtype=torch.int64)
    label[:, :, width // 2 :] = 1
    label[:, 0] = IGNORE_INDEX
    return label


def build(model_type: str, layers: int = 18, num_classes: int = 3, model_path: str = "none") -> Any:
    model = build_model(model_type, layers, num_classes, model_path)
    assert isinstance(model, SwinSegmenter if model_type == "swin_mlp" else DeepLab)
    return model


@pytest.mark.parametrize("size", [(33, 33), (65, 47), (64, 64)])
@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_output_has_the_size_of_the_input(model_type: str, size: tuple[int, int]) -> None:
    model = build(model_type, num_classes=4).eval()
    image, pseudo = torch.randn(2, 3, *size), make_label(2, *size)
    with torch.no_grad():
        logits, with_pseudo = model(image), model(image, pseudo)
    assert logits.shape == (2, 4, *size) and logits.dtype == torch.float32
    if model.has_lorm:
        assert torch.equal(with_pseudo[0], logits)
        assert with_pseudo[1].shape == (2,) and (with_pseudo[1] > 0).all()
    else:
        assert torch.equal(with_pseudo, logits)


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_attributes(model_type: str) -> None:
    model = build(model_type, num_classes=7)
    assert model.num_classes == 7 and model.has_lorm == (model_type in LORM_TYPES)
    assert model.training and {p.device.type for p in model.parameters()} == {"cpu"}
    assert any(name.startswith("lorm.") for name in model.state_dict()) == model.has_lorm


@pytest.mark.parametrize("layers", [18, 50])
@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_every_parameter_receives_a_gradient(model_type: str, layers: int) -> None:
    model = build(model_type, layers)
    image, label = torch.randn(2, 3, 33, 33), make_label(2, 33, 33)
    output = model(image, label)
    if model.has_lorm:
        loss = cross_entropy_sum(output[0], label) + 0 * output[1].sum()
    else:
        loss = cross_entropy_sum(output, label)
    loss.backward()
    assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()] == []


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_a_batch_of_one_trains(model_type: str) -> None:
    """Four steps on one image lower its loss: nothing is cut off from the optimizer."""
    model = build(model_type)
    image, label = torch.randn(1, 3, 33, 33), make_label(1, 33, 33)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.005)
    losses = []
    for _ in range(5):
        output = model(image, label)
        logits, lorm = output if model.has_lorm else (output, torch.zeros(1))
        loss = cross_entropy_sum(logits, label) / label.numel() + 0.1 * lorm.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]


@pytest.mark.parametrize(("output_stride", "rates"), [(16, [6, 12, 18]), (8, [12, 24, 36])])
def test_aspp_rates_scale_with_the_output_stride(output_stride: int, rates: list[int]) -> None:
    head = DeepLabV3PlusHead(ResNetBackbone(18, output_stride), num_classes=2)
    convolutions = [module for module in head.aspp.branches.modules() if isinstance(module, nn.Conv2d)]
    assert [conv.dilation[0] for conv in convolutions] == [1, *rates]


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_two_evaluations_are_bit_equal(model_type: str) -> None:
    """Training mode too: without dropout a forward pass uses no random numbers."""
    model = build(model_type)
    image = torch.randn(2, 3, 33, 33)
    state = torch.get_rng_state()
    first, second = model(image), model(image)
    assert torch.equal(first, second) and torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_bf16_autocast_is_finite(model_type: str) -> None:
    model = build(model_type)
    image, label = torch.randn(2, 3, 33, 33), make_label(2, 33, 33)
    label[1] = 0  # an image without foreground
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = model(image, label)
        logits, lorm = output if model.has_lorm else (output, torch.zeros(2))
        loss = cross_entropy_sum(logits, label) + lorm.sum()
    assert logits.dtype == lorm.dtype == loss.dtype == torch.float32
    loss.backward()
    assert loss.isfinite() and lorm[1].item() == 0.0
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("layers", LAYERS)
@pytest.mark.parametrize("output_stride", [8, 16])
def test_all_depths_have_the_output_stride(layers: int, output_stride: int) -> None:
    with torch.device("meta"):  # shapes only: no weights, no arithmetic
        backbone = ResNetBackbone(layers, output_stride)
        low, high = backbone(torch.empty(2, 3, 65, 47))
    assert low.shape == (2, backbone.low_channels, 17, 12)
    expected = (9, 6) if output_stride == 8 else (5, 3)
    assert high.shape == (2, backbone.high_channels, *expected)


@pytest.mark.parametrize("model_type", MODEL_TYPES)
@pytest.mark.parametrize("layers", [34, 101, 152])  # 18 and 50 run for real elsewhere
def test_every_model_type_has_every_depth(model_type: str, layers: int) -> None:
    with torch.device("meta"):
        model = build(model_type, layers, num_classes=5)
        assert model(torch.empty(2, 3, 33, 33)).shape == (2, 5, 33, 33)
    if model_type != "swin_mlp":
        assert model.backbone.output_stride == (16 if model_type.startswith("deeplabv3p") else 8)


@pytest.mark.parametrize("layers", [18, 50])
@pytest.mark.parametrize("output_stride", [8, 16])
def test_dilation_keeps_what_the_strided_resnet_computes(layers: int, output_stride: int) -> None:
    """Every 2nd or 4th position of the dilated features is the original network's, borders included."""
    resnet = torchvision.models.get_model(f"resnet{layers}", weights=None).eval()
    backbone = ResNetBackbone(layers, output_stride).eval()
    missing, unexpected = backbone.load_state_dict(resnet.state_dict(), strict=False)
    assert not missing and unexpected == ["fc.weight", "fc.bias"]
    image = torch.randn(1, 3, 65, 47)
    with torch.no_grad():
        strided = nn.Sequential(*list(resnet.children())[:-2])(image)
        _, dilated = backbone(image)
    step = 32 // output_stride
    assert dilated.shape[2] > strided.shape[2]
    torch.testing.assert_close(dilated[:, :, ::step, ::step], strided, rtol=1e-4, atol=1e-4)


def make_lorm() -> tuple[LocalizationRectification, Tensor, Tensor]:
    """Return the module, features (2, CHANNELS, 5, 6) and a pseudo-label: foreground is columns 3 to 5."""
    pseudo = torch.zeros(2, 5, 6, dtype=torch.int64)
    pseudo[:, :, 3:] = 2
    return LocalizationRectification(CHANNELS), torch.randn(2, CHANNELS, 5, 6), pseudo


def test_lorm_is_the_formula_position_by_position() -> None:
    """Against a loop over positions, written from the description."""
    lorm, features, pseudo = make_lorm()
    pseudo[0, 0, 4] = IGNORE_INDEX
    for i in range(2):
        places = [(y, x) for y in range(5) for x in range(6) if pseudo[i, y, x] not in (0, IGNORE_INDEX)]
        vectors = [features[i, :, y, x] for y, x in places]
        queries = [lorm.query.weight[:, :, 0, 0] @ vector for vector in vectors]
        keys = [lorm.key.weight[:, :, 0, 0] @ vector for vector in vectors]
        errors = []
        for query, vector in zip(queries, vectors):
            weights = [torch.exp(query @ key / (query.norm() * key.norm())) for key in keys]
            rebuilt = sum(w * v for w, v in zip(weights, vectors)) / sum(weights)
            errors.append(((rebuilt - vector) ** 2).mean())
        torch.testing.assert_close(lorm(features, pseudo)[i], sum(errors) / len(errors))


def test_background_features_have_no_influence() -> None:
    lorm, features, pseudo = make_lorm()
    pseudo[:, 0, 5] = IGNORE_INDEX
    background = (pseudo == 0) | (pseudo == IGNORE_INDEX)
    changed = torch.where(background.unsqueeze(1), 100 * torch.randn_like(features), features)
    torch.testing.assert_close(lorm(changed, pseudo), lorm(features, pseudo))
    moved = features.clone()
    moved[:, :, 2, 4] += 1  # a foreground position
    assert not torch.isclose(lorm(moved, pseudo), lorm(features, pseudo)).any()


def test_attention_is_a_distribution_over_the_foreground() -> None:
    query, key = torch.randn(2, 4, 10), torch.randn(2, 4, 10)
    foreground = torch.zeros(2, 10, dtype=torch.bool)
    foreground[0, 6:] = True
    attention = foreground_attention(query, key, foreground)
    torch.testing.assert_close(attention.sum(dim=2), torch.ones(2, 10))
    assert (attention[0, :, :6] == 0).all() and (attention[0, :, 6:] > 0).all()
    assert attention.isfinite().all()  # image 1 has no foreground
    # Cosine similarity: the length of a query does not matter.
    torch.testing.assert_close(foreground_attention(5 * query, key, foreground), attention)


def test_equal_foreground_features_need_no_rectification() -> None:
    lorm, features, pseudo = make_lorm()
    features[:, :, :, 3:] = torch.randn(2, CHANNELS, 1, 1)
    torch.testing.assert_close(lorm(features, pseudo), torch.zeros(2))


@pytest.mark.parametrize("fill", [0, IGNORE_INDEX])
def test_no_foreground_is_exactly_zero_and_connected(fill: int) -> None:
    lorm, features, pseudo = make_lorm()
    features.requires_grad_()
    pseudo[1] = fill
    loss = lorm(features, pseudo)
    assert loss[0] > 0 and loss[1].item() == 0.0
    loss[1].backward()
    for tensor in (features, lorm.query.weight, lorm.key.weight):
        assert tensor.grad is not None and torch.equal(tensor.grad, torch.zeros_like(tensor))


def test_gradient_reaches_query_key_and_features() -> None:
    lorm, features, pseudo = make_lorm()
    features.requires_grad_()
    lorm(features, pseudo).sum().backward()
    for tensor in (features, lorm.query.weight, lorm.key.weight):
        assert tensor.grad is not None and tensor.grad.abs().max() > 0
    assert features.grad is not None
    assert (features.grad[:, :, :, :3] == 0).all()  # background


def test_images_of_a_batch_are_independent() -> None:
    lorm, features, pseudo = make_lorm()
    pseudo[1, :, 4:] = 0
    alone = torch.cat([lorm(features[i : i + 1], pseudo[i : i + 1]) for i in range(2)])
    torch.testing.assert_close(lorm(features, pseudo), alone)


def test_foreground_mask_takes_the_nearest_pixel() -> None:
    pseudo = torch.zeros(1, 6, 6, dtype=torch.int64)
    pseudo[0, 1, 4] = 254  # the centre of the upper right 3x3 block
    pseudo[0, 4, 1] = IGNORE_INDEX
    pseudo[0, 0, 0] = 3  # a corner: nobody's nearest
    assert foreground_mask(pseudo, (2, 2)).tolist() == [[[False, True], [False, False]]]


def test_pseudo_label_of_another_size() -> None:
    model = build("deeplabv3p_lorm").eval()
    with pytest.raises(ValueError, match=r"pseudo-label of shape \(1, 32, 33\) does not belong to images"):
        model(torch.randn(1, 3, 33, 33), torch.zeros(1, 32, 33, dtype=torch.int64))


@pytest.fixture(scope="module")
def resnet_state() -> dict[str, Tensor]:
    torch.manual_seed(1)
    return torchvision.models.resnet18(weights=None).state_dict()


WRAPPERS: dict[str, Callable[[dict[str, Tensor]], object]] = {
    "state_dict": lambda state: state,
    "under model": lambda state: {"model": state, "epoch": 3},
    "under state_dict": lambda state: {"state_dict": state},
    "with module.": lambda state: {"model": {f"module.{key}": value for key, value in state.items()}},
    "without counters": lambda state: {k: v for k, v in state.items() if "num_batches" not in k},
    "without fc": lambda state: {key: value for key, value in state.items() if not key.startswith("fc.")},
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_weights_of_a_file_are_used(wrapper: str, tmp_path: Path, resnet_state: dict[str, Tensor]) -> None:
    path = tmp_path / "resnet18.pth"
    torch.save(WRAPPERS[wrapper](resnet_state), path)
    model = build("deeplabv3p", model_path=str(path))
    loaded = model.backbone.state_dict()
    differing = [key for key in loaded if not torch.equal(loaded[key], resnet_state[key])]
    assert differing == [] and len(loaded) == len(resnet_state) - 2


@pytest.mark.parametrize("name", ["none", "None"])
def test_without_pretrained_weights_the_initialisation_is_random(name: str) -> None:
    backbone = ResNetBackbone(18, 16)
    before = {key: value.clone() for key, value in backbone.state_dict().items()}
    load_backbone_weights(backbone, 18, name)
    assert all(torch.equal(before[key], value) for key, value in backbone.state_dict().items())


def test_imagenet_asks_torchvision(monkeypatch: pytest.MonkeyPatch, resnet_state: dict[str, Tensor]) -> None:
    asked = []

    def get_state_dict(self: object, *args: object, **kwargs: object) -> dict[str, Tensor]:
        asked.append(str(self))
        return resnet_state

    monkeypatch.setattr(torchvision.models.WeightsEnum, "get_state_dict", get_state_dict)
    model = build("deeplabv2", model_path="imagenet")
    assert asked == ["ResNet18_Weights.IMAGENET1K_V1"]
    assert torch.equal(model.backbone.conv1.weight, resnet_state["conv1.weight"])


@pytest.mark.parametrize("error", [URLError("no route to host"), RuntimeError("invalid hash value")])
def test_failed_download_says_what_to_do(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def get_state_dict(self: object, *args: object, **kwargs: object) -> dict[str, Tensor]:
        raise error

    monkeypatch.setattr(torchvision.models.WeightsEnum, "get_state_dict", get_state_dict)
    with pytest.raises(RuntimeError, match=r"resnet50-.*\.pth could not be downloaded .* pass the path"):
        build_model("deeplabv3p", 50, 3, model_path="imagenet")


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"absent\.pth is not a file; pass the path of a ResNet"):
        build("deeplabv3p", model_path=str(tmp_path / "absent.pth"))
    with pytest.raises(FileNotFoundError, match="is not a file"):
        build("deeplabv3p", model_path=str(tmp_path))


class Opaque:
    """Something that weights_only=True must not construct."""


def test_refused_pickle(tmp_path: Path) -> None:
    torch.save({"model": Opaque()}, tmp_path / "object.pth")
    with pytest.raises(RuntimeError, match=r"object\.pth was refused by torch\.load\(weights_only=True\) \(Unp"):
        build("deeplabv3p", model_path=str(tmp_path / "object.pth"))


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", b"PK\x03\x04 a damaged archive", b"\x80\x02"])
def test_damaged_file(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "damaged.pth").write_bytes(content)
    with pytest.raises(RuntimeError, match=r"damaged\.pth was refused by torch\.load.*; save the weights alone"):
        build("deeplabv3p", model_path=str(tmp_path / "damaged.pth"))


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ([torch.zeros(1)], "a list"),
        ({}, "a dict with the keys none"),
        ({"epoch": 1, "lr": 0.1, "seed": 0, "note": "x"}, "a dict with the keys epoch, lr, seed, ..."),
    ],
)
def test_file_without_a_state_dict(content: object, found: str, tmp_path: Path) -> None:
    path = tmp_path / "other.pth"
    torch.save(content, path)
    with pytest.raises(ValueError, match=rf"other\.pth holds {found}, not a state_dict"):
        build("deeplabv3p", model_path=str(path))


def test_weights_of_another_depth_or_model(tmp_path: Path, resnet_state: dict[str, Tensor]) -> None:
    path = tmp_path / "weights.pth"
    torch.save(resnet_state, path)
    with pytest.raises(
        ValueError,
        match=r"weights\.pth does not fit ResNet-50: \d+ missing: .*another shape: layer1\.0\.conv1\.weight "
        r"\(64, 64, 3, 3\) instead of \(64, 64, 1, 1\).* first keys: conv1\.weight, ",
    ):
        build_model("deeplabv3p", 50, 3, model_path=str(path))
    torch.save({"model": build("deeplabv3p").state_dict()}, path)
    with pytest.raises(ValueError, match=r"unexpected: backbone\.conv1\.weight.*first keys: backbone\.conv1"):
        build("deeplabv3p", model_path=str(path))


@pytest.mark.parametrize(
    ("model_type", "layers", "num_classes", "message"),
    [
        ("deeplabv3", 18, 3, "there is no model_type 'deeplabv3'; use one of deeplabv3p, deeplabv2"),
        ("deeplabv3p", 20, 3, r"there is no ResNet with 20 layers; use one of \(18, 34, 50, 101, 152\)"),
        ("deeplabv3p", 18, 0, "num_classes is 0; a model needs at least 1"),
    ],
)
def test_unknown_names(model_type: str, layers: int, num_classes: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_model(model_type, layers, num_classes)


def test_a_swin_transformer_has_no_pretrained_weights(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="swin_mlp has no pretrained backbone, got model_path 'imagenet'; use none"):
        build_model("swin_mlp", 18, 3, model_path="imagenet")


def test_unsupported_output_stride() -> None:
    with pytest.raises(ValueError, match="output_stride 4 is not supported; use 8, 16 or 32"):
        ResNetBackbone(18, output_stride=4)
