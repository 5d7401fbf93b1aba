#!/bin/bash
# Measures the fastest boot of this machine's kernel that public tools allow: the reference for `inarch run -- true`.
# It uses an uncompressed kernel entered by PVH, qboot, trimmed parameters, busybox as an init that powers off, and no disk.
#
# Usage: bare-boot.sh [ROUNDS]      prints the median of ROUNDS (default 5), from QEMU's start to its end
# Environment: KERNEL (default: the newest /boot/vmlinuz-*-amd64 that is not a cloud kernel), CPUS (default 1), MEM
# (default 1G), BUSYBOX (a static one, default /bin/busybox).
# Needs: qemu-system-x86_64 with qboot.rom, busybox-static, cpio, xz and the like.
set -euo pipefail

rounds=${1:-5}
cpus=${CPUS:-1}
mem=${MEM:-1G}
busybox=${BUSYBOX:-/bin/busybox}
kernel=${KERNEL:-$(ls /boot/vmlinuz-* | grep -v cloud | sort -V | tail -n 1)}

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

# little-endian number of $3 bytes at offset $2 of file $1
number() { od -An -v -t "u$3" -j "$(($2))" -N "$3" "$1" | tr -d ' '; }

# The payload of a bzImage, by its setup header (Documentation/x86/boot.rst); its last 4 bytes are the unpacked size.
unpack() {
    local setup offset length start
    setup=$(number "$kernel" 0x1f1 1)
    offset=$(number "$kernel" 0x248 4)
    length=$(number "$kernel" 0x24c 4)
    start=$((((setup == 0 ? 4 : setup) + 1) * 512 + offset))
    tail -c "+$((start + 1))" "$kernel" | head -c "$length" >"$tmp/gzip" || true
    head -c "$((length - 4))" "$tmp/gzip" >"$tmp/packed"
    case $(od -An -v -t x1 -N 4 "$tmp/packed" | tr -d ' ') in
        fd377a58) xz -dc <"$tmp/packed" ;;
        28b52ffd) zstd -dc <"$tmp/packed" ;;
        02214c18) lz4 -dc <"$tmp/packed" ;;
        1f8b*) gzip -dc <"$tmp/gzip" ;;
        *) echo "bare-boot.sh: $kernel: unknown compression" >&2; exit 1 ;;
    esac
}
unpack >"$tmp/vmlinux"

mkdir -p "$tmp/root/bin"
cp "$busybox" "$tmp/root/bin/busybox"
printf '#!/bin/busybox sh\n/bin/busybox poweroff -f\n' >"$tmp/root/init"
chmod +x "$tmp/root/init"
(cd "$tmp/root" && find . | cpio -o -H newc --quiet) >"$tmp/initramfs"

parameters="quiet panic=-1 cryptomgr.notests initcall_blacklist=crypto_kdf108_init pci=lastbus=0 i8042.noaux
i8042.nokbd 8250.nr_uarts=1 random.trust_cpu=on mitigations=off audit=0 rcupdate.rcu_expedited=1
init_on_alloc=0 tsc=reliable no_timer_check swiotlb=noforce rodata=off"
if [ "$cpus" = 1 ]; then parameters="$parameters noreplace-smp"; fi

boot() {
    timeout 120 qemu-system-x86_64 -nodefaults -no-user-config -no-reboot -display none \
        -machine q35,usb=off,sata=off,smbus=off -accel tcg,thread=multi \
        -cpu max,-erms,-fsrm,vendor=GenuineIntel,family=6,model=85,stepping=4 -smp "$cpus" -m "$mem" -bios qboot.rom \
        -kernel "$tmp/vmlinux" -initrd "$tmp/initramfs" -append "${parameters//$'\n'/ }" </dev/null
}

for _ in $(seq "$rounds"); do
    start=$(date +%s%N)
    boot
    echo $(($(date +%s%N) - start))
done | sort -n | awk '{ t[NR] = $1 } END {
    median = NR % 2 ? t[(NR + 1) / 2] : (t[NR / 2] + t[NR / 2 + 1]) / 2
    printf "bare boot, median of %d: %.3f s\n", NR, median / 1e9
}'
