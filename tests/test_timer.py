"""The functions that time a launch are torch's own, whatever code that is tried puts in their place."""

from __future__ import annotations

from types import SimpleNamespace

from ncuflow.run.gpu import OwnEvents


class TorchEvent:
    """As torch.cuda.Event: an event is recorded at the time of a clock that each record moves on."""

    now = 0.0

    def __init__(self, enable_timing: bool = False) -> None:
        assert enable_timing
        self.at = -1.0

    def record(self) -> None:
        TorchEvent.now += 5.0
        self.at = TorchEvent.now

    def query(self) -> bool:
        return self.at >= 0

    def elapsed_time(self, end: TorchEvent) -> float:
        return end.at - self.at


def test_a_timer_that_is_patched_later_times_all_the_same(monkeypatch) -> None:
    slept: list[int] = []
    cuda = SimpleNamespace(Event=TorchEvent, _sleep=slept.append)
    events = OwnEvents(cuda)
    monkeypatch.setattr(TorchEvent, "elapsed_time", lambda self, end: 0.001)
    monkeypatch.setattr(TorchEvent, "record", lambda self: None)
    monkeypatch.setattr(TorchEvent, "query", lambda self: False)
    cuda.Event, cuda._sleep = None, None
    start, end = events.event(), events.event()
    assert not start.query()
    start.record()
    end.record()
    events.sleep(7)
    assert start.query() and start.elapsed_time(end) == 5.0 and slept == [7]
