"""The engine over its thread: replies, cancelling, failing and closing; nothing is left behind."""

import asyncio
from typing import Any

import pytest
from fake_program import FakeProgram, Gate, expected_reply, play, running

from caldrix import native
from caldrix.engine.engine import Engine
from caldrix.engine.generation import Generation
from caldrix.engine.records import Records, ReplyRecord
from caldrix.engine.sequence import (
    CancelReason,
    FinishReason,
    Request,
    SamplingParams,
    SequenceStatus,
    new_sequence,
)
from caldrix.engine.snapshot import SlotState
from caldrix.engine.telemetry import Level, Phase, Telemetry
from caldrix.engine.worker import Job, StepRows, Worker
from caldrix.errors import BusyError, EngineError, RefusedError

SHUTTING_DOWN = "the engine is shutting down"


async def read(generation: Generation) -> list[int]:
    return [token_id async for token_id in generation]


async def error_of(generation: Generation) -> str:
    with pytest.raises(EngineError) as caught:
        await read(generation)
    assert generation.finish_reason is FinishReason.ERROR
    return str(caught.value)


def reply_to(request: Request, seed: int = 0) -> list[int]:
    return expected_reply(request, context=64, vocab_size=50, seed=seed)[0]


def test_a_reply_with_its_counts_and_moments() -> None:
    async def test() -> None:
        async with running(FakeProgram()) as engine:
            request = Request(tuple(range(20)), max_tokens=5)
            generation = engine.submit(request)
            assert generation.status is SequenceStatus.WAITING
            assert generation.finish_reason is None
            assert await read(generation) == reply_to(request)
            assert generation.finish_reason is FinishReason.LENGTH
            assert generation.status is SequenceStatus.FINISHED
            assert (generation.n_prompt, generation.n_cached) == (20, 0)
            assert (generation.n_completion, generation.slot) == (5, 0)
            assert (generation.n_ahead, generation.label) == (0, "")
            assert engine.retry_after_s() == 1
            assert generation.timings.total_s is not None
            assert await read(generation) == []  # an end stays an end

            again = engine.submit(request)
            assert await read(again) == reply_to(request)
            assert again.n_cached == 19

    play(test)


def test_a_seed_gives_the_same_reply_and_none_gives_a_fresh_one() -> None:
    async def test() -> None:
        async with running(FakeProgram()) as engine:
            for seed in (5, -1, None):
                sampling = SamplingParams(temperature=1, repetition_penalty=1.5, seed=seed)
                request = Request((1, 2, 3), sampling, max_tokens=8)
                generation = engine.submit(request)
                assert await read(generation) == reply_to(request, generation.seed)

    play(test)


def test_refusals_name_the_reason() -> None:
    async def test() -> None:
        engine = Engine(FakeProgram())
        with pytest.raises(EngineError, match="the engine is not started"):
            engine.submit(Request((1,)))
        async with running(FakeProgram(), queue_depth=0) as engine:
            with pytest.raises(RefusedError, match="the prompt is 64 tokens and --ctx is 64"):
                engine.submit(Request((1,) * 64))
            engine.submit(Request((1,)))
            with pytest.raises(BusyError, match="every slot is in use"):
                engine.submit(Request((1,)))
        with pytest.raises(EngineError, match=SHUTTING_DOWN):
            engine.submit(Request((1,)))
        with pytest.raises(ValueError, match="some"):
            Engine(FakeProgram(), admission="some")

    play(test)


def test_several_requests_in_one_place_are_answered_or_refused_together() -> None:
    async def test() -> None:
        async with running(FakeProgram(), queue_depth=0) as engine:
            requests = [Request((i, 1), max_tokens=3 + i) for i in range(4)]
            generations = engine.submit_all(requests)
            with pytest.raises(BusyError):
                engine.submit(requests[0])
            for request, generation in zip(requests, generations, strict=True):
                assert await read(generation) == reply_to(request)
            with pytest.raises(RefusedError, match="the prompt is empty"):
                engine.submit_all([*requests, Request(())])
            assert engine.n_waiting == 0

    play(test)


def test_replies_may_be_prepared_on_any_thread() -> None:
    async def test() -> None:
        gate = Gate()
        async with running(FakeProgram(gate=gate), queue_depth=0) as engine:
            requests = [Request((1, n), label="own") for n in range(3)]
            first, *rest = await asyncio.to_thread(engine.prepare, requests)
            assert (engine.n_waiting, engine.n_running, first.label) == (0, 0, "own")
            engine.enqueue([first])
            await gate.held()
            with pytest.raises(BusyError):
                engine.enqueue(rest, "new")
            engine.enqueue([])
            gate.open()
            assert await read(first) == reply_to(requests[0])
            engine.enqueue(rest, "new")
            for generation, request in zip(rest, requests[1:], strict=True):
                assert await read(generation) == reply_to(request)
                assert generation.label == "new"
            assert rest[1].timings.queued_at > first.timings.queued_at

    play(test)


