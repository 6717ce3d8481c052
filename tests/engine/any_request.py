"""Random requests for the tests of the scheduler and of the engine, as hypothesis strategies.

Few tokens, so that prompts share prefixes with each other and with earlier replies.
"""

from hypothesis import strategies as st

from caldrix.engine.sequence import Request, SamplingParams


def requests(context: int, vocab_size: int) -> st.SearchStrategy[Request]:
    def some_tokens(max_size: int) -> st.SearchStrategy[frozenset[int]]:
        return st.sets(st.integers(0, vocab_size - 1), max_size=max_size).map(frozenset)

    penalties = st.sampled_from([0.0, 0.0, 0.5, -1.5])
    return st.builds(
        Request,
        prompt_ids=st.lists(st.integers(0, 1), min_size=1, max_size=context - 1).map(tuple),
        sampling=st.builds(
            SamplingParams,
            temperature=st.sampled_from([0.0, 0.7]),
            repetition_penalty=st.sampled_from([1.0, 1.3]),
            seed=st.one_of(st.none(), st.integers(-5, 5)),
        ),
        max_tokens=st.one_of(st.none(), st.integers(1, 12)),
        stop_token_ids=some_tokens(2),
        eos_token_ids=some_tokens(2),
        ignore_eos=st.booleans(),
        min_tokens=st.sampled_from([0, 0, 1, 5]),
        logit_bias=st.one_of(
            st.just({}), st.dictionaries(st.integers(0, vocab_size - 1), st.floats(-100, 100))
        ),
        presence_penalty=penalties,
        frequency_penalty=penalties,
        n_logprobs=st.sampled_from([None, None, 0, 3]),
        echo_logprobs=st.sampled_from([False, False, False, True]),
        use_cache=st.sampled_from([True, True, False]),
    )
