"""Keeps transformers silent where Muster calls it: a library prints nothing."""

import contextlib
import io
import threading
import warnings
from collections.abc import Generator

from transformers.utils import logging

# transformers loads by replacing functions of its own for a while: two threads that load at once leave
# it, and the silence, as neither found them.
_loading = threading.RLock()


@contextlib.contextmanager
def quiet() -> Generator[None]:
    """No progress bars and no warnings of transformers inside; its settings are as before afterwards.

    One thread at a time: what is set aside belongs to the whole process.
    """
    with _loading, _silenced():
        yield


@contextlib.contextmanager
def _silenced() -> Generator[None]:
    verbosity, showed_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        # The bar over a GGUF's tensors heeds no setting; bars take standard error as they start.
        with contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
            # What peft still asks transformers for under its old name is not the user's to mend.
            warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        logging.set_verbosity(verbosity)
        if showed_bars:
            logging.enable_progress_bar()
