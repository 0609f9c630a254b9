//! What `Tails` keeps of partitions in memory: seals what a turn brought, moves it into slabs, and drops the oldest beyond the bounds.
//!
//! The calls of Python and the appends are in `tails.rs`, whose rules these are. No I/O, no clock.

use crate::batch;
use crate::merging::{group_end, merged};
use crate::slabs::{self, Spot};
use crate::tail::{Body, Kept, NONE, Place, Shown, Turn, bytes_of, following, place, place_bytes};
use crate::tails::{AHEAD, Tails};
use crate::unzeroed_array;
use pyo3::prelude::*;
use pyo3::types::PyByteArray;

impl Tails {
    pub(crate) fn seal_one(&mut self, py: Python<'_>, turn: &mut Turn, slot: usize, now: i64) -> PyResult<()> {
        let tail = &mut self.tails[slot];
        let (first, last) = (tail.first, tail.last);
        (tail.first, tail.last) = (NONE, NONE);
        let now = tail.told_time.take().unwrap_or_else(|| following(now, tail.last_time));
        tail.last_time = now;
        if first == last {
            self.counts.appends += 1;
            self.keep_pending(py, turn, slot, first, now)?;
        } else {
            self.seal_several(py, turn, slot, first, now)?;
        }
        let tail = &mut self.tails[slot];
        tail.visible = tail.end;
        if tail.bytes > tail.bytes_max {
            self.drop_over_bound(slot, i64::MIN);
        }
        Ok(())
    }

    fn seal_several(&mut self, py: Python<'_>, turn: &mut Turn, slot: usize, first: u32, now: i64) -> PyResult<()> {
        let mut numbers = Vec::new();
        let mut next = first;
        while next != NONE {
            numbers.push(next);
            next = turn.pending[next as usize].next;
        }
        self.counts.appends += numbers.len() as u64;
        let mut begin = 0;
        while begin < numbers.len() {
            let parts: Vec<&[u8]> =
                numbers[begin..].iter().map(|one| turn.bytes(py, &turn.pending[*one as usize].body)).collect();
            let size = group_end(&parts, 0);
            let group = &numbers[begin..begin + size];
            begin += size;
            if let Some(merge) = merged(&parts[..size], now) {
                if self.is_slab(slot, merge.length()) {
                    let (spot, d) = self.slabs.take(slot, merge.length());
                    merge.fill(d);
                    self.keep_spot(slot, spot, merge.length(), now)?;
                } else {
                    self.keep_array(py, slot, merge.array(py)?, now)?;
                }
                for one in group.iter().map(|one| &turn.pending[*one as usize]).filter(|one| one.waits) {
                    if let Body::Array(batch) = &one.body {
                        place(py, batch, one.base, now)?;
                    }
                }
            } else {
                for one in group {
                    self.keep_pending(py, turn, slot, *one, now)?;
                }
            }
        }
        Ok(())
    }

    /// Is a batch of this size of this tail kept in a slab? What is watched is read at once.
    fn is_slab(&self, slot: usize, length: usize) -> bool {
        length <= slabs::BATCH_BYTES_MAX && !self.tails[slot].watched
    }

    fn keep_pending(&mut self, py: Python<'_>, turn: &Turn, slot: usize, number: u32, now: i64) -> PyResult<()> {
        match &turn.pending[number as usize].body {
            Body::Array(batch) => self.keep_array(py, slot, batch.clone_ref(py), now),
            body => {
                let made = turn.bytes(py, body);
                if self.is_slab(slot, made.len()) {
                    let (spot, d) = self.slabs.take(slot, made.len());
                    d.copy_from_slice(made);
                    return self.keep_spot(slot, spot, made.len(), now);
                }
                let batch = unzeroed_array(py, made.len(), |d| d.copy_from_slice(made))?.unbind();
                self.keep_array(py, slot, batch, now)
            }
        }
    }

    fn keep_spot(&mut self, slot: usize, spot: Spot, length: usize, now: i64) -> PyResult<()> {
        let base = self.tails[slot].visible;
        let d = self.slabs.bytes_mut(spot, length);
        place_bytes(d, base, now)?;
        let (span, max_timestamp) = (u64::from(batch::u32_at(d, 28)), batch::i64_at(d, 40));
        self.keep(slot, span, max_timestamp, length, Place::Slab(spot));
        Ok(())
    }