@pytest.mark.parametrize("n_requests", [1, 2])  # running; waiting
def test_a_deadline_ends_a_reply_where_it_is(n_requests: int) -> None:
    async def test() -> None:
        gate = Gate()
        program = FakeProgram(gate=gate)
        async with running(program) as engine:
            others = [engine.submit(Request((1,))) for _ in range(n_requests - 1)]
            late = engine.submit(Request((1, 2), deadline_s=0.01))
            await gate.held()
            assert await read(late) == []
            assert late.finish_reason is FinishReason.CANCELLED
            assert late.cancel_reason is CancelReason.DEADLINE
            assert (program.n_cancels, engine.n_waiting) == (2 - n_requests, 0)
            gate.open()
            for other in others:
                await read(other)
                assert other.cancel_reason is None

    play(test)


def test_a_reply_in_time_leaves_no_timer() -> None:
    async def test() -> None:
        async with running(FakeProgram()) as engine:
            request = Request((1,), deadline_s=60.0, max_tokens=2)
            generations = engine.submit_all([request] * 3)

            def n_timers() -> int:  # besides the test's own
                loop: Any = asyncio.get_running_loop()
                return sum(not timer.cancelled() for timer in loop._scheduled) - 1

            for generation in generations:
                assert n_timers() == 1  # one for all
                await read(generation)
                assert generation.finish_reason is FinishReason.LENGTH
            assert n_timers() == 0

    play(test)


def test_a_reply_starts_with_its_first_step() -> None:
    async def test() -> None:
        gate = Gate()
        async with running(FakeProgram(gate=gate)) as engine:
            first, second, third = (engine.submit(Request((1, n), max_tokens=1)) for n in range(3))
            assert [g.n_ahead for g in (first, second, third)] == [0, 1, 2]
            await first.started()
            assert (first.has_started, second.has_started) == (True, False)
            assert [g.n_ahead for g in (first, second, third)] == [0, 0, 1]
            second.cancel()
            await second.started()  # or at an end without a step
            assert not second.has_started
            assert [g.n_ahead for g in (second, third)] == [0, 0]
            gate.open()
            await third.started()
            await read(third)
            await third.started()

    play(test)


def test_a_stopped_reply_is_complete() -> None:
    async def test() -> None:
        async with running(FakeProgram()) as engine:
            generation = engine.submit(Request((1, 2)))
            await anext(generation)
            generation.stop()
            assert generation.finish_reason is FinishReason.STOP
            generation.cancel()
            assert generation.finish_reason is FinishReason.STOP
            assert generation.cancel_reason is None

    play(test)


def test_a_snapshot_shows_the_queue_and_the_slots() -> None:
    async def test() -> None:
        gate = Gate()
        async with running(FakeProgram(n_slots=2, gate=gate), queue_depth=3) as engine:
            assert engine.snapshot().kv_tokens_capacity == 128
            long = Request(tuple(range(20)), label="long")
            replies = [engine.submit(r) for r in (Request((1, 2), label="a"), long, long)]
            await gate.held()
            for _ in range(2):
                gate.order()
                await gate.held()
            found = engine.snapshot()
            assert (found.n_waiting, found.n_running, found.queue_depth) == (1, 2, 3)
            assert found.slots == (
                SlotState(0, SequenceStatus.DECODE, "a", 2, 0, 3, 2, 3),
                SlotState(1, SequenceStatus.DECODE, "long", 20, 0, 20, 1, 20),
            )
            assert found.kv_tokens_used == 23
            assert (replies[1].n_computed, replies[2].n_computed) == (20, 0)
            for reply in replies:
                reply.cancel()
            gate.open()
            await engine.close()
            idle = engine.snapshot().slots[0]
            assert (idle.status, idle.label, idle.n_prompt, idle.n_held) == (None, "", 0, 3)

    play(test)


