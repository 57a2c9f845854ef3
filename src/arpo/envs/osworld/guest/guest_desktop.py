"""The running desktop, as the server's routes use it."""

from __future__ import annotations

from dataclasses import dataclass

from arpo.envs.osworld.guest.input import InputController
from arpo.envs.osworld.guest.launcher import Launcher
from arpo.envs.osworld.guest.screen import Screen
from arpo.envs.osworld.guest.session import FRAMEBUFFER, DesktopSession
from arpo.envs.osworld.guest.windows import Windows

BACKGROUND = 0x2C5D7C
_MANAGER_SECONDS = 30.0
_DOCK_SECONDS = 5.0
_FIRST_SCREENSHOT_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestDesktop:
    screen: Screen
    windows: Windows
    input: InputController
    launcher: Launcher

    @staticmethod
    def start(session: DesktopSession) -> GuestDesktop:
        """Starts the window manager and the dock, and returns when all parts of the session are ready."""
        session.wait_for_display()
        screen, windows = Screen(FRAMEBUFFER), Windows()
        windows.paint_background(BACKGROUND)
        session.start_window_manager()
        desktop = GuestDesktop(
            screen=screen, windows=windows, input=InputController(screen), launcher=Launcher(windows, screen)
        )
        if not windows.wait_for_manager(_MANAGER_SECONDS):
            raise SystemExit("openbox did not start")
        session.start_dock()
        windows.wait(_DOCK_SECONDS, lambda window: window.auxiliary)
        session.wait_for_bus()
        screen.expect_change(_FIRST_SCREENSHOT_SECONDS)
        return desktop
