"""A request's prompt to token ids, with the places where its messages end."""

from __future__ import annotations

from dataclasses import dataclass

from saiserve.engines.llamacpp.template import ChatTemplate, PromptError, TemplateError
from saiserve.engines.llamacpp.vocabulary import Vocabulary
from saiserve.engines.messages import Prompt, RefusalReason

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


class PromptReader:
    """Renders and tokenises for one model."""

    def __init__(self, vocabulary: Vocabulary, template: ChatTemplate | None) -> None:
        self._vocabulary = vocabulary
        self._template = template

    def read(self, prompt: Prompt) -> PromptTokens:
        """Token ids of a prompt.

        Raises:
            PromptRefusal: no template, a template that refuses, or tokens the model does not have.
        """
        if (prompt.messages is not None) + (prompt.text is not None) + (prompt.tokens is not None) != 1:
            raise PromptRefusal(RefusalReason.BAD_REQUEST, "exactly one of messages, text and tokens must be given")
        if prompt.tokens is not None:
            ids, text = self._given(prompt.tokens), None
        elif prompt.text is not None:
            ids, text = self._vocabulary.tokenise_prompt(prompt.text), prompt.text
        else:
            ids, text = self._rendered(prompt)
        if not ids:
            raise PromptRefusal(RefusalReason.BAD_REQUEST, "the prompt is empty")
        ends = [at + 1 for at, token in enumerate(ids) if token in self._vocabulary.end_tokens]
        return PromptTokens(tuple(ids), text, tuple(ends[-BOUNDARIES_MAX:]))

    def _given(self, tokens: tuple[int, ...]) -> list[int]:
        size = self._vocabulary.size
        for token in tokens:
            if not 0 <= token < size:
                raise PromptRefusal(
                    RefusalReason.BAD_REQUEST, f"token {token} is not in this model's vocabulary of {size}"
                )
        return list(tokens)

    def _rendered(self, prompt: Prompt) -> tuple[list[int], str]:
        if self._template is None:
            raise PromptRefusal(
                RefusalReason.BAD_TEMPLATE,
                "this model has no chat template, neither in its file nor in the catalog: use a plain prompt",
            )
        try:
            rendered = self._template.render(prompt)
        except TemplateError as error:
            raise PromptRefusal(RefusalReason.BAD_TEMPLATE, str(error)) from error
        except PromptError as error:
            raise PromptRefusal(RefusalReason.BAD_REQUEST, str(error)) from error
        return self._vocabulary.tokenise_prompt(rendered.marked, rendered.split), rendered.text
