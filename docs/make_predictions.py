"""Draw docs/predictions.png: validation images, their labels and what a trained run predicts.

python docs/make_predictions.py log/001_deeplabv3p_r18_synthetic/best.pt                                  synthetic
python docs/make_predictions.py log/002_deeplabv3p_r18_camvid/best.pt --dataset_path DIR -o camvid.png    any other
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from PIL import Image, ImageDraw

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from segmentation.datasets import build_dataset, default_num_classes
from segmentation.models import build_model
from segmentation.visualize import panel

GAP, TITLE_HEIGHT = 8, 22  # pixels
TITLES = ("input", "label", "prediction")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path, help="a run's best.pt")
    parser.add_argument("--dataset_path", default="dataset", help="folder of the run's dataset (default: %(default)s)")
    parser.add_argument("--images", type=int, default=6, help="images, spread over the set (default: %(default)s)")
    parser.add_argument("--scale", type=int, default=2, help="enlargement (default: %(default)s)")
    parser.add_argument("-o", "--output", default=str(Path(__file__).parent / "predictions.png"))
    args = parser.parse_args()
    checkpoint = torch.load(args.checkpoint, map_location="cpu", weights_only=True)
    options = checkpoint["options"]
    num_classes = options["numclasses"] or default_num_classes(options["dataset"])
    dataset = build_dataset(
        options["dataset"], args.dataset_path, "val", num_classes, options["crop_size"], options["seed"]
    )
    model = build_model(options["model_type"], options["layers"], num_classes).eval()
    model.load_state_dict(checkpoint["ema"] or checkpoint["model"])
    indices = [i * len(dataset) // args.images for i in range(args.images)]
    panels = [predict(model, dataset[index], args.scale) for index in indices]
    draw(panels).save(args.output)
    print(f"wrote {args.output}")
    return 0


@torch.no_grad()
def predict(model: torch.nn.Module, sample: dict, scale: int) -> Image.Image:
    """Return input, label and prediction of one sample side by side."""
    prediction = model(sample["image"][None]).argmax(1)[0]
    image = Image.fromarray(panel(sample["image"], sample["label"], prediction).permute(1, 2, 0).numpy())
    return image.resize((image.width * scale, image.height * scale), Image.NEAREST)


def draw(panels: list[Image.Image]) -> Image.Image:
    """Return the panels in two columns under their titles."""
    width, height = panels[0].size
    rows = (len(panels) + 1) // 2
    sheet = Image.new("RGB", (2 * width + 3 * GAP, TITLE_HEIGHT + rows * (height + GAP)), "white")
    pen = ImageDraw.Draw(sheet)
    for column in range(2):
        left = GAP + column * (width + GAP)
        for number, title in enumerate(TITLES):
            pen.text((left + number * width // 3 + 4, 5), title, fill="black")
    for number, picture in enumerate(panels):
        position = (GAP + number % 2 * (width + GAP), TITLE_HEIGHT + number // 2 * (height + GAP))
        sheet.paste(picture, position)
    return sheet


if __name__ == "__main__":
    sys.exit(main())
