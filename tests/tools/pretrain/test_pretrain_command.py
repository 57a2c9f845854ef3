"""`python -m tools.pretrain`: its options, and one line for a mistake of the user."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.pretrain.__main__ import main


def test_a_report_without_a_model_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="has no folder 'model'"):
        main(["--out", str(tmp_path), "--report", "--device", "cpu"])


def test_an_unknown_option_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--out", str(tmp_path), "--stops", "3"])
    assert "--stops" in capsys.readouterr().err
