"""The catalogue is compiled once, and again when a file changes."""

import json
import shutil

from tracker_diag.rules import compiled


def test_a_file_that_changes_is_read_again_and_a_broken_cache_is_made_anew(tmp_path, monkeypatch):
    for name in ("POL001.yaml", "_shared.yaml"):
        shutil.copy(compiled.CATALOG / name, tmp_path / name)
    monkeypatch.setattr(compiled, "CATALOG", tmp_path)
    fresh = compiled.compiled.__wrapped__
    first, kept = fresh(), tmp_path / "__pycache__" / "catalog.json"
    assert fresh() == first
    content = json.loads(kept.read_text())
    content["files"][0][1]["title"] = "of the cache"
    kept.write_text(json.dumps(content))
    assert fresh()["POL001.yaml"][0]["title"] == "of the cache"
    rule = tmp_path / "POL001.yaml"
    rule.write_text(rule.read_text() + "\n# more\n")
    assert fresh() == first
    kept.write_text("{")
    assert fresh() == first
    shutil.rmtree(kept.parent)
    kept.parent.write_text("in the way, as where nothing can be written")
    assert fresh() == first
