"""Asks an engine about sounds of odd lengths, and says what came of each.

    python odd_sounds.py MODEL.gguf MMPROJ.gguf SAMPLES[:SCALE]…

In a process of its own: llama.cpp ends the process where it meets what it did not expect.
"""

import sys

import numpy as np

from corral.backend.engine.assembly import assemble
from corral.backend.engine.core import Admitted
from corral.backend.engine.messages import Add, Done, EngineConfig, Media, Sampling, Written


def main(model: str, mmproj: str, *sounds: str) -> None:
    """Prints a line for each: ``answered N``, the tokens of the prompt, or ``refused WHY``."""
    config = EngineConfig(model=model, mmproj=mmproj, n_slots=2, n_ctx=8192, n_threads=1)
    engine = assemble(config, on_progress=lambda _: None, on_started=lambda _: None)
    core = engine.cores.generation
    assert core is not None
    for i, sound in enumerate(sounds, 1):
        n, _, scale = sound.partition(":")
        noise = np.random.default_rng(i).normal(0, float(scale or 0.1), int(n))
        media = Media(kind="audio", key=sound, data=noise.astype("<f4").tobytes())
        prompt = Written("Hear: . ", (), (6,))
        greedy = Sampling(temperature=0)
        add = Add(id=i, prompt=prompt, media=(media,), sampling=greedy, max_tokens=2)
        admitted = core.admit(add)
        said = f"refused {getattr(admitted, 'message', '')}"
        if isinstance(admitted, Admitted):
            core.add(admitted)
            while core.has_work:
                for end in core.step():
                    if isinstance(end, Done):
                        said = f"answered {end.stats.n_prompt}"
                    elif hasattr(end, "message"):
                        said = f"refused {end.message}"
        print(sound, said, flush=True)
    engine.words.close()  # type: ignore[union-attr]


if __name__ == "__main__":
    main(*sys.argv[1:])
