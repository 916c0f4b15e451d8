"""A plan: predictions for each number of GPUs, and which of them is recommended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .link.link import Link
from .predict.bounds import Bounds
from .predict.prediction import Prediction
from .profile.profile import Profile

NEARLY = 0.03  # a simpler strategy is taken where the best one gains less
WORTH = 0.20  # what a strategy that changes the training must gain
EFFICIENT = 0.5  # below it most of what is paid for is lost


@dataclass(frozen=True)
class Choice:
    """The recommendation. `prediction` is None where nothing fits the memory, or one process is faster."""

    prediction: Prediction | None
    reason: str


@dataclass(frozen=True)
class Plan:
    """Everything that is printed, drawn and written."""

    alone: Profile  # one process with nothing else on the machine
    profiles: dict[int, Profile]  # by number of GPUs
    links: dict[int, Link]
    predictions: list[Prediction]
    bounds: list[Bounds]
    gpu_bytes: float | None  # memory of a GPU; None: not known
    per_machine: int
    price: float | None  # of a GPU for an hour
    keeps_batch: bool  # the batch of a step stays, whatever the number of GPUs
    notes: list[str]  # what was assumed
    corrected: dict[int, dict[str, float]]  # by number of GPUs: strategy, factor from the history

    @property
    def rate(self) -> float:
        """Samples per second of one process."""
        return self.alone.samples / self.alone.seconds if self.alone.samples else 1 / self.alone.seconds

    def speedup(self, one: Prediction) -> float:
        return (one.rate if self.alone.samples else one.gpus * one.strategy.batches / one.seconds) / self.rate

    def efficiency(self, one: Prediction) -> float:
        return self.speedup(one) / one.gpus

    def fits(self, one: Prediction) -> bool:
        return self.gpu_bytes is None or one.memory.total <= self.gpu_bytes

    def epoch_seconds(self, one: Prediction) -> float | None:
        """Return the time of a pass over the training data, without evaluations; None where its length is unknown."""
        batches = self.alone.batches_per_epoch
        return None if batches is None else batches * self.alone.seconds / self.speedup(one)

    def epoch_cost(self, one: Prediction) -> float | None:
        seconds = self.epoch_seconds(one)
        return None if seconds is None or self.price is None else seconds / 3600 * one.gpus * self.price

    @property
    def choice(self) -> Choice:
        """The fastest that is the same training and fits; a simpler one, or fewer GPUs, where that loses little.

        Sharding is taken for its speed only where it was measured; else where DDP does not fit.
        """
        same = [one for one in self.predictions if one.strategy.is_same and self.fits(one)]
        if not same:
            least = min(self.predictions, key=lambda one: one.memory.total)
            return Choice(None, f"nothing fits: {least.strategy.name} on {least.gpus} GPUs keeps the least")
        useful = [one for one in same if self.efficiency(one) >= EFFICIENT] or same[:1]
        most = max(one.gpus for one in useful)
        of_most = [one for one in useful if one.gpus == most]
        candidates = [one for one in of_most if self._is_known(one)] or of_most
        best = max(candidates, key=self.speedup)
        if self.speedup(best) <= 1:
            share = f"{self.speedup(best):.2f} times its speed"
            return Choice(None, f"one process is faster: {best.strategy.name} on {best.gpus} GPUs has {share}")
        chosen = next(one for one in candidates if self.speedup(one) >= (1 - NEARLY) * self.speedup(best))
        return Choice(chosen, self._reason(chosen, same))

    def _is_known(self, one: Prediction) -> bool:
        """Return whether what the strategy costs beyond its calls is small (DDP) or was measured."""
        return one.strategy.name == "ddp" or one.strategy.memory in self.links[one.gpus].measured.added

    def _reason(self, chosen: Prediction, same: Sequence[Prediction]) -> str:
        parts = [f"{self.speedup(chosen):.2f} times one GPU, {self.efficiency(chosen):.0%} of {chosen.gpus}"]
        if chosen.strategy.name != "ddp":
            ddp = next(
                (one for one in self.predictions if one.gpus == chosen.gpus and one.strategy.name == "ddp"), None
            )
            if ddp is not None and not self.fits(ddp):
                parts.append("DDP does not fit the memory")
        more = [one.gpus for one in same if one.gpus > chosen.gpus]
        if more:
            parts.append(f"on {min(more)} GPUs less than {EFFICIENT:.0%} of each would be used")
        return "; ".join(parts)

    @property
    def alternatives(self) -> list[Prediction]:
        """What is much faster than the recommendation, fits, and changes the training; the fastest first."""
        chosen = self.choice.prediction
        if chosen is None:
            return []
        least = (1 + WORTH) * self.speedup(chosen)
        found = [
            one
            for one in self.predictions
            if one.gpus == chosen.gpus and not one.strategy.is_same and self.fits(one) and self.speedup(one) >= least
        ]
        return sorted(found, key=self.speedup, reverse=True)
