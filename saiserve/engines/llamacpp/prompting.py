"""A request's prompt to token ids, with the places where its messages end."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from saiserve.engines.llamacpp.image_file import ImageError
from saiserve.engines.llamacpp.image_parts import has_images, lift_images
from saiserve.engines.llamacpp.template import ChatTemplate, PromptError, Rendered, TemplateError
from saiserve.engines.llamacpp.vision import ImageReader, SeenImage
from saiserve.engines.llamacpp.vocabulary import UTF8_BYTES_MAX, Vocabulary
from saiserve.engines.messages import Count, Counted, Prompt, RefusalReason
from saiserve.engines.packed import PACKED_FROM, pack

BOUNDARIES_MAX = 256
"""Message ends kept, the last ones."""
TEXT_ON_LOOP = 128 * 1024
"""Characters of a text that is tokenised at once, in some 40 ms; a longer one is left to `complete`.

Also the number of given tokens that are looked at so."""
COUNTED_MAX = 8 * 1024 * 1024
"""Bytes of a text, or given tokens, that are counted: tokenising may take 85 bytes of memory for each."""
COUNTED_BYTES_MAX = 48 * 1024 * 1024
"""Text, ids and pieces of one answer to a count: it must fit one message of the engine."""
TOKEN_TOLD_BYTES = 8
"""What a token takes there beside its piece's bytes."""


class PromptRefusal(Exception):  # noqa: N818
    """The prompt cannot be used; `str()` is for the client. `index` is which of several inputs is at fault."""

    def __init__(self, reason: RefusalReason, detail: str, *, prompt_tokens: int = 0, index: int | None = None) -> None:
        super().__init__(detail)
        self.reason = reason
        self.prompt_tokens = prompt_tokens
        self.index = index


def too_long(tokens: int, context_tokens: int) -> PromptRefusal:
    """Why a prompt that does not leave room for a token is refused."""
    return PromptRefusal(
        RefusalReason.TOO_LONG,
        f"the prompt has {tokens} tokens; the context holds {context_tokens}",
        prompt_tokens=tokens,
    )


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of a prompt still to be tokenised."""

    text: str
    split: str
    begins: bool
    """Whether the prompt begins with it, and what the model wants in front of a prompt comes before it."""
    special: bool = True
    """Whether control tokens' texts in it become these tokens."""


@dataclass(frozen=True, slots=True)
class PromptTokens:
    """A prompt as the model reads it."""

    ids: tuple[int, ...]
    text: str | None
    """The rendered text; None for prompts given as tokens."""
    boundaries: tuple[int, ...]
    """Ascending offsets into `ids` just behind each token that ends a turn."""
    parts: tuple[tuple[int, ...] | Text | bytes, ...] = ()
    """Ids, long texts and images in order, when some are still to be read; `ids` has no place for those yet."""
    images: tuple[SeenImage, ...] = ()
    """Held so that the vectors behind their ids stay."""
    salt: str = ""
    """Prompts of different salts must share no prefix."""


def counted(request: Count, prompt: PromptTokens, vocabulary: Vocabulary) -> Counted:
    """The answer to a count: the number of tokens, and what else the request wants of them.

    Raises:
        PromptRefusal: that is more than one answer can hold.
    """
    text = prompt.text if request.want_text else None
    ids = prompt.ids if request.want_tokens else None
    pieces = tuple(map(functools.cache(vocabulary.spelling), ids)) if ids is not None else None
    size = len(text.encode("utf-8", "replace")) if text is not None else 0
    if pieces is not None:
        size += sum(map(len, pieces)) + TOKEN_TOLD_BYTES * len(pieces)
    if size > COUNTED_BYTES_MAX:
        raise PromptRefusal(
            RefusalReason.BAD_REQUEST,
            f"its {len(prompt.ids)} tokens take more than the {COUNTED_BYTES_MAX} bytes of one answer: send it in parts",
        )
    if ids is not None and pieces is not None and len(ids) >= PACKED_FROM:
        return Counted(request.id, len(ids), text=text, packed=pack(ids, pieces))
    return Counted(request.id, len(prompt.ids), text=text, ids=ids, pieces=pieces)


