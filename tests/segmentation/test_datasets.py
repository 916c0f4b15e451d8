from __future__ import annotations

import hashlib
import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

from segmentation.datasets import (
    CLASS_NAMES,
    DATASETS,
    ImagesToPredict,
    SegmentationDataset,
    build_dataset,
    default_num_classes,
)
from segmentation.datasets.files import read_image, read_mask
from segmentation.losses import IGNORE_INDEX

SIZE = (40, 30)  # width, height


def photo(seed: int, size: tuple[int, int] = SIZE) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8))


def index_mask(seed: int, size: tuple[int, int] = SIZE, classes: int = 3) -> np.ndarray:
    mask = np.random.default_rng(seed).integers(0, classes, (size[1], size[0]), dtype=np.uint8)
    mask[0, 0] = IGNORE_INDEX
    return mask


def write(path: Path, image: Image.Image | np.ndarray, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(path, **options)
    return path


def make_folder(root: Path, count: int = 10, suffix: str = "jpg") -> Path:
    for i in range(count):
        write(root / "images" / f"im{i:02d}.{suffix}", photo(i))
        write(root / "masks" / f"im{i:02d}.png", index_mask(i))
    return root


def make_camvid(root: Path, splits: tuple[str, ...] = ("train", "val")) -> Path:
    for split in splits:
        for i in range(3):
            write(root / split / f"{i}.png", photo(i))
            write(
                root / f"{split}annot" / f"{i}.png",
                np.full((SIZE[1], SIZE[0]), 11 if i == 0 else i, dtype=np.uint8),
            )
    return root


def make_voc(root: Path, scribble: bool = False) -> Path:
    lists = {"train": ["a", "b"], "val": ["c", "d"]}
    for split, names in lists.items():
        path = root / "ImageSets" / "Segmentation" / f"{split}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(names) + "\n", encoding="utf-8")
    for i, name in enumerate("abcd"):
        size = SIZE if name != "d" else (24, 36)
        write(root / "JPEGImages" / f"{name}.jpg", photo(i, size))
        mask = Image.fromarray(index_mask(i, size, classes=21))
        mask.putpalette(bytes(range(256)) * 3)
        write(root / "SegmentationClass" / f"{name}.png", mask)
        if scribble and name in "ab":
            strokes = np.full((SIZE[1], SIZE[0]), IGNORE_INDEX, dtype=np.uint8)
            strokes[5, :20] = 20
            write(root / "pascal_2012_scribble" / f"{name}.png", strokes)
    return root


def check_sample(dataset: SegmentationDataset, index: int) -> dict[str, Any]:
    sample = dataset[index]
    assert sorted(sample) == ["image", "label", "name", "pseudo"]
    assert type(sample["image"]) is torch.Tensor
    assert sample["image"].dtype == torch.float32
    assert sample["image"].shape == (3, *sample["label"].shape)
    for key in ("label", "pseudo"):
        mask = sample[key]
        assert mask.dtype == torch.int64
        assert mask.shape == sample["label"].shape
        assert ((mask == IGNORE_INDEX) | ((mask >= 0) & (mask < dataset.num_classes))).all()
    if dataset.split == "train":
        assert sample["label"].shape == (dataset.crop_size, dataset.crop_size)
    elif dataset.image_size is not None:
        assert sample["label"].shape == dataset.image_size
    return sample


# --- every dataset --------------------------------------------------------------------------------


@pytest.fixture
def roots(tmp_path: Path) -> dict[str, Path | None]:
    voc = make_voc(tmp_path / "voc", scribble=True)
    return {
        "synthetic": None,
        "synthetic_scribble": None,
        "folder": make_folder(tmp_path / "folder"),
        "voc": voc,
        "voc_scribble": voc,
        "camvid": make_camvid(tmp_path / "camvid"),
    }


@pytest.mark.parametrize("name", DATASETS)
@pytest.mark.parametrize("split", ["train", "val"])
def test_samples_keep_the_contract(name: str, split: str, roots: dict[str, Path | None]) -> None:
    num_classes = 3 if name == "folder" else default_num_classes(name)
    dataset = build_dataset(name, roots[name], split, num_classes)
    assert len(dataset.class_names) == dataset.num_classes == num_classes
    names = [check_sample(dataset, i)["name"] for i in range(min(4, len(dataset)))]
    assert len(set(names)) == len(names)
    torch.manual_seed(5)
    first = dataset[1]
    torch.manual_seed(5)
    again = dataset[1]
    assert all(torch.equal(first[key], again[key]) for key in ("image", "label", "pseudo"))
    if split == "val":
        assert torch.equal(dataset[1]["image"], first["image"])  # nothing random, whatever the seed
    for key in ("image", "label", "pseudo"):
        first[key].zero_()  # a caller's in-place edit reaches neither the dataset nor the other entries
    torch.manual_seed(5)
    third = dataset[1]
    assert all(torch.equal(third[key], again[key]) for key in ("image", "label", "pseudo"))
    with pytest.raises(IndexError, match=f"the {split} split has {len(dataset)} samples"):
        dataset[len(dataset)]
    pickle.loads(pickle.dumps(dataset))  # loader processes may be spawned


def test_loader_processes_give_the_same_validation_samples() -> None:
    dataset = build_dataset("synthetic", None, "val", 5, length=8)
    plain, workers = (list(DataLoader(dataset, batch_size=4, num_workers=n)) for n in (0, 2))
    for a, b in zip(plain, workers):
        assert torch.equal(a["image"], b["image"])
        assert torch.equal(a["label"], b["label"])
        assert a["name"] == b["name"]


def test_class_names_and_counts() -> None:
    assert set(CLASS_NAMES) == set(DATASETS)
    counts = {name: default_num_classes(name) for name in DATASETS if name != "folder"}
    assert counts == {"synthetic": 5, "synthetic_scribble": 5, "voc": 21, "voc_scribble": 21, "camvid": 11}
    with pytest.raises(ValueError, match="'folder' has no fixed number of classes; pass --numclasses"):
        default_num_classes("folder")
    more = build_dataset("synthetic", None, "val", 7)
    assert more.class_names[4:] == ["ring", "class 5", "class 6"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "cityscapes"}, "unknown dataset 'cityscapes'; use one of synthetic, "),
        ({"split": "dev"}, "unknown split 'dev'; use one of train, val"),
        ({"num_classes": 3}, "have 5 classes, but num_classes is 3; pass --numclasses 5"),
        ({"num_classes": 256}, "num_classes must be between 2 and 255, got 256"),
        ({"crop_size": -1}, "crop_size must be a number of pixels, got -1"),
        ({"crop_size": 8}, "crop_size is 8 pixels, too small .* use 32 or more"),
        ({"length": 0}, "length is 0; a dataset needs at least 1 image"),
        ({"name": "voc"}, "'voc' is read from files, but its folder is None; pass --dataset_path"),
        ({"name": "voc", "root": " "}, "its folder is ' '; pass --dataset_path"),
        (
            {"name": "camvid", "root": "x", "length": 3},
            "length is 3, but dataset 'camvid' is read from files",
        ),
    ],
)
def test_wrong_arguments_are_named(changes: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {
        "name": "synthetic",
        "root": None,
        "split": "train",
        "num_classes": 5,
        **changes,
    }
    with pytest.raises(ValueError, match=message):
        build_dataset(**arguments)


@pytest.mark.parametrize("name", ["folder", "voc", "voc_scribble", "camvid"])
def test_missing_root_is_named(name: str, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere does not exist; give .* --dataset_path"):
        build_dataset(name, tmp_path / "nowhere", "train", 21)
    (tmp_path / "file").write_text("x", encoding="utf-8")
    with pytest.raises(FileNotFoundError, match=r"file is a file; give"):
        build_dataset(name, tmp_path / "file", "train", 21)


# --- synthetic ------------------------------------------------------------------------------------


def content_hash(name: str, split: str, indices: list[int], seed: int = 0) -> str:
    dataset = build_dataset(name, None, split, 5, seed=seed)
    digests = {}
    for index in indices:
        parts = [part.numpy().tobytes() for part in dataset.load(index) if part is not None]
        digests[index] = hashlib.sha256(b"".join(parts)).hexdigest()
    return "".join(digests[index] for index in sorted(digests))


@pytest.mark.parametrize("name", ["synthetic", "synthetic_scribble"])
def test_content_is_the_same_in_any_order_and_process(name: str, launcher: Any, tmp_path: Path) -> None:
    expected = content_hash(name, "train", [0, 1, 2, 3])
    assert content_hash(name, "train", [3, 1, 0, 2]) == expected
    (tmp_path / "hash.py").write_text(
        f"from test_datasets import content_hash\nprint(content_hash({name!r}, 'train', [2, 0, 3, 1]))"
    )
    ended = launcher.run(tmp_path, "hash.py", [], PYTHONPATH=str(Path(__file__).resolve().parent))
    assert ended["outputs"] == [f"{expected}\n"]


def test_content_depends_on_seed_split_and_index_only() -> None:
    hashes = [
        content_hash("synthetic", split, [i], seed) for split in ("train", "val") for i in (0, 1) for seed in (0, 1)
    ]
    assert len(set(hashes)) == len(hashes)
    torch.manual_seed(77)
    np.random.seed(77)
    state = torch.get_rng_state()
    assert content_hash("synthetic", "train", [0], 0) == hashes[0]
    assert torch.equal(torch.get_rng_state(), state)
    assert content_hash("synthetic", "train", [0], -5) != hashes[0]  # any integer is a seed


def test_synthetic_statistics() -> None:
    dataset = build_dataset("synthetic", None, "train", 5, length=100)
    labels = torch.stack([dataset.load(i)[1] for i in range(100)])
    share = torch.bincount(labels.flatten().long(), minlength=256).double() / labels.numel()
    assert share[0] > 0.4
    assert (share[1:5] > 0.02).all()
    assert 0.01 < share[IGNORE_INDEX] < 0.15
    assert share[:5].sum() + share[IGNORE_INDEX] == pytest.approx(1.0)
    assert dataset.image_size == (64, 64)
    assert len(build_dataset("synthetic", None, "train", 5)) == 320
    assert len(build_dataset("synthetic", None, "val", 5)) == 64


def test_shapes_have_an_ignore_border() -> None:
    # Between a shape and anything else there is an ignored pixel: no neighbours are of different classes.
    dataset = build_dataset("synthetic", None, "val", 5)
    for index in range(20):
        label = dataset.load(index)[1].int()
        for a, b in ((label[1:], label[:-1]), (label[:, 1:], label[:, :-1])):
            touching = (a != b) & (a != IGNORE_INDEX) & (b != IGNORE_INDEX)
            assert not touching.any()


def test_scribbles_are_thin_true_and_complete() -> None:
    dense = build_dataset("synthetic", None, "train", 5)
    scribble = build_dataset("synthetic_scribble", None, "train", 5)
    agreements = []
    for index in range(40):
        image, label, none = dense.load(index)
        same_image, strokes, pseudo = scribble.load(index)
        assert none is None
        assert pseudo is not None
        assert torch.equal(image, same_image)
        marked = strokes != IGNORE_INDEX
        assert torch.equal(strokes[marked], label[marked])
        assert 0 < marked.float().mean() < 0.15
        visible = {c for c in label.unique().tolist() if c != IGNORE_INDEX}
        assert set(strokes.unique().tolist()) - {IGNORE_INDEX} == visible
        assert (pseudo < 5).all()
        valid = label != IGNORE_INDEX
        agreements.append(float((pseudo == label)[valid].float().mean()))
    assert 0.85 < sum(agreements) / len(agreements) < 0.99  # noisy, but roughly right


def test_scribble_validation_is_dense() -> None:
    dense, scribble = (build_dataset(name, None, "val", 5) for name in ("synthetic", "synthetic_scribble"))
    assert torch.equal(dense[3]["label"], scribble[3]["label"])
    assert torch.equal(scribble[3]["pseudo"], scribble[3]["label"])


# --- folder ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["jpg", "jpeg", "png", "bmp", "PNG"])
def test_folder_holds_out_every_fifth(suffix: str, tmp_path: Path) -> None:
    make_folder(tmp_path, 11, suffix)
    (tmp_path / "images" / "notes.txt").write_text("not an image", encoding="utf-8")
    train, val = (build_dataset("folder", tmp_path, split, 3) for split in ("train", "val"))
    assert [val.sample_name(i) for i in range(len(val))] == ["im04", "im09"]
    assert len(train) == 9
    assert val.image_size == (30, 40)
    assert train.crop_size == 30  # the shorter side
    assert val.class_names == ["class 0", "class 1", "class 2"]
    assert torch.equal(val[0]["label"], torch.from_numpy(index_mask(4)).long())


def test_folder_with_own_splits_and_a_crop(tmp_path: Path) -> None:
    make_folder(tmp_path / "train", 2, "png")
    make_folder(tmp_path / "val", 1)
    assert len(build_dataset("folder", tmp_path, "train", 3, crop_size=16)) == 2
    assert check_sample(build_dataset("folder", str(tmp_path), "val", 3), 0)["name"] == "im00"
    assert build_dataset("folder", tmp_path, "train", 3, crop_size=16)[0]["label"].shape == (16, 16)


def test_folder_errors_at_construction(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"images does not exist; the images belong there"):
        build_dataset("folder", tmp_path, "train", 3)
    (tmp_path / "images").mkdir()
    (tmp_path / "masks").mkdir()
    with pytest.raises(FileNotFoundError, match=r"images holds no image; put files with one of the endings \.jpg"):
        build_dataset("folder", tmp_path, "train", 3)
    make_folder(tmp_path, 3)
    with pytest.raises(ValueError, match=r"images holds 3 image\(s\), too few to split: every 5th"):
        build_dataset("folder", tmp_path, "val", 3)
    make_folder(tmp_path, 6)
    (tmp_path / "masks" / "im02.png").unlink()
    with pytest.raises(FileNotFoundError, match=r"im02\.jpg has no mask .*masks.im02\.png \(1 of 6 images"):
        build_dataset("folder", tmp_path, "train", 3)
    write(tmp_path / "images" / "im00.png", photo(0))
    with pytest.raises(ValueError, match=r"im00\.jpg and im00\.png have the same name without ending"):
        build_dataset("folder", tmp_path, "train", 3)


def test_folder_errors_at_loading(tmp_path: Path) -> None:
    make_folder(tmp_path)
    dataset = build_dataset("folder", tmp_path, "train", 3)
    write(tmp_path / "masks" / "im00.png", index_mask(0, (20, 30)))
    with pytest.raises(ValueError, match=r"im00\.jpg has 40x30 pixels, but its mask .*im00\.png has 20x30 .*same size"):
        dataset[0]
    write(tmp_path / "masks" / "im01.png", index_mask(0, classes=8))
    with pytest.raises(ValueError, match=r"im01\.png contains the value \d, but num_classes is 3; raise --numclasses"):
        dataset[1]
    write(tmp_path / "masks" / "im02.png", photo(0))
    with pytest.raises(ValueError, match=r"im02\.png is a colour picture \(mode RGB\), not class indices; save it"):
        dataset[2]
    (tmp_path / "images" / "im03.jpg").write_bytes(b"no picture")
    with pytest.raises(RuntimeError, match=r"cannot read image .*im03\.jpg: UnidentifiedImageError.*replace or remove"):
        dataset[3]
    (tmp_path / "images" / "im05.jpg").unlink()
    with pytest.raises(FileNotFoundError, match=r"im05\.jpg does not exist any more"):
        dataset[4]
    check_sample(dataset, 5)


# --- files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("suffix", "options"), [("png", {}), ("jpg", {}), ("jpg", {"progressive": True}), ("bmp", {})])
def test_a_file_cut_anywhere_raises_or_is_complete(suffix: str, options: dict[str, Any], tmp_path: Path) -> None:
    buffer = io.BytesIO()
    photo(0).save(buffer, {"jpg": "JPEG"}.get(suffix, suffix), **options)
    data = buffer.getvalue()
    path = tmp_path / f"cut.{suffix}"
    path.write_bytes(data)
    whole = read_image(path)
    refused = 0
    for length in [*range(0, len(data) - 40, 37), *range(len(data) - 40, len(data))]:
        path.write_bytes(data[:length])
        try:
            image = read_image(path)
        except RuntimeError as error:
            assert str(path) in str(error)
            refused += 1
        else:
            assert torch.equal(image, whole), f"cut at {length} of {len(data)} bytes"
    assert refused >= (len(data) - 40) // 37


def test_a_truncated_mask_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "mask.png", index_mask(0, (200, 200)))
    path.write_bytes(path.read_bytes()[:-3000])
    with pytest.raises(RuntimeError, match=r"cannot read mask .*mask\.png: OSError: .*truncated.*replace it"):
        read_mask(path, 3)


@pytest.mark.parametrize("mode", ["L", "P", "1", "RGBA", "CMYK", "LA"])
def test_images_of_any_8_bit_mode_become_rgb(mode: str, tmp_path: Path) -> None:
    path = write(tmp_path / ("x.jpg" if mode == "CMYK" else "x.png"), photo(0).convert(mode))
    image = read_image(path)
    assert image.shape == (3, 30, 40)
    assert image.dtype == torch.uint8


def test_a_16_bit_image_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "deep.png", np.full((4, 5), 40000, dtype=np.uint16))
    with pytest.raises(ValueError, match=r"deep\.png has more than 8 bits per pixel .* convert it to 8 bits"):
        read_image(path)


