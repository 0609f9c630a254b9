"""Reports the state of a pipeline to the broker from a thread of its own, and receives its stop orders.

A pipeline never waits for the broker, which may be slow or unreachable. Only the newest report is kept: one that was not sent when
the next one comes is dropped.
"""

import threading
from collections.abc import Callable
from typing import Final

from quintet.flight.wire import PipelineReport
from quintet.model.errors import QuintetError
from quintet.spark.source.options import OptionError

LAST_S: Final = 5.0  # how long the end of a pipeline waits for its last report to arrive
DETAIL_BYTES_MAX: Final = 1000  # the broker takes no more

Send = Callable[[PipelineReport], bool]  # True: the pipeline is to stop


class Reporter:
    """Sends the newest report. `stop` is set when the broker asks for it; `trouble` is the error of the last report."""

    def __init__(self, send: Send, stop: threading.Event) -> None:
        self.trouble = ""
        self._send = send
        self._stop = stop
        self._next: PipelineReport | None = None
        self._changed = threading.Condition()
        self._ends = False
        self._thread = threading.Thread(target=self._run, name="quintet-reports", daemon=True)
        self._thread.start()

    def post(self, report: PipelineReport) -> None:
        with self._changed:
            self._next = report
            self._changed.notify()

    def close(self) -> None:
        """Send the last report, and wait for that at most LAST_S."""
        with self._changed:
            self._ends = True
            self._changed.notify()
        self._thread.join(LAST_S)

    def _run(self) -> None:
        while True:
            with self._changed:
                while self._next is None and not self._ends:
                    self._changed.wait()
                report, self._next = self._next, None
            if report is None:
                return
            try:
                if self._send(report):
                    self._stop.set()
                self.trouble = ""
            except (QuintetError, OptionError) as error:
                self.trouble = str(error)


def cut(text: str) -> str:
    """As much of a sentence as a report holds."""
    return text.encode()[:DETAIL_BYTES_MAX].decode(errors="ignore")
