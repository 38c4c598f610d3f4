"""A request's prompt to token ids, with the places where its messages end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from saiserve.engines.llamacpp.image_file import ImageError
from saiserve.engines.llamacpp.image_parts import has_images, lift_images
from saiserve.engines.llamacpp.template import ChatTemplate, PromptError, Rendered, TemplateError
from saiserve.engines.llamacpp.vision import ImageReader, SeenImage
from saiserve.engines.llamacpp.vocabulary import Vocabulary
from saiserve.engines.messages import Count, Counted, Prompt, RefusalReason

BOUNDARIES_MAX = 256
"""Message ends kept, the last ones."""


class PromptRefusal(Exception):  # noqa: N818
    """The prompt cannot be used; `str()` is for the client."""

    def __init__(self, reason: RefusalReason, detail: str, *, prompt_tokens: int = 0) -> None:
        super().__init__(detail)
        self.reason = reason
        self.prompt_tokens = prompt_tokens


@dataclass(frozen=True, slots=True)
class PromptTokens:
    """A prompt as the model reads it."""

    ids: tuple[int, ...]
    text: str | None
    """The rendered text; None for prompts given as tokens."""
    boundaries: tuple[int, ...]
    """Ascending offsets into `ids` just behind each token that ends a turn."""
    parts: tuple[tuple[int, ...] | bytes, ...] = ()
    """Ids and images in turn, when images are still to be encoded; `ids` has no place for them yet."""
    images: tuple[SeenImage, ...] = ()
    """Held so that the vectors behind their ids stay."""
    salt: str = ""
    """Prompts of different salts must share no prefix."""


def counted(request: Count, prompt: PromptTokens, vocabulary: Vocabulary) -> Counted:
    """The answer to a count: the number of tokens, and what else the request wants of them."""
    return Counted(
        request.id,
        len(prompt.ids),
        text=prompt.text if request.want_text else None,
        ids=prompt.ids if request.want_tokens else None,
        pieces=tuple(map(vocabulary.spelling, prompt.ids)) if request.want_tokens else None,
    )


class PromptReader:
    """Renders and tokenises for one model."""

    def __init__(
        self, vocabulary: Vocabulary, template: ChatTemplate | None, images: ImageReader | None = None
    ) -> None:
        self._vocabulary = vocabulary
        self._template = template
        self._images = images

    def read(self, prompt: Prompt) -> PromptTokens:
        """Token ids of a prompt. One with `parts` must be completed before it is computed.

        Raises:
            PromptRefusal: no template, a template that refuses, or tokens the model does not have.
        """
        if (prompt.messages is not None) + (prompt.text is not None) + (prompt.tokens is not None) != 1:
            raise PromptRefusal(RefusalReason.BAD_REQUEST, "exactly one of messages, text and tokens must be given")
        if has_images(prompt):
            return self._with_images(prompt)
        if prompt.tokens is not None:
            ids, text = self._given(prompt.tokens), None
        elif prompt.text is not None:
            ids, text = self._vocabulary.tokenise_prompt(prompt.text), prompt.text
        else:
            ids, text = self._rendered(prompt)
        if not ids:
            raise PromptRefusal(RefusalReason.BAD_REQUEST, "the prompt is empty")
        return PromptTokens(tuple(ids), text, self._ends(ids))

    def _ends(self, ids: Sequence[int]) -> tuple[int, ...]:
        ends = [at + 1 for at, token in enumerate(ids) if token in self._vocabulary.end_tokens]
        return tuple(ends[-BOUNDARIES_MAX:])

    def _with_images(self, prompt: Prompt) -> PromptTokens:
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
        parts: list[tuple[int, ...] | bytes] = [tuple(self._vocabulary.tokenise_prompt(pieces[0], rendered.split))]
        for image, piece in zip(images, pieces[1:], strict=True):
            parts += [image, tuple(self._vocabulary.tokenise_pieces(piece, rendered.split))]
        ids = tuple(token for part in parts if isinstance(part, tuple) for token in part)
        return PromptTokens(ids, rendered.text.replace(mark, ""), (), tuple(parts))

    def complete(self, prompt: PromptTokens) -> PromptTokens:
        """A prompt with its images encoded; slow, and to be called from one thread at a time.

        Raises:
            PromptRefusal: an image cannot be used.
        """
        if not prompt.parts:
            return prompt
        assert self._images is not None
        ids: list[int] = []
        seen: list[SeenImage] = []
        for part in prompt.parts:
            if isinstance(part, tuple):
                ids += part
                continue
            try:
                seen.append(self._images.see(part))
            except ImageError as error:
                detail = f"image {len(seen)}: {error}"
                raise PromptRefusal(RefusalReason.BAD_REQUEST, detail) from error
            ids += seen[-1].ids
        if not prompt.parts[-1]:
            raise PromptRefusal(RefusalReason.BAD_TEMPLATE, "the prompt ends with an image: text must follow it")
        salt = f"images {self._images.generation} " if self._images.generation else ""
        return PromptTokens(tuple(ids), prompt.text, self._ends(ids), (), tuple(seen), salt)

    def _given(self, tokens: tuple[int, ...]) -> list[int]:
        size = self._vocabulary.size
        for token in tokens:
            if not 0 <= token < size:
                raise PromptRefusal(
                    RefusalReason.BAD_REQUEST, f"token {token} is not in this model's vocabulary of {size}"
                )
        return list(tokens)

    def _rendered(self, prompt: Prompt) -> tuple[list[int], str]:
        rendered = self._render(prompt)
        return self._vocabulary.tokenise_prompt(rendered.marked, rendered.split), rendered.text

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
