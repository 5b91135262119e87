#!/usr/bin/env bash
# A real systemd as PID 1, in namespaces of its own on an overlay of this machine's root: it boots in a second,
# needs root, installs nothing and changes nothing outside.
#
#   rig.sh possible                 exit 0, or say in one line why it cannot run here and exit 1
#   rig.sh up DIR [--over TREE] [--bind FROM:TO]...
#                                   boot; DIR is an empty directory for its state, TREE is copied over the root,
#                                   FROM is mounted read-only at TO
#   rig.sh exec DIR COMMAND...      run COMMAND inside, in all its namespaces, with a clean environment
#   rig.sh down DIR                 power it off in order and remove its cgroups; exit 1 if it had to be killed
#
# systemd tracks its units in cgroup 2. Where the host still has controllers in version 1 (hybrid mode), they are
# delegated to it below this process's own cgroups, so that CPUQuota= and MemoryMax= work inside.
set -euo pipefail

readonly cgroups=/sys/fs/cgroup
readonly inside_path=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
# What tries to talk to hardware, to the network or to the host's kernel, or only takes time.
readonly masked='
systemd-udevd.service systemd-udev-trigger.service systemd-udevd-control.socket systemd-udevd-kernel.socket
systemd-modules-load.service systemd-sysctl.service systemd-timesyncd.service systemd-networkd.service
systemd-resolved.service systemd-pstore.service systemd-binfmt.service systemd-hwdb-update.service
systemd-remount-fs.service proc-sys-fs-binfmt_misc.automount proc-sys-fs-binfmt_misc.mount
sys-kernel-debug.mount sys-kernel-tracing.mount sys-kernel-config.mount sys-fs-fuse-connections.mount
dev-hugepages.mount dev-mqueue.mount tmp.mount ldconfig.service getty.target console-getty.service
getty@.service serial-getty@.service
'

die() {
    echo "rig: $*" >&2
    exit 1
}

# ---------------------------------------------------------------------------------------- outside

possible() {
    local systemd=/lib/systemd/systemd tool
    ((EUID == 0)) || { echo "not root"; return 1; }
    [[ -x $systemd ]] || { echo "no systemd ($systemd)"; return 1; }
    for tool in unshare nsenter pivot_root mount ip setsid setpriv useradd ps python3 journalctl; do
        command -v "$tool" >/dev/null || { echo "no $tool"; return 1; }
    done
    command -v dbus-daemon dbus-broker >/dev/null || { echo "no dbus (dbus-daemon or dbus-broker)"; return 1; }
    unshare --pid --mount --uts --ipc --net --cgroup --fork true 2>/dev/null ||
        { echo "no namespaces (unshare is refused)"; return 1; }
    grep -q "	overlay$" /proc/filesystems || { echo "no overlay file system"; return 1; }
    [[ -n $(unified) ]] || { echo "no cgroup 2 mounted"; return 1; }
    local probe
    probe=$(unified)$(own_cgroup '')/vitriol-probe-$$
    mkdir "$probe" 2>/dev/null || { echo "cgroups are read-only"; return 1; }
    rmdir "$probe"
}

# Where cgroup 2 is mounted; nothing if it is not.
unified() { awk '$3 == "cgroup2" && $2 ~ "^/sys/fs/cgroup" { print $2; exit }' /proc/mounts; }

# The host's controllers of version 1, "systemd" among them; cpuset wants settings before any process enters.
version1() { sed -n 's,^[^ ]* /sys/fs/cgroup/\([^ /]*\) cgroup .*,\1,p' /proc/mounts | grep -vx cpuset | tr '\n' ' '; }

# This process's cgroup in a hierarchy of version 1, or with '' in version 2.
own_cgroup() {
    local path
    if [[ -z $1 ]]; then path=$(sed -n 's,^0::,,p' /proc/self/cgroup); else
        path=$(sed -n "s,^[0-9]*:\(name=\)\?$1:,,p" /proc/self/cgroup); fi
    [[ $path == / ]] || echo "$path"
}

