"""The parts of a running desktop that the server works with."""

from __future__ import annotations

from dataclasses import dataclass

from arpo.envs.osworld.guest.input import Input
from arpo.envs.osworld.guest.launches import Launches
from arpo.envs.osworld.guest.screen import Screen
from arpo.envs.osworld.guest.session import FRAMEBUFFER, Session
from arpo.envs.osworld.guest.windows import Windows

BACKGROUND = 0x2C5D7C
_MANAGER_SECONDS = 30.0
_DOCK_SECONDS = 5.0
_FIRST_PICTURE_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Desktop:
    screen: Screen
    windows: Windows
    input: Input
    launches: Launches

    @staticmethod
    def of(session: Session) -> Desktop:
        """The desktop of a session that has been started, as soon as it is up."""
        session.wait_for_display()
        screen, windows = Screen(FRAMEBUFFER), Windows()
        windows.paint_background(BACKGROUND)
        session.start_manager()
        desktop = Desktop(
            screen=screen, windows=windows, input=Input(screen), launches=Launches(windows, screen)
        )
        if not windows.wait_for_manager(_MANAGER_SECONDS):
            raise SystemExit("openbox did not start")
        session.start_dock()
        windows.wait(_DOCK_SECONDS, lambda window: window.passing)
        session.wait_for_bus()
        screen.touch(_FIRST_PICTURE_SECONDS)
        return desktop
