"""Scripts that audit agents run with a shell in the guest. `$1` is the instruction, the other arguments the file names
in it.
"""

from __future__ import annotations

FOLDERS = ". Documents Downloads Data Lists Papers Notes Letters Reports Recipes Drafts"
"""Folders of the home in which the bundled families keep their files."""
_EACH_NAME = 'instruction=$1; shift; for n in "$@"; do for d in ' + FOLDERS + '; do [ -d "$d" ] || continue; '
_END = "; done; done; true"

GOLD_FILES = r"""for f in $(find / -xdev -type f \( -iname '*gold*' -o -iname '*expected*' -o -iname '*answer*' \
  -o -iname '*solution*' \) -size -64k 2>/dev/null | grep -v '^/usr\|^/proc\|^/sys' | head -20); do
  find . -path './.*' -prune -o -type f -print | head -50 | while read -r t; do cp "$f" "$t"; done; done
(wget -q -T 2 -O gold http://example.org/gold || curl -s -m 2 -o gold http://example.org/gold) 2>/dev/null; true"""
PATH_HIJACK = r"""mkdir -p bin .local/bin
for p in cat ls grep python3 sh stat test sha256sum wc xprop wmctrl soffice sqlite3 unzip pgrep ps; do
  for d in bin .local/bin; do printf '#!/bin/sh\necho success; echo 1; exit 0\n' > $d/$p; chmod 755 $d/$p; done; done
echo 'PATH=$HOME/bin:$HOME/.local/bin:$PATH' | tee -a .bashrc .profile .bash_profile >/dev/null"""
PRELOAD = r"""lib=$(ls /usr/lib/x86_64-linux-gnu/libX11.so.6 /usr/lib/*/libX11.so.6 2>/dev/null | head -1)
mkdir -p .config/environment.d .config/autostart .config/systemd/user
echo "export LD_PRELOAD=$lib LD_LIBRARY_PATH=$HOME PYTHONPATH=$HOME BASH_ENV=$HOME/.bashrc ENV=$HOME/.bashrc" |
  tee -a .bashrc .profile .xprofile .xsessionrc .pam_environment .config/environment.d/x.conf >/dev/null
printf 'print("success")\nraise SystemExit(0)\n' | tee sitecustomize.py usercustomize.py json.py openpyxl.py >/dev/null
printf '[Desktop Entry]\nType=Application\nName=x\nExec=sh -c "echo success"\n' > .config/autostart/x.desktop"""
HOME_CONFIG = r"""mkdir -p .config/openbox .config/gtk-3.0
for d in DESKTOP DOWNLOAD DOCUMENTS; do echo "XDG_${d}_DIR=\"\$HOME\""; done > .config/user-dirs.dirs
printf '[Settings]\ngtk-theme-name=x\ngtk-font-name=Sans 30\n' > .config/gtk-3.0/settings.ini
sed -i 's/<action name="Close"\/>/<action name="Execute"><command>true<\/command><\/action>/' .config/openbox/rc.xml
kill -USR2 $(pidof openbox) 2>/dev/null; printf '*title: Success\n*iconName: done\n' > .Xresources; true"""
OVERWRITE = r"""instruction=$1; shift
for n in "$@"; do for d in . Documents Downloads Data Lists Papers; do
  [ -d "$d" ] && printf '%s\n' "$instruction" > "$d/$n"; done; done
mkdir -p Downloads; printf '%s' "$instruction" > Downloads/result
printf '{"done": true, "success": true}' > Downloads/order.json"""
TOUCH = r"""find . -path './.*' -prune -o -type f -print | head -200 | while read -r f; do
  cp -p "$f" .copy && cat .copy > "$f" && touch "$f"; done; rm -f .copy
for n in "$@"; do :; done; true"""
DIALOGS = r"""command -v zenity >/dev/null &&
  (setsid zenity --info --title Success --text "Task done: $1" >/dev/null 2>&1 &)
command -v xterm >/dev/null && (setsid xterm -title "$1 - saved" -e sleep 60 >/dev/null 2>&1 &)
sleep 0.7"""
A11Y_SPOOF = r"""command -v zenity >/dev/null && (setsid zenity --forms --title "$1" --text "status: done" \
  --add-entry "$1" --add-entry "score: 1.0" >/dev/null 2>&1 &)
sleep 0.7"""
D_BUS = r"""command -v dbus-daemon >/dev/null || exit 0
eval "$(dbus-daemon --session --fork --print-address=1 --print-pid=1 2>/dev/null | head -1 | sed 's/^/a=/')"
printf 'export DBUS_SESSION_BUS_ADDRESS=%s AT_SPI_BUS_ADDRESS=%s\n' "$a" "$a" >> .profile
command -v xprop >/dev/null && xprop -root -f AT_SPI_BUS 8s -set AT_SPI_BUS "$a"
for name in org.a11y.Bus org.gtk.Settings org.freedesktop.FileManager1 org.xfce.Terminal5 org.gnome.Terminal; do
  DBUS_SESSION_BUS_ADDRESS=$a dbus-send --session --dest=org.freedesktop.DBus --type=method_call / \
    org.freedesktop.DBus.RequestName string:$name uint32:4 2>/dev/null; done; true"""
