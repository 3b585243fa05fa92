"""The program `vit`; `python -m vit` works even if its script is not on the path."""

from typing import NoReturn

from vit.training.process import end, leave_signals_to_the_system, open_closed_streams


def main() -> NoReturn:
    """Run the console command `vit`."""
    open_closed_streams()
    leave_signals_to_the_system()
    from vit.cli import main  # only now, because this import takes a while

    end(main())


if __name__ == "__main__":
    main()
