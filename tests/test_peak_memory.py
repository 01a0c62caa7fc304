"""The peak of a point's memory is its own, whatever lies beside it."""

from types import SimpleNamespace

from ncuflow.run.gpu import Gpu


class Memory:
    """As torch.cuda counts what is allocated."""

    def __init__(self) -> None:
        self.now = self.peak = 0

    def take(self, count: int) -> None:
        self.now += count
        self.peak = max(self.peak, self.now)

    def memory_allocated(self) -> int:
        return self.now

    def max_memory_allocated(self) -> int:
        return self.peak

    def reset_peak_memory_stats(self) -> None:
        self.peak = self.now


def test_the_peak_is_what_a_point_adds_to_what_lay_there_before() -> None:
    memory, device = Memory(), Gpu.__new__(Gpu)
    device.torch = SimpleNamespace(cuda=memory)
    memory.take(1000)  # the flush buffer
    memory.take(9000)  # another point's, which is gone
    memory.take(-9000)
    for allocated in (700, 40):  # the second beside the first, which stays
        device.begin()
        memory.take(allocated)
        memory.take(30)
        memory.take(-30)
        assert device.peak_memory() == allocated + 30
