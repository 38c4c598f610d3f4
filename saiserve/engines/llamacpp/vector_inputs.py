"""A request for vectors or ranks checked and turned into token ids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from saiserve.engines.llamacpp.prompting import PromptRefusal
from saiserve.engines.llamacpp.purpose import POOLINGS
from saiserve.engines.llamacpp.vocabulary import Vocabulary, unused_character
from saiserve.engines.messages import Embed, RefusalReason

INPUTS_MAX = 2_048
VECTOR_BYTES_MAX = 48 * 1024 * 1024
"""Vectors of one answer: it must fit one message of the engine and one reply of a peer."""
RANK = "rank"


class VectorInputs:
    """Reads requests for one model.

    Args:
        pooling: what a request that names none gets; `rank` for a model that ranks.
        size: numbers in a vector.
        tokens_max: longest input.
        rank_template: text with `{query}` and `{document}`; without one the pair is query, separator, document.
    """

    def __init__(
        self, vocabulary: Vocabulary, *, pooling: str, size: int, tokens_max: int, rank_template: str = ""
    ) -> None:
        self._vocabulary = vocabulary
        self.pooling = pooling
        self._size = size
        self._tokens_max = tokens_max
        self._rank_template = rank_template

    def read(self, request: Embed) -> tuple[str, list[tuple[int, ...]]]:
        """The pooling to use and the token ids of each input; for ranks, of each document with the query.

        Raises:
            PromptRefusal: the request cannot be served as it is.
        """
        pooling = request.pooling or self.pooling
        self._check(pooling, request)
        texts = request.inputs
        self._check_sizes(texts)
        read = self._pairs(texts[0], texts[1:]) if pooling == RANK else map(self._ids, texts)
        inputs: list[tuple[int, ...]] = []
        rows = 0
        for number, ids in enumerate(read):  # one at a time: the first that is at fault ends the reading
            self._check_input(number, ids, len(texts))
            inputs.append(ids)
            rows += len(ids) if pooling == "none" else 1
            if rows * self._size * 4 > VECTOR_BYTES_MAX:
                raise _bad(
                    f"the vectors of {self._size} numbers are more than the {VECTOR_BYTES_MAX} bytes of one answer: "
                    "send fewer inputs"
                )
        return pooling, inputs

    def _check_input(self, number: int, ids: tuple[int, ...], given: int) -> None:
        if len(ids) > self._tokens_max:
            raise self._too_long(number, len(ids), given)
        if not ids or min(ids) < 0 or max(ids) >= self._vocabulary.size:
            raise _bad(f"input {number} is empty or has unknown tokens")

    def _check(self, pooling: str, request: Embed) -> None:
        ranks = self.pooling == RANK
        if (pooling == RANK) != ranks:
            raise _bad(
                "this model ranks documents and makes no vectors"
                if ranks
                else "this model does not rank documents: ask one that lists 'rerank' in /v1/models"
            )
        if not ranks and pooling not in POOLINGS:
            raise _bad(f"pooling {pooling!r} is not one of {', '.join(POOLINGS)}")
        least = 2 if ranks else 1
        if not least <= len(request.inputs) <= INPUTS_MAX + least - 1:
            raise _bad(f"{len(request.inputs)} inputs; {least} to {INPUTS_MAX + least - 1} are possible")

    def _check_sizes(self, texts: Sequence[str | tuple[int, ...]]) -> None:
        """Refuse what is too long for certain before it is tokenised."""
        for number, text in enumerate(texts, -1 if self.pooling == RANK else 0):
            if isinstance(text, str) and len(text) > self._tokens_max:
                least = self._vocabulary.tokens_least(text)
                if least > self._tokens_max:
                    raise self._too_long(number, least, len(texts))

    def _too_long(self, number: int, tokens: int, given: int) -> PromptRefusal:
        """Why one of the inputs given is refused: by number, in a ranking of the document; -1 is its query."""
        if self.pooling == RANK:
            what = "the query" if number < 0 else f"document {number} with the query"
        else:
            what = f"input {number}"
        detail = f"{what} has {tokens} tokens; the context holds {self._tokens_max}"
        index = number if given > 1 and number >= 0 else None
        return PromptRefusal(RefusalReason.TOO_LONG, detail, prompt_tokens=tokens, index=index)

    def _ids(self, given: str | tuple[int, ...]) -> tuple[int, ...]:
        if not isinstance(given, str):
            return given
        return tuple(self._vocabulary.tokenise(given, special=False, add_ends=True))

    def _pairs(
        self, query: str | tuple[int, ...], documents: Sequence[str | tuple[int, ...]]
    ) -> Iterator[tuple[int, ...]]:
        texts = [text for text in (query, *documents) if isinstance(text, str)]
        if len(texts) <= len(documents):
            raise _bad("query and documents of a ranking are texts")
        return (self._pair(texts[0], document) for document in texts[1:])

    def _pair(self, query: str, document: str) -> tuple[int, ...]:
        """Query and document as the model was trained to see them; markers in either stay text."""
        vocabulary, special = self._vocabulary, self._vocabulary.special
        if self._rank_template:
            split = unused_character((self._rank_template, query, document))
            defuse = vocabulary.markers.defuse
            before, _, rest = self._rank_template.partition("{query}")
            between, _, after = rest.partition("{document}")
            text = before + defuse(query, split) + between + defuse(document, split) + after
            return tuple(vocabulary.tokenise_prompt(text, split))
        begin = (special.bos,) if special.adds_bos else ()
        end = (special.eos if special.eos >= 0 else special.sep,) if special.adds_eos else ()
        separator = (special.sep,) if special.adds_sep else ()
        first, second = (vocabulary.tokenise(text, special=False) for text in (query, document))
        return (*begin, *first, *end, *separator, *second, *end)


def _bad(detail: str) -> PromptRefusal:
    return PromptRefusal(RefusalReason.BAD_REQUEST, detail)
