//! Records in append-only segments.
//!
//! A segment is written by one run of the process and by nobody after: what follows a failed write or a
//! crash goes to the next. So a record is either whole or its checksums say that it is not, and nothing
//! ever has to be repaired. Only what is to be destroyed is written over. When the budget is used up, the oldest segment goes; of its records those
//! that were read since they were written are written again, up to half of it.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    io,
};

use xxhash_rust::xxh3::xxh3_64;

use super::{
    BlockStore, StoreError, Usage,
    aligned::Aligned,
    disk::Disk,
    segment::{BLOCK_BYTES, decode_header, encode_header, stored_bytes},
};
use crate::record::{Record, RecordName};

/// Size at which the next segment is begun, in a store that is large enough for eight.
pub const SEGMENT_BYTES: u64 = 256 << 20;

/// Where a record lies.
#[derive(Clone, Copy, Debug)]
struct Place {
    segment: u64,
    offset: u64,
    record: Record,
    /// Since it was written here.
    was_read: bool,
}

/// The segment that is being written.
#[derive(Clone, Copy, Debug)]
struct Active {
    segment: u64,
    end: u64,
}

/// A [`BlockStore`] over the segments of a [`Disk`], of `budget` bytes at most.
///
/// Cost: a put writes 4 KiB more than the payload, rounded up; a get reads as much, in one read each.
#[derive(Debug)]
pub struct SegmentStore<D> {
    disk: D,
    budget: u64,
    segment_bytes: u64,
    index: HashMap<RecordName, Place>,
    /// All segments, by age, with their bytes.
    segments: BTreeMap<u64, u64>,
    active: Option<Active>,
    /// Put since the last sync.
    unsynced: Vec<RecordName>,
    /// Not told of yet.
    forgotten: Vec<RecordName>,
    /// Copies that are not given out and would be found by another scan, or parts of them: older ones, damaged
    /// ones, those of a batch that failed.
    shadows: Vec<Place>,
    bytes_written: u64,
    records_damaged: u64,
    /// Where records are put together and read to.
    room: Aligned,
}

impl<D: Disk> SegmentStore<D> {
    /// Finds what the segments hold, by their headers alone; payloads are proven when they are read.
    /// Segments without a record are removed.
    ///
    /// Errors: segments cannot be listed or read. One block that cannot be read costs its record.
    pub fn open(disk: D, budget: u64) -> Result<Self, StoreError> {
        let mut store = Self {
            disk,
            budget,
            segment_bytes: (budget / 8).min(SEGMENT_BYTES),
            index: HashMap::new(),
            segments: BTreeMap::new(),
            active: None,
            unsynced: Vec::new(),
            forgotten: Vec::new(),
            shadows: Vec::new(),
            bytes_written: 0,
            records_damaged: 0,
            room: Aligned::default(),
        };
        let mut segments = store.disk.list().map_err(StoreError::List)?;
        segments.sort_unstable();
        for segment in segments {
            store.scan(segment)?;
        }
        Ok(store)
    }

    fn scan(&mut self, segment: u64) -> Result<(), StoreError> {
        let failed = |source| StoreError::Segment {
            operation: "look at",
            segment,
            source,
        };
        let bytes = self.disk.len(segment).map_err(failed)?;
        self.segments.insert(segment, bytes);
        let mut block = Aligned::new(BLOCK_BYTES);
        let (mut offset, mut is_empty) = (0, true);
        while offset + BLOCK_BYTES as u64 <= bytes {
            let found = match self.disk.read(segment, offset, block.bytes_mut()) {
                Ok(()) => block.bytes().try_into().ok(),
                Err(_) => None,
            };
            let record = found.and_then(|block| decode_header(segment, block));
            // A payload that the file has no room for was never written to its end. After what is no
            // header, the next one is looked for block by block.
            let next = record.map(|record| offset.saturating_add(stored_bytes(record.length)));
            match (record, next) {
                (Some(record), Some(next)) if next <= bytes => {
                    is_empty = false;
                    let older = self.index.insert(
                        record.name,
                        Place {
                            segment,
                            offset,
                            record,
                            was_read: false,
                        },
                    );
                    self.shadows.extend(older);
                    offset = next;
                }
                _ => offset += BLOCK_BYTES as u64,
            }
        }
        if is_empty && self.disk.remove(segment).is_ok() {
            self.segments.remove(&segment);
        }
        Ok(())
    }

