"""The code inside the light desktop: the desktop session, and an HTTP server for OSWorld's guest protocol.

The sandbox starts it with the system's Python: `python3 -m arpo.envs.osworld.guest`. Only this folder of the
package is visible there. Allowed imports: this folder, the standard library, Bottle, python-xlib,
Pillow, and, lazily, libatspi through PyGObject.
"""
