"""What a node is asked before anything is changed, and the two changes: a line of authorized_keys, a rule of sudo.

Each is a script of sh that is whole or not done, proves what it did, and takes it back where the proof fails.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from contact.own_keys import OwnKey, comment
from contact.session import Answer, Session, script
from contact.words import Refused
from spec.objects import SUDOERS

_SURVEY = """
LC_ALL=C; export LC_ALL
say() { echo "sparkpair-$1=$2"; }
say boot "$(cat /proc/sys/kernel/random/boot_id 2>/dev/null)"
say connection "$SSH_CONNECTION"
say name "$(uname -n)"
if [ "$(id -u)" = 0 ]; then say sudo root
elif ! command -v sudo >/dev/null 2>&1; then say sudo missing
elif sudo -k -n sh -c : </dev/null >/dev/null 2>&1; then say sudo free
else say sudo asks; fi
"""
# A line that has the key already counts, with options too; one that is commented out does not.
_GIVE_KEY = """
set -eu
umask 077
cd
mkdir -p .ssh
file=.ssh/authorized_keys
if [ -e "$file" ] && awk -v blob="$2" '!/^[ ]*#/ { for (i = 1; i <= NF; i++) if ($i == blob) found = 1 }
    END { exit !found }' "$file"; then echo there; exit 0; fi
if [ -s "$file" ] && [ -n "$(tail -c 1 "$file")" ]; then echo >>"$file"; fi
echo "$1 $2 $3" >>"$file"
echo added
"""
_TAKE_KEY = """
set -eu
umask 077
cd
file=.ssh/authorized_keys
new=$(mktemp .ssh/.authorized_keys.XXXXXX)
grep -vxF -e "$1" "$file" >"$new" || true
cat "$new" >"$file"
rm -f "$new"
"""
# sudo passes over files whose names have a dot, so the new one is in nobody's way before it is whole and judged.
_GIVE_SUDO = """
set -eu
LC_ALL=C; export LC_ALL
umask 077
file=$2
line="$1 ALL=(ALL) NOPASSWD:ALL"
directory=$(dirname "$file")
new=$(mktemp "$directory/.sparkpair.XXXXXX")
old=$(mktemp "$directory/.sparkpair.XXXXXX")
trap 'rm -f "$new" "$old"' EXIT
if [ -e "$file" ]; then cp -p "$file" "$old"; cat "$file" >"$new"
else echo "# By discover.py of Sparkpair: deploys run as root. Yours to remove." >"$new"; fi
grep -qxF -e "$line" "$new" || echo "$line" >>"$new"
chmod 440 "$new"
if ! visudo -c -q -f "$new"; then echo sparkpair-sudo=damaged; exit 3; fi
mv "$new" "$file"
if sudo -n -u "$1" sudo -k -n sh -c : </dev/null >/dev/null 2>&1; then echo sparkpair-sudo=given; exit 0; fi
if [ -s "$old" ]; then mv "$old" "$file"; else rm -f "$file"; fi
echo sparkpair-sudo=overruled
exit 4
"""


class Sudo(Enum):
    """How a user becomes root on a node."""

    ROOT = "root"
    FREE = "free"
    ASKS = "asks"
    MISSING = "missing"


@dataclass(frozen=True)
class Survey:
    """What a node says to whoever logged in, without root."""

    boot: str
    """The kernel's own id of this boot: the same one is the same machine. "" where it does not say."""
    address: str
    """The node's own address on the way by which it was reached."""
    name: str
    sudo: Sudo


def survey(session: Session) -> Survey:
    """Ask. Raises Refused where no sensible answer comes."""
    answer = session.run(script(_SURVEY))
    said = _said(answer)
    try:
        sudo = Sudo(said.get("sudo", ""))
    except ValueError:
        raise Refused(
            [
                f"{session.place.where}: the login works, and commands do not run there; it says: {answer.last}",
                "  Log in once by hand: an expired password or a broken login shell shows itself there",
            ]
        ) from None
    words = said.get("connection", "").split()
    return Survey(said.get("boot", ""), words[2] if len(words) == 4 else "", said.get("name", ""), sudo)


def _said(answer: Answer) -> dict[str, str]:
    lines = (line.removeprefix("sparkpair-") for line in answer.out.splitlines() if line.startswith("sparkpair-"))
    return {name: value.strip() for name, _, value in (line.partition("=") for line in lines)}


def may_become_root(session: Session, password: str) -> bool:
    """Whether sudo takes the password. Raises Refused where the user may not be root at all."""
    where, user = session.place.where, session.place.user
    answer = session.run("env LC_ALL=C sudo -k -S -p '' sh -c :", f"{password}\n")
    said = answer.err.lower()
    if answer.code == 0:
        return True
    if any(words in said for words in ("not in the sudoers", "not allowed to", "may not run")):
        raise Refused(
            [
                f"{where}: {user} may not use sudo there",
                f"  As somebody who may: sudo usermod -aG sudo {user}; or name a user who may: --user",
            ]
        )
    if any(words in said for words in ("incorrect password", "sorry, try again", "no password was provided")):
        return False
    raise Refused([f"{where}: sudo does not work for {user} there; it says: {answer.last}"])


def give_key(session: Session, key: OwnKey) -> bool:
    """A line of authorized_keys, once. Whether it was added: it may have been there."""
    kind, blob = key.line.split()
    answer = session.run(script(_GIVE_KEY, kind, blob, comment()))
    outcome = answer.out.strip().splitlines()[-1:] or [""]
    if answer.code != 0 or outcome[0] not in ("added", "there"):
        raise Refused([f"{session.place.where}: ~/.ssh/authorized_keys cannot be written; it says: {answer.last}"])
    return outcome[0] == "added"


def take_key(session: Session, key: OwnKey) -> None:
    """The line that was added, away again."""
    session.run(script(_TAKE_KEY, f"{key.line} {comment()}"))


def give_sudo(session: Session, password: str) -> None:
    """The rule that lets deploys be root without a password. Raises Refused; then everything is as it was."""
    where, user = session.place.where, session.place.user
    inner = script(_GIVE_SUDO, user, SUDOERS)
    answer = session.run(f"env LC_ALL=C sudo -k -S -p '' {inner}", f"{password}\n")
    outcome = _said(answer).get("sudo", "")
    if outcome == "given":
        return
    if outcome == "overruled":
        raise Refused(
            [
                f"{where}: sudo still wants a password although {SUDOERS} says NOPASSWD, so that file was taken away "
                f"again: a later rule overrules it",
                f"  See which: sudo -l -U {user}; sudo grep -r {user} /etc/sudoers /etc/sudoers.d",
            ]
        )
    why = "visudo finds it damaged" if outcome == "damaged" else f"it says: {answer.last}"
    raise Refused([f"{where}: {SUDOERS} cannot be written ({why}); it is as it was"])
