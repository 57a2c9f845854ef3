"""The light desktop with real applications: input and screenshots through OSWorld's guest protocol."""

import base64
import io
import json
import os
import urllib.request
from dataclasses import replace
from importlib.resources import files as resources
from pathlib import Path
from xml.etree import ElementTree

import pytest
from PIL import Image

import mail_profile
from arpo.actions import Type
from arpo.envs.osworld.sandbox import GUEST_PACKAGES
from arpo.envs.pyautogui_program import program
from guests import SETTINGS, booted
from processes import wait_until

pytestmark = pytest.mark.skipif(
    not Path(os.environ[GUEST_PACKAGES]).is_dir(), reason="the light desktop is not installed: make osworld"
)

COMPONENT = "{https://accessibility.ubuntu.example.org/ns/component}"
PRINTABLE = "".join(map(chr, range(32, 127)))
FOREIGN = "Äpfel & Öl, naïve façade – “ça va?” 5 € ≤ 7 £; привет, 你好，世界 🙂"


@pytest.fixture
def guest():
    with booted() as running:
        yield running


@pytest.fixture
def terminal(guest):
    guest.launch("gnome-terminal")
    return guest


def titles(guest):
    listed = guest.output("wmctrl -l").splitlines()
    return [line.split(None, 3)[3] for line in listed if "N/A" not in line]


def size(png):
    return Image.open(io.BytesIO(png)).size


def terminal_position(guest):
    """(left, top) of the terminal's text, in pixels."""
    tree = ElementTree.fromstring(json.loads(guest.request("/accessibility")[1])["AT"])
    (element,) = tree.iter("terminal")
    left, top = element.attrib[f"{COMPONENT}screencoord"].strip("()").split(",")
    return int(left), int(top)


def selected(guest):
    return guest.run("xclip -out -selection primary")["output"]


def test_a_screenshot_has_the_screens_size_and_shows_the_cursor(guest):
    guest.run_pyautogui("pyautogui.moveTo(600, 500)")
    there = Image.open(io.BytesIO(guest.screenshot())).convert("RGB")
    guest.run_pyautogui("pyautogui.moveTo(900, 300)")
    away = Image.open(io.BytesIO(guest.screenshot())).convert("RGB")
    assert there.size == (SETTINGS.width, SETTINGS.height)
    around = (590, 490, 630, 530)
    assert there.crop(around).tobytes() != away.crop(around).tobytes()
    assert away.crop(around).tobytes() == away.crop((190, 490, 230, 530)).tobytes()
    query = "from Xlib.display import Display; at = Display().screen().root.query_pointer()"
    assert guest.output(f"python3 -c '{query}; print(at.root_x, at.root_y)'") == "900 300\n"
    assert json.loads(guest.request("/screen_size", {})[1]) == {
        "width": SETTINGS.width,
        "height": SETTINGS.height,
    }


def test_screenshots_of_an_unchanged_screen_are_equal(guest):
    assert guest.screenshot() == guest.screenshot()


def test_other_screen_sizes():
    with booted(replace(SETTINGS, width=641, height=479, home_megabytes=64)) as guest:
        assert size(guest.screenshot()) == (641, 479)


@pytest.mark.parametrize("text", [PRINTABLE, FOREIGN])
def test_text_is_typed_exactly(terminal, text):
    terminal.run_pyautogui("pyautogui.write('cat > typed'); pyautogui.press('enter')")
    result = terminal.run_pyautogui(f"pyautogui.write({text!r}); pyautogui.press('enter')")
    assert (result["status"], result["error"], result["returncode"]) == ("success", "", 0)
    terminal.run_pyautogui("pyautogui.hotkey('ctrl', 'd')")
    terminal.screenshot()
    assert terminal.file("/home/user/typed") == (200, f"{text}\n".encode())


def test_a_type_action_works_in_a_terminal(terminal):
    text = "echo 'naïve: 漢字 < > €' > typed"
    terminal.run_pyautogui(program([Type(text=text, submit=True)]))
    terminal.screenshot()
    assert terminal.file("/home/user/typed") == (200, "naïve: 漢字 < > €\n".encode())


def test_many_different_characters_in_one_text(terminal):
    text = "".join(map(chr, range(0x4E00, 0x4E00 + 60)))
    terminal.run_pyautogui(f"pyautogui.write({f'echo {text} > typed'!r}); pyautogui.press('enter')")
    terminal.screenshot()
    assert terminal.file("/home/user/typed") == (200, f"{text}\n".encode())


def test_an_unknown_key_is_skipped_with_a_warning(guest):
    result = guest.run_pyautogui("pyautogui.press('hyper')")
    assert (result["status"], result["error"]) == ("success", "unknown key 'hyper', skipped")


def test_other_programs_run_with_python(guest):
    guest.run_pyautogui("pyautogui.moveTo(123, 45)")
    assert guest.run_pyautogui("print(pyautogui.position())")["output"] == "Point(x=123, y=45)\n"
    assert guest.run_pyautogui("import platform; print(platform.system())") == {
        "status": "success", "output": "Linux\n", "error": "", "returncode": 0
    }  # fmt: skip
    assert guest.run_pyautogui("1 / 0")["returncode"] == 1


