"""Asks an engine about pictures of odd sizes, and says what came of each.

    python odd_pictures.py MODEL.gguf MMPROJ.gguf WIDTHxHEIGHT…

In a process of its own: llama.cpp ends the process where it meets what it did not expect.
"""

import sys

import numpy as np

from corral.backend.engine.assembly import assemble
from corral.backend.engine.core import Admitted
from corral.backend.engine.messages import Add, Done, EngineConfig, Media, Sampling, Written


def main(model: str, mmproj: str, *sizes: str) -> None:
    """Prints a line for each size: ``answered N``, the tokens of the prompt, or ``refused WHY``."""
    config = EngineConfig(model=model, mmproj=mmproj, n_slots=2, n_ctx=4096, n_threads=1)
    engine = assemble(config, on_progress=lambda _: None, on_started=lambda _: None)
    core = engine.cores.generation
    assert core is not None
    for i, size in enumerate(sizes, 1):
        width, height = map(int, size.split("x"))
        data = np.random.default_rng(i).integers(0, 256, 3 * width * height, np.uint8).tobytes()
        picture = Media(kind="image", key=size, data=data, width=width, height=height)
        greedy = Sampling(temperature=0)
        prompt = Written("Look: . ", (), (6,))
        add = Add(id=i, prompt=prompt, media=(picture,), sampling=greedy, max_tokens=2)
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
        print(size, said)
    engine.words.close()  # type: ignore[union-attr]


if __name__ == "__main__":
    main(*sys.argv[1:])
