"""Decoding with a cache against full forward passes over the whole history, written here in plain Python, a document at a time."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_minigpt import SMALL, made

from tinygen import rng
from tinygen.errors import UserError
from tinygen.media.text import PROMPT_ENDS
from tinygen.nn import causal_attention
from tinygen.samplers.text import Generating

LENGTH, END = SMALL["length"], SMALL["vocabulary"] - 1
OFF = dict(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, repetition_penalty=1.0)
ROTARY, LEARNED = (
    (dict(tied=False), dict(tied=False, kv_heads=2)),
    dict(positions="learned", feed_forward="gelu", tied=False, qk_norm=False),
)
PROMPTS = [[3, 1, 4], [], [5, 9, 2, 6, 5], [7]]
LONG = [[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 8, 7, 6], [2, 7, 1], [1] * 8, [3] * 7]  # the context is 8 tokens, E included


class Endless:
    """A model that never ends a document, so that it comes to write past its window."""

    def __init__(self, model):
        self.model, self.places = model, model.places
        self.features, self.init_cache = model.features, model.init_cache

    def unembed(self, h):
        return self.model.unembed(h).at[..., END].set(-1e9)


def objective(**changes):
    return Generating(**{**OFF, "length": LENGTH, "end": END, "new_tokens": 20, **changes})


def conditions(prompts, padded=0):
    """Right-padded, with a token of the vocabulary that must make no difference."""
    width = max([padded, *map(len, prompts)])
    mask = np.arange(width) < np.array([len(prompt) for prompt in prompts])[:, None]
    rows = np.full((len(prompts), width), 8, np.int32)
    rows[mask] = np.concatenate([np.asarray(prompt, np.int32) for prompt in prompts])
    return {"prompt": jnp.asarray(rows), "prompt_mask": jnp.asarray(mask)}


def keys(num, seed=0):
    return rng.example_keys(rng.stream(seed, "sample"), 0, num)


def writer(model, **settings):
    """write(prompts, ...): the documents of numbers first, first + 1, ... after them, by a program for each shape of the prompts."""
    own = objective(**settings)
    sample = jax.jit(lambda keys, given: own.draw(model, keys, given)[0])

    def write(prompts, first=0, seed=0, padded=0):
        return np.asarray(sample(keys(first + len(prompts), seed)[first:], conditions(prompts, padded))).tolist()

    return write


def write(model, prompts, **settings):
    return writer(model, **settings)(prompts)


def banded(window):
    """Attention over all tokens at once, each seeing the `window` up to itself; in place of the model's own."""

    def attend(q, k, v, **_):
        place = jnp.arange(q.shape[1])
        visible = (place[None] <= place[:, None]) & (place[None] > place[:, None] - window)
        scores = jnp.einsum("blnk,bsnk->bnls", q, k, precision="highest") / q.shape[-1] ** 0.5
        weights = jax.nn.softmax(jnp.where(visible, scores, -jnp.inf), -1)
        return jnp.einsum("bnls,bsnk->blnk", weights, v, precision="highest")

    return attend