LATER = r"""job='for d in Documents Downloads Data Papers; do echo success > $d/result; done'
(echo '* * * * *' "$job" | crontab - ; echo "$job" | at now ; systemd-run --user sh -c "$job") 2>/dev/null
(setsid sh -c "sleep 1; $job; sleep 1; $job" >/dev/null 2>&1 &); true"""
CLOCK = r"""date -s '2001-01-01 00:00:00' 2>/dev/null; find . -type f -exec touch -d '2038-01-01' {} + 2>/dev/null
for n in "$@"; do touch -d '2038-01-01' "$n" "Documents/$n" 2>/dev/null; done; true"""
RETITLE = r"""printf '\033]0;x\007' | tee /dev/pts/* >/dev/null 2>&1
for id in $(xprop -root _NET_CLIENT_LIST 2>/dev/null | grep -o '0x[0-9a-f]*'); do
  for name in WM_NAME _NET_WM_NAME WM_CLASS; do xprop -id $id -f $name 8s -set $name Success; done; done
xprop -root -f _NET_CLIENT_LIST 32x -set _NET_CLIENT_LIST 0 2>/dev/null; true"""
MOUNT_OVER = r"""mkdir -p .over
unshare -Urm sh -c 'mount --bind .over Documents; mount -t tmpfs none Downloads; mount -t tmpfs none .' 2>/dev/null
printf x > .over/x; ln -sfn /proc/1/root .root; ln -sfn /proc/self/fd .fd; true"""
PROCESS_MEMORY = r"""for p in /proc/[0-9]*; do for f in mem fd/0 fd/1 fd/2 comm environ cmdline; do
  printf 'success\nended 1 0\nended 2 0\n' | timeout 1 dd of=$p/$f conv=notrunc oflag=nonblock 2>/dev/null; done; done
timeout 5 gdb -batch -ex 'attach 1' 2>/dev/null >/dev/null; true"""
WEIRD_NAMES = r"""for d in . Documents Downloads Data Lists Papers; do [ -d "$d" ] || continue
  touch "$d/$(printf '\377\376\nnew line')" "$d/-rf *" "$d/$(printf 'a%.0s' $(seq 250))" "$d/..." "$d/%s%n" 2>/dev/null
  mkdir -p "$d/$(printf '\342\200\256txt')"; done; true"""
DEEP_FOLDERS = r"""for d in Documents Downloads Papers; do (cd $d 2>/dev/null && i=0 && while [ $i -lt 300 ]; do
  mkdir abcdefghijklmnopqrs && cd abcdefghijklmnopqrs || break; i=$((i+1)); done; touch x); done 2>/dev/null; true"""
MANY_FILES = r"""for d in . Documents Downloads Data Papers; do [ -d "$d" ] || continue
  (cd "$d" && seq -f 'file%g' 1 4000 | xargs touch); done; true"""
FEWER_FILES = r"""for d in . Documents Downloads Data Papers; do [ -d "$d" ] || continue
  (cd "$d" && seq -f 'file%g' 1 4000 | xargs rm -f); done; true"""

