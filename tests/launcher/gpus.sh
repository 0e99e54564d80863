#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs a command in a mount namespace with COUNT made-up NVIDIA GPUs, of which sysfs knows no NUMA node:
#   unshare --mount sh gpus.sh DIRECTORY COUNT COMMAND...
set -eu
dev=$1/dev drivers=$1/drivers count=$2
shift 2
mkdir -p "$dev" "$drivers"
mount -t tmpfs none "$dev"
for name in null zero full random urandom tty; do
    touch "$dev/$name"
    mount --bind "/dev/$name" "$dev/$name"
done
for name in shm pts; do
    mkdir "$dev/$name"
    mount --rbind "/dev/$name" "$dev/$name"
done
ln -s /proc/self/fd "$dev/fd"
while [ "$count" -gt 0 ]; do
    count=$((count - 1))
    touch "$dev/nvidia$count"
    gpu=$drivers/nvidia/0000:0$count:00.0
    mkdir -p "$gpu"
    echo 0x10de > "$gpu/vendor"
    echo 0x2330 > "$gpu/device"
    echo -1 > "$gpu/numa_node"
done
mount --rbind "$dev" /dev
mount --bind "$drivers" /sys/bus/pci/drivers
exec "$@"
