"""Numbers that belong to several trainings: measured once, kept in a log of their own."""

import json

import pytest

from natgrad_paper.errors import UserError
from natgrad_paper.training import log
from natgrad_paper.training.log import Status
from natgrad_paper.training.measures import Measures
from natgrad_paper.training.settings import build, changed
from training.tiny import SGD, Notes, Settings, contents, run

pytestmark = pytest.mark.usefixtures("fast_compile")


def settings(**changes):
    return build(Settings, changed(Settings, changes), "test")


def measures(directory, resume=True, display=None, settings=None):
    return Measures(run(directory, [SGD], resume=resume, display=display, settings=settings), SGD, 0)


def test_measures_are_not_measured_again(tmp_path):
    first = measures(tmp_path, resume=False)
    first.picture(
        {"record": "pictures", "what": "data", "title": "", "labels": [], "shape": [0] * 4, "images": ""}
    )
    first.write("one", variance=1.5)
    assert first.get("one")["variance"] == 1.5
    second = measures(tmp_path)
    second.picture({"record": "pictures"})  # it is there
    assert (second.get("one")["variance"], second.get("two"), second.finished) == (1.5, None, False)
    second.write("two", variance=2.5)
    second.finish()
    second.finish()
    third = measures(tmp_path)
    assert third.finished
    assert third.get("two")["variance"] == 2.5
    (found,) = log.read_all(tmp_path)
    assert [record["name"] for record in found.measures] == ["one", "two"]
    assert (found.status, len(found.pictures)) == (Status.FINISHED, 1)
    assert not measures(tmp_path, resume=False).finished
    with pytest.raises(UserError, match="settings: expected those of the run to resume, found others"):
        measures(tmp_path, settings=settings(sgd={"rate": 0.7}))


def test_a_kill_between_the_header_and_the_picture_loses_none(tmp_path):
    picture = {
        "record": "pictures",
        "what": "data",
        "title": "",
        "labels": [],
        "shape": [0] * 4,
        "images": "",
    }
    measures(tmp_path, resume=False).picture(picture)
    path = tmp_path / "logs" / "sgd.0.jsonl"
    whole = path.read_bytes()
    for length in (whole.index(b"\n") + 1, len(whole) - 5, len(whole)):
        path.write_bytes(whole[:length])
        measures(tmp_path).picture(picture)
        assert _records(path.read_bytes()) == _records(whole)


def test_of_other_data_nothing_is_taken(tmp_path):
    measures(tmp_path, resume=False).write("one", variance=1.5)
    path = tmp_path / "logs" / "sgd.0.jsonl"
    path.write_text(path.read_text().replace("5" * 64, "6" * 64))
    with pytest.raises(UserError, match="data: expected those of the run to resume, found others"):
        measures(tmp_path)


def test_measures_cut_short_or_damaged_are_taken_up_to_there(tmp_path):
    first = measures(tmp_path, resume=False)
    for name in ("one", "two", "three"):
        first.write(name, variance=1.5)
    first.finish()
    path = tmp_path / "logs" / "sgd.0.jsonl"
    whole = path.read_bytes()
    for place in range(0, len(whole), 61):
        path.write_bytes(whole[:place])
        again = measures(tmp_path)
        for name in ("one", "two", "three"):
            if again.get(name) is None:
                again.write(name, variance=1.5)
        again.finish()
        assert contents(tmp_path) == {"sgd.0.jsonl": _records(whole)}, place
    path.write_bytes(whole.replace(b'"name": "two"', b'"name": two"'))
    display = Notes()
    again = measures(tmp_path, display=display)
    assert [again.get(name) is not None for name in ("one", "two", "three")] == [True, False, False]
    assert display.told == [f"{path}: damaged: what was measured from there on is measured again"]
    path.write_bytes(b"\xff" + whole)
    assert measures(tmp_path).get("one") is None


def _records(raw):
    return [log.without_times(json.loads(line)) for line in raw.splitlines()]