def test_records_of_what_has_ended() -> None:
    async def test() -> None:
        told: list[ReplyRecord] = []
        telemetry = Telemetry(Level.SAMPLED, 1, 0)
        async with running(FakeProgram(), telemetry=telemetry, sink=told.append) as engine:
            whole = engine.submit(Request((1, 2, 3), max_tokens=4, label="whole"))
            gone = engine.submit(Request((1,)))
            gone.cancel()
            await read(whole)
            assert list(engine.records.recent) == told
            assert [r.finish_reason for r in told] == [FinishReason.CANCELLED, FinishReason.LENGTH]
            assert (told[0].cancel_reason, told[0].slot) == (CancelReason.CALLER, None)
            record = told[1]
            assert (record.label, record.slot, record.n_ahead) == ("whole", 0, 0)
            assert (record.n_prompt, record.n_cached, record.n_completion) == (3, 0, 4)
            assert len(record.timings.token_times) == 4
            device = record.timings.device
            assert device is not None
            assert (device.n_steps, device.n_decode) == (4, 3)
            assert 0 < device.decode_max_s <= device.decode_s
            assert engine.tally.n_steps == {Phase.PREFILL: 1, Phase.DECODE: 3}

    play(test)


def test_without_telemetry_nothing_is_kept_and_told() -> None:
    async def test() -> None:
        told: list[ReplyRecord] = []
        async with running(FakeProgram(), sink=told.append) as engine:
            await read(engine.submit(Request((1,), max_tokens=2)))
            assert (told, list(engine.records.recent)) == ([], [])
            assert engine.tally.n_decode == 1

    play(test)


def test_a_sink_that_fails_is_let_go(capsys: pytest.CaptureFixture[str]) -> None:
    async def test() -> None:
        def sink(record: ReplyRecord) -> None:
            raise OSError(28, "No space left")

        async with running(FakeProgram(), telemetry=Telemetry(Level.HOST), sink=sink) as engine:
            for _ in range(3):
                await read(engine.submit(Request((1,), max_tokens=2)))
            assert len(engine.records.recent) == 3

    play(test)
    assert capsys.readouterr().err.count("telemetry is not passed on any more: OSError(28") == 1


def test_when_to_ask_again_follows_the_time_in_a_slot() -> None:
    records = Records(Level.OFF)
    assert records.retry_after_s(1) == 1
    for seconds, n_slots, expected in [(9.5, 1, 10), (9.5, 4, 3), (0.01, 1, 1), (500.0, 1, 30)]:
        records = Records(Level.OFF)
        for _ in range(3):
            sequence = new_sequence(Request((1,)), 64, 0.0, lambda: None)
            sequence.timings.admitted_at = 5.0
            sequence.finish(FinishReason.LENGTH, 5.0 + seconds)
            records.add(sequence)
        assert records.retry_after_s(n_slots) == expected


def test_a_slow_reader_does_not_hold_up_the_engine() -> None:
    async def test() -> None:
        async with running(FakeProgram()) as engine:
            slow, fast = engine.submit(Request((1, 2))), engine.submit(Request((3, 4)))
            assert len(await read(fast)) == 62
            assert slow.finish_reason is FinishReason.LENGTH
            assert await read(slow) == reply_to(Request((1, 2)))

    play(test)


@pytest.mark.parametrize("n_steps", [0, 2, 3, 6])  # prefill takes three
def test_a_cancelled_reply_ends_at_once_and_its_step_is_interrupted(n_steps: int) -> None:
    async def test() -> None:
        gate = Gate()
        program = FakeProgram(gate=gate)
        async with running(program) as engine:
            request = Request(tuple(range(40)))
            generation, after = engine.submit(request), engine.submit(request)
            await gate.held()
            for _ in range(n_steps):
                gate.order()
                await gate.held()
            generation.cancel()
            assert generation.finish_reason is FinishReason.CANCELLED
            assert await read(generation) == reply_to(request)[: max(0, n_steps - 2)]
            generation.cancel()
            assert (program.n_cancels, engine.n_running) == (1, 1)
            await gate.held()  # the next step is the other's
            assert (len(program.steps), after.slot) == (n_steps + 2, 0)
            gate.open()
            assert await read(after) == reply_to(request)
            assert after.n_cached == min(39, 16 * n_steps if n_steps < 3 else 40 + n_steps - 3)

    play(test)


def test_one_of_two_cancelled_leaves_the_step_to_the_other() -> None:
    async def test() -> None:
        gate = Gate()
        program = FakeProgram(n_slots=2, gate=gate)
        async with running(program) as engine:
            gone, stays = engine.submit(Request((1, 2))), engine.submit(Request((3, 4)))
            await gate.held()
            gone.cancel()
            assert engine.n_running == 2
            gate.order()
            await gate.held()
            assert (program.n_cancels, engine.n_running) == (0, 1)
            gate.open()
            assert await read(stays) == reply_to(Request((3, 4)))
            assert await read(gone) == []

    play(test)