def test_the_clipboard(guest):
    guest.run_pyautogui("import pyperclip; pyperclip.copy('pasté')")
    assert guest.output("xclip -out -selection clipboard") == "pasté"
    assert guest.run_pyautogui("import pyperclip; print(pyperclip.paste())")["output"] == "pasté\n"


def test_double_click_drag_and_single_clicks(terminal):
    terminal.run_pyautogui(
        "pyautogui.write(\"PS1=; clear; echo alpha beta gamma\"); pyautogui.press('enter')"
    )
    terminal.screenshot()
    left, top = terminal_position(terminal)
    word = f"{left + 15}, {top + 10}"
    terminal.run_pyautogui(f"pyautogui.click({word})")
    terminal.run_pyautogui(f"pyautogui.click({word})")
    assert selected(terminal) == ""
    terminal.run_pyautogui(f"pyautogui.doubleClick({word})")
    terminal.screenshot()
    assert selected(terminal) == "alpha"
    terminal.run_pyautogui(
        f"pyautogui.moveTo({left + 2}, {top + 10}); pyautogui.dragTo({left + 500}, {top + 10}, 0.3)"
    )
    terminal.screenshot()
    assert selected(terminal).strip() == "alpha beta gamma"


def test_the_wheel_scrolls(terminal):
    terminal.run_pyautogui("pyautogui.write('seq 1 500'); pyautogui.press('enter')")
    terminal.screenshot()
    left, top = terminal_position(terminal)
    below = terminal.screenshot()
    terminal.run_pyautogui(f"pyautogui.scroll(5, {left + 50}, {top + 50})")
    assert terminal.screenshot() != below
    terminal.run_pyautogui("pyautogui.scroll(-50)")
    terminal.run_pyautogui("pyautogui.moveTo(5, 5)")
    text = json.loads(terminal.request("/terminal")[1])["output"]
    assert "\n499\n500\n" in text


def test_only_the_focused_terminal_is_read(terminal):
    terminal.run_pyautogui("pyautogui.write('echo grün'); pyautogui.press('enter')")
    terminal.screenshot()
    assert "\ngrün\n" in json.loads(terminal.request("/terminal")[1])["output"]
    terminal.launch("gedit")
    assert json.loads(terminal.request("/terminal")[1]) == {"output": None, "status": "success"}


def test_the_keyboard_shortcut_opens_a_terminal(guest):
    guest.run_pyautogui(
        "pyautogui.hotkey('ctrl', 'alt', 't'); pyautogui.write('touch typed'); pyautogui.press('enter')"
    )
    guest.screenshot()
    assert guest.file("/home/user/typed") == (200, b"")


@pytest.mark.parametrize(
    ("command", "title"),
    [
        (("libreoffice", "--calc"), "Untitled 1 - LibreOffice Calc"),
        (("libreoffice", "--writer"), "Untitled 1 - LibreOffice Writer"),
        (("gimp",), "GNU Image Manipulation Program"),
        (("vlc",), "VLC media player"),
        (("nautilus",), "Home"),
        (("google-chrome",), "New Tab - Chromium"),
        (("thunderbird",), "Home - Mozilla Thunderbird"),
    ],
)
def test_applications_open_only_their_own_window(guest, command, title):
    """No tips, questions or tours appear."""
    empty = guest.screenshot()
    guest.launch(*command)
    assert guest.screenshot() != empty
    # On a busy machine, Thunderbird names its tab a moment later.
    assert wait_until(lambda: titles(guest) == [title]), titles(guest)


def test_a_kill_command_returns_when_its_processes_have_exited(guest):
    """They may take a moment to save their settings."""
    script = '#!/bin/sh\\ntrap "sleep 1; exit" TERM\\nwhile :; do sleep 0.1; done\\n'
    guest.output(f"printf '{script}' > slow; chmod +x slow")
    for command in (("pkill", "-TERM", "-x", "slow"), ("killall", "-s", "TERM", "slow")):
        guest.launch("./slow")
        guest.run("timeout 10 sh -c 'until pgrep -x slow; do sleep 0.1; done'; sleep 0.5")
        guest.launch(*command)
        assert guest.run("pgrep -x slow")["returncode"] == 1, command