up() {
    local dir=$1 over='' binds='' name tree controller
    shift
    while (($#)); do
        case $1 in
            --over) over=$2 ;;
            --bind) binds+="$2 " ;;
            *) die "unknown option $1" ;;
        esac
        shift 2
    done
    name=vitriol-rig-$$
    {
        echo "$(unified)$(own_cgroup '')/$name"
        for controller in $(version1); do echo "$cgroups/$controller$(own_cgroup "$controller")/$name"; done
    } >"$dir/cgroups"
    xargs mkdir -p <"$dir/cgroups"
    (
        while read -r tree; do echo "$BASHPID" >"$tree/cgroup.procs"; done <"$dir/cgroups"
        export RIG_OVER=$over RIG_BINDS=$binds RIG_VERSION1 RIG_UNIFIED
        RIG_VERSION1=$(version1)
        RIG_UNIFIED=$(unified)
        exec setsid unshare --pid --mount --uts --ipc --net --cgroup --fork --kill-child=KILL \
            --propagation private "$0" inner </dev/null >"$dir/console" 2>&1
    ) &
    echo $! >"$dir/unshare"
    await_boot "$dir" $!
}

await_boot() {
    local dir=$1 unshare=$2 pid state='' deadline=$((SECONDS + 120))
    while ((SECONDS < deadline)); do
        pid=$( (tr -d ' ' <"/proc/$unshare/task/$unshare/children") 2>/dev/null || true)
        if [[ -n $pid ]]; then
            echo "$pid" >"$dir/pid"
            state=$(inside "$dir" systemctl is-system-running 2>/dev/null || true)
            case $state in running | degraded) return 0 ;; esac
        fi
        kill -0 "$unshare" 2>/dev/null || break
        sleep 0.1
    done
    tail -n 20 "$dir/console" >&2
    down "$dir" || true
    die "no boot (last state: ${state:-none})"
}

inside() {
    local dir=$1 pid
    shift
    pid=$(<"$dir/pid")
    ((pid > 1)) || die "no PID 1 in $dir"
    nsenter -t "$pid" -a -r -w env -i PATH=$inside_path LANG=C.UTF-8 HOME=/root SYSTEMD_PAGER='' \
        SYSTEMD_COLORS=0 "$@"
}

down() {
    local dir=$1 pid unshare tree status=0 _
    pid=$(cat "$dir/pid" 2>/dev/null || echo 0)
    unshare=$(cat "$dir/unshare" 2>/dev/null || echo 0)
    if ((pid > 1)) && kill -RTMIN+4 "$pid" 2>/dev/null; then # poweroff.target
        await_gone "$pid" 60 || { echo "rig: no poweroff in 60 s; killed" >&2; status=1; }
    fi
    if ((unshare > 1)) && ! await_gone "$unshare" 5; then
        kill -KILL "$unshare" 2>/dev/null || true # and with it, by --kill-child, PID 1
        await_gone "$unshare" 10 || status=1
    fi
    while read -r tree; do
        for _ in $(seq 50); do
            [[ -d $tree ]] || break
            find "$tree" -depth -type d -exec rmdir {} + 2>/dev/null || sleep 0.1
        done
        [[ ! -d $tree ]] || { echo "rig: cgroup left: $tree" >&2; status=1; }
    done < <(cat "$dir/cgroups" 2>/dev/null)
    rm -f "$dir"/{pid,unshare,cgroups}
    return $status
}

await_gone() { # PID SECONDS
    local deadline=$((SECONDS + $2))
    while kill -0 "$1" 2>/dev/null; do
        ((SECONDS < deadline)) || return 1
        sleep 0.05
    done
}

# ----------------------------------------------------------------------------------------- inside

