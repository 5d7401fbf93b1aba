//! Makes empty qcow2 images of any size (QEMU's docs/interop/qcow2.rst), as bytes and the places where they belong.
//!
//! An empty image has no table of its second level, and a first-level table of zeros, which need not be stored: a disk of 1 EiB takes a few
//! clusters.

/// The smallest and the largest clusters, as powers of two: QEMU's usual ones, and the largest it knows.
const CLUSTERS: std::ops::RangeInclusive<u32> = 16..=21;
/// The largest first-level table that QEMU opens (`QCOW_MAX_L1_SIZE`), in bytes.
const MOST: u64 = 32 << 20;
/// QEMU keeps that table in memory: it shall not be larger than this, if there are clusters large enough.
const FITTING: u64 = 1 << 20;
/// The bytes of a header of version 3.
const HEADER: u32 = 104;

/// An empty image.
#[derive(Clone, Debug)]
pub struct NewQcow2 {
    /// Bytes of a cluster.
    pub cluster: u64,
    /// The image's length, in bytes.
    pub length: u64,
    /// What is not zero in it, and where, in bytes.
    pub pieces: Vec<(u64, Vec<u8>)>,
}

/// Plans an image for a disk of `size` bytes, with the smallest clusters that fit. `None` if the format cannot hold it: the most is 2 EiB.
pub fn plan(size: u64) -> Option<NewQcow2> {
    let table = |bits: u32| {
        // An entry of the first level is for a cluster of entries of eight bytes, each for a cluster.
        let reach = 1_u64.checked_shl(2 * bits - 3)?;
        size.div_ceil(reach).max(1).checked_mul(8)
    };
    let fits = |most: u64| CLUSTERS.clone().find(|bits| table(*bits).is_some_and(|length| length <= most));
    let bits = fits(FITTING).or_else(|| fits(MOST))?;
    let (cluster, table) = (1_u64 << bits, table(bits)?);
    // The header, the table of reference counts, one cluster of counts, and the first-level table.
    let used = 3_u64.checked_add(table.div_ceil(cluster))?;
    let mut header = b"QFI\xFB".to_vec();
    let long = |header: &mut Vec<u8>, value: u64| header.extend(value.to_be_bytes());
    let short = |header: &mut Vec<u8>, value: u32| header.extend(value.to_be_bytes());
    short(&mut header, 3);
    // No backing file: its offset and the length of its name.
    long(&mut header, 0);
    short(&mut header, 0);
    short(&mut header, bits);
    long(&mut header, size);
    // No encryption.
    short(&mut header, 0);
    short(&mut header, u32::try_from(table / 8).ok()?);
    long(&mut header, 3 * cluster);
    long(&mut header, cluster);
    short(&mut header, 1);
    // No snapshots: their number and offset. No features: incompatible, compatible, and those that a writer may clear.
    short(&mut header, 0);
    (0..4).for_each(|_| long(&mut header, 0));
    // Counts of 2^4 bits.
    short(&mut header, 4);
    short(&mut header, HEADER);
    // Behind it, the end of the list of extensions.
    long(&mut header, 0);
    let counts = (0..used).flat_map(|_| 1_u16.to_be_bytes()).collect();
    let pieces = vec![(0, header), (cluster, (2 * cluster).to_be_bytes().to_vec()), (2 * cluster, counts)];
    Some(NewQcow2 { cluster, length: used * cluster, pieces })
}
