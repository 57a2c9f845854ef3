"""Thunderbird profiles, packed like OSWorld's: one IMAP account, and a local folder Bills with messages.

With OSWorld's account, a profile replaces the one that OSWorld's tasks download: it has the same paths and
names. The shipped file mail.tar.gz has another account.
"""

import gzip
import io
import json
import tarfile

PROFILE = "t5q2a5hp.default-release"
INSTALL = "FDC34C9F024745EB"  # Thunderbird's name for an installation in /usr/lib/thunderbird
OSWORLD_ACCOUNT = ("Anonym Tester", "anonym-x2024@outlook.com", "outlook.office365.com")
SHIPPED_ACCOUNT = ("Clara Holm", "clara.holm@example.org", "imap.example.org")
PROFILES = f"""\
[Profile1]
Name=default
IsRelative=1
Path=empty.default
Default=1

[Install{INSTALL}]
Default={PROFILE}
Locked=1

[Profile0]
Name=default-release
IsRelative=1
Path={PROFILE}

[General]
StartWithLastProfile=1
Version=2
"""


def archive(account=OSWORLD_ACCOUNT):
    """A profile as tar.gz, to unpack in the home folder."""
    packed = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w") as tar,
    ):
        for path, text in files(*account).items():
            entry = tarfile.TarInfo(f".thunderbird/{path}")
            entry.size, entry.mode = len(text.encode()), 0o600
            tar.addfile(entry, io.BytesIO(text.encode()))
    return packed.getvalue()


def unpacked(packed):
    """The texts of the files in an archive, by path."""
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        opened = {entry.name: tar.extractfile(entry) for entry in tar}
        return {path: file.read().decode() for path, file in opened.items() if file is not None}


def files(name, address, server):
    lines = [
        f'user_pref("{key}", {json.dumps(value)});\n'
        for key, value in preferences(name, address, server).items()
    ]
    return {
        "profiles.ini": PROFILES,
        "installs.ini": f"[{INSTALL}]\nDefault={PROFILE}\nLocked=1\n",
        f"{PROFILE}/prefs.js": "".join(lines),
        f"{PROFILE}/Mail/Local Folders/Trash": "",
        f"{PROFILE}/Mail/Local Folders/Bills": message(1, "Your receipt", "Thank you for 12 apples.")
        + message(8, "Your invoice", "Please pay for 8 pears."),
    }


def preferences(name, address, server):
    return {
        "mail.account.account1.identities": "id1",
        "mail.account.account1.server": "server1",
        "mail.account.account2.server": "server2",
        "mail.account.lastKey": 2,
        "mail.accountmanager.accounts": "account1,account2",
        "mail.accountmanager.defaultaccount": "account1",
        "mail.accountmanager.localfoldersserver": "server2",
        "mail.identity.id1.fullName": name,
        "mail.identity.id1.smtpServer": "smtp1",
        "mail.identity.id1.useremail": address,
        "mail.identity.id1.valid": True,
        "mail.server.server1.check_new_mail": True,
        "mail.server.server1.directory-rel": f"[ProfD]ImapMail/{server}",
        "mail.server.server1.hostname": server,
        "mail.server.server1.login_at_startup": True,
        "mail.server.server1.name": address,
        "mail.server.server1.port": 993,
        "mail.server.server1.socketType": 3,
        "mail.server.server1.type": "imap",
        "mail.server.server1.userName": address,
        "mail.server.server2.directory-rel": "[ProfD]Mail/Local Folders",
        "mail.server.server2.hostname": "Local Folders",
        "mail.server.server2.name": "Local Folders",
        "mail.server.server2.type": "none",
        "mail.server.server2.userName": "nobody",
        "mail.smtpserver.smtp1.hostname": server,
        "mail.smtpserver.smtp1.port": 587,
        "mail.smtpserver.smtp1.username": address,
        "mail.smtpservers": "smtp1",
        "mail.smtp.defaultserver": "smtp1",
    }


def message(day, subject, text):
    return (
        "From - Mon Jan 08 10:00:00 2024\n"
        "X-Mozilla-Status: 0001\nX-Mozilla-Status2: 00000000\n"
        f"Message-ID: <{day}@example.org>\nDate: Mon, {day:02} Jan 2024 10:00:00 +0000\n"
        f"From: Shop <shop@example.org>\nTo: me@example.org\nSubject: {subject}\n"
        f"MIME-Version: 1.0\nContent-Type: text/plain; charset=utf-8\n\n{text}\n\n"
    )
