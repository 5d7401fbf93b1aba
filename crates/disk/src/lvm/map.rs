//! Where the bytes of a group's logical volumes are.

use std::collections::HashMap;
use std::sync::Arc;

use inarch_block::Backing;

use super::group::{Area, Group, Kind, Logical, Segment};
use super::{Physical, thin};
use crate::mapped::{Leg, Mapped, Run, SECTOR};
use crate::read::{bytes, u32_at, u64_at};

/// How many logical volumes may lie on each other. A mirror lies on its images, and these on physical volumes.
const DEEPEST: usize = 8;

/// A logical volume whose bytes can be read.
#[derive(Clone)]
pub struct Made {
    pub bytes: Arc<dyn Backing>,
    /// The pieces below it.
    pub on: Below,
}

/// Some of the pieces: a bit each, by their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Below(Vec<u64>);

impl Below {
    fn add(&mut self, piece: usize) {
        let word = piece / 64;
        self.0.resize(self.0.len().max(word + 1), 0);
        self.0.iter_mut().skip(word).take(1).for_each(|word| *word |= 1 << (piece % 64));
    }

    fn add_all(&mut self, other: &Below) {
        self.0.resize(self.0.len().max(other.0.len()), 0);
        self.0.iter_mut().zip(&other.0).for_each(|(word, other)| *word |= other);
    }

    /// Whether a piece is one of them.
    pub fn has(&self, piece: usize) -> bool {
        self.0.get(piece / 64).is_some_and(|word| word >> (piece % 64) & 1 == 1)
    }
}

/// What there is of each logical volume, by name: its bytes, or why they cannot be read. Those that lie on themselves are
/// left out.
pub fn volumes<'a>(group: &'a Group, physical: &Physical<'_>) -> HashMap<&'a str, Result<Made, String>> {
    let mut maker = Maker { group, physical, made: HashMap::new() };
    let mut waiting: Vec<&Logical> = group.logical.iter().collect();
    // Each round makes those that lie on volumes of the rounds before.
    for _ in 0..DEEPEST {
        let mut made = Vec::new();
        waiting.retain(|volume| match maker.volume(volume) {
            Err(Not::Yet) => true,
            Err(Not::Ever(why)) => {
                made.push((volume.name.as_str(), Err(why)));
                false
            }
            Ok(whole) => {
                made.push((volume.name.as_str(), Ok(whole)));
                false
            }
        });
        if made.is_empty() {
            break;
        }
        maker.made.extend(made);
    }
    maker.made
}

/// Why something is not made.
enum Not {
    /// What it lies on is not made yet.
    Yet,
    Ever(String),
}

impl From<String> for Not {
    fn from(why: String) -> Not {
        Not::Ever(why)
    }
}

struct Maker<'a, 'b> {
    group: &'a Group,
    physical: &'b Physical<'b>,
    made: HashMap<&'a str, Result<Made, String>>,
}

impl Maker<'_, '_> {
    fn volume(&self, volume: &Logical) -> Result<Made, Not> {
        let segments = volume.segments.as_ref().map_err(|why| Not::Ever(why.clone()))?;
        let (mut runs, mut on) = (Vec::with_capacity(segments.len()), Below::default());
        for segment in segments {
            runs.push(self.run(segment, &mut on)?);
        }
        let bytes = Mapped::new(runs).map_err(|error| Not::Ever(error.to_string()))?;
        Ok(Made { bytes: Arc::new(bytes), on })
    }

    fn run(&self, segment: &Segment, on: &mut Below) -> Result<Run, Not> {
        let length = self.bytes_of(segment.count)?;
        match &segment.kind {
            Kind::Zeros => Ok(Run { length, legs: Vec::new(), chunk: 0 }),
            Kind::Areas { areas, chunk } => {
                let legs = areas.iter().map(|area| self.leg(area, on)).collect::<Result<_, _>>()?;
                Ok(Run { length, legs, chunk: *chunk })
            }
            Kind::Copies(copies) => Ok(Run { length, legs: vec![self.copy(copies, on)?], chunk: 0 }),
            Kind::Thin { pool, device, origin } => {
                let backing = self.thin((pool, *device), origin.as_deref(), length, on)?;
                Ok(Run { length, legs: vec![Leg { backing, at: 0 }], chunk: 0 })
            }
        }
    }

