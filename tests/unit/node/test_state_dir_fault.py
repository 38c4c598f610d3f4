"""A state folder that cannot be written is named with the setting that mends it."""

from __future__ import annotations

from pathlib import Path

from saiserve.membership import state_dir_fault


def test_a_folder_that_can_be_written_has_no_fault(tmp_path: Path) -> None:
    assert state_dir_fault(tmp_path / "new" / "deeper") == ""
    assert not list((tmp_path / "new" / "deeper").iterdir())


def test_a_folder_that_cannot_be_written_names_the_setting_and_the_reason(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x", "utf-8")
    fault = state_dir_fault(tmp_path / "file" / "state")
    assert fault.startswith(f"STATE_DIR: {tmp_path / 'file' / 'state'} cannot be written (Not a directory)")