    fn keep_array(&mut self, py: Python<'_>, slot: usize, batch: Py<PyByteArray>, now: i64) -> PyResult<()> {
        place(py, &batch, self.tails[slot].visible, now)?;
        let d = bytes_of(py, &batch);
        let (length, span, max_timestamp) = (d.len(), u64::from(batch::u32_at(d, 28)), batch::i64_at(d, 40));
        self.keep(slot, span, max_timestamp, length, Place::Shown(Box::new(Shown { batch, view: None })));
        Ok(())
    }

    fn keep(&mut self, slot: usize, span: u64, max_timestamp: i64, length: usize, place: Place) {
        let tail = &mut self.tails[slot];
        let base = tail.visible;
        tail.visible = base + span;
        self.serial += 1;
        let size = length + self.object_bytes;
        tail.bytes += size;
        self.bytes += size;
        self.counts.batches += 1;
        self.counts.bytes += length as u64;
        tail.kept.push_back(Kept { base, serial: self.serial, max_timestamp, length, place });
        if !tail.in_order {
            tail.in_order = true;
            self.order.push(tail.kept[0].serial, slot);
        }
    }

    /// Moves what lives in slabs of which much is dead, a few slabs for each call.
    pub(crate) fn move_survivors(&mut self) {
        for _ in 0..slabs::MOVED_SLABS_MAX {
            let Some(number) = self.slabs.sparse() else { return };
            self.move_slab(number);
        }
    }

    fn move_slab(&mut self, number: usize) {
        for (slot, spot, length, base) in self.slabs.batches(number) {
            let Some(tail) = self.tails.get_mut(slot) else { continue };
            let at = tail.kept.partition_point(|kept| kept.base < base);
            let Some(kept) = tail.kept.get_mut(at) else { continue };
            if kept.place.is_at(spot) {
                kept.place = Place::Slab(self.slabs.move_to_end(slot, spot, length));
            } // else it was dropped, or read, and its tail may be another's
        }
    }

    /// Drops the oldest: what is over the topic's own bound, except for the newest batch, and what is older than `before`, at
    /// most `freed_max`. True: there is more.
    pub(crate) fn drop_over_bound(&mut self, slot: usize, before: i64) -> bool {
        for _ in 0..self.freed_max {
            let tail = &self.tails[slot];
            let over = tail.bytes > tail.bytes_max && tail.kept.len() > 1;
            match tail.kept.front() {
                Some(oldest) if over || oldest.max_timestamp < before => self.drop_oldest(slot),
                _ => return false,
            }
        }
        true
    }

    fn drop_oldest(&mut self, slot: usize) {
        let tail = &mut self.tails[slot];
        let Some(gone) = tail.kept.pop_front() else { return };
        let size = gone.length + self.object_bytes;
        tail.bytes -= size;
        self.bytes -= size;
        gone.place.leave(&mut self.slabs, gone.length);
        tail.start = tail.kept.front().map_or(tail.visible, |next| next.base);
        self.counts.dropped += 1;
    }

    /// Evicts the oldest batches of all until they are within their bound, at most `freed_max` of them. True: there is more.
    pub(crate) fn trim_order(&mut self) -> bool {
        let mut freed = 0;
        while freed < self.freed_max {
            let Some(list) = self.doomed.last_mut() else { break };
            let taken = list.len().min(self.freed_max - freed);
            list.drain(list.len() - taken..).for_each(|gone| gone.place.leave(&mut self.slabs, gone.length));
            freed += taken.max(1);
            if list.is_empty() {
                self.doomed.pop();
            }
        }
        while freed < self.freed_max && self.bytes > self.bytes_max {
            let Some((serial, slot)) = self.order.first() else { break };
            if let Some(later) = self.order.following(2 * AHEAD) {
                self.tails[later].fetch();
            }
            if let Some(soon) = self.order.following(AHEAD) {
                self.tails[soon].fetch_oldest();
            }
            let tail = &mut self.tails[slot];
            let oldest = tail.kept.front().map(|one| one.serial);
            freed += usize::from(oldest.is_some());
            if oldest.is_none() || oldest == Some(serial) && tail.kept.len() == 1 {
                tail.in_order = false; // nothing is kept, or the newest batch of a topic, which stays
                self.order.pop();
                continue;
            }
            if oldest == Some(serial) {
                self.drop_oldest(slot);
            }
            self.order.replace_first(self.tails[slot].kept[0].serial, slot);
        }
        !self.doomed.is_empty() || freed >= self.freed_max
    }
}