    /// Appends without asking for the budget.
    fn append(&mut self, record: &Record, payload: &[u8]) -> Result<(), StoreError> {
        let bytes = stored_bytes(record.length);
        let is_full = |active: Active| active.end > 0 && active.end + bytes > self.segment_bytes;
        if self.active.is_some_and(is_full) {
            self.sync()?;
            self.active = None;
        }
        let active = match self.active {
            Some(active) => active,
            None => self.begin_segment()?,
        };
        let segment = active.segment;
        self.room.resize(bytes as usize);
        let room = self.room.bytes_mut();
        room[..BLOCK_BYTES].copy_from_slice(&encode_header(segment, record));
        room[BLOCK_BYTES..][..payload.len()].copy_from_slice(payload);
        room[BLOCK_BYTES + payload.len()..].fill(0);
        // Counted before, because a write that fails may have taken as much.
        self.segments.insert(segment, active.end + bytes);
        let wrote = self.disk.write(segment, active.end, self.room.bytes());
        wrote.map_err(|source| self.give_up_segment("write to", segment, source))?;
        self.bytes_written += bytes;
        self.active = Some(Active {
            segment,
            end: active.end + bytes,
        });
        self.index.insert(
            record.name,
            Place {
                segment,
                offset: active.end,
                record: *record,
                was_read: false,
            },
        );
        self.unsynced.push(record.name);
        Ok(())
    }

    fn begin_segment(&mut self) -> Result<Active, StoreError> {
        let segment = self
            .segments
            .last_key_value()
            .map_or(0, |(last, _)| last + 1);
        // Known before it is there, so that its number is not used again whatever comes of it.
        self.segments.insert(segment, 0);
        let made = self.disk.create(segment);
        made.map_err(|source| self.give_up_segment("make", segment, source))?;
        let active = Active { segment, end: 0 };
        self.active = Some(active);
        Ok(active)
    }

    /// After an error nobody knows what of the unsynced records is on the disk, so none is; the segment
    /// is written no more.
    fn give_up_segment(
        &mut self,
        operation: &'static str,
        segment: u64,
        source: io::Error,
    ) -> StoreError {
        self.active = None;
        for name in self.unsynced.drain(..) {
            self.shadows.extend(self.index.remove(&name));
            self.forgotten.push(name);
        }
        // A disk that stays full is tried again and again; each try must not leave a file.
        let is_empty = !self.index.values().any(|place| place.segment == segment);
        if is_empty && self.disk.remove(segment).is_ok() {
            self.forget_segment(segment);
        }
        StoreError::Segment {
            operation,
            segment,
            source,
        }
    }

    /// Frees the oldest segments until `bytes` more are within the budget.
    fn make_room(&mut self, bytes: u64) -> Result<(), StoreError> {
        // Every round frees half a segment or more, so this ends.
        while self.bytes() + bytes > self.budget {
            let Some((&oldest, &oldest_bytes)) = self.segments.first_key_value() else {
                break;
            };
            if self.active.is_some_and(|active| active.segment == oldest) {
                self.sync()?;
                self.active = None;
            }
            let mut places: Vec<Place> = self
                .index
                .values()
                .filter(|place| place.segment == oldest)
                .copied()
                .collect();
            places.sort_unstable_by_key(|place| place.offset);
            let mut left = oldest_bytes / 2;
            for place in places {
                let name = place.record.name;
                let size = stored_bytes(place.record.length);
                let payload = match place.was_read && size <= left {
                    true => self.read(&place).map(<[u8]>::to_vec),
                    false => None,
                };
                self.shadows.extend(self.index.remove(&name));
                match payload {
                    Some(payload) => {
                        self.append(&place.record, &payload)?;
                        left -= size;
                    }
                    None => self.forgotten.push(name),
                }
            }
            // What was written again must be there before what it was copied from is gone.
            self.sync()?;
            match self.disk.remove(oldest) {
                Err(source) if source.kind() != io::ErrorKind::NotFound => {
                    return Err(StoreError::Segment {
                        operation: "remove",
                        segment: oldest,
                        source,
                    });
                }
                _ => self.forget_segment(oldest),
            }
        }
        Ok(())
    }

    /// The segment is gone, with all that it had.
    fn forget_segment(&mut self, segment: u64) {
        self.segments.remove(&segment);
        self.shadows.retain(|shadow| shadow.segment != segment);
    }

