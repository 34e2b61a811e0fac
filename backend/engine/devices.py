"""What can compute here: ``python -m corral.backend.engine.devices`` prints it. A process of its
own, because a driver that cannot be asked may end it."""

from corral.backend.engine.llama.placing import devices

_MIB = 1 << 20


def main() -> None:
    """One line for each device that ``--device`` takes, in the form of llama-server's list."""
    print("Available devices:")  # noqa: T201
    for found in devices():
        if not found.is_cpu:
            memory = f"{found.total // _MIB} MiB, {found.free // _MIB} MiB free"
            print(f"  {found.name}: {found.description} ({memory})")  # noqa: T201


if __name__ == "__main__":
    main()