def test_thunderbird_works_offline_under_the_names_in_tasks(guest):
    packed = base64.b64encode(mail_profile.archive()).decode()
    guest.output(f"echo {packed} | base64 -d | tar -xz")
    guest.launch("/usr/bin/thunderbird")
    guest.screenshot()
    assert guest.output("wmctrl -lx").count("Mail.thunderbird ") == 1
    assert guest.run("pgrep -x thunderbird")["returncode"] == 0
    guest.run("timeout 20 sh -c 'until wmctrl -l | grep -q Inbox; do sleep 0.1; done'; sleep 1")
    assert titles(guest) == ["Inbox - anonym-x2024@outlook.com - Mozilla Thunderbird"]  # and no alert
    tree = ElementTree.fromstring(json.loads(guest.request("/accessibility")[1])["AT"])
    assert "Thunderbird" in [element.get("name") for element in tree.iter("application")]
    window = {"window_name": "Mail.thunderbird", "strict": True, "by_class": True}
    assert guest.request("/setup/close_window", window)[0] == 200
    assert guest.run("timeout 20 sh -c 'while pgrep -x thunderbird; do sleep 0.1; done'")["returncode"] == 0


def test_the_shipped_mail_profile_is_made_by_our_program():
    shipped = resources("arpo") / "envs" / "osworld" / "tasks" / "files" / "mail.tar.gz"
    made = mail_profile.archive(mail_profile.SHIPPED_ACCOUNT)
    assert mail_profile.unpacked(shipped.read_bytes()) == mail_profile.unpacked(made)


def test_windows_are_found_by_the_names_in_tasks(guest):
    guest.launch("gnome-terminal")
    guest.launch("google-chrome")
    assert guest.request("/setup/activate_window", {"window_name": "Terminal"})[0] == 200
    guest.screenshot()
    assert json.loads(guest.request("/terminal")[1])["output"] is not None
    assert guest.request("/setup/activate_window", {"window_name": "Google Chrome"})[0] == 200
    guest.screenshot()
    assert json.loads(guest.request("/terminal")[1])["output"] is None
    assert guest.request("/setup/close_window", {"window_name": "Terminal", "strict": True})[0] == 200
    guest.screenshot()
    assert titles(guest) == ["New Tab - Chromium"]


def test_files_open_in_their_applications(guest):
    guest.run("echo hello > ~/Desktop/note.txt; printf 'a,b\\n1,2\\n' > /tmp/t.csv")
    guest.run("soffice --headless --convert-to xlsx --outdir ~/Desktop /tmp/t.csv")
    assert guest.request("/setup/open_file", {"path": "~/Desktop/note.txt"})[0] == 200
    assert guest.request("/setup/open_file", {"path": "/home/user/Desktop/t.xlsx"})[0] == 200
    assert titles(guest) == ["note.txt (~/Desktop) - gedit", "t.xlsx - LibreOffice Calc"]
    assert guest.request("/setup/open_file", {"path": "~/Desktop/none.txt"})[0] == 404


def test_the_ports_of_browser_and_player_reach_the_guest(guest):
    guest.launch("google-chrome", "--remote-debugging-port=1337")
    guest.launch("socat", "tcp-listen:9222,fork", "tcp:localhost:1337")
    # A page proves that the profile is loaded: a browser that ends earlier does not write it.
    has_page = "curl -s localhost:9222/json/list | grep -q webSocketDebuggerUrl"
    guest.run(f"timeout 20 sh -c 'until {has_page}; do sleep 0.1; done'")
    with urllib.request.urlopen(
        f"http://127.0.0.1:{guest.sandbox.ports.chromium}/json/version", timeout=20
    ) as got:
        assert json.load(got)["Browser"].startswith("Chrome/")
    assert (
        guest.run("pkill chrome; timeout 10 sh -c 'while pgrep -x chrome; do sleep 0.1; done'")["returncode"]
        == 0
    )
    assert guest.file("/home/user/.config/google-chrome/Default/Preferences")[0] == 200
    guest.launch("vlc")
    request = urllib.request.Request(f"http://127.0.0.1:{guest.sandbox.ports.vlc}/requests/status.xml")
    request.add_header("Authorization", "Basic OnBhc3N3b3Jk")
    with urllib.request.urlopen(request, timeout=20) as got:
        assert b"<state>stopped</state>" in got.read()


def test_desktop_settings_are_kept(guest):
    assert guest.output("gsettings set org.gnome.desktop.session idle-delay 300; gsettings get "
                        "org.gnome.desktop.session idle-delay") == "uint32 300\n"  # fmt: skip
    assert "-0500" in guest.output("timedatectl") or "-0400" in guest.output("timedatectl")
    guest.output("echo password | sudo -S timedatectl set-timezone UTC")
    assert guest.output("timedatectl").splitlines()[3] == "                Time zone: UTC (UTC, +0000)"
    assert guest.output("date +%z") == "+0000\n"
    assert guest.run("timedatectl set-timezone Nowhere")["returncode"] == 1


def test_a_wallpaper_is_shown_and_returned(guest):
    guest.run(
        "python3 -c \"from PIL import Image; Image.new('RGB', (40, 30), (200, 10, 20)).save('red.png')\""
    )
    assert guest.request("/setup/change_wallpaper", {"path": "/home/user/red.png"})[0] == 200
    assert Image.open(io.BytesIO(guest.screenshot())).convert("RGB").getpixel((300, 700)) == (200, 10, 20)
    assert guest.request("/wallpaper", {}) == guest.file("/home/user/red.png")