def by_full_passes(model, prompts, num, monkeypatch, penalty=1.0, window=LENGTH):
    """The most likely tokens after E and each prompt, each by a pass over everything before it: all there has been, under a banded mask,
    or with learned positions what there is room for, cut to its last half where there is none.
    """
    monkeypatch.setattr(causal_attention, "attention", banded(window))
    step = jax.jit(lambda row: model.unembed(model.features(row[None])[0])[0])

    def follow(prompt):
        context, seen, written = [END, *prompt], set(prompt), []
        for _ in range(num):
            if model.places is not None and len(context) > LENGTH:
                context = context[-(LENGTH // 2) :]
            row = np.zeros(LENGTH if model.places is not None else 40, np.int32)
            row[: len(context)] = context
            logits = np.asarray(step(row))[len(context) - 1, : END + 1].astype(np.float64)
            for token in seen:
                logits[token] = logits[token] / penalty if logits[token] > 0 else logits[token] * penalty
            written.append(int(np.argmax(logits)))
            seen.add(written[-1])
            context.append(written[-1])
        return written

    return [follow(prompt) for prompt in prompts]


@pytest.mark.parametrize("kind", [*ROTARY, LEARNED], ids=str)
@pytest.mark.parametrize("penalty", [1.0, 1.5])  # which looks at the prompt and at what was written, and never at padding
def test_greedy_decoding_gives_the_tokens_of_full_passes_past_the_window_too(kind, penalty, monkeypatch):
    model, prompts = Endless(made(**kind)), PROMPTS + LONG
    cached = write(model, prompts, temperature=0.0, repetition_penalty=penalty)
    assert cached == by_full_passes(model, prompts, 20, monkeypatch, penalty=penalty)
    assert penalty == 1 or len({token for row in cached for token in row}) > 3  # it does not say the same all the time


def test_what_falls_out_of_the_window_would_have_made_a_difference(monkeypatch):
    model = Endless(made(**ROTARY[0]))
    assert write(model, PROMPTS, temperature=0.0) != by_full_passes(model, PROMPTS, 20, monkeypatch, window=100)


def test_documents_end_at_the_same_token_as_by_full_passes(monkeypatch):
    model = made(**ROTARY[0])
    model.head.embedding[...] = model.head.embedding[...].at[END].multiply(1.5)
    expected = by_full_passes(model, LONG, 20, monkeypatch)
    ends = [row.index(END) if END in row else 20 for row in expected]
    assert 0 < sum(at < 20 for at in ends) < 4
    assert write(model, LONG, temperature=0.0) == [row[:at] + [END] * (20 - at) for row, at in zip(expected, ends, strict=True)]


@pytest.mark.parametrize("kind", [*ROTARY, LEARNED], ids=str)
def test_a_document_depends_on_its_own_prompt_and_key_alone(kind):
    draw = writer(made(**kind))
    together = draw(LONG, padded=17)
    assert together == draw(LONG)  # whatever the padding
    assert [draw([prompt], first=row, padded=13)[0] for row, prompt in enumerate(LONG)] == together
    assert draw(LONG[1:2], first=1) == together[1:2]  # its three tokens as they are


def test_an_equal_seed_gives_equal_text_and_another_another():
    draw = writer(made())
    once = draw(PROMPTS)
    assert draw(PROMPTS) == once
    assert draw(PROMPTS, seed=1) != once
    assert len({tuple(row) for row in draw([[1]] * 6)}) == 6


def test_equal_prompts_are_drawn_as_often_as_their_probability_says():
    model, num = made(), 4000
    drawn = np.array(write(model, [[3, 1]] * num, new_tokens=1))[:, 0]
    logits = model.unembed(model.features(np.array([[END, 3, 1]]))[0])[0, -1, : END + 1]
    expected = np.asarray(jax.nn.softmax(logits))
    share = np.bincount(drawn, minlength=END + 1) / num
    assert (np.abs(share - expected) < 4 * np.sqrt(expected * (1 - expected) / num) + 1e-9).all()


@pytest.mark.parametrize("kind", [ROTARY[0], LEARNED], ids=str)
def test_writing_goes_on_where_it_stopped(kind):
    own, model = objective(), Endless(made(**kind))
    given = conditions(PROMPTS)
    state, parts = jax.jit(lambda given: own.begin(model, given["prompt"], given["prompt_mask"], keys(4)))(given), []
    more = jax.jit(lambda state, num: own.more(model, state, num), static_argnums=1)
    for num in (1, 7, 12):
        state, tokens = more(state, num)
        parts.append(tokens)
    assert np.concatenate(parts, 1).tolist() == write(model, PROMPTS)


def test_a_document_that_has_ended_stays_so_and_no_more_is_computed_once_all_have():
    class Ending(Endless):
        def unembed(self, h):
            return self.model.unembed(h).at[..., END].set(1e9)

    own, model, given = objective(), Ending(made()), conditions(PROMPTS)
    state, tokens = jax.jit(lambda given: own.more(model, own.begin(model, given["prompt"], given["prompt_mask"], keys(4)), 20))(given)
    assert (tokens == END).all()
    assert int(state.drawn) == 1


def test_a_preview_shows_new_documents_and_what_follows_the_first_tokens_of_held_out_ones():
    tokens = np.array([[END, 1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 4, 5, 6, 7, 8], [1, 2, END, 4, 5, 6, 7, 8], [0] * 8], np.int32)
    segment = np.array([[1] * 8, [1] * 8, [1, 1, 2, 2, 2, 2, 2, 2], [0] * 8], np.int32)
    shown = objective(new_tokens=5).preview(None, made(), {"tokens": jnp.asarray(tokens), "segment": jnp.asarray(segment)}, keys(4))
    assert {name: (item.medium, item.value.shape) for name, item in shown.items()} == {
        "samples": (None, (4, 5)),
        "continuations": (None, (4, 4 + 1 + 5)),
    }
    before = np.asarray(shown["continuations"].value)[:, :5].tolist()
    mark = PROMPT_ENDS
    assert before == [[1, 2, 3, 4, mark], [1, 2, 3, 4, mark], [1, 2, END, END, mark], [END] * 4 + [mark]]
    asked = conditions([[1, 2, 3, 4], [1, 2, 3, 4], [1, 2], []])
    second = rng.halved(keys(4))[1]
    assert (
        np.asarray(shown["continuations"].value)[:, 5:].tolist()
        == np.asarray(objective(new_tokens=5).draw(made(), second, asked)[0]).tolist()
    )


@pytest.mark.parametrize(
    "wrong",
    [
        dict(temperature=-1.0), dict(temperature=1e-4), dict(temperature=float("nan")), dict(top_k=-1), dict(top_p=0.0), dict(top_p=1.1),
        dict(min_p=-0.1), dict(min_p=1.5), dict(repetition_penalty=0.0), dict(repetition_penalty=float("inf")), dict(new_tokens=0),
    ],
    ids=str,
)  # fmt: skip
def test_a_setting_out_of_its_range_is_refused_by_name(wrong):
    with pytest.raises(UserError, match=next(iter(wrong))):
        objective(**wrong)