def test_mask_modes(tmp_path: Path) -> None:
    mask = index_mask(0)
    palette = Image.fromarray(mask)
    palette.putpalette(bytes(range(256)) * 3)
    for image in (mask, palette, mask.astype(np.uint16)):
        assert np.array_equal(read_mask(write(tmp_path / "m.png", image), 3).numpy(), mask)
    binary = read_mask(write(tmp_path / "m.png", Image.fromarray(mask == 1)), 2)
    assert np.array_equal(binary.numpy(), mask == 1)
    with pytest.raises(ValueError, match="contains the value 300, but num_classes is 3"):
        read_mask(write(tmp_path / "m.png", np.full((4, 5), 300, dtype=np.uint16)), 3)


# --- camvid ---------------------------------------------------------------------------------------


def test_camvid_void_is_ignored(tmp_path: Path) -> None:
    dataset = build_dataset("camvid", make_camvid(tmp_path), "val", 11)
    assert dataset.class_names[0] == "sky"
    assert dataset.image_size == (30, 40)
    assert dataset[0]["label"].unique().tolist() == [IGNORE_INDEX]
    assert dataset[2]["label"].unique().tolist() == [2]
    write(tmp_path / "valannot" / "1.png", np.full((30, 40), 12, dtype=np.uint8))
    with pytest.raises(ValueError, match=r"1\.png contains the value 12, but num_classes is 11"):
        dataset[1]