    fn bytes(&self) -> u64 {
        self.segments.values().sum()
    }

    /// The payload at a place, None when it is not what was put there.
    fn read(&mut self, place: &Place) -> Option<&[u8]> {
        let bytes = usize::try_from(stored_bytes(place.record.length)).ok()?;
        self.room.resize(bytes);
        self.disk
            .read(place.segment, place.offset, self.room.bytes_mut())
            .ok()?;
        let (header, payload) = self.room.bytes().split_first_chunk::<BLOCK_BYTES>()?;
        let payload = payload.get(..place.record.length as usize)?;
        let is_same = decode_header(place.segment, header) == Some(place.record)
            && xxh3_64(payload) == place.record.xxh3;
        is_same.then_some(payload)
    }
}

impl<D: Disk> BlockStore for SegmentStore<D> {
    fn put(&mut self, record: &Record, payload: &[u8]) -> Result<(), StoreError> {
        let bytes = stored_bytes(record.length);
        if self.contains(&record.name) {
            return Ok(());
        }
        if bytes > self.segment_bytes {
            return Err(StoreError::TooLarge {
                bytes,
                segment_bytes: self.segment_bytes,
            });
        }
        self.make_room(bytes)?;
        self.append(record, payload)
    }

    fn sync(&mut self) -> Result<(), StoreError> {
        let Some(active) = self.active.filter(|_| !self.unsynced.is_empty()) else {
            return Ok(());
        };
        let synced = self.disk.sync(active.segment);
        synced.map_err(|source| self.give_up_segment("sync", active.segment, source))?;
        self.unsynced.clear();
        Ok(())
    }

    fn get(&mut self, name: &RecordName) -> Option<(Record, &[u8])> {
        let place = self.index.get_mut(name)?;
        place.was_read = true;
        let place = *place;
        match self.read(&place) {
            Some(_) => {
                let payload = &self.room.bytes()[BLOCK_BYTES..][..place.record.length as usize];
                Some((place.record, payload))
            }
            None => {
                self.shadows.extend(self.index.remove(name));
                self.forgotten.push(*name);
                self.records_damaged += 1;
                None
            }
        }
    }

    fn erase(&mut self, names: &[RecordName]) -> Result<(), StoreError> {
        // Nothing of a batch that could still fail is left out or told to be there afterwards.
        self.sync()?;
        let names: HashSet<&RecordName> = names.iter().collect();
        let found = names.iter().filter_map(|&name| self.index.get(name));
        let shadows = self.shadows.iter();
        let shadows = shadows.filter(|shadow| names.contains(&shadow.record.name));
        let copies: Vec<Place> = found.chain(shadows).copied().collect();
        let touched: BTreeSet<u64> = copies.iter().map(|place| place.segment).collect();
        let failed = |operation, segment| {
            move |source| StoreError::Segment {
                operation,
                segment,
                source,
            }
        };
        // A header goes when what it names is gone: a crash in between leaves what the next call finds.
        let header = BLOCK_BYTES as u64;
        for is_header in [false, true] {
            for place in &copies {
                let (offset, bytes) = match is_header {
                    true => (place.offset, header),
                    false => (
                        place.offset + header,
                        stored_bytes(place.record.length) - header,
                    ),
                };
                let written = self.disk.overwrite(place.segment, offset, bytes);
                written.map_err(failed("overwrite", place.segment))?;
                self.bytes_written += bytes;
            }
            for &segment in &touched {
                let synced = self.disk.sync(segment);
                synced.map_err(failed("sync", segment))?;
            }
        }
        for name in names.iter().copied() {
            if self.index.remove(name).is_some() {
                self.forgotten.push(*name);
            }
        }
        self.shadows
            .retain(|shadow| !names.contains(&shadow.record.name));
        Ok(())
    }

    fn contains(&self, name: &RecordName) -> bool {
        self.index.contains_key(name)
    }

    fn records(&self) -> Vec<(RecordName, u64)> {
        let places = self.index.iter();
        places
            .map(|(name, place)| (*name, place.record.length))
            .collect()
    }

    fn take_forgotten(&mut self) -> Vec<RecordName> {
        std::mem::take(&mut self.forgotten)
    }

    fn usage(&self) -> Usage {
        Usage {
            records: self.index.len() as u64,
            bytes: self.bytes(),
            bytes_written: self.bytes_written,
            records_damaged: self.records_damaged,
        }
    }
}

#[cfg(test)]
mod tests;
