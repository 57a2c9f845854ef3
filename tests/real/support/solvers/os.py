"""OSWorld's tasks about the system: in a terminal."""

from solvers import in_terminal

PROFILE = "org.gnome.Terminal.Legacy.Profile:/org/gnome/terminal/legacy/profiles:/:$ID/"

SOLUTIONS = {
    # 'Dim screen when inactive' off
    "bedcedc4": in_terminal("gsettings set org.gnome.settings-daemon.plugins.power idle-dim false\n"),
    # vim out of the favorites
    "ec4e3f68": in_terminal(
        "gsettings set org.gnome.shell favorite-apps \"['thunderbird.desktop', 'google-chrome.desktop']\"\n"
    ),
    # do not disturb
    "f9be0997": in_terminal("gsettings set org.gnome.desktop.notifications show-banners false\n"),
    # the volume up to its maximum
    "28cc3b7e": in_terminal("pulseaudio --start; pactl set-sink-volume @DEFAULT_SINK@ 100%\n"),
    # todo_list_Jan_1 becomes todo_list_Jan_2
    "e0df059f": in_terminal("mv Desktop/todo_list_Jan_1 Desktop/todo_list_Jan_2\n"),
    # time zone UTC
    "b6781586": in_terminal("timedatectl set-timezone Etc/UTC\n"),
    # larger text
    "3ce045a0": in_terminal("gsettings set org.gnome.desktop.interface text-scaling-factor 1.5\n"),
    # lock the screen when idle
    "a4d98375": in_terminal("gsettings set org.gnome.desktop.screensaver lock-enabled true\n"),
    # terminals of 132 by 43
    "13584542": in_terminal(
        "ID=$(gsettings get org.gnome.Terminal.ProfilesList default | tr -d \\')\n",
        f"gsettings set {PROFILE} default-size-columns 132\n",
        f"gsettings set {PROFILE} default-size-rows 43\n",
    ),
}
