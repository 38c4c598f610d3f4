"""One answer being made: what it has so far, when it is complete, how long each part took."""

from __future__ import annotations

from dataclasses import dataclass, field

from saiserve.chat.text import StopMatcher, Utf8Assembler
from saiserve.engines.llamacpp.batch_arrays import Logits
from saiserve.engines.llamacpp.constraint import ConstraintBroken, Matcher
from saiserve.engines.llamacpp.prompting import PromptTokens
from saiserve.engines.llamacpp.sampler import Drawn, NotANumberError, Sampler, SamplingError
from saiserve.engines.llamacpp.vocabulary import Vocabulary
from saiserve.engines.messages import Finished, FinishReason, Generate, Load
from saiserve.engines.waits import NS


@dataclass(slots=True)
class Clock:
    """Moments of an answer's life in nanoseconds, 0 for not yet."""

    submitted_at: int
    started_at: int = 0
    first_token_at: int = 0
    told_at: int = 0
    """When the node last heard of this answer."""


@dataclass(slots=True)
class Answer:
    """State of one accepted request."""

    request: Generate
    prompt: PromptTokens
    sampler: Sampler
    matcher: Matcher | None
    max_tokens: int
    """Tokens of the whole answer at most, resumed ones included."""
    clock: Clock
    count: int = 0
    """Tokens of the answer so far, resumed ones included."""
    cached_tokens: int = 0
    prefilled: int = 0
    end: FinishReason | None = None
    probation: int = 0
    """Good draws still due since it was tried again because its output was no number; 0: it may be tried again."""
    end_key: bytes = b""
    """Of the prompt whose first draw is to come; empty: its logits are not kept."""
    _text: Utf8Assembler = field(default_factory=Utf8Assembler)
    _stops: StopMatcher | None = None

    def __post_init__(self) -> None:
        """Prepare the watch for stop strings."""
        if self.request.stop:
            self._stops = StopMatcher(self.request.stop)

    def resume(self, vocabulary: Vocabulary) -> None:
        """Take in the tokens sent elsewhere; `end` is set when they complete the answer already."""
        for token in self.request.resume_tokens:
            self._watch(vocabulary.piece(token))
        self.count = len(self.request.resume_tokens)
        self._decide()

    def draw(self, logits: Logits, position: int) -> Drawn:
        """The next token under the constraint. Raises SamplingError or ConstraintBroken."""
        if self.matcher is None:
            return self.sampler.draw(logits, position)
        try:
            return self._draw_allowed(self.matcher, logits, position)
        except NotANumberError:
            raise
        except SamplingError as error:
            left = "the constraint, logit_bias and ignore_eos together leave none"
            raise ConstraintBroken(f"{error}: {left}", is_own=True) from error

    def _draw_allowed(self, matcher: Matcher, logits: Logits, position: int) -> Drawn:
        if self.sampler.is_greedy and self.request.sampling.logprobs is None:
            # The best token of all is the best allowed one whenever it is allowed, and asking costs a microsecond.
            drawn = self.sampler.draw(logits, position)
            if matcher.allows(drawn.token):
                return drawn
            return Drawn(self.sampler.best(logits, matcher.forbidden()))
        return self.sampler.draw(logits, position, matcher.forbidden())

    def take(self, token: int, piece: bytes) -> None:
        """A drawn token that does not end the turn joins the answer. Raises ConstraintBroken."""
        if self.matcher is not None:
            self.matcher.accept(token)
        self.sampler.accept(token)
        self._watch(piece)
        self.count += 1
        self._decide()

    @property
    def known_tokens(self) -> int:
        """Of prompt and answer together: the place of the next one."""
        return len(self.prompt.ids) + self.count

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended it."""
        return self._stops.found if self._stops is not None else None

    def finished(self, now: int, load: Load) -> Finished:
        """The last message; `end` must be set."""
        assert self.end is not None
        clock = self.clock
        started = clock.started_at or now
        first = clock.first_token_at or now
        return Finished(
            id=self.request.id,
            reason=self.end,
            completion_tokens=self.count,
            prompt_tokens=len(self.prompt.ids),
            cached_tokens=self.cached_tokens,
            stop_string=self.stop_string,
            queue_s=(started - clock.submitted_at) / NS,
            prefill_s=(first - started) / NS,
            decode_s=(now - first) / NS,
            load=load,
        )

    def _watch(self, piece: bytes) -> None:
        if self._stops is not None and piece:
            self._stops.feed(self._text.feed(piece))

    def _decide(self) -> None:
        if self._stops is not None and self._stops.found is not None:
            self.end = FinishReason.STOP_STRING
        elif self.matcher is not None and self.matcher.is_complete:
            self.end = FinishReason.STOP
        elif self.count >= self.max_tokens:
            self.end = FinishReason.LENGTH