def test_both_cancelled_interrupt_it() -> None:
    async def test() -> None:
        gate = Gate()
        program = FakeProgram(n_slots=2, gate=gate)
        async with running(program) as engine:
            both = [engine.submit(Request((1, 2))), engine.submit(Request((3, 4)))]
            await gate.held()
            for generation in both:
                generation.cancel()
            assert program.n_cancels == 1

    play(test)


def test_a_step_that_is_cancelled_before_the_thread_begins_it_is_not_run() -> None:
    async def test() -> None:
        program = FakeProgram()
        worker = Worker(program, lambda reason: None)
        picks = asyncio.get_running_loop().create_future()
        worker._jobs.put(Job(StepRows([1], [0], [0], [], []), picks, is_cancelled=True))
        with pytest.raises(native.Cancelled):
            await picks
        assert program.steps == []
        worker.stop()
        await worker.join()

    play(test)


def test_a_step_that_somebody_else_cancels_is_repeated() -> None:
    async def test() -> None:
        gate = Gate()
        async with running(FakeProgram(gate=gate)) as engine:
            request = Request((1, 2, 3), max_tokens=4)
            generation = engine.submit(request)
            for order in ["cancel", "go", "cancel", "cancel", "cancel"]:
                await gate.held()
                gate.order(native.Cancelled("not ours") if order == "cancel" else order)
            gate.open()
            assert await read(generation) == reply_to(request)

    play(test)


def test_steps_that_never_complete_are_given_up() -> None:
    async def test() -> None:
        gate = Gate()
        async with running(FakeProgram(gate=gate)) as engine:
            generation = engine.submit(Request((1, 2, 3)))
            for _ in range(4):
                await gate.held()
                gate.order(native.Cancelled("not ours"))
            assert await error_of(generation) == "steps of the model are cancelled again and again"
            gate.open()
            assert await read(engine.submit(Request((4,)))) == reply_to(Request((4,)))

    play(test)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (RuntimeError("boom\nbang"), "a step of the model failed: RuntimeError('boom\\nbang')"),
        (EngineError("no memory"), "a step of the model failed: no memory"),
    ],
)
def test_a_failing_step_ends_those_in_it_and_the_engine_goes_on(
    error: Exception, message: str
) -> None:
    async def test() -> None:
        gate = Gate()
        async with running(FakeProgram(n_slots=2, gate=gate)) as engine:
            replies = [engine.submit(Request((i, 1))) for i in range(3)]
            await gate.held()
            gate.order()
            await gate.held()
            gate.order(error)
            for i in range(2):
                assert await error_of(replies[i]) == message
                assert replies[i].n_completion == 1
            gate.open()
            assert await read(replies[2]) == reply_to(Request((2, 1)))
            assert engine.failed == ""

    play(test)


def test_scores_that_are_not_finite_end_that_reply_after_its_tokens() -> None:
    async def test() -> None:
        program = FakeProgram(n_slots=2)
        program.not_finite = lambda slot, position: (slot, position) == (0, 4)
        async with running(program) as engine:
            broken, sound = engine.submit(Request((1, 2))), engine.submit(Request((3, 4)))
            tokens = [await anext(broken) for _ in range(3)]
            assert tokens == reply_to(Request((1, 2)))[:3]
            assert "no valid scores for token 4 of the reply" in await error_of(broken)
            assert await read(sound) == reply_to(Request((3, 4)))

    play(test)


def test_a_thread_that_dies_in_a_step_fails_everything_and_nothing_hangs() -> None:
    async def test() -> None:
        gate = Gate()
        async with running(FakeProgram(gate=gate)) as engine:
            replies = [engine.submit(Request((i,))) for i in range(3)]
            await gate.held()
            gate.order(SystemExit("gone"))
            message = "the engine's thread died: SystemExit('gone')"
            for reply in replies:
                assert await error_of(reply) == message
            assert engine.failed == message
            with pytest.raises(EngineError, match="thread died"):
                engine.submit(Request((1,)))

    play(test)


def test_a_thread_that_dies_between_steps_fails_the_engine() -> None:
    async def test() -> None:
        async with running(FakeProgram()) as engine:
            await read(engine.submit(Request((1,))))
            worker = engine._worker
            assert worker is not None
            worker._jobs.put("not a job")  # type: ignore[arg-type]
            await worker.join()
            assert engine.failed.startswith("the engine's thread died: AttributeError")

    play(test)


