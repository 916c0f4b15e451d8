"""Random streams of a traced process: its own, and those that depend on the sample alone."""

from __future__ import annotations

import hashlib
import random
import sys
import threading
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch.nn.modules.module import register_module_parameter_registration_hook

from retrofit.distributed.data.random_state import get_rng_state, mix_seed, seed_everything, set_rng_state

from .generators import reseed, restore, state_of

OTHER_LIBRARIES = {"imgaug": "seed", "cv2": "setRNGSeed"}  # with random numbers of their own, by what seeds them

OF_COLLATION = 6

drawing = threading.RLock()  # held while streams are put aside: a thread may load samples meanwhile


def in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


class Streams:
    """Switches the process between its own random streams and controlled ones.

    In a controlled run the streams that a script's loop body sees are a function of the epoch and the number of the
    batch, the same on every rank and in a single process. Outside loop bodies (weights, splits, sampler orders) a
    script draws from its own streams, as it always does: what goes wrong there must stay visible.
    """

    def __init__(self, seed: int, on_leave: Callable[[], None], keeps_own: bool = False) -> None:
        """`keeps_own`: a loop body draws from the process's own streams, too."""
        self.seed, self._on_leave, self._keeps_own = seed, on_leave, keeps_own
        self._own: dict[str, Any] | None = None
        self._loading_thread: int | None = None
        self._until_step = False
        self._place: tuple[int, ...] = ()  # of the batch in hand
        self._generators: list[tuple[Any, Any, str]] = []  # of the script, with their own states and hashes of these

    def enter_batch(self, epoch: int, number: int, until_step: bool = False, collates: bool = False) -> None:
        """From here on draw from the streams of this batch; `until_step`: until the next optimizer step at most.

        `collates`: it is being made of its samples.

        A thread that draws batches ahead leaves the streams to the one that computes.
        """
        if not in_main_thread() or (self._keeps_own and not collates):
            return
        self._until_step = until_step
        if self._own is None:
            self._own = get_rng_state()
        self._place = (OF_COLLATION if collates else 4 if until_step else 1, epoch, number)
        _seed(mix_seed(self.seed, *self._place))

    def in_batch(self) -> bool:
        """Return whether the streams are those of a batch."""
        return self._own is not None and in_main_thread()

    def in_loop_body(self) -> bool:
        """Return whether the streams are those of a batch that the script has, and no sample is being made."""
        return self.in_batch() and self._place[0] != OF_COLLATION and not self.is_loading()

    def enter_generator(self, generator: Any) -> str | None:
        """Let a generator of the script's own draw from a stream of the batch in hand, from its first draw in it.

        Returns a hash of its own state before the batch; None without a batch.
        """
        if not self.in_batch():
            return None
        known = next((before for one, _, before in self._generators if one is generator), None)
        if known is None:
            own = state_of(generator)
            known = _short(repr(own).encode())
            self._generators.append((generator, own, known))
            reseed(generator, mix_seed(self.seed, 5, *self._place, len(self._generators)))
        return known

    def leave_batch(self) -> None:
        """Go back to the process's own streams, as they were left."""
        if not in_main_thread():
            return
        self._on_leave()
        if self._own is not None:
            set_rng_state(self._own)
            self._own = None
        while self._generators:
            generator, own, _ = self._generators.pop()
            restore(generator, own)

    def on_step(self) -> None:
        """An optimizer step was made: a script without a loader draws its next batch from its own streams."""
        if self._until_step:
            self.leave_batch()

    def own_state(self, name: str, present: Any) -> str | None:
        """Return a hash of a stream of the process's own, before the batch in hand; of its present state outside."""
        state = present if self._own is None else self._own.get(name)
        if state is None:
            return None
        return hash_state(state) if isinstance(state, torch.Tensor) else _short(repr(state).encode())

    def sample_seed(self, epoch: int, sample: Any) -> int:
        """Return the seed of one sample's augmentation in one epoch."""
        return mix_seed(self.seed, 2, epoch, _as_number(sample))

    def for_sample(self, seed: int, load: Callable[[], Any], watch: bool) -> tuple[Any, set[str]]:
        """Return `load()` run on the sample's streams, and (if `watch`) the streams that it drew from.

        No batch may be in hand (`leave_batch`): what a dataset draws belongs to one sample and not to rows.
        """
        with drawing:
            before, outer = get_rng_state(), self._loading_thread
            self._loading_thread = threading.get_ident()
            _seed(seed)
            fresh = stream_hashes() if watch else {}
            try:
                item = load()
                used = {name for name, value in stream_hashes().items() if fresh[name] != value} if watch else set()
            finally:
                self._loading_thread = outer
                set_rng_state(before)
        return item, used

    def restored_after(self, load: Callable[[], Any]) -> None:
        """Load a sample on the process's own streams, and put these back. No batch may be in hand."""
        with drawing:
            before, outer = get_rng_state(), self._loading_thread
            self._loading_thread = threading.get_ident()
            try:
                load()
            finally:
                self._loading_thread = outer
                set_rng_state(before)

    def is_loading(self) -> bool:
        """Return whether this thread is making a sample."""
        return self._loading_thread == threading.get_ident()


def install_new_weights(streams: Streams, trains: Callable[[], bool]) -> None:
    """Let weights that are made before the training starts be drawn from the process's own streams.

    A script may have a batch in hand there: all data, which it splits across the ranks, or one that tells the shape.
    """

    def leave(module: Any, name: str, parameter: Any) -> None:
        if streams.in_batch() and not trains():
            streams.leave_batch()

    register_module_parameter_registration_hook(leave)


def seed_library(seed: int, module: ModuleType) -> None:
    """Seed the random numbers of one of OTHER_LIBRARIES, where it has the function for that."""
    getattr(module, OTHER_LIBRARIES[module.__name__], lambda seed: None)(seed % 2**31)


def stream_key() -> int:
    """Return a number that is drawn from torch's stream."""
    return int(torch.empty((), dtype=torch.int64).random_(generator=torch.default_generator))


def stream_hashes() -> dict[str, str]:
    """Return a hash of the state of each random stream of this process."""
    hashes = {"python": _short(repr(random.getstate()).encode()), "torch": hash_generator(None)}
    if "numpy" in sys.modules:
        _, keys, position, *_ = sys.modules["numpy"].random.get_state()
        hashes["numpy"] = _short(keys.tobytes() + str(position).encode())
    return hashes


def hash_generator(generator: torch.Generator | None) -> str:
    return hash_state(torch.get_rng_state() if generator is None else generator.get_state())


def hash_state(state: torch.Tensor) -> str:
    return _short(bytes(state.tolist()))


def _short(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def _seed(seed: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        seed_everything(seed)
    for name in OTHER_LIBRARIES:
        if name in sys.modules:
            seed_library(seed, sys.modules[name])


def _as_number(sample: Any) -> int:
    if isinstance(sample, int):
        return sample % 2**64
    return int(hashlib.blake2b(repr(sample).encode(), digest_size=8).hexdigest(), 16)
