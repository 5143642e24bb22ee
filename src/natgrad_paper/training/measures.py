"""Numbers that belong to several trainings together, in a log of their own."""

from typing import Any

from natgrad_paper.errors import UserError
from natgrad_paper.training.checkpoint import digest
from natgrad_paper.training.log import Status, Writer, plain, record_in
from natgrad_paper.training.problem import Method
from natgrad_paper.training.runner import Run, Training


class Measures:
    """A log of numbers that belong to several trainings of a method and a seed; none of them is measured again."""

    def __init__(self, run: Run, method: Method, seed: int) -> None:
        self._training = Training(method, seed)
        self._path = run._log(self._training)
        self._header = run.header(self._training)
        self._found: dict[str, dict[str, Any]] = {}
        self.finished = False
        """Whether nothing is missing."""
        self._size: int | None = None
        self._pictured = False
        if run.resume and self._path.exists():
            self._read(run)

    def _read(self, run: Run) -> None:
        """Take what an earlier run wrote, up to the first line that is damaged or cut short."""
        good = 0
        for line in self._path.read_bytes().split(b"\n")[:-1]:
            record = record_in(line.decode("utf-8", errors="replace"))
            if record is None:
                run.display.tell(f"{self._path}: damaged: what was measured from there on is measured again")
                break
            if not good:
                self._refuse_others(record)
            elif record.get("record") == "end":
                self.finished = record.get("status") == Status.FINISHED
                break
            elif record.get("record") == "pictures":
                self._pictured = True
            elif record.get("record") == "measure":
                self._found[str(record.get("name"))] = record
            good += len(line) + 1
        self._size = good or None

    def _refuse_others(self, header: dict[str, Any]) -> None:
        """Refuse to continue the log of another run."""
        theirs, ours = header, plain(self._header)
        for field in ("settings", "data"):
            one, other = theirs.get(field), ours[field]
            if field == "data":
                one, other = one.get("sha256") if isinstance(one, dict) else one, other["sha256"]
            if digest(one) != digest(other):
                raise UserError(f"{self._path}: {field}: expected those of the run to resume, found others")

    def get(self, name: str) -> dict[str, Any] | None:
        """Return numbers that were measured before."""
        return self._found.get(name)

    def write(self, name: str, **numbers: Any) -> dict[str, Any]:
        """Append numbers, and return them with their name."""
        record = {"record": "measure", "name": name, **numbers}
        self._append(record)
        self._found[name] = record
        return record

    def picture(self, record: dict[str, Any]) -> None:
        """Append pictures of the data, unless they are there."""
        if not self._pictured:
            self._append(record)
            self._pictured = True

    def finish(self) -> None:
        """Say that nothing is missing."""
        if not self.finished:
            self._append({"record": "end", "status": Status.FINISHED, "reason": "all trainings are done"})
            self.finished = True

    def _append(self, record: dict[str, Any]) -> None:
        with Writer(self._path, self._header, self._size) as log:
            log.write(record)
            self._size = log.mark.size
