"""The catalogue is compiled once, and again when a file changes."""

import json
import shutil

from tracker_diag.rules import compiled


def test_a_file_that_changes_is_read_again_and_a_broken_cache_is_made_anew(tmp_path, monkeypatch):
    for name in ("POL001.yaml", "_shared.yaml"):
        shutil.copy(compiled.CATALOG / name, tmp_path / name)
    before = sorted(tmp_path.iterdir())
    monkeypatch.setattr(compiled, "CATALOG", tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    fresh = compiled.compiled.__wrapped__
    first = fresh()
    (kept,) = (tmp_path / "cache" / "tracker_diag").iterdir()
    assert fresh() == first
    assert sorted(tmp_path.iterdir()) == [*before, tmp_path / "cache"]
    content = json.loads(kept.read_text())
    content["files"][0][1]["title"] = "of the cache"
    kept.write_text(json.dumps(content))
    assert fresh()["POL001.yaml"][0]["title"] == "of the cache"
    rule = tmp_path / "POL001.yaml"
    rule.write_text(rule.read_text() + "\n# more\n")
    assert fresh() == first
    for broken in ("{", "[]", '{"versions": 1}'):
        kept.write_text(broken)
        assert fresh() == first
    shutil.rmtree(kept.parent)
    kept.parent.write_text("in the way, where nothing can be written")
    assert fresh() == first