def test_camvid_has_a_test_split_where_the_folders_are(tmp_path: Path) -> None:
    make_camvid(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"test does not exist; the images belong there"):
        build_dataset("camvid", tmp_path, "test", 11)
    make_camvid(tmp_path, ("test",))
    assert len(build_dataset("camvid", tmp_path, "test", 11)) == 3


def test_camvid_image_without_mask(tmp_path: Path) -> None:
    make_camvid(tmp_path)
    (tmp_path / "trainannot" / "1.png").unlink()
    with pytest.raises(FileNotFoundError, match=r"train.1\.png has no mask .*trainannot.1\.png \(1 of 3"):
        build_dataset("camvid", tmp_path, "train", 11)


# --- voc ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("below", [".", "VOC2012", "VOCdevkit/VOC2012"])
def test_voc_is_found_in_the_folder_or_below(below: str, tmp_path: Path) -> None:
    make_voc(tmp_path / below)
    train, val = (build_dataset("voc", tmp_path, split, 21) for split in ("train", "val"))
    assert [train.sample_name(i) for i in range(2)] == ["a", "b"]
    assert train.crop_size == 321
    assert train.image_size == (321, 321)
    assert val.image_size is None  # the images differ
    assert np.array_equal(val[0]["label"].numpy(), index_mask(2, classes=21))


