"""The protocol of figure 2, for one seed: match the rates, then train with every segment replaced, again and again.

All trainings of a seed start from the same weights. Those that replace segment i share what comes before it, so that
stretch is trained once: states at the starts of segments are kept, and a training joins in where its own segment
begins. That is the same sequence of the same compiled calls as training from scratch, hence the same numbers.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from natgrad_paper.checkpoint import Checkpoint
from natgrad_paper.order import matching
from natgrad_paper.order.courses import Drifting, Plain, Replaced
from natgrad_paper.order.learner import Trained
from natgrad_paper.order.matching import Trial
from natgrad_paper.order.walk import Training, Walker
from natgrad_paper.train import Position

UNPERTURBED = "unperturbed"
DRIFTS = {"drift-forwards": Drifting(), "drift-backwards": Drifting(backwards=True)}


@dataclass(frozen=True)
class Seat:
    """A method's place in the protocol of a seed."""

    walker: Walker
    say: Callable[[str], None]
    """Called with a line for each thing that is known now."""
    now: Callable[[str], None]
    """Called with what is being done."""

    @property
    def label(self) -> str:
        """The method's name for readers."""
        return self.walker.learner.competitor.label

    def trial(self, rate: float) -> Trial:
        """Return the validation error of an unperturbed training with a rate."""
        name = f"match-{rate:g}"
        record = self.walker.journal.found("training", name)
        if record is None:
            self._now(f"unperturbed, at rate {rate:g}")
            record = self._train(Training(name, Plain(), rate), kind="match")
            self.say(f"{self.label}: rate {rate:g}, validation error {record['validation_error']:.2%}")
        return Trial(rate, record["validation_error"])

    def rest(self, rate: float, reached: bool) -> None:
        """Do everything that follows the matching, with the rate it found."""
        if self.walker.journal.finished:
            return
        config = self.walker.config
        if self.walker.journal.found("matched", "matched") is None:
            self.walker.journal.write("matched", "matched", rate=rate, reached=reached)
        starts = self._starts(rate)
        for segment in range(1, config.stream.segments + 1):
            trainings = [
                Training(f"segment-{segment:02d}-{repeat}", Replaced(segment, repeat), rate, segment)
                for repeat in range(1, config.repeats + 1)
            ]
            self._variance(
                f"segment-{segment:02d}", trainings, starts[segment], kind="segment", segment=segment
            )
        for factor in config.limit.factors:
            slower = matching.rounded(rate * factor)
            trainings = [
                Training(f"limit-{factor:g}-{repeat}", Replaced(config.limit.segment, repeat), slower)
                for repeat in range(1, config.repeats + 1)
            ]
            self._variance(
                f"limit-{factor:g}",
                trainings,
                None,
                kind="limit",
                segment=config.limit.segment,
                factor=factor,
            )
        trainings = [Training(name, course, rate) for name, course in DRIFTS.items()]
        self._variance("drift", trainings, None, traced=True, kind="drift")
        self.walker.journal.finish()
        self.walker.tidy()

    def _starts(self, rate: float) -> dict[int, Trained]:
        """Return what is trained at the start of each segment of the unperturbed stream."""
        walker, stream = self.walker, self.walker.config.stream
        training = Training(UNPERTURBED, Plain(), rate)
        places = {stream.first_block(segment): segment for segment in range(1, stream.segments + 1)}
        starts: dict[int, Trained] = {}

        def keep(block: int, trained: Trained) -> None:
            if block in places:
                starts[places[block]] = trained
                at = Checkpoint(Position(block * stream.block), walker.journal.writer.mark, trained)
                walker.checkpoints(training, f"-{places[block]:02d}").save(at)

        like = walker.learner.start(walker.seed)
        for segment in places.values():
            found = walker.checkpoints(training, f"-{segment:02d}").load(like, walker.tell)
            if found is not None:
                starts[segment] = found.trained
        # A second time only if starts got lost that lie before the checkpoint the first time went on from.
        while len(starts) < len(places) or walker.journal.found("training", UNPERTURBED) is None:
            self._now("unperturbed, keeping the starts of segments")
            self._train(training, look=keep, traced=True, kind=UNPERTURBED)
        return starts

    def _variance(
        self,
        name: str,
        trainings: Sequence[Training],
        begin: Trained | None,
        traced: bool = False,
        **fields: Any,
    ) -> None:
        """Do trainings that should all give the same model, and log how much their outputs vary."""
        journal = self.walker.journal
        if journal.found("variance", name) is not None:
            return
        outputs = []
        for number, training in enumerate(trainings, start=1):
            kept = journal.outputs(training.name)
            if kept is None:
                self._now(f"{name}, training {number} of {len(trainings)}")
                self._train(training, begin, traced=traced, keep=True, **fields)
                kept = journal.outputs(training.name)
                assert kept is not None
            outputs.append(kept)
        found = variances(np.stack(outputs))
        journal.write("variance", name, rate=trainings[0].rate, repeats=len(trainings), **found, **fields)
        journal.drop_outputs([training.name for training in trainings])
        self.say(f"{self.label}: {name}, variance of the outputs {found['variance']:.3g}")

    def _train(
        self,
        training: Training,
        begin: Trained | None = None,
        look: Callable[[int, Trained], None] = lambda block, trained: None,
        traced: bool = False,
        keep: bool = False,
        **fields: Any,
    ) -> dict[str, Any]:
        """Train, judge, log; return the record. A traced training also logs its error at the end of each segment."""
        walker = self.walker
        config, learner, journal = walker.config, walker.learner, walker.journal
        per_segment = config.stream.segment // config.stream.block

        def watch(block: int, trained: Trained) -> None:
            look(block, trained)
            if traced and block % per_segment == 0:
                error = learner.error(trained[0], walker.examples.validation())
                update = block * config.stream.block
                journal.write(
                    "trace",
                    f"{training.name}@{update}",
                    training=training.name,
                    iteration=update,
                    validation_error=error,
                )

        arrived = walker.walk(training, begin, watch)
        if keep:
            inputs, _ = walker.examples.held_out()
            fields["outputs"] = journal.keep_outputs(
                training.name, np.asarray(learner.logits(arrived.params, inputs))
            )
        record = journal.write(
            "training",
            training.name,
            iteration=config.stream.updates,
            rate=training.rate,
            validation_error=learner.error(arrived.params, walker.examples.validation()),
            refused=arrived.refused,
            training_seconds=arrived.training_seconds,
            generating_seconds=arrived.generating_seconds,
            **fields,
        )
        walker.checkpoints(training).discard()
        return record

    def _now(self, words: str) -> None:
        self.now(f"{self.label}, seed {self.walker.seed}: {words}")


