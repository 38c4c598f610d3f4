"""An accepted request as the two things made of it: the answer the worker writes, and the job the scheduler plans. Pure."""

from __future__ import annotations

from saiserve.engines.llamacpp.answer import Answer, Clock
from saiserve.engines.llamacpp.constraint import Matcher
from saiserve.engines.llamacpp.job import Job
from saiserve.engines.llamacpp.prompt_ends import end_key
from saiserve.engines.llamacpp.prompting import PromptTokens
from saiserve.engines.llamacpp.sampler import Sampler
from saiserve.engines.llamacpp.vocabulary import Vocabulary
from saiserve.engines.messages import Generate

PRIORITY_MAX = 100
"""Either way; further values count as this one."""


def begun(
    request: Generate,
    prompt: PromptTokens,
    matcher: Matcher | None,
    vocabulary: Vocabulary,
    context_tokens: int,
    *,
    adapter: str,
    now: int,
) -> tuple[Answer, Job]:
    """Return the answer with the tokens it is resumed from, and its job; `answer.end` is set when nothing is to be done.

    Args:
        context_tokens: prompt and answer together have so many at most.
        adapter: the mix of adapters it is computed with.
        now: nanoseconds.
    """
    room = context_tokens - len(prompt.ids)
    most = room if request.max_tokens is None else max(0, min(request.max_tokens, room))
    text_ids = tuple(token for token in prompt.ids if token < vocabulary.size) if prompt.images else prompt.ids
    answer = Answer(
        request=request,
        prompt=prompt,
        sampler=Sampler(request.sampling, vocabulary, text_ids, request.resume_tokens),
        matcher=matcher,
        max_tokens=most,
        clock=Clock(submitted_at=now, told_at=now),
    )
    answer.resume(vocabulary)
    tokens, isolation = prompt.ids + request.resume_tokens, f"{adapter}\x00{prompt.salt}{request.isolation}"
    answer.end_key = b"" if prompt.images else end_key(tokens, isolation)
    job = Job(
        id=request.id,
        tokens=tokens,
        prompt_tokens=len(prompt.ids),
        max_tokens=max(1, most - answer.count),
        priority=max(-PRIORITY_MAX, min(PRIORITY_MAX, request.priority)),
        isolation=isolation,
        adapter=adapter,
        end_key=answer.end_key,
        boundaries=prompt.boundaries,
    )
    return answer, job