def test_a_dead_thread_takes_no_step() -> None:
    async def test() -> None:
        reasons: list[str] = []
        worker = Worker(FakeProgram(), reasons.append)
        worker.stop()
        await worker.join()
        assert reasons == [""]
        with pytest.raises(Exception, match="ended"):
            await worker.run(None)  # type: ignore[arg-type]

    play(test)


@pytest.mark.parametrize("order", ["go", RuntimeError("too late")])
def test_a_step_may_come_back_when_nobody_waits_for_it(order: str | Exception) -> None:
    async def test() -> None:
        gate = Gate()
        engine = Engine(FakeProgram(gate=gate))
        await engine.start()
        generation = engine.submit(Request((1,)))
        await gate.held()
        assert engine._loop_task is not None
        engine._loop_task.cancel()
        assert await error_of(generation) == "the engine's task was cancelled"
        gate.order(order)
        await engine.close()

    play(test)


def test_an_error_of_the_loop_itself_fails_everything() -> None:
    async def test() -> None:
        program = FakeProgram()
        program.step = lambda *rows: []  # type: ignore[method-assign,assignment]
        async with running(program) as engine:
            generation = engine.submit(Request((1,)))
            assert "step loop failed: AssertionError" in await error_of(generation)
            assert "step loop failed" in engine.failed

    play(test)


def test_closing_ends_the_running_and_the_waiting_with_an_error() -> None:
    async def test() -> None:
        gate = Gate()
        program = FakeProgram(gate=gate)
        async with running(program) as engine:
            replies = [engine.submit(Request((i,))) for i in range(3)]
            await gate.held()
            await engine.close()
            assert [await error_of(reply) for reply in replies] == [SHUTTING_DOWN] * 3
            assert (program.n_cancels, engine.failed) == (1, "")
            await engine.close()

    play(test)


def test_closing_with_grace_lets_the_running_finish() -> None:
    async def test() -> None:
        async with running(FakeProgram()) as engine:
            replies = [engine.submit(Request((i,))) for i in range(3)]
            await anext(replies[0])
            await engine.close(grace_s=5)
            assert len(await read(replies[0])) == 62
            assert await error_of(replies[1]) == SHUTTING_DOWN

    play(test)


def test_grace_is_for_all_sequences_of_a_request_that_runs() -> None:
    async def test() -> None:
        async with running(FakeProgram()) as engine:
            replies = engine.submit_all([Request((i,), max_tokens=4) for i in range(3)])
            after = engine.submit(Request((9,)))
            await anext(replies[0])
            await engine.close(grace_s=5)
            assert [len(await read(reply)) for reply in replies] == [3, 4, 4]
            assert await error_of(after) == SHUTTING_DOWN

    play(test)


def test_grace_ends_and_a_second_close_ends_it_sooner() -> None:
    async def test() -> None:
        for first, second in [(0.01, None), (60, 0.0)]:
            gate = Gate()
            async with running(FakeProgram(gate=gate)) as engine:
                generation = engine.submit(Request((1,)))
                await gate.held()
                closing = asyncio.create_task(engine.close(grace_s=first))
                await asyncio.sleep(0)
                if second is not None:
                    await engine.close(second)
                await closing
                assert await error_of(generation) == SHUTTING_DOWN

    play(test)


def test_an_engine_that_was_never_started_can_be_closed() -> None:
    play(Engine(FakeProgram()).close)


def test_an_engine_starts_once_and_not_after_its_close() -> None:
    async def test() -> None:
        async with running(FakeProgram()) as engine:
            with pytest.raises(EngineError, match="the engine is started already"):
                await engine.start()
        closed = Engine(FakeProgram())
        await closed.close()
        with pytest.raises(EngineError, match=SHUTTING_DOWN):
            await closed.start()

    play(test)


def test_a_program_that_ends_without_closing_leaves_no_thread() -> None:
    async def forgets() -> Engine:
        engine = Engine(FakeProgram(gate=Gate()))
        await engine.start()
        engine.submit(Request((1,)))
        await asyncio.sleep(0)
        return engine

    engine = asyncio.run(forgets())
    assert engine.failed == "the engine's task was cancelled"
    assert engine._worker is not None
    gate = engine._program.gate  # type: ignore[attr-defined]
    gate.open()
    engine._worker._thread.join(5)
    assert not engine._worker._thread.is_alive()


def test_two_engines_share_a_process() -> None:
    async def test() -> None:
        async with running(FakeProgram()) as one, running(FakeProgram()) as two:
            replies = [engine.submit(Request((1, 2, 3))) for engine in (one, two)]
            assert await read(replies[0]) == await read(replies[1]) == reply_to(Request((1, 2, 3)))

    play(test)
