//! A table of values. It reuses the place of a removed value, but not its number: each new value gets another one.

/// Values by number. A number refers to one value for the life of the table (until a place has been reused 2^32
/// times), so a late request cannot reach another value.
///
/// Places are in chunks, so that growth moves no values: with a million of them that would take noticeable time.
#[derive(Debug)]
pub struct Slab<T> {
    /// All chunks but the last are full.
    chunks: Vec<Vec<Place<T>>>,
    count: usize,
    free: Vec<u32>,
}

/// Places of a chunk.
const CHUNK: usize = 1024;

#[derive(Debug)]
struct Place<T> {
    generation: u32,
    value: Option<T>,
}

impl<T> Default for Slab<T> {
    fn default() -> Slab<T> {
        Slab::new()
    }
}

/// Most values in a table.
const MAX: usize = u32::MAX as usize - 1;

impl<T> Slab<T> {
    /// An empty table.
    pub const fn new() -> Slab<T> {
        Slab { chunks: Vec::new(), count: 0, free: Vec::new() }
    }

    /// Adds a value. Returns its place, or `None` if the table is full.
    pub fn insert(&mut self, value: T) -> Option<u32> {
        if let Some(place) = self.free.pop() {
            self.at_mut(place)?.value = Some(value);
            return Some(place);
        }
        if self.count >= MAX {
            return None;
        }
        if self.count.is_multiple_of(CHUNK) {
            // The first chunk may stay small.
            self.chunks.push(if self.count == 0 { Vec::new() } else { Vec::with_capacity(CHUNK) });
        }
        self.chunks.last_mut()?.push(Place { generation: 0, value: Some(value) });
        self.count += 1;
        u32::try_from(self.count - 1).ok()
    }

    fn at(&self, place: u32) -> Option<&Place<T>> {
        self.chunks.get(place as usize / CHUNK)?.get(place as usize % CHUNK)
    }

    fn at_mut(&mut self, place: u32) -> Option<&mut Place<T>> {
        self.chunks.get_mut(place as usize / CHUNK)?.get_mut(place as usize % CHUNK)
    }

    /// The number of the value at `place`: never 0.
    pub fn number(&self, place: u32) -> u64 {
        let generation = self.at(place).map_or(0, |place| place.generation);
        u64::from(generation) << 32 | (u64::from(place) + 1)
    }

    /// The place of the value with this number.
    pub fn place(&self, number: u64) -> Option<u32> {
        let place = (number as u32).checked_sub(1)?;
        let there = self.at(place)?;
        (there.value.is_some() && u64::from(there.generation) == number >> 32).then_some(place)
    }

    /// What is at `place`.
    pub fn get(&self, place: u32) -> Option<&T> {
        self.at(place)?.value.as_ref()
    }

    /// What is at `place`.
    pub fn get_mut(&mut self, place: u32) -> Option<&mut T> {
        self.at_mut(place)?.value.as_mut()
    }

    /// Removes the value at `place`.
    pub fn remove(&mut self, place: u32) -> Option<T> {
        let there = self.at_mut(place)?;
        let value = there.value.take()?;
        there.generation = there.generation.wrapping_add(1);
        self.free.push(place);
        Some(value)
    }

    /// The occupied places.
    pub fn occupied(&self) -> Vec<u32> {
        self.chunks.iter().flatten().zip(0..).filter(|(place, _)| place.value.is_some()).map(|(_, at)| at).collect()
    }

    /// The number of values.
    pub fn len(&self) -> usize {
        self.count - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_stay_where_they_are() {
        let mut slab = Slab::new();
        let places: Vec<u32> = (0..3 * CHUNK as u32).map(|value| slab.insert(value).unwrap()).collect();
        assert_eq!(slab.occupied(), places);
        let sum: u32 = places.iter().step_by(3).map(|place| slab.remove(*place).unwrap()).sum();
        assert_eq!(sum, places.iter().step_by(3).sum::<u32>());
        assert_eq!(slab.len(), 2 * CHUNK);
        for (value, place) in (0..).zip(places) {
            assert_eq!(slab.get(place).copied(), (value % 3 != 0).then_some(value));
        }
        assert_eq!(slab.get(3 * CHUNK as u32), None);
    }

    #[test]
    fn a_number_never_names_another_value() {
        let mut slab = Slab::new();
        let first = slab.insert("a").unwrap();
        let number = slab.number(first);
        assert_eq!(slab.place(number), Some(first));
        slab.remove(first);
        assert_eq!(slab.place(number), None);
        let second = slab.insert("b").unwrap();
        assert_eq!(first, second);
        assert_ne!(slab.number(second), number);
        assert_eq!(slab.place(number), None);
        assert_eq!(slab.len(), 1);
        for wrong in [0, u64::MAX, 1 << 32, number + 1] {
            assert_eq!(slab.place(wrong), None);
        }
    }
}
