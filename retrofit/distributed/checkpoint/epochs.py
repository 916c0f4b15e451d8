"""The position of a training in its data: a checkpoint taken at any step continues with the very same batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

from torch.utils.data import DataLoader

from ..data.loaders import DistributedLoader
from ..data.random_state import get_rng_state, set_rng_state
from ..data.sharding import ShardedSampler, size_of_batches
from ..failure.watchdog import begin_step
from ..process.process_group import get_rank, get_world_size, is_distributed


class ResumableEpochs:
    """Hands out a loader's batches step by step and epoch by epoch, and knows its position: `epoch` and `step`.

    `step` counts the optimizer steps of the current epoch, the one in hand included. Works with any dataset and any
    random augmentation, in loader workers too: an epoch that is continued starts from the random state that it began
    with, loads the batches that were already used once more, and only then continues. (With `persistent_workers` the
    workers' streams outlive an epoch and cannot be put back.)
    """

    def __init__(self, loader: DataLoader, accum_steps: int = 1) -> None:
        self.loader = loader
        self.accum_steps = accum_steps
        self.steps_per_epoch = len(loader) // accum_steps
        self.epoch, self.step = 0, 0
        self._steps_before = 0  # in the epochs that are finished
        self._samples_before, self._counted_from = 0, 0  # samples at the step from which on they are counted
        self._begin: Callable[[], Iterator[Any]] = self._begin_epoch
        if isinstance(loader, DistributedLoader):
            # Now, not when an epoch begins: one that is continued restores the streams.
            loader.sampler.split_streams()  # type: ignore[attr-defined]
        self._epoch_start: dict[str, Any] = get_rng_state()

    @property
    def global_step(self) -> int:
        """Optimizer steps since the beginning of the training, the one in hand included."""
        return self._steps_before + self.step

    @property
    def global_batch(self) -> int:
        """Samples per optimizer step over all ranks."""
        return (size_of_batches(self.loader) or 1) * get_world_size() * self.accum_steps

    @property
    def samples(self) -> int:
        """Samples trained on so far over all ranks, also under other layouts: an axis for curves, the same anywhere."""
        return self._samples_before + (self.global_step - self._counted_from) * self.global_batch

    def steps(self) -> Iterator[list[Any]]:
        """Yield this rank's micro batches of every optimizer step that is left of the epoch; then go to the next one.

        Micro batches that do not fill a last step are left out, as `drop_last` does with samples. A loader that ends
        before its length ends the epoch.
        """
        batches, self._begin = self._begin(), self._begin_epoch
        while self.step < self.steps_per_epoch:
            begin_step(f"step {self.step + 1} of epoch {self.epoch + 1}")
            window = list(islice(batches, self.accum_steps))
            if len(window) < self.accum_steps:
                break
            begin_step(f"step {self.step + 1} of epoch {self.epoch + 1}")  # the loader counts its batches there
            self.step += 1
            yield window
        begin_step(f"what follows epoch {self.epoch + 1}")
        self._steps_before += self.step
        self.epoch, self.step = self.epoch + 1, 0

    def state_dict(self) -> dict[str, Any]:
        """Return the position and the layout it was reached in, the same on every rank."""
        return {
            "epoch": self.epoch,
            "step": self.step,
            "steps_before": self._steps_before,
            "layout": self._layout(),
        }

    def rng_state(self) -> dict[str, Any]:
        """Return this rank's random streams, now and at the start of the epoch, for `save_checkpoint`."""
        return {"now": get_rng_state(), "epoch_start": self._epoch_start}

    def resume(
        self, state: Mapping[str, Any], rng_states: Sequence[dict[str, Any]], samples: int | None = None
    ) -> dict[str, tuple[Any, Any]]:
        """Go to a saved position and return what has changed of the layout, as {name: (before, now)}.

        `samples`: what `samples` was there, by default what it is with the layout of now.

        Nothing changed (world size, batch, accumulation, workers): what follows is bit for bit what would have
        followed. Otherwise the epoch continues after the samples that were seen, with new augmentation; a sharded
        order is the same at every world size, a plain shuffled loader draws a new one.
        """
        before, now = state["layout"], self._layout()
        self.epoch, self.step = state["epoch"], state["step"]
        changes = {name: (before.get(name), now[name]) for name in now if before.get(name) != now[name]}
        self._steps_before = self.epoch * self.steps_per_epoch
        if not changes:
            self._steps_before = state.get("steps_before", self._steps_before)
            self._begin = partial(self._continue_epoch, rng_states[get_rank()])
        else:
            num_samples = self.step * before["global_batch"]
            self.step = -(-num_samples // self.global_batch)
            self._begin = partial(self._continue_epoch_elsewhere, num_samples)
        if samples is not None:
            self._samples_before, self._counted_from = samples, self.global_step
        return changes

    def _layout(self) -> dict[str, Any]:
        return {
            "world_size": get_world_size(),
            "global_batch": self.global_batch,
            "accum_steps": self.accum_steps,
            "workers": self.loader.num_workers,
            "process_group": is_distributed(),
        }

    def _begin_epoch(self) -> Iterator[Any]:
        self._set_epoch()
        self._epoch_start = get_rng_state()
        return iter(self.loader)

    def _continue_epoch(self, rng_state: dict[str, Any]) -> Iterator[Any]:
        num_batches = self.step * self.accum_steps
        if num_batches == 0:
            set_rng_state(rng_state["now"])
            return self._begin_epoch()
        set_rng_state(rng_state["epoch_start"])
        batches = self._begin_epoch()
        for _ in range(num_batches):
            next(batches)
        set_rng_state(rng_state["now"])
        return batches

    def _continue_epoch_elsewhere(self, num_samples: int) -> Iterator[Any]:
        self._set_epoch(start=num_samples)
        self._epoch_start = get_rng_state()
        batches = iter(self.loader)
        if not isinstance(self.loader.sampler, ShardedSampler):
            for _ in range(self.step * self.accum_steps):
                next(batches)
        return batches

    def _set_epoch(self, start: int = 0) -> None:
        sampler: Any = self.loader.sampler
        if isinstance(sampler, ShardedSampler):
            sampler.set_epoch(self.epoch, start)
        elif hasattr(sampler, "set_epoch"):
            sampler.set_epoch(self.epoch)