    /// A volume in a pool.
    fn thin(
        &self,
        (pool, device): (&str, u64),
        origin: Option<&str>,
        length: u64,
        on: &mut Below,
    ) -> Result<Arc<dyn Backing>, Not> {
        let pool =
            self.group.pools.get(pool).ok_or_else(|| "it lies in a pool that its group does not have".to_owned())?;
        let mut whole = |name: &str| Ok::<_, Not>(self.leg(&Area { name: name.to_owned(), start: 0 }, on)?.backing);
        let parts = (whole(&pool.metadata)?, whole(&pool.data)?);
        let origin = origin.map(whole).transpose()?;
        Ok(thin::open(parts, device, length, origin)?)
    }

    fn bytes_of(&self, extents: u64) -> Result<u64, Not> {
        extents.checked_mul(self.group.extent).ok_or_else(|| "a segment has a size that cannot be".to_owned().into())
    }

    fn leg(&self, area: &Area, on: &mut Below) -> Result<Leg, Not> {
        let start = self.bytes_of(area.start)?;
        if let Some(volume) = self.group.physical.get(&area.name) {
            let Some((index, piece)) = self.physical.get(&volume.id) else {
                return Err(format!("{volume} is missing").into());
            };
            let at = volume.start.checked_add(start).ok_or("a physical volume has a size that cannot be".to_owned())?;
            on.add(*index);
            return Ok(Leg { backing: Arc::clone(&piece.backing), at });
        }
        match self.made.get(area.name.as_str()) {
            Some(Ok(made)) => {
                on.add_all(&made.on);
                Ok(Leg { backing: Arc::clone(&made.bytes), at: start })
            }
            Some(Err(why)) => Err(why.clone().into()),
            None if self.group.has_logical(&area.name) => Err(Not::Yet),
            None => Err("it lies on a volume that its group does not have".to_owned().into()),
        }
    }

    /// The best of several copies: one that can be read, is whole, and took part in the last write.
    fn copy(&self, copies: &[(Option<String>, Area)], on: &mut Below) -> Result<Leg, Not> {
        let (mut found, mut why) = (Vec::new(), None);
        for (position, (state, area)) in copies.iter().enumerate() {
            let mut below = Below::default();
            let state = state.as_ref().map(|name| self.leg(&Area { name: name.clone(), start: 0 }, &mut below));
            match (self.leg(area, &mut below), state) {
                (Err(Not::Yet), _) | (_, Some(Err(Not::Yet))) => return Err(Not::Yet),
                (Err(Not::Ever(reason)), _) | (_, Some(Err(Not::Ever(reason)))) => why = why.or(Some(reason)),
                (Ok(leg), state) => {
                    let state =
                        state.and_then(Result::ok).map_or_else(|| Ok(State::default()), |leg| State::read(&leg))?;
                    found.push((position, leg, below, state));
                }
            }
        }
        // The newest state says which copies had failed by then.
        let newest = found.iter().map(|(.., state)| state).max_by_key(|state| state.events);
        let failed = newest.map_or(0, |state| state.failed);
        let is_failed = |position: usize| position >= 64 || failed >> position & 1 == 1;
        let whole = found.into_iter().filter(|(position, .., state)| state.is_whole && !is_failed(*position));
        let best = whole.reduce(|best, other| if best.3.events < other.3.events { other } else { best });
        let (_, leg, below, _) = best.ok_or_else(|| why.unwrap_or_else(|| "no copy of it is whole".to_owned()))?;
        on.add_all(&below);
        Ok(leg)
    }
}

/// What is known of a copy: the superblock in its metadata volume (`dm_raid_superblock` of Linux's drivers/md/dm-raid.c).
struct State {
    /// How often the state has changed.
    events: u64,
    /// The copies that had failed, a bit each.
    failed: u64,
    /// Whether nothing of it remains to be copied from the others.
    is_whole: bool,
}

impl Default for State {
    /// Of a copy that was never used, or has no superblock.
    fn default() -> State {
        State { events: 0, failed: 0, is_whole: true }
    }
}

impl State {
    fn read(leg: &Leg) -> Result<State, Not> {
        let head = bytes(&*leg.backing, leg.at, SECTOR as usize).map_err(|error| Not::Ever(error.to_string()))?;
        let head = head.filter(|head| u32_at(head, 0) == Some(0x6452_6D44)).unwrap_or_default();
        Ok(match (u64_at(&head, 16), u64_at(&head, 24), u64_at(&head, 32)) {
            (Some(events), Some(failed), Some(recovered)) => State { events, failed, is_whole: recovered == u64::MAX },
            _ => State::default(),
        })
    }
}
