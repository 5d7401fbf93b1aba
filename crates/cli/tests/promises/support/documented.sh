# Makes, in the current directory, what the commands of the documents name.
mkdir -p bin src/include out project build site rootfs/bin rootfs/etc rootfs/var/log rootfs/home view .m2/repository/org .zfunc .config/fish/completions
ln -s "$INARCH" bin/inarch

# Projects.
printf '#include <stdio.h>\nint main(void) { puts("hello"); return 0; }\n' > hello.c
echo '#define CONFIG 1' > config.h
# What it installs into the machine itself lies here, too: a kept run's is applied.
printf 'check:\n\t@cat config.h\ninstall:\n\tmkdir -p $(DESTDIR)$(CURDIR)/usr\n\tcp config.h $(DESTDIR)$(CURDIR)/usr\nclean:\n\trm -f *.made\n' > Makefile
for name in configure generate tests test run-tests; do
    printf '#!/bin/sh\ncat config.h > %s.made\n' $name > $name
    chmod +x $name
done
cp hello.c Makefile config.h src
cp Makefile config.h run-tests build
printf '%s\n' Makefile config.h '/usr/**' '/lib/**' '/etc/**' > sources.txt
echo jar > .m2/repository/org/a.jar
echo new > hostname
echo conf > site.conf
echo site > site/index.html

# A root for a guest, and archives of it.
cp /bin/busybox rootfs/bin/
for tool in sh ls cat env true serve apt uname; do ln -s busybox rootfs/bin/$tool; done
printf '#!/bin/sh\ncat "$2/config.h"\n' > rootfs/bin/make
chmod +x rootfs/bin/make
echo 'root:x:0:0::/root:/bin/sh' > rootfs/etc/passwd
echo 'NAME=Scene' > rootfs/etc/os-release
echo log > rootfs/var/log/messages
cp -a rootfs bookworm
tar cf rootfs.tar -C rootfs .
tar cJf rootfs.tar.xz -C rootfs .
cp rootfs.tar app.tar
zstd -q app.tar -o app.tar.zst
cp app.tar.zst base.tar.zst

# This machine's kernel, as if it were built here.
mkdir -p arch/x86/boot
for kernel in /boot/vmlinuz-*; do ln -sf "$kernel" arch/x86/boot/bzImage; done

# A guest with a root and a home.
mkdir -p g/etc/apt g/home g/usr/bin g/var/log/deep g/var/cache/apt g/srv h/user h/etc
printf 'LABEL=root / ext4 defaults 0 1\nLABEL=home /home ext4 defaults 0 2\n' > g/etc/fstab
printf 'ID=debian\nNAME=Debian\nVERSION_ID=12\n' > g/etc/os-release
echo guest > g/etc/hostname
echo 127.0.0.1 localhost > g/etc/hosts
echo id > g/etc/machine-id
echo log > g/var/log/messages
truncate -s 150M g/var/large
cp /bin/busybox g/usr/bin/
cp g/etc/hosts h/etc
echo note > h/user/notes
echo kernel > h/vmlinuz
mke2fs -q -F -t ext4 -L root -d g root.part 40M
mke2fs -q -F -t ext4 -L home -d h home.part 20M
truncate -s 70M guest.img
printf 'label: gpt\nsize=40M\nsize=20M\n' | sfdisk -q guest.img
dd if=root.part of=guest.img bs=1M seek=1 conv=notrunc,sparse status=none
dd if=home.part of=guest.img bs=1M seek=41 conv=notrunc,sparse status=none
qemu-img convert -O qcow2 guest.img guest.qcow2
cp guest.qcow2 before.qcow2
cp guest.qcow2 after.qcow2
mkdir etc-of-guest
cp g/etc/hosts etc-of-guest

# Disks with one file system.
truncate -s 16M a.img
mke2fs -q -F -t ext4 -d h a.img
for name in b.img disk.img more.img disk.ext4 new.img; do cp --sparse=always a.img $name; done
qemu-img convert -O qcow2 a.img data.qcow2
printf 'add disk.img\nrun\nlist-filesystems\n' > script
rm -r g h root.part home.part
