"""A fresh home: the template's files win, and of what was written before only the marks of a set-up stay."""

from arpo.envs.osworld.guest.fresh_home import FOLDERS, REGISTRY, prepare_home, with_marks
from arpo.envs.osworld.sandbox import GUEST

SETTINGS = "<oor:items>\n<item>no tips</item>\n</oor:items>\n"
MARK = '<item oor:path="/org.openoffice.Setup/Product"><prop oor:name="ooSetupLastVersion"/></item>'
STATE = '<item oor:path="/org.openoffice.Office.Views/Windows"/>'


def test_marks_are_added_and_nothing_else():
    written = f"<oor:items>\n<item>no tips</item>\n{STATE}\n{MARK}\n</oor:items>\n"
    assert with_marks(SETTINGS, written) == f"<oor:items>\n<item>no tips</item>\n{MARK}\n</oor:items>\n"


def test_a_mark_that_is_there_is_not_added_again():
    settings = with_marks(SETTINGS, MARK)
    assert with_marks(settings, MARK) == settings


def test_nothing_written_leaves_the_settings():
    assert with_marks(SETTINGS, "") == SETTINGS


def test_a_home_from_template_and_warm_folder(tmp_path):
    home, warm = tmp_path / "home", tmp_path / "warm"
    home.mkdir()
    (warm / REGISTRY).parent.mkdir(parents=True)
    (warm / REGISTRY).write_text(f"{STATE}\n{MARK}\n")
    (warm / ".config/vlc").mkdir()
    (warm / ".config/vlc/vlcrc").write_text("qt-privacy-ask=1")
    (warm / ".cache").mkdir()
    (warm / ".cache/fishes").write_text("kept")
    prepare_home(home, GUEST / "home", warm)
    settings = (home / REGISTRY).read_text()
    assert MARK in settings
    assert STATE not in settings
    assert "ShowTipOfTheDay" in settings
    assert "qt-privacy-ask=0" in (home / ".config/vlc/vlcrc").read_text()
    assert (home / ".cache/fishes").read_text() == "kept"
    assert {path.name for path in home.iterdir()} >= {*FOLDERS, ".config", ".local"}


def test_a_home_without_a_warm_folder_is_the_template(tmp_path):
    prepare_home(tmp_path, GUEST / "home", tmp_path / "none")
    template = GUEST / "home" / "dot_config" / REGISTRY.relative_to(".config")
    assert (tmp_path / REGISTRY).read_text() == template.read_text()
