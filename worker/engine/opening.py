"""Makes the batch of a loaded model and lets it generate for the first time. Runs on the engine's thread."""

from collections.abc import Callable
from functools import partial
from typing import Final

from mlx_lm.utils import maybe_set_recommended_wired_limit

from shared.launch import Options
from worker.engine.batch import Batch, logits_width
from worker.engine.draft import Draft
from worker.engine.embedder import DecoderEmbedder, Embedder, EncoderEmbedder
from worker.engine.prompt_cache import PromptCache
from worker.engine.rows import Row
from worker.model.draft import DraftModel
from worker.model.loading import Model
from worker.model.precision import on_cpu
from worker.request import Sampling
from worker.shard.batch import LeadingBatch
from worker.shard.orders import Open
from worker.shard.ranks import Ranks

_SCORE_BYTES: Final = 4


def make_embedder(model: Model, options: Options) -> Embedder | None:
    """What makes vectors with the model, when it was made for that."""
    embedding, step = model.embedding, options.prefill_step
    if embedding is None:
        return None
    if embedding.encoder:
        padding = model.tokenizer.pad_token_id or 0
        return EncoderEmbedder(model.network, embedding, padding=padding, prefill_step=step)
    return DecoderEmbedder(model.network, embedding.pooling, prefill_step=step)


def open_engine(
    model: Model,
    options: Options,
    prompts: PromptCache,
    embedder: Embedder | None,
    ranks: Ranks | None = None,
) -> Batch | None:
    """As `open_batch`; for a model that writes nothing None, after a vector was really made."""
    if model.writes:
        return open_batch(model, options, prompts, ranks)
    assert embedder is not None
    # Where there are rows, mlx-lm's batch does it: what the GPU works with is not paged out.
    maybe_set_recommended_wired_limit()
    for _ in embedder.embed([[0, 0, 0, 0]]):
        pass
    return None


def open_batch(model: Model, options: Options, prompts: PromptCache, ranks: Ranks | None = None) -> Batch:
    """The batch, after a token was really generated; with a draft, after proposals were checked too.

    That takes one pass of the network: whoever waits for the model waits for it too.
    """
    make: Callable[..., Batch] = Batch
    if ranks is not None:
        ranks.tell(Open(prompts.limit_bytes, tuple(sorted(model.end_tokens))))
        make = partial(LeadingBatch, tell=ranks.tell, clock=ranks.clock)
    batch = make(
        model.network,
        model.end_tokens,
        max_rows=options.max_concurrency,
        prefill_step=options.prefill_step,
        line_breaks=model.line_breaks,
        prompts=prompts,
        draft=None if model.draft is None else _draft(model, model.draft, options),
        draft_tokens=options.draft_tokens,
    )
    most = 1 if model.draft is None else 2 + options.draft_tokens
    greedy = Sampling(temperature=0.0)
    batch.insert(Row(id=0, prompt=[0], max_tokens=most, sampling=greedy, ignore_eos=True))
    while len(batch):
        batch.step()
    if (counts := batch.speculated) is not None:
        # Nobody asked for these.
        counts.steps = counts.proposed = counts.accepted = 0
    return batch


def most_scores(model: Model, pass_bytes: int) -> int:
    """Pairs of tokens that a step may compare, so that it computes with `pass_bytes` at most; 0 is no bound.

    Without a GPU's kernels the scores of attention are all there at a time, in float32.
    """
    if not on_cpu() or not model.heads:
        return 0
    return max(1, pass_bytes // (model.heads * _SCORE_BYTES))


def _draft(model: Model, draft: DraftModel, options: Options) -> Draft:
    return Draft(
        draft.network,
        width=logits_width(model.network),
        own_width=draft.width,
        context=min(draft.context, model.context_window),
        prefill_step=options.prefill_step,
    )