def match(seats: Sequence[Seat]) -> list[tuple[float, bool]]:
    """Return the rate of each method at which all have the same validation error, and whether they do."""
    config = seats[0].walker.config
    trials = [seat.trial(seat.walker.learner.competitor.rate(config)) for seat in seats]
    target = max(trial.error for trial in trials)
    found = []
    for seat, trial in zip(seats, trials, strict=True):
        rule = config.match
        matched = matching.slow_down(trial, target, seat.trial, rule.tolerance, rule.trainings)
        found.append((matched.rate, abs(matched.error - target) <= rule.tolerance))
    return found


def conduct(seats: Sequence[Seat]) -> None:
    """Do the whole protocol of a seed."""
    for seat, (rate, reached) in zip(seats, match(seats), strict=True):
        seat.rest(rate, reached)


def variances(logits: np.ndarray) -> dict[str, float]:
    """Return the variance of outputs over trainings, mean over examples and classes: of probabilities and of logits.

    The variance is the unbiased one. Adding a number to all logits of an example means nothing, so each example's have
    their mean taken away.
    """
    logits = logits.astype(np.float64)
    logits = logits - logits.mean(axis=-1, keepdims=True)
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    outputs = powers / powers.sum(axis=-1, keepdims=True)
    return {
        "variance": float(outputs.var(axis=0, ddof=1).mean()),
        "logit_variance": float(logits.var(axis=0, ddof=1).mean()),
    }