inner() { # in the new namespaces; becomes PID 1
    local root=/mnt/root part unit device bind
    mount -t tmpfs -o size=4G,mode=755 rig /mnt # ours alone: the mount namespace is private
    mkdir -p /mnt/up /mnt/work $root
    # Not a lower layer of its own: it lies below the root, and overlapping layers are refused.
    [[ -z $RIG_OVER ]] || cp -a "$RIG_OVER/." /mnt/up/
    chmod 755 /mnt/up # the root's own mode, which a temporary TREE does not have
    mount -t overlay -o "lowerdir=/,upperdir=/mnt/up,workdir=/mnt/work,volatile" overlay $root
    mount -t proc -o nosuid,nodev,noexec proc $root/proc
    for part in sys sysrq-trigger irq bus; do
        [[ ! -e $root/proc/$part ]] || { mount --bind $root/proc/$part{,} && mount -o bind,remount,ro $root/proc/$part; }
    done
    mount -t sysfs -o nosuid,nodev,noexec sysfs $root/sys
    mount_cgroups $root/sys/fs/cgroup
    mount -o bind,remount,ro $root/sys
    mount -t tmpfs -o mode=755,size=64k,nr_inodes=512 tmpfs $root/dev
    mkdir $root/dev/{pts,shm}
    for device in null zero full random urandom tty; do cp -a /dev/$device $root/dev/$device; done
    ln -s /proc/self/fd $root/dev/fd
    mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5 devpts $root/dev/pts
    ln -s pts/ptmx $root/dev/ptmx
    mount -t tmpfs -o mode=1777,nosuid,nodev tmpfs $root/dev/shm
    mount -t tmpfs -o mode=755,nosuid,nodev tmpfs $root/run
    mount -t tmpfs -o mode=1777,nosuid,nodev tmpfs $root/tmp
    for bind in $RIG_BINDS; do
        mkdir -p "$root${bind#*:}"
        mount --bind "${bind%%:*}" "$root${bind#*:}"
        mount -o bind,remount,ro "$root${bind#*:}"
    done
    mkdir -p $root/var/log/journal # kept across restarts of journald
    : >$root/etc/machine-id
    : >$root/etc/fstab
    echo vitriol-rig >$root/etc/hostname
    hostname vitriol-rig
    for unit in $masked; do ln -sf /dev/null "$root/etc/systemd/system/$unit"; done
    ip link set lo up
    cd $root
    mkdir -p .old
    pivot_root . .old
    umount -l /.old
    rmdir /.old
    mount --make-rshared / # systemd leaves that out in containers
    # shellcheck disable=SC2086
    exec env -i container=vitriol-rig PATH=$inside_path LANG=C.UTF-8 /lib/systemd/systemd --system \
        systemd.log_target=journal systemd.show_status=0 systemd.unit=basic.target $kernel_options
}

# Hybrid as on the host, or cgroup 2 alone; kernel_options tells systemd which.
mount_cgroups() {
    local at=$1 controller options
    kernel_options=''
    mount -t tmpfs -o mode=755,nosuid,nodev,noexec tmpfs "$at"
    if [[ $RIG_UNIFIED == "$cgroups" ]]; then
        umount "$at"
        mount -t cgroup2 cgroup2 "$at"
        return
    fi
    kernel_options='systemd.unified_cgroup_hierarchy=0 systemd.legacy_systemd_cgroup_controller=0'
    mkdir "$at"/{unified,systemd}
    mount -t cgroup2 cgroup2 "$at/unified"
    for controller in $RIG_VERSION1; do
        mkdir -p "$at/$controller"
        options=$controller
        [[ $controller != systemd ]] || options=none,name=systemd
        mount -t cgroup -o "$options" cgroup "$at/$controller"
    done
    # systemd would mount, and so bind to version 1, the controllers that the host left free.
    mount -o remount,ro,mode=755 "$at"
}

command=${1:?usage: see the head of this file}
shift
case $command in
    possible | up | down | inner) "$command" "$@" ;;
    exec) inside "$@" ;;
    *) die "unknown command $command" ;;
esac
