//! Memory for small batches that nobody has read yet, one behind the other in slabs: none of them is a Python object.
//!
//! Batches are written in the order in which they become visible and are dropped in nearly the same order, so a slab mostly dies as a
//! whole, and to drop a batch touches none of its memory. What stays (the newest batch of a quiet topic) would hold its slab: if
//! more than a third of all slabs is dead, the survivors of the emptiest one are moved (`sparse`, `batches`). No I/O, no clock.

use crate::batch;

const SLAB_BYTES: usize = 256 * 1024;
const DEAD_FREE: usize = 16 * SLAB_BYTES; // so much may be dead, whatever lives
const CROWDED: usize = 8 * DEAD_FREE;
const SPARES_MAX: usize = 4; // empty slabs that are kept for the next batches
const OWNER_BYTES: usize = 8; // in front of each batch: who has it
/// A larger batch is a Python object from the beginning: the allocator costs little beside its bytes.
pub const BATCH_BYTES_MAX: usize = 16 * 1024;
/// Slabs whose survivors are moved at a time: 0.2 ms.
pub const MOVED_SLABS_MAX: usize = 8;

/// Where a batch is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Spot {
    slab: u32,
    at: u32,
}

#[derive(Default)]
struct Slab {
    data: Box<[u8]>, // none while it is not in use
    used: usize,
    live: usize, // bytes of it that are not dropped
    held: usize, // batches that must stay where they are, dropped or not
}

#[derive(Default)]
pub struct Slabs {
    slabs: Vec<Slab>,
    current: usize,
    unused: Vec<usize>, // numbers of slabs without memory
    spare: Vec<Box<[u8]>>,
    bytes: usize, // of all slabs in use
    live: usize,
}

impl Slabs {
    /// Room for a batch of this size, whatever was there before it; whoever takes it writes all of it, its own length too.
    pub fn take(&mut self, owner: usize, length: usize) -> (Spot, &mut [u8]) {
        let size = OWNER_BYTES + length;
        if self.slabs.get(self.current).is_none_or(|slab| slab.data.len() - slab.used < size) {
            self.begin();
        }
        let slab = &mut self.slabs[self.current];
        let at = slab.used;
        slab.used += size;
        slab.live += size;
        self.live += size;
        batch::put(&mut slab.data, at, (owner as u64).to_le_bytes());
        let spot = Spot { slab: self.current as u32, at: (at + OWNER_BYTES) as u32 };
        (spot, &mut slab.data[at + OWNER_BYTES..at + size])
    }

    pub fn bytes(&self, spot: Spot, length: usize) -> &[u8] {
        &self.slabs[spot.slab as usize].data[spot.at as usize..spot.at as usize + length]
    }

    pub fn bytes_mut(&mut self, spot: Spot, length: usize) -> &mut [u8] {
        &mut self.slabs[spot.slab as usize].data[spot.at as usize..spot.at as usize + length]
    }

    pub fn drop(&mut self, spot: Spot, length: usize) {
        let (number, size) = (spot.slab as usize, OWNER_BYTES + length);
        self.live -= size;
        self.slabs[number].live -= size;
        self.end_if_dead(number);
    }

    /// A batch stays where it is until it is released as often, also if it is dropped.
    pub fn hold(&mut self, spot: Spot) {
        self.slabs[spot.slab as usize].held += 1;
    }

    /// So much is dead and held that nothing more should be.
    pub fn is_crowded(&self) -> bool {
        self.bytes > self.live + self.live / 2 + CROWDED
    }

    pub fn release(&mut self, spot: Spot) {
        let number = spot.slab as usize;
        self.slabs[number].held -= 1;
        self.end_if_dead(number);
    }

    fn end_if_dead(&mut self, number: usize) {
        let slab = &self.slabs[number];
        if slab.live == 0 && slab.held == 0 && slab.used > 0 && number != self.current {
            self.end(number);
        }
    }

    /// The same batch behind all others.
    pub fn move_to_end(&mut self, owner: usize, spot: Spot, length: usize) -> Spot {
        let d = self.bytes(spot, length).to_vec();
        let (moved, room) = self.take(owner, length);
        room.copy_from_slice(&d);
        self.drop(spot, length);
        moved
    }

    fn begin(&mut self) {
        let before = self.current;
        let data = self.spare.pop().unwrap_or_else(|| vec![0; SLAB_BYTES].into_boxed_slice());
        let slab = Slab { data, used: 0, live: 0, held: 0 };
        self.bytes += SLAB_BYTES;
        self.current = match self.unused.pop() {
            Some(number) => {
                self.slabs[number] = slab;
                number
            }
            None => {
                self.slabs.push(slab);
                self.slabs.len() - 1
            }
        };
        self.end_if_dead(before); // it could not end while it was the current one
    }

    fn end(&mut self, number: usize) {
        let data = std::mem::take(&mut self.slabs[number]).data;
        self.bytes -= SLAB_BYTES;
        self.unused.push(number);
        if self.spare.len() < SPARES_MAX {
            self.spare.push(data);
        }
    }

    /// The emptiest slab whose batches may be moved, if too much of all of them is dead.
    pub fn sparse(&self) -> Option<usize> {
        if self.bytes <= self.live + self.live / 2 + DEAD_FREE {
            return None;
        }
        let others = self.slabs.iter().enumerate();
        let pays = |slab: &Slab| slab.held == 0 && slab.used > 0 && slab.live <= SLAB_BYTES / 3 * 2;
        let others = others.filter(|(number, slab)| *number != self.current && pays(slab));
        others.min_by_key(|(_, slab)| slab.live).map(|(number, _)| number)
    }

    /// What was written into a slab, dropped or not: owner, place, length and first offset of each batch.
    pub fn batches(&self, number: usize) -> Vec<(usize, Spot, usize, u64)> {
        let slab = &self.slabs[number];
        let (mut found, mut at) = (Vec::new(), 0);
        while at < slab.used {
            let d = &slab.data[at + OWNER_BYTES..];
            let (length, base) = (batch::u32_at(d, 8) as usize, batch::i64_at(d, 16) as u64);
            let owner = batch::i64_at(&slab.data, at) as usize;
            found.push((owner, Spot { slab: number as u32, at: (at + OWNER_BYTES) as u32 }, length, base));
            at += OWNER_BYTES + length;
        }
        found
    }
}
