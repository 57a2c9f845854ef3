"""The fresh home: the template overrides the prepared home, except for the flags of a completed setup."""

from arpo.envs.osworld.guest.session import FOLDERS, REGISTRY, add_setup_flags, fill_home
from arpo.envs.osworld.sandbox import GUEST

SETTINGS = "<oor:items>\n<item>no tips</item>\n</oor:items>\n"
FLAG = '<item oor:path="/org.openoffice.Setup/Product"><prop oor:name="ooSetupLastVersion"/></item>'
STATE = '<item oor:path="/org.openoffice.Office.Views/Windows"/>'


def test_only_setup_flags_are_added():
    prepared_settings = f"<oor:items>\n<item>no tips</item>\n{STATE}\n{FLAG}\n</oor:items>\n"
    assert (
        add_setup_flags(SETTINGS, prepared_settings)
        == f"<oor:items>\n<item>no tips</item>\n{FLAG}\n</oor:items>\n"
    )


def test_an_existing_flag_is_not_added_again():
    settings = add_setup_flags(SETTINGS, FLAG)
    assert add_setup_flags(settings, FLAG) == settings


def test_empty_prepared_settings_change_nothing():
    assert add_setup_flags(SETTINGS, "") == SETTINGS


def test_a_home_from_template_and_prepared_home(tmp_path):
    home, prepared = tmp_path / "home", tmp_path / "prepared"
    home.mkdir()
    (prepared / REGISTRY).parent.mkdir(parents=True)
    (prepared / REGISTRY).write_text(f"{STATE}\n{FLAG}\n")
    (prepared / ".config/vlc").mkdir()
    (prepared / ".config/vlc/vlcrc").write_text("qt-privacy-ask=1")
    (prepared / ".cache").mkdir()
    (prepared / ".cache/fishes").write_text("kept")
    fill_home(home, GUEST / "home", prepared)
    settings = (home / REGISTRY).read_text()
    assert FLAG in settings
    assert STATE not in settings
    assert "ShowTipOfTheDay" in settings
    assert "qt-privacy-ask=0" in (home / ".config/vlc/vlcrc").read_text()
    assert (home / ".cache/fishes").read_text() == "kept"
    assert {path.name for path in home.iterdir()} >= {*FOLDERS, ".config", ".local"}


def test_a_home_without_a_prepared_home_is_the_template(tmp_path):
    fill_home(tmp_path, GUEST / "home", tmp_path / "none")
    template = GUEST / "home" / "dot_config" / REGISTRY.relative_to(".config")
    assert (tmp_path / REGISTRY).read_text() == template.read_text()