class PromptReader:
    """Renders and tokenises for one model."""

    def __init__(
        self, vocabulary: Vocabulary, template: ChatTemplate | None, images: ImageReader | None = None
    ) -> None:
        self._vocabulary = vocabulary
        self._template = template
        self._images = images

    def read(self, prompt: Prompt, context_tokens: int | None = None) -> PromptTokens:
        """Token ids of a prompt. One with `parts` must be completed before it is computed.

        Args:
            prompt: as it came. Of a text, `template_options` may say `add_special` and `parse_special`, as llama-server
                means them; both are taken for true.
            context_tokens: what has as many tokens for certain is refused untokenised; None: it is only counted.
        Raises:
            PromptRefusal: no template, a template that refuses, too long, or tokens the model does not have.
        """
        if (prompt.messages is not None) + (prompt.text is not None) + (prompt.tokens is not None) != 1:
            raise PromptRefusal(RefusalReason.BAD_REQUEST, "exactly one of messages, text and tokens must be given")
        if prompt.tokens is not None:
            return self._read_tokens(prompt.tokens, context_tokens)
        if has_images(prompt):
            return self._with_images(prompt, context_tokens)
        rendered = Rendered(prompt.text, "") if prompt.text is not None else self._render(prompt)
        text = rendered.text
        self._check_size(text, context_tokens)
        options = prompt.template_options if prompt.text is not None else {}
        part = Text(
            rendered.marked,
            rendered.split,
            begins=options.get("add_special") is not False,
            special=options.get("parse_special") is not False,
        )
        return PromptTokens((), text, (), (part,)) if len(text) > TEXT_ON_LOOP else self._whole(self._ids(part), text)

    def _read_tokens(self, tokens: tuple[int, ...], context_tokens: int | None) -> PromptTokens:
        if context_tokens is not None and len(tokens) >= context_tokens:
            raise too_long(len(tokens), context_tokens)
        if context_tokens is None and len(tokens) > COUNTED_MAX:
            raise PromptRefusal(RefusalReason.BAD_REQUEST, f"{len(tokens)} tokens; {COUNTED_MAX} are taken at most")
        self._check_given(tokens)
        return PromptTokens((), None, (), (tokens,)) if len(tokens) > TEXT_ON_LOOP else self._whole(tokens, None)

    def _check_size(self, text: str, context_tokens: int | None) -> None:
        if context_tokens is None:
            size = len(text.encode("utf-8", "replace")) if len(text) * UTF8_BYTES_MAX > COUNTED_MAX else 0
            if size > COUNTED_MAX:
                raise PromptRefusal(
                    RefusalReason.BAD_REQUEST, f"a text of {size} bytes; texts of {COUNTED_MAX} are counted at most"
                )
        elif len(text) > context_tokens:
            least = self._vocabulary.tokens_least(text)
            if least >= context_tokens:
                raise too_long(least, context_tokens)

    def _whole(self, ids: Sequence[int], text: str | None) -> PromptTokens:
        if not ids:
            raise PromptRefusal(RefusalReason.BAD_REQUEST, "the prompt is empty")
        return PromptTokens(tuple(ids), text, self._ends(ids))

    def _part(self, text: str, split: str, *, begins: bool, is_late: bool) -> tuple[int, ...] | Text:
        """Its ids, unless they are to wait, as those of a prompt that is long as a whole are."""
        part = Text(text, split, begins)
        return part if is_late else self._ids(part)

    def _ids(self, part: Text) -> tuple[int, ...]:
        vocabulary = self._vocabulary
        tokenise = vocabulary.tokenise_prompt if part.begins else vocabulary.tokenise_pieces
        return tuple(tokenise(part.text, part.split, special=part.special))

    def _ends(self, ids: Sequence[int]) -> tuple[int, ...]:
        ends = [at + 1 for at, token in enumerate(ids) if token in self._vocabulary.end_tokens]
        return tuple(ends[-BOUNDARIES_MAX:])

    def _with_images(self, prompt: Prompt, context_tokens: int | None) -> PromptTokens:
        if self._images is None:
            raise PromptRefusal(
                RefusalReason.BAD_REQUEST, "this model does not see images: ask one that lists 'vision' in /v1/models"
            )
        try:
            lifted, mark, images = lift_images(prompt)
        except ImageError as error:
            raise PromptRefusal(RefusalReason.BAD_REQUEST, str(error)) from error
        rendered = self._render(lifted)
        pieces = rendered.marked.split(mark)
        if len(pieces) != len(images) + 1:
            raise PromptRefusal(RefusalReason.BAD_TEMPLATE, "this model's chat template does not show all images")
        text = rendered.text.replace(mark, "")
        self._check_size(text, context_tokens)
        is_late = len(text) > TEXT_ON_LOOP
        read = [self._part(piece, rendered.split, begins=at == 0, is_late=is_late) for at, piece in enumerate(pieces)]
        parts: list[tuple[int, ...] | Text | bytes] = [read[0]]
        for image, piece in zip(images, read[1:], strict=True):
            parts += [image, piece]
        ids = tuple(token for part in parts if isinstance(part, tuple) for token in part)
        return PromptTokens(ids, text, (), tuple(parts))

    def complete(self, prompt: PromptTokens) -> PromptTokens:
        """A prompt with its images encoded and its long texts tokenised; slow. With images from one thread at a time.

        Raises:
            PromptRefusal: an image cannot be used.
        """
        if not prompt.parts:
            return prompt
        ids: list[int] = []
        seen: list[SeenImage] = []
        for part in prompt.parts:
            if isinstance(part, bytes):
                seen.append(self._see(part, len(seen)))
                ids += seen[-1].ids
            else:
                ids += self._ids(part) if isinstance(part, Text) else part
        if not prompt.parts[-1]:
            raise PromptRefusal(RefusalReason.BAD_TEMPLATE, "the prompt ends with an image: text must follow it")
        salt = f"images {self._images.generation} " if self._images is not None and self._images.generation else ""
        return PromptTokens(tuple(ids), prompt.text, self._ends(ids), (), tuple(seen), salt if seen else "")

    def _see(self, image: bytes, number: int) -> SeenImage:
        assert self._images is not None
        try:
            return self._images.see(image)
        except ImageError as error:
            raise PromptRefusal(RefusalReason.BAD_REQUEST, f"image {number}: {error}") from error

    def _check_given(self, tokens: tuple[int, ...]) -> None:
        size = self._vocabulary.size
        for token in (min(tokens, default=0), max(tokens, default=0)):
            if not 0 <= token < size:
                raise PromptRefusal(
                    RefusalReason.BAD_REQUEST, f"token {token} is not in this model's vocabulary of {size}"
                )

    def _render(self, prompt: Prompt) -> Rendered:
        if self._template is None:
            raise PromptRefusal(
                RefusalReason.BAD_TEMPLATE,
                "this model has no chat template, neither in its file nor in the catalog: use a plain prompt",
            )
        try:
            return self._template.render(prompt)
        except TemplateError as error:
            raise PromptRefusal(RefusalReason.BAD_TEMPLATE, str(error)) from error
        except PromptError as error:
            raise PromptRefusal(RefusalReason.BAD_REQUEST, str(error)) from error
