"""What advice asks of FlashInfer: its autotuner, and a context in which it keeps what it tunes."""

from contextlib import contextmanager
from pathlib import Path


class Runner:
    def get_cache_key_extras(self, inputs):
        return ()

    def get_valid_tactics(self, inputs, profile):
        return [0, 1, 2, 3, 4]


class Key:
    def __init__(self, file_key):
        self.file_key = file_key


class AutoTuner:
    _instance = None

    @classmethod
    def get(cls):
        cls._instance = cls._instance or cls()
        return cls._instance

    def choose_one(self, operation, runners, config, inputs):
        return runners[0], -1

    def _generate_optimization_profiles(self, config, inputs):
        return [None]

    def _get_input_sizes(self, inputs):
        return [(n,) for n in inputs]

    def _get_cache_key(self, operation, runner, shapes, config, extras):
        return Key(str((operation, type(runner).__name__, shapes, extras)))


def _json_to_tactic(value):
    return value


_tactic_to_json = _json_to_tactic


@contextmanager
def autotune_v2(cache_root):
    yield
    place = Path(cache_root) / "v2/0123456789abcdef/entries"
    place.mkdir(parents=True, exist_ok=True)
    (place / f"{len(list(place.iterdir()))}.json").write_text("{}")