def test_voc_without_images_or_lists(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"holds no JPEGImages, nor does VOC2012 in it; give the VOC2012"):
        build_dataset("voc", tmp_path, "train", 21)
    make_voc(tmp_path)
    lists = tmp_path / "ImageSets" / "Segmentation"
    (lists / "train.txt").write_text("\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"train\.txt is empty; write one image id per line"):
        build_dataset("voc", tmp_path, "train", 21)
    (lists / "train.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"train\.txt does not exist; it names the images"):
        build_dataset("voc", tmp_path, "train", 21)
    (lists / "val.txt").write_text("c\nzz\nd\n", encoding="utf-8")
    with pytest.raises(FileNotFoundError, match=r"zz\.jpg does not exist, but .*val\.txt lists zz \(1 of 3 entries"):
        build_dataset("voc", tmp_path, "val", 21)
    write(tmp_path / "JPEGImages" / "zz.jpg", photo(0))
    with pytest.raises(FileNotFoundError, match=r"SegmentationClass.zz\.png does not exist, but .*lists zz"):
        build_dataset("voc", tmp_path, "val", 21)


def test_voc_augmented_masks_and_list(tmp_path: Path) -> None:
    make_voc(tmp_path)
    for name in "abcd":
        write(tmp_path / "SegmentationClassAug" / f"{name}.png", np.full((30, 40), 9, dtype=np.uint8))
    assert build_dataset("voc", tmp_path, "val", 21)[0]["label"].unique().tolist() == [9]
    assert len(build_dataset("voc", tmp_path, "train", 21)) == 2
    pairs = "".join(f"/JPEGImages/{name}.jpg /SegmentationClassAug/{name}.png\n" for name in "abd")
    (tmp_path / "ImageSets" / "Segmentation" / "train_aug.txt").write_text(pairs, encoding="utf-8")
    train = build_dataset("voc", tmp_path, "train", 21)
    assert [train.sample_name(i) for i in range(len(train))] == ["a", "b", "d"]


def test_voc_scribbles_and_pseudo_labels(tmp_path: Path) -> None:
    make_voc(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"pascal_2012_scribble does not exist; the scribbles belong there"):
        build_dataset("voc_scribble", tmp_path, "train", 21)
    make_voc(tmp_path, scribble=True)
    _, label, pseudo = build_dataset("voc_scribble", tmp_path, "train", 21).load(0)
    assert int((label == 20).sum()) == 20
    assert int((label == IGNORE_INDEX).sum()) == 30 * 40 - 20
    assert pseudo is None
    write(tmp_path / "pseudo_labels" / "a.png", np.full((30, 40), 20, dtype=np.uint8))
    with pytest.raises(FileNotFoundError, match=r"pseudo_labels.b\.png does not exist, but .*train\.txt lists b"):
        build_dataset("voc_scribble", tmp_path, "train", 21)
    write(tmp_path / "pseudo_labels" / "b.png", np.full((30, 41), 20, dtype=np.uint8))
    dataset = build_dataset("voc_scribble", tmp_path, "train", 21, crop_size=32)
    assert 20 in check_sample(dataset, 0)["pseudo"].unique().tolist()
    with pytest.raises(ValueError, match=r"b\.jpg has 40x30 pixels, but its mask .*pseudo_labels.b\.png has 41x30"):
        dataset[1]
    val = build_dataset("voc_scribble", tmp_path, "val", 21)
    assert np.array_equal(val[0]["label"].numpy(), index_mask(2, classes=21))


# --- prediction -----------------------------------------------------------------------------------


def test_images_to_predict(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"holds no image"):
        ImagesToPredict(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"nowhere does not exist; give a folder of images to predict"):
        ImagesToPredict(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="the folder of images to predict is empty"):
        ImagesToPredict("")
    write(tmp_path / "b.png", photo(0))
    write(tmp_path / "a.jpg", photo(1))
    dataset = ImagesToPredict(str(tmp_path))
    assert [sample["name"] for sample in (dataset[0], dataset[1])] == ["a", "b"]
    assert dataset[1]["path"] == str(tmp_path / "b.png")
    assert dataset[1]["image"].shape == (3, 30, 40)
    assert dataset[1]["image"].dtype == torch.float32
    (tmp_path / "a.jpg").write_bytes((tmp_path / "a.jpg").read_bytes()[:300])
    with pytest.raises(RuntimeError, match=r"cannot read image .*a\.jpg"):
        dataset[0]
