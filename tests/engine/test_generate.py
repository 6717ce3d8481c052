"""Text of a reply: whole characters, stop strings, and replies that nobody reads."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest
from fake_program import FakeProgram, Gate, expected_reply, play, running

from caldrix.engine.engine import Engine
from caldrix.engine.generate import Result, TextStream, stream_all, stream_text
from caldrix.engine.sequence import FinishReason, Request
from caldrix.errors import BusyError, EngineError
from caldrix.text.detokenize import DecoderRules

VOCAB = 50
REQUEST = Request((1, 2, 3), max_tokens=12)
IDS = expected_reply(REQUEST, context=64, vocab_size=VOCAB, seed=0)[0]


class Letters:
    """Token i is the letter A + i; some are parts of a character or special."""

    def __init__(self, parts: dict[int, bytes] | None = None, special: int | None = None) -> None:
        self.rules = DecoderRules(byte_level=True)
        self.parts = parts or {}
        self.special = special

    def piece(self, token_id: int, first: bool = False) -> bytes:
        return self.parts.get(token_id, bytes([65 + token_id]))

    def is_special(self, token_id: int) -> bool:
        return token_id == self.special


TEXT = "".join(chr(65 + token_id) for token_id in IDS)


async def read(stream: TextStream) -> tuple[list[str], Result]:
    pieces = [piece async for piece in stream]
    result = stream.result
    assert "".join(pieces) == result.text
    return pieces, result


def test_the_reply_is_the_text_of_its_tokens() -> None:
    async def test() -> None:
        async with running(FakeProgram(VOCAB)) as engine:
            pieces, result = await read(stream_text(engine, Letters(), REQUEST))
            assert pieces == list(TEXT)
            assert result.token_ids == tuple(IDS)
            assert result.finish_reason is FinishReason.LENGTH
            assert (result.n_prompt, result.n_cached, result.n_completion) == (3, 0, 12)
            assert result.timings.first_token_s is not None
            assert (await read(stream_text(engine, Letters(), REQUEST)))[1].n_cached == 2

    play(test)


def test_a_stop_token_is_counted_and_not_shown() -> None:
    async def test() -> None:
        async with running(FakeProgram(VOCAB)) as engine:
            request = Request((1, 2, 3), stop_token_ids=frozenset({IDS[4]}))
            _, result = await read(stream_text(engine, Letters(), request))
            assert result.text == TEXT[: TEXT.index(TEXT[4])]
            assert result.n_completion == len(result.token_ids) + 1
            assert result.finish_reason is FinishReason.STOP

    play(test)


def test_a_character_is_shown_when_it_is_whole_and_a_cut_one_at_the_end() -> None:
    async def test() -> None:
        async with running(FakeProgram(VOCAB)) as engine:
            parts = {IDS[0]: "é".encode()[:1], IDS[1]: "é".encode()[1:], IDS[-1]: b"\xe2\x82"}
            pieces, result = await read(stream_text(engine, Letters(parts), REQUEST))
            assert result.text == "é" + TEXT[2:-1] + "\ufffd"
            assert pieces[0] == "é"

    play(test)


def test_special_tokens_are_not_shown() -> None:
    async def test() -> None:
        async with running(FakeProgram(VOCAB)) as engine:
            _, result = await read(stream_text(engine, Letters(special=IDS[3]), REQUEST))
            assert result.text == TEXT.replace(TEXT[3], "")
            assert result.n_completion == 12

    play(test)


def test_a_stop_string_ends_the_reply_before_it_however_far_the_engine_is() -> None:
    async def test() -> None:
        async with running(FakeProgram(VOCAB)) as engine:
            stream = stream_text(engine, Letters(), REQUEST, stops=["none", TEXT[4:7]])
            _, result = await read(stream)
            assert result.text == TEXT[:4]
            assert result.finish_reason is FinishReason.STOP
            assert result.token_ids == tuple(IDS[:7])
            assert result.n_completion == 7
            assert [piece async for piece in stream] == []

            late = stream_text(engine, Letters(), REQUEST, stops=[TEXT[4:7]])
            await read(stream_text(engine, Letters(), Request((9,))))  # its turn comes after
            assert late.generation.finish_reason is FinishReason.LENGTH
            _, again = await read(late)
            assert (again.text, again.finish_reason) == (result.text, result.finish_reason)
            assert again.n_completion == 7

    play(test)


def test_a_reply_that_a_stop_string_ends_is_complete_for_the_engine_too() -> None:
    async def test() -> None:
        gate = Gate()
        async with running(FakeProgram(VOCAB, gate=gate)) as engine:
            stream = stream_text(engine, Letters(), Request((1, 2, 3)), stops=[TEXT[0]])
            reading = asyncio.create_task(read(stream))
            await gate.held()
            gate.order()
            await reading
            assert stream.generation.finish_reason is FinishReason.STOP
            gate.open()

    play(test)


def test_several_replies_in_one_place() -> None:
    async def test() -> None:
        async with running(FakeProgram(VOCAB), queue_depth=0) as engine:
            requests = [REQUEST, replace(REQUEST, max_tokens=3)]
            streams = stream_all(engine, Letters(), requests, [TEXT[5]])
            assert [(await read(stream))[1].text for stream in streams] == [TEXT[:5], TEXT[:3]]

    play(test)


def test_text_held_back_for_a_stop_string_comes_at_the_end() -> None:
    async def test() -> None:
        async with running(FakeProgram(VOCAB)) as engine:
            pieces, result = await read(stream_text(engine, Letters(), REQUEST, [TEXT[-2:] + "?"]))
            assert pieces[-1] == TEXT[-2:]
            assert result.text == TEXT
            assert result.finish_reason is FinishReason.LENGTH

    play(test)


def test_a_stop_string_may_end_with_the_cut_character() -> None:
    async def test() -> None:
        async with running(FakeProgram(VOCAB)) as engine:
            letters = Letters({IDS[-1]: b"\xe2\x82"})
            _, result = await read(stream_text(engine, letters, REQUEST, [TEXT[-2] + "\ufffd"]))
            assert result.text == TEXT[:-2]
            assert result.finish_reason is FinishReason.STOP

    play(test)


SCORED = Request((0, 3), max_tokens=12, n_logprobs=2)  # its reply repeats no token
SCORED_IDS = expected_reply(SCORED, context=64, vocab_size=VOCAB, seed=0)[0]


async def scored_pieces(
    engine: Engine, letters: Letters, stops: list[str]
) -> tuple[list[tuple[str, list[int]]], Result]:
    async with stream_text(engine, letters, SCORED, stops) as stream:
        pieces = [piece async for piece in stream.pieces()]
        assert "".join(piece.text for piece in pieces) == stream.result.text
        tokens = [token for piece in pieces for token in piece.tokens]
        assert tokens == stream.generation.logprobs[: len(tokens)]
        assert all(len(token.top) == 2 for token in tokens)
        shown = [(p.text, [SCORED_IDS.index(token.token_id) for token in p.tokens]) for p in pieces]
        return shown, stream.result


def test_log_probabilities_ride_with_their_text() -> None:
    ids, text = SCORED_IDS, "".join(chr(65 + token_id) for token_id in SCORED_IDS)
    each = [(letter, [i]) for i, letter in enumerate(text)]
    assert len(set(ids)) == 12
    # stop strings, the tokens' bytes, and what comes
    accent = {ids[3]: b"\xc3", ids[4]: b"\xa9"}
    cases: list[tuple[list[str], dict[int, bytes], list[tuple[str, list[int]]]]] = [
        ([], {}, each),
        ([], accent, [*each[:3], ("é", [3, 4]), *each[5:]]),
        ([], {ids[-1]: b"\xe2"}, [*each[:-1], ("\ufffd", [11])]),
        # held back, then shown as it is; its first part alone; at the end
        ([text[2:4] + "?"], {}, [*each[:2], (text[2:5], [2, 3, 4]), *each[5:]]),
        (
            [text[2:4] + "?", text[3:5] + "?"],
            {},
            [*each[:2], (text[2], [2]), (text[3:6], [3, 4, 5]), *each[6:]],
        ),
        ([text[-2:] + "?"], {}, [*each[:-2], (text[-2:], [10, 11])]),
        # a stop string leaves its own tokens behind, but not one that it shares with the text
        ([text[5:7]], {}, each[:5]),
        (["?" + text[6]], {ids[5]: b"ab?"}, [*each[:5], ("ab", []), ("", [5])]),
        ([text[0]], {}, []),
    ]  # fmt: skip

    async def test() -> None:
        async with running(FakeProgram(VOCAB)) as engine:
            for stops, parts, expected in cases:
                shown, result = await scored_pieces(engine, Letters(parts), stops)
                assert shown == expected, (stops, parts)
                assert "".join(text for text, _ in shown) == result.text

    play(test)


def test_tokens_without_text_come_last_and_without_scores_pieces_are_text() -> None:
    async def test() -> None:
        async with running(FakeProgram(VOCAB)) as engine:
            shown, _ = await scored_pieces(engine, Letters(special=SCORED_IDS[-1]), [])
            assert shown[-2:] == [(chr(65 + SCORED_IDS[-2]), [10]), ("", [11])]
            shown, _ = await scored_pieces(engine, Letters(special=SCORED_IDS[0]), [])
            assert shown[0] == (chr(65 + SCORED_IDS[1]), [0, 1])
            stream = stream_text(engine, Letters(), REQUEST)
            assert [(p.text, p.tokens) async for p in stream.pieces()] == [(c, []) for c in TEXT]

    play(test)


def test_a_reader_of_scored_pieces_that_leaves_cancels_the_reply() -> None:
    async def test() -> None:
        async with running(FakeProgram(VOCAB)) as engine:
            async with stream_text(engine, Letters(), replace(SCORED, max_tokens=None)) as stream:
                async for _ in stream.pieces():
                    break
            assert stream.result.finish_reason is FinishReason.CANCELLED

    play(test)


def test_cancelling_keeps_the_text_so_far() -> None:
    async def test() -> None:
        async with running(FakeProgram(VOCAB)) as engine:
            stream = stream_text(engine, Letters(), Request((1, 2, 3)))
            first = await anext(stream)
            with pytest.raises(EngineError, match="the reply goes on"):
                _ = stream.result
            stream.cancel()
            rest, result = [piece async for piece in stream], stream.result
            assert first + "".join(rest) == result.text
            assert result.finish_reason is FinishReason.CANCELLED

    play(test)


async def leaves_the_block(stream: TextStream, gate: Gate) -> None:
    async with stream:
        await gate.held()
        gate.order()
        async for _ in stream:
            break


async def leaves_before_the_first(stream: TextStream, gate: Gate) -> None:
    async with stream:
        await gate.held()


async def is_cancelled(stream: TextStream, gate: Gate) -> None:
    reader = asyncio.create_task(read(stream))
    await gate.held()
    reader.cancel()
    await asyncio.wait([reader])
    assert reader.cancelled()


@pytest.mark.parametrize("leave", [leaves_the_block, leaves_before_the_first, is_cancelled])
def test_a_reader_that_leaves_cancels_the_reply(
    leave: Callable[[TextStream, Gate], Coroutine[Any, Any, None]],
) -> None:
    async def test() -> None:
        gate = Gate()
        async with running(FakeProgram(VOCAB, gate=gate)) as engine:
            stream = stream_text(engine, Letters(), Request((1, 2, 3)))
            await leave(stream, gate)
            assert stream.result.finish_reason is FinishReason.CANCELLED
            gate.open()
            assert (await read(stream_text(engine, Letters(), REQUEST)))[1].text == TEXT

    play(test)


def test_a_reply_that_is_dropped_is_cancelled() -> None:
    async def test() -> None:
        async with running(FakeProgram(VOCAB)) as engine:
            stream = stream_text(engine, Letters(), Request((1, 2, 3)))
            generation = stream.generation
            await anext(stream)
            del stream
            await read(stream_text(engine, Letters(), REQUEST))  # gets the slot
            assert generation.finish_reason is FinishReason.CANCELLED
            assert generation.n_completion < 61

    play(test)


def test_an_error_comes_after_the_text() -> None:
    async def test() -> None:
        async with running(
            FakeProgram(VOCAB, not_finite=lambda slot, position: position == 5)
        ) as engine:
            stream = stream_text(engine, Letters(), REQUEST)
            text = "".join([await anext(stream) for _ in range(3)])
            with pytest.raises(EngineError, match="no valid scores for token 4"):
                await anext(stream)
            assert stream.result.text == text == TEXT[:3]
            assert stream.result.finish_reason is FinishReason.ERROR

    play(test)


def test_a_refusal_comes_before_anything_is_read() -> None:
    async def test() -> None:
        async with running(FakeProgram(VOCAB)) as engine:
            streams = [stream_text(engine, Letters(), REQUEST) for _ in range(9)]
            with pytest.raises(BusyError):
                stream_text(engine, Letters(), REQUEST)
            for stream in streams:
                stream.cancel()
            assert engine.n_waiting == 0

    play(test)
