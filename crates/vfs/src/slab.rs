//! A table whose places are reused and whose numbers are not.

/// Values by number. A number names one value only, for the whole life of the table (until one place was used 2^32
/// times), so that what a client says late about a number does not hit another value.
#[derive(Debug)]
pub struct Slab<T> {
    places: Vec<Place<T>>,
    free: Vec<u32>,
}

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
    /// Without values.
    pub const fn new() -> Slab<T> {
        Slab { places: Vec::new(), free: Vec::new() }
    }

    /// Adds a value; gives its place, or nothing if there are too many.
    pub fn insert(&mut self, value: T) -> Option<u32> {
        if let Some(place) = self.free.pop() {
            self.places.get_mut(place as usize)?.value = Some(value);
            return Some(place);
        }
        if self.places.len() >= MAX {
            return None;
        }
        self.places.push(Place { generation: 0, value: Some(value) });
        u32::try_from(self.places.len() - 1).ok()
    }

    /// The number of what is at `place`: never 0.
    pub fn number(&self, place: u32) -> u64 {
        let generation = self.places.get(place as usize).map_or(0, |place| place.generation);
        u64::from(generation) << 32 | (u64::from(place) + 1)
    }

    /// The place of the value with this number.
    pub fn place(&self, number: u64) -> Option<u32> {
        let place = (number as u32).checked_sub(1)?;
        let there = self.places.get(place as usize)?;
        (there.value.is_some() && u64::from(there.generation) == number >> 32).then_some(place)
    }

    /// What is at `place`.
    pub fn get(&self, place: u32) -> Option<&T> {
        self.places.get(place as usize)?.value.as_ref()
    }

    /// What is at `place`.
    pub fn get_mut(&mut self, place: u32) -> Option<&mut T> {
        self.places.get_mut(place as usize)?.value.as_mut()
    }

    /// Takes away what is at `place`.
    pub fn remove(&mut self, place: u32) -> Option<T> {
        let there = self.places.get_mut(place as usize)?;
        let value = there.value.take()?;
        there.generation = there.generation.wrapping_add(1);
        self.free.push(place);
        Some(value)
    }

    /// The places that have a value.
    pub fn occupied(&self) -> Vec<u32> {
        self.places.iter().zip(0..).filter(|(place, _)| place.value.is_some()).map(|(_, at)| at).collect()
    }

    /// How many values there are.
    pub fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
