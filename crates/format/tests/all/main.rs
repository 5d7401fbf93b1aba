//! Formats and archives: what is made is what the real tools and the kernel take, and what is read is what they made.
//! One program: to link each file alone takes longer than to run most of them.

mod btrfs;
mod common;
mod erofs;
mod f2fs;
mod iso9660;
mod ntfs;
mod squashfs;

mod cpio_writes;
mod erofs_compresses;
mod erofs_hostile;
mod erofs_mounts;
mod erofs_plans;
mod erofs_random;
mod erofs_reads;
mod exfat_reads;
mod ext4_agrees_with_mke2fs;
mod ext4_fits_its_size;
mod ext4_is_clean_to_e2fsck;
mod ext4_layout;
mod ext4_mounts;
mod ext4_read;
mod ext4_reads_back;
mod ext4_refuses;
mod fat_reads;
mod fats_and_discs_hostile;
mod iso9660_reads;
mod long_names_are_refused;
mod ntfs_hostile;
mod ntfs_reads;
mod oci_reads;
mod squashfs_hostile;
mod squashfs_mounts;
mod squashfs_packs;
mod squashfs_random;
mod squashfs_reads;
mod tar_oddities;
mod tar_reads;
mod tar_writes;
mod volumes_agree;
mod volumes_hostile;
mod volumes_read_little;
mod xfs_read;
