"""Load the weights of a backbone: none, torchvision's, or those of a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.models import get_model_weights

_NESTED_UNDER = ("model", "state_dict")


def load_backbone_weights(backbone: nn.Module, layers: int, model_path: str) -> None:
    """Load the weights that `model_path` names into a ResNet-`layers` backbone, in place.

    model_path: "none" or "None" = keep the random initialisation; "imagenet" = torchvision's IMAGENET1K_V1
    weights (a download, cached by torch.hub); else a file written by torch.save: a torchvision ResNet
    state_dict, or a dict that holds one under "model" or "state_dict". A leading "module." is stripped, and
    `fc.*` ignored.

    Raises FileNotFoundError if there is no such file, RuntimeError if the download or torch.load fails, and
    ValueError if what was loaded does not fit the backbone.
    """
    if model_path in ("none", "None"):
        return
    if model_path == "imagenet":
        source, state = f"torchvision's ImageNet weights of resnet{layers}", _download(layers)
    else:
        source, state = f"model_path {model_path}", _read_file(model_path)
    state = {key: value for key, value in state.items() if not key.startswith("fc.")}
    _check_fit(backbone.state_dict(), state, source, layers)
    backbone.load_state_dict(state)


def _download(layers: int) -> dict[str, Tensor]:
    # V1, not DEFAULT: 18 and 34 have nothing else, and every published segmentation recipe starts from it.
    weights = get_model_weights(f"resnet{layers}")["IMAGENET1K_V1"]
    try:
        return weights.get_state_dict(progress=False, check_hash=True)
    except (OSError, RuntimeError) as error:  # no network, a read-only cache; a hash that does not match
        raise RuntimeError(
            f"model_path imagenet: {weights.url} could not be downloaded ({error}); download it where there "
            "is a network and pass the path of the file as model_path, or use model_path none"
        ) from error


def _read_file(model_path: str) -> dict[str, Tensor]:
    path = Path(model_path).expanduser()
    if not path.is_file():
        raise FileNotFoundError(
            f"model_path {model_path} is not a file; pass the path of a ResNet state_dict, imagenet or none"
        )
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged pickle can raise anything: EOFError, KeyError, UnpicklingError
        reason = str(error).strip().partition("\n")[0] or "no message"
        raise RuntimeError(
            f"model_path {model_path} was refused by torch.load(weights_only=True) ({type(error).__name__}: "
            f"{reason}); save the weights alone: torch.save(model.state_dict(), path)"
        ) from error
    return _find_state_dict(loaded, model_path)


def _find_state_dict(loaded: Any, model_path: str) -> dict[str, Tensor]:
    state = loaded
    if isinstance(loaded, dict):
        state = next((loaded[key] for key in _NESTED_UNDER if isinstance(loaded.get(key), dict)), loaded)
    if not isinstance(state, dict) or not state or not all(isinstance(v, Tensor) for v in state.values()):
        kind = type(state).__name__
        found = f"a {kind} with the keys {_first(state)}" if isinstance(state, dict) else f"a {kind}"
        raise ValueError(
            f"model_path {model_path} holds {found}, not a state_dict; "
            'save model.state_dict(), alone or under the key "model" or "state_dict"'
        )
    return {_strip_prefix(str(key), "module."): value for key, value in state.items()}


def _strip_prefix(key: str, prefix: str) -> str:
    return key[len(prefix) :] if key.startswith(prefix) else key


def _check_fit(expected: dict[str, Tensor], state: dict[str, Tensor], source: str, layers: int) -> None:
    # Weights older than the counter lack num_batches_tracked; load_state_dict fills it in.
    missing = [key for key in expected if key not in state and not key.endswith("num_batches_tracked")]
    unexpected = [key for key in state if key not in expected]
    shapes = [
        f"{key} {tuple(state[key].shape)} instead of {tuple(expected[key].shape)}"
        for key in expected
        if key in state and state[key].shape != expected[key].shape
    ]
    problems = [
        f"{len(found)} {what}: {_first(found)}"
        for what, found in (("missing", missing), ("unexpected", unexpected), ("of another shape", shapes))
        if found
    ]
    if problems:
        raise ValueError(
            f"{source} does not fit ResNet-{layers}: {'; '.join(problems)} (its first keys: "
            f"{_first(state)}); pass a torchvision ResNet state_dict of the same depth, or change the layers"
        )


def _first(names: Any, count: int = 3) -> str:
    listed = [str(name) for name in names]
    return ", ".join(listed[:count]) + (", ..." if len(listed) > count else "") if listed else "none"