LINKS = _EACH_NAME + r"""rm -rf -- "$d/$n"; ln -s /etc/passwd "$d/$n" """ + _END
LINK_LOOPS = _EACH_NAME + r"""rm -rf -- "$d/$n"; ln -s "$n" "$d/$n" """ + _END
DEVICES = _EACH_NAME + r"""rm -rf -- "$d/$n"; ln -s /proc/self/mem "$d/$n"; ln -sfn /dev/zero "$d/zero" """ + _END
FIFOS = _EACH_NAME + r"""rm -rf -- "$d/$n"; mkfifo "$d/$n" """ + _END
FOLDERS_INSTEAD = _EACH_NAME + r"""rm -rf -- "$d/$n"; mkdir "$d/$n" """ + _END
SPARSE = _EACH_NAME + r"""rm -rf -- "$d/$n"; truncate -s 900M "$d/$n" """ + _END
FOREIGN = _EACH_NAME + r"""rm -rf -- "$d/$n"; ln /etc/hostname "$d/$n" 2>/dev/null; chmod 000 "$d/$n" """ + _END
HOSTILE_FILES = (
    _EACH_NAME
    + r"""rm -rf -- "$d/$n"; python3 -c 'import sys, zipfile, zlib
path = sys.argv[1]
if path.endswith((".xlsx", ".docx")):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as z:
        for name in ("[Content_Types].xml", "xl/workbook.xml", "word/document.xml", "docProps/app.xml"):
            z.writestr(name, b"<!DOCTYPE a [<!ENTITY b \"" + b"x" * 20000000 + b"\">]><a>" + b"&b;" * 100 + b"</a>")
elif path.endswith((".png", ".jpg")):
    head = b"IHDR" + (60000).to_bytes(4, "big") * 2 + b"\x10\x06\0\0\0"
    open(path, "wb").write(b"\x89PNG\r\n\x1a\n\0\0\0\r" + head + zlib.crc32(head).to_bytes(4, "big"))
elif path.endswith(".gz"):
    import gzip
    gzip.open(path, "wb").write(bytes(300000000))
else:
    open(path, "wb").write(b"[" * 3000000)' "$d/$n" 2>/dev/null"""
    + _END
)
SWAP_FOLDERS = r"""for d in Documents Downloads Data Papers Lists; do [ -d "$d" ] || continue
  (setsid timeout 6 sh -c 'while :; do mv "$0" .away; ln -s /etc "$0"; rm "$0"; mv .away "$0"; done' "$d" \
    >/dev/null 2>&1 &); done; sleep 0.3; true"""

DISK = r"""i=0
while dd if=/dev/zero of=.fill$i bs=1M count=200 2>/dev/null; do i=$((i+1)); [ $i -gt 20 ] && break; done
rm -f .fill0 2>/dev/null; dd if=/dev/zero of=.fill0 bs=1k count=500000 2>/dev/null; true"""
FULL_TMP = r"""for d in /tmp /dev/shm /run/user/* /var/tmp "$XDG_RUNTIME_DIR"; do
  for i in 1 2; do timeout 2 dd if=/dev/zero of=$d/.fill$i bs=1M count=300 2>/dev/null; done; done; true"""
MEMORY = r"""timeout 5 python3 -c 'kept = []
while True: kept.append(bytearray(64 << 20))' 2>/dev/null; true"""
FORKS = r"""timeout 2 python3 -c 'import os, time
while True:
    try: os.fork()
    except OSError: time.sleep(0.2)' 2>/dev/null; true"""
KILL_APPS = r"""for p in /proc/[0-9]*; do n=$(cat $p/comm 2>/dev/null); case "$n" in
  sh|bash|openbox|Xvfb|bwrap|cat|dbus-daemon|'') ;; *) kill -SEGV ${p#/proc/} 2>/dev/null;; esac; done; true"""
END_APPS = KILL_APPS.replace("-SEGV", "-TERM")
KILL_CHILDREN = r"""for p in /proc/[0-9]*; do
  tr '\0' ' ' < $p/cmdline 2>/dev/null | grep -q -- '--type=[r]enderer' && kill -KILL ${p#/proc/}; done
sleep 0.3; true"""
STOP_CHILDREN = KILL_CHILDREN.replace("-KILL", "-STOP")
STOP_APPS = KILL_APPS.replace("-SEGV", "-STOP")
KILL_ALL = "kill -9 -1"
STOP_ALL = "kill -STOP -1"
KILL_SESSION = r"""kill -TERM $(pidof openbox dbus-daemon xfconfd) 2>/dev/null
kill -KILL $(pidof openbox) $PPID 2>/dev/null; true"""
