"""The runtime file of a converted project: which version it is, and whether it was changed by hand."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection
from pathlib import Path

from retrofit.analysis.files.runtime_names import FILE_MARK, FILE_NAME

TEXT = Path(__file__).resolve().with_name(FILE_NAME)
_SEAL = re.compile(rb"^# Unchanged while the text above has the SHA-256 ([0-9a-f]{64})\n\Z", re.MULTILINE)
_VERSION = re.compile(rf'"""{re.escape(FILE_MARK)}: the runtime of \S+ (\S+)\.\s'.encode())


_FEATURES = re.compile(rb'^RETROFIT_WITH = "([a-z ]*)"$', re.MULTILINE)


def runtime_text(features: Collection[str]) -> bytes:
    """Return the runtime file of this kit, with what `--with` adds to it."""
    if not features:
        return TEXT.read_bytes()
    from ..bundle import bundle

    return bundle(features=features).encode()


def features_of(data: bytes) -> frozenset[str]:
    """Return what was added to a runtime file by `--with`."""
    found = _FEATURES.search(data.replace(b"\r\n", b"\n"))
    return frozenset(found[1].decode().split()) if found else frozenset()


def sealed(text: str) -> str:
    """Return a text with a last line by which a change of it is noticed."""
    return f"{text}# Unchanged while the text above has the SHA-256 {hashlib.sha256(text.encode()).hexdigest()}\n"


def version(data: bytes) -> str | None:
    """Return the version of a runtime file, None for another file."""
    found = _VERSION.match(data)
    return found[1].decode(errors="replace") if found else None


def is_changed(data: bytes) -> bool:
    """Return whether a runtime file is not as a conversion has written it."""
    data = data.replace(b"\r\n", b"\n")  # git may have changed the ends of its lines
    seal = _SEAL.search(data)
    return seal is None or hashlib.sha256(data[: seal.start()]).hexdigest().encode() != seal[1]


def note(before: bytes, after: bytes) -> str | None:
    """Return what to say of a runtime file that a conversion finds (`before`) and leaves or renews (`after`)."""
    old = version(before)
    if old is None:
        return None
    if is_changed(after):
        return "was changed by hand and stays as it is"
    added = sorted(features_of(after) - features_of(before))
    if old == version(after) and not added:
        return None
    return f"{old} -> {version(after)}{', with ' + ', '.join(added) if added else ''}"
