"""Read the pickles of torch.distributed.checkpoint without running code: its own loader would run any."""

from __future__ import annotations

import io
import pickle
from typing import Any

import torch

DCP = "torch.distributed.checkpoint."
ALLOWED = {
    *((f"{DCP}metadata", name) for name in ("Metadata", "MetadataIndex", "TensorStorageMetadata", "TensorProperties")),
    *((f"{DCP}metadata", name) for name in ("ChunkStorageMetadata", "_MEM_FORMAT_ENCODING", "StorageMeta")),
    (f"{DCP}filesystem", "_StorageInfo"),
    (f"{DCP}storage", "WriteResult"),
    ("torch", "Size"),
    ("torch", "device"),
    ("torch.serialization", "_get_layout"),
}


def load_plain(data: bytes) -> Any:
    """Return what a pickle of DCP's metadata or results holds. Raises pickle.UnpicklingError for anything else."""
    return _Unpickler(io.BytesIO(data)).load()


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in ALLOWED:
            return super().find_class(module, name)
        if module == "torch" and isinstance(getattr(torch, name, None), (torch.dtype, torch.layout)):
            return getattr(torch, name)
        raise pickle.UnpicklingError(f"Unsupported class {module}.{name}")
