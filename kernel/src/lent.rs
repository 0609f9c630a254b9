//! The newest part of partitions in files, while Python has lent them to the kernel (ADR 29).
//!
//! A loan is where the next batch of a partition goes: offset, place in the segment, link. While it lasts a door appends to any
//! number of partitions in one call, and one call at the end of the turn (`seal`) merges, links and checksums what they got
//! and says what to write: the entries and batches of one record of the journal, and places in segments. What is in the
//! journal need not be in its segment yet (`late`): it is written there later, in larger pieces. When the record is written,
//! `commit` keeps the batches for readers. Whatever has a decision in it (no room, a roll, a failure, a stop) is Python's:
//! `recall` gives back everything, also what is being written. No I/O, no clock. `pure_lent.py` is the same in Python, and
//! the specification.
//!
//!     lend -> append -> pending --seal--> flight --commit--> kept --(bound of all)--> dropped, oldest first
//!                          +------ recall -----+        +--> late --(next place, or take_late)--> in the segment

use crate::batch::{self, LINK_BYTES};
use crate::loan::{Flight, Kept, Late, Link, Loan, Moved, Pending, Slot, Written, joined, place_of, release};
use crate::merging::merge_all;
use crate::slabs::{BATCH_BYTES_MAX, MOVED_SLABS_MAX, Slabs, Spot};
use crate::tail::{Place, Shown, bytes_of, following, place};
use crate::{make, refuse, unzeroed_bytes};
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyList};
use std::collections::VecDeque;

const ENTRY_BYTES: usize = 32; // of a record of the journal: docs/LOG_FORMAT.md section 7
const PENDING_BYTES_MAX: usize = 4 * 1024 * 1024; // of all loans of one way: what is more goes through Python
const JOURNALED_BYTES_MAX: usize = 32 * 1024; // of one partition in a record: commit.py, CHUNK_BYTES_MAX
const LARGE_SHARE: u64 = 8; // of what may be late: more is written while it is still in the processor's cache
const INLINE_FEW: usize = 4; // fewer partitions than these write their segments: a record would be one write more

// How what is committed became what it promises; 0 is written.
const RECORDED: u8 = 1;
pub const SYNCED: u8 = 2;

/// What Python says when it lends: topic_id, partition, base, seed and handle of the segment, position, limit, end, last time.
pub type Terms = (u32, u32, u64, u32, i64, u64, u64, u64, i64);
/// What waits: batch, ticket, number, base.
pub type Waiting = (Py<PyByteArray>, u64, usize, u64);
/// how many, places, the slot of each place, table, body, unfit, appends.
pub type Sealed<'py> =
    (usize, Vec<Written<'py>>, Vec<usize>, Bound<'py, PyBytes>, Bound<'py, PyBytes>, Vec<usize>, usize);
/// Slots that are low, slots that are watched.
pub type Committed = (Vec<usize>, Vec<usize>);
/// position and base of the first, greatest time, end, visible, link, whether all of it is synced.
pub type CaughtUp<'py> = (u64, u64, i64, u64, u64, Option<Bound<'py, PyBytes>>, bool);
/// position, buffers, who waits, whether it goes to its segment now.
type InFlight = (u64, Vec<Py<PyByteArray>>, Vec<Waiting>, bool);
/// pending, what is being written, position, end, last time, link.
pub type Recalled<'py> = (Vec<Waiting>, Option<InFlight>, u64, u64, i64, Option<Bound<'py, PyBytes>>);

pub struct Lents {
    slots: Vec<Slot>,
    free: Vec<usize>,
    dirty: [Vec<usize>; 2], // by way: of the journal, inline
    flying: [Vec<usize>; 2],
    owed: [usize; 2],
    order: VecDeque<(u64, usize)>, // of everything kept, oldest first: serial, slot
    stale: usize,                  // places in it that stand for nothing any more, at most
    serial: u64,
    slabs: Slabs,
    moved: Vec<usize>,             // chained, of the journal: their heads are to be anchored
    recorded: Vec<usize>,          // in a record of the journal since `take_recorded`
    tardy: VecDeque<(u64, usize)>, // since when a slot has something late, oldest first
    pub late_bytes: usize,
    object_bytes: usize,
    freed_max: usize,
    pub open: bool,
    pub bytes: usize,
    pub bytes_max: usize,
    pub ticket: u64,
    pub appends: u64,
    pub batches: u64,
    pub written: u64,
}

fn way(inline: bool) -> usize {
    usize::from(inline)
}

/// The offset behind a batch.
fn next_of(d: &[u8]) -> u64 {
    batch::i64_at(d, 16) as u64 + u64::from(batch::u32_at(d, 28))
}

fn waiting(pending: Vec<Pending>) -> Vec<Waiting> {
    pending.into_iter().map(|one| (one.batch, one.ticket, one.number, one.base)).collect()
}

impl Lents {
    pub fn new(object_bytes: usize, freed_max: usize) -> Lents {
        Lents {
            slots: Vec::new(),
            free: Vec::new(),
            dirty: Default::default(),
            flying: Default::default(),
            owed: [0, 0],
            order: VecDeque::new(),
            stale: 0,
            serial: 0,
            slabs: Slabs::default(),
            moved: Vec::new(),
            recorded: Vec::new(),
            tardy: VecDeque::new(),
            late_bytes: 0,
            object_bytes,
            freed_max,
            open: true,
            bytes: 0,
            bytes_max: 0,
            ticket: 0,
            appends: 0,
            batches: 0,
            written: 0,
        }
    }

    pub fn has(&self, slot: usize) -> bool {
        slot < self.slots.len()
    }

    pub fn unsynced(&self) -> usize {
        self.owed[0] + self.owed[1]
    }

    pub fn dirty(&self, inline: bool) -> Vec<usize> {
        self.pending(inline).collect()
    }

    /// The one slot that has something pending on this way, and not more than so many bytes.
    pub fn only_dirty(&self, inline: bool, bytes_max: usize) -> Option<usize> {
        let mut dirty = self.pending(inline);
        let slot = dirty.next().filter(|_| dirty.next().is_none())?;
        self.slots[slot].loan.as_ref().filter(|loan| loan.owed <= bytes_max).map(|_| slot)
    }

    fn pending(&self, inline: bool) -> impl Iterator<Item = usize> {
        let pends = move |slot: &usize| {
            self.slots[*slot].loan.as_ref().is_some_and(|loan| loan.inline == inline && !loan.pending.is_empty())
        };
        self.dirty[way(inline)].iter().copied().filter(pends)
    }

    /// Slots of what was sealed last on this way, in its order, recalled or not.
    pub fn flying(&self, inline: bool) -> Vec<usize> {
        self.flying[way(inline)].clone()
    }

    pub fn set_watched(&mut self, slot: usize, watched: bool) -> PyResult<()> {
        self.slot(slot)?.watched = watched;
        Ok(())
    }

    fn loan(&mut self, slot: usize) -> PyResult<&mut Loan> {
        self.slot(slot)?.loan.as_deref_mut().ok_or_else(|| refuse("it is not lent"))
    }

    pub fn set_low(&mut self, slot: usize, low_at: u64) -> PyResult<()> {
        self.loan(slot)?.low_at = low_at;
        Ok(())
    }

    pub fn visible(&mut self, slot: usize) -> PyResult<u64> {
        Ok(self.loan(slot)?.visible)
    }

    /// What was committed since the last call, in one; None: nothing was.
    pub fn catch_up<'py>(&mut self, py: Python<'py>, slot: usize) -> PyResult<Option<CaughtUp<'py>>> {
        let loan = self.loan(slot)?;
        let Some(moved) = loan.moved.take() else { return Ok(None) };
        let link = loan.head.map(|link| PyBytes::new(py, &link));
        Ok(Some((moved.position, moved.base, moved.newest, loan.committed(), loan.visible, link, moved.synced)))
    }

    /// Slots whose heads moved since the last call and were not caught up with.
    pub fn take_moved(&mut self) -> Vec<usize> {
        let is_moved = |slot: &usize| self.slots[*slot].loan.as_ref().is_some_and(|loan| loan.moved.is_some());
        std::mem::take(&mut self.moved).into_iter().filter(is_moved).collect()
    }

    /// Slots of which something was in a record since the last call.
    pub fn take_recorded(&mut self) -> Vec<usize> {
        let found = std::mem::take(&mut self.recorded);
        for slot in &found {
            self.slots[*slot].recorded = false;
        }
        found
    }

    fn slot(&mut self, slot: usize) -> PyResult<&mut Slot> {
        self.slots.get_mut(slot).ok_or_else(|| refuse("no such slot"))
    }

    pub fn open_slot(&mut self) -> usize {
        self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            self.slots.len() - 1
        })
    }

    pub fn close_slot(&mut self, slot: usize) -> PyResult<Option<usize>> {
        if self.slot(slot)?.loan.is_some() {
            return Err(refuse("what is lent is recalled before its slot is closed"));
        }
        if self.slots[slot].recorded {
            return Err(refuse("what is in a record is taken before its slot is closed"));
        }
        self.forget(slot)?;
        self.free.push(slot);
        self.slots[slot].watched = false;
        Ok(self.slots[slot].topic.take())
    }

    pub fn set_topic(&mut self, slot: usize, topic: Option<usize>) {
        self.slots[slot].topic = topic;
    }

    pub fn lend(&mut self, slot: usize, inline: bool, terms: Terms, link: &[u8], key: &[u8]) -> PyResult<()> {
        let (topic_id, partition, segment, seed, handle, position, limit, end, last_time) = terms;
        let whole = |bytes: &[u8]| -> PyResult<Option<Link>> {
            if bytes.is_empty() {
                Ok(None)
            } else {
                bytes.try_into().map(Some).map_err(|_| refuse("32 bytes, or none"))
            }
        };
        let (link, key) = (whole(link)?, whole(key)?);
        let lent = self.slot(slot)?;
        if lent.loan.is_some() {
            return Err(refuse("it is lent already"));
        }
        lent.loan = Some(Box::new(Loan {
            inline,
            topic_id,
            partition,
            segment,
            seed,
            handle,
            position,
            limit,
            end,
            last_time,
            told_time: None,
            link,
            key,
            pending: Vec::new(),
            owed: 0,
            flight: None,
            spare: Vec::new(),
            written: position,
            late: Vec::new(),
            since: 0,
            visible: end,
            head: link,
            moved: None,
            low_at: u64::MAX,
        }));
        Ok(())
    }

    pub fn extend(&mut self, slot: usize, limit: u64) -> PyResult<()> {
        if let Some(loan) = self.slot(slot)?.loan.as_mut() {
            loan.limit = limit;
        }
        Ok(())
    }

    pub fn end(&mut self, slot: usize) -> PyResult<u64> {
        self.slot(slot)?.loan.as_ref().map(|loan| loan.end).ok_or_else(|| refuse("it is not lent"))
    }

    /// May a batch of this size be appended without a decision by Python? Whether it fits for certain, `seal` knows.
    pub fn takes(&self, slot: usize, size: usize) -> bool {
        self.open
            && self.slots[slot].loan.as_ref().is_some_and(|loan| {
                (loan.owed + size) as u64 + loan.link_bytes() <= loan.room()
                    && self.owed[way(loan.inline)] + size <= PENDING_BYTES_MAX
            })
    }

    /// Append what `takes` said yes to, and give it the offset and the time it will have. Is it written inline?
    pub fn append(
        &mut self,
        py: Python<'_>,
        slot: usize,
        batch: &Py<PyByteArray>,
        now: i64,
        ticket: u64,
        number: usize,
    ) -> PyResult<bool> {
        let loan = self.slot(slot)?.loan.as_mut().ok_or_else(|| refuse("it is not lent"))?;
        let d = bytes_of(py, batch);
        let (span, size) = (u64::from(batch::u32_at(d, 28)), d.len());
        let (base, inline, first) = (loan.end, loan.inline, loan.pending.is_empty());
        let time = *loan.told_time.get_or_insert(following(now, loan.last_time));
        place(py, batch, base, time)?;
        loan.end = base + span;
        loan.owed += size;
        loan.pending.push(Pending { batch: batch.clone_ref(py), base, ticket, number });
        self.owed[way(inline)] += size;
        if first && !std::mem::replace(&mut self.slots[slot].listed[way(inline)], true) {
            self.dirty[way(inline)].push(slot);
        }
        Ok(inline)
    }

    /// The end of a turn: what is pending on this way is merged, linked and checksummed, and is to be written now. What does not
    /// fit stays pending and is named: Python recalls it. `later`: so many bytes of a partition may be in the journal only; with
    /// more, or with more than an eighth of them in this turn, all of them get a place in the segment. Inline, what has a place
    /// is not in the record: the system has it either way. `alone`: nothing goes to the journal, so nothing has to fit into a record.
    pub fn seal<'py>(
        &mut self,
        py: Python<'py>,
        inline: bool,
        bytes_max: usize,
        later: u64,
        alone: bool,
    ) -> PyResult<Sealed<'py>> {
        let (mut places, mut placed, mut unfit) = (Vec::new(), Vec::new(), Vec::new());
        let (mut count, mut total, mut appends) = (0, 0, 0);
        let (mut parts, mut body_bytes) = (Vec::new(), 0); // slots that are in the record
        let dirty = std::mem::take(&mut self.dirty[way(inline)]);
        let later = if alone || (inline && dirty.len() < INLINE_FEW) { 0 } else { later };
        let each_max = if alone || inline { usize::MAX } else { JOURNALED_BYTES_MAX };
        for slot in dirty {
            self.slots[slot].listed[way(inline)] = false;
            let Some(loan) = self.slots[slot].loan.as_mut() else { continue };
            if loan.inline != inline || loan.pending.is_empty() {
                continue; // it was recalled, and perhaps lent again
            }
            if loan.flight.is_some() {
                return Err(refuse("what is being written is committed or recalled before more is sealed"));
            }
            let waits = loan.pending.len();
            let Some(size) = seal_one(py, loan, (bytes_max - total.min(bytes_max)).min(each_max))? else {
                unfit.push(slot);
                continue;
            };
            (count, total, appends) = (count + 1, total + size as usize, appends + waits);
            let mut journaled = true;
            if loan.position - loan.written > later || size > later / LARGE_SHARE {
                placed.push(slot);
                places.push(place_of(py, &self.slabs, loan)?);
                journaled = !inline && !alone;
            }
            if journaled {
                parts.push(slot);
                body_bytes += size as usize;
            }
            self.flying[way(inline)].push(slot);
        }
        let slots = &self.slots;
        let flights = || parts.iter().filter_map(|slot| slots[*slot].loan.as_ref());
        let table = unzeroed_bytes(py, ENTRY_BYTES * parts.len(), |out| {
            for (entry, loan) in out.chunks_exact_mut(ENTRY_BYTES).zip(flights()) {
                let position = loan.flight.as_ref().map_or(0, |flight| flight.position);
                entry[..4].copy_from_slice(&loan.topic_id.to_le_bytes());
                entry[4..8].copy_from_slice(&loan.partition.to_le_bytes());
                entry[8..16].copy_from_slice(&loan.segment.to_le_bytes());
                entry[16..20].copy_from_slice(&loan.seed.to_le_bytes());
                entry[20..24].copy_from_slice(&((loan.position - position) as u32).to_le_bytes());
                entry[24..].copy_from_slice(&position.to_le_bytes());
            }
        })?;
        let body = unzeroed_bytes(py, body_bytes, |out| {
            let mut at = 0;
            for buffer in flights().flat_map(|loan| loan.flight.iter().flat_map(|flight| &flight.buffers)) {
                let d = bytes_of(py, buffer);
                out[at..at + d.len()].copy_from_slice(d);
                at += d.len();
            }
        })?;
        Ok((count, places, placed, table, body, unfit, appends))
    }

    /// What was being written on this way is: readers find it here. What was recalled meanwhile is left out. `monotonic`: any number
    /// that does not fall, for `tardy`. `how`: WRITTEN, RECORDED by a record of the synced journal, or SYNCED in the segment itself, with all
    /// before it. Slots that Python catches up with at once, and those that are watched.
    pub fn commit(&mut self, py: Python<'_>, inline: bool, monotonic: u64, how: u8) -> PyResult<Committed> {
        let (synced, recorded) = (how == SYNCED, how == RECORDED);
        let (mut low, mut watched) = (Vec::new(), Vec::new());
        for slot in std::mem::take(&mut self.flying[way(inline)]) {
            let Some(loan) = self.slots[slot].loan.as_mut() else { continue };
            let Some(mut flight) = loan.flight.take() else { continue };
            (loan.visible, loan.head) = (flight.next, flight.link);
            match loan.moved.as_mut() {
                Some(moved) => (moved.newest, moved.synced) = (moved.newest.max(flight.greatest), synced),
                None => {
                    let (position, base, newest) = (flight.position, flight.base, flight.greatest);
                    loan.moved = Some(Moved { position, base, newest, synced });
                    if flight.link.is_some() && !inline {
                        self.moved.push(slot);
                    }
                }
            }
            if loan.position > loan.low_at {
                low.push(slot);
            }
            if flight.placed {
                self.late_bytes -= (flight.position - loan.written) as usize;
                release(&mut self.slabs, std::mem::take(&mut loan.late));
                loan.written = loan.position;
            } else {
                if loan.late.is_empty() {
                    loan.since = monotonic;
                    self.tardy.push_back((monotonic, slot));
                }
                self.late_bytes += (loan.position - flight.position) as usize;
            }
            self.owed[way(inline)] -= flight.owed;
            self.appends += flight.waiting.len() as u64;
            flight.waiting.clear();
            if loan.pending.capacity() == 0 {
                loan.pending = flight.waiting; // a record of a thousand partitions would make and free as many
            }
            for buffer in flight.buffers.drain(..) {
                let length = bytes_of(py, &buffer).len();
                self.batches += 1;
                self.written += length as u64;
                let late = if length > BATCH_BYTES_MAX || self.slots[slot].watched {
                    let late = Late::Array(buffer.clone_ref(py));
                    self.keep(py, slot, buffer)?; // what is watched is read at once
                    late
                } else {
                    let held = !flight.placed && !self.slabs.is_crowded();
                    let spot = self.keep_copy(slot, bytes_of(py, &buffer), held)?;
                    if held { Late::Held(spot, length as u32) } else { Late::Array(buffer) }
                };
                if !flight.placed
                    && let Some(loan) = self.slots[slot].loan.as_mut()
                {
                    loan.late.push(late);
                }
            }
            let lent = &mut self.slots[slot];
            if let Some(loan) = lent.loan.as_mut() {
                loan.spare = flight.buffers;
            }
            if lent.watched {
                watched.push(slot);
            }
            if recorded && !lent.recorded {
                lent.recorded = true;
                self.recorded.push(slot);
            }
        }
        self.move_survivors();
        Ok((low, watched))
    }

    pub fn recall<'py>(&mut self, py: Python<'py>, slot: usize) -> PyResult<Recalled<'py>> {
        let lent = self.slot(slot)?;
        if lent.loan.as_ref().is_some_and(|loan| !loan.late.is_empty()) {
            return Err(refuse("what is late is taken before it is recalled"));
        }
        if lent.loan.as_ref().is_some_and(|loan| loan.moved.is_some()) {
            return Err(refuse("what is committed is caught up with before it is recalled"));
        }
        let loan = *lent.loan.take().ok_or_else(|| refuse("it is not lent"))?;
        let mut owed = loan.owed;
        let flight = loan.flight.map(|flight| {
            owed += flight.owed;
            (flight.position, flight.buffers, waiting(flight.waiting), flight.placed)
        });
        self.owed[way(loan.inline)] -= owed;
        let link = loan.link.map(|link| PyBytes::new(py, &link));
        Ok((waiting(loan.pending), flight, loan.position, loan.end, loan.last_time, link))
    }

    /// What the segment does not have yet, and where it goes. From here on it counts as written.
    pub fn take_late(&mut self, py: Python<'_>, slot: usize) -> PyResult<(u64, Vec<Py<PyByteArray>>)> {
        let loan = self.slot(slot)?.loan.as_mut().ok_or_else(|| refuse("it is not lent"))?;
        let (position, committed) = (loan.written, loan.committed());
        loan.written = committed;
        let late = std::mem::take(&mut loan.late);
        self.late_bytes -= (committed - position) as usize;
        if late.is_empty() {
            return Ok((position, Vec::new()));
        }
        let buffer = joined(py, &self.slabs, &late)?.unbind();
        release(&mut self.slabs, late);
        Ok((position, vec![buffer]))
    }

    /// Slots that have had something late since `before` or longer, the oldest first, at most so many; each is named once.
    pub fn tardy(&mut self, before: u64, most: usize) -> Vec<usize> {
        let mut found = Vec::new();
        while let Some(&(since, slot)) = self.tardy.front()
            && since <= before
            && found.len() < most
        {
            self.tardy.pop_front();
            let is_late = |loan: &Loan| !loan.late.is_empty() && loan.since == since;
            if self.slots[slot].loan.as_deref().is_some_and(is_late) {
                found.push(slot);
            }
        }
        found
    }

    /// Keep a visible batch for readers, the newest of its partition. If it does not follow the one before, that one and all before
    /// it are forgotten.
    pub fn keep(&mut self, py: Python<'_>, slot: usize, batch: Py<PyByteArray>) -> PyResult<()> {
        let d = bytes_of(py, &batch);
        let (length, base, next) = (d.len(), batch::i64_at(d, 16) as u64, next_of(d));
        self.keep_at(slot, length, base, next, Place::Shown(Box::new(Shown { batch, view: None })))
    }

    /// The same of a batch that is copied: where to. `held`: it stays there until it is released, kept or not.
    fn keep_copy(&mut self, slot: usize, batch: &[u8], held: bool) -> PyResult<Spot> {
        let (spot, d) = self.slabs.take(slot, batch.len());
        d.copy_from_slice(batch);
        if held {
            self.slabs.hold(spot);
        }
        self.keep_at(slot, batch.len(), batch::i64_at(batch, 16) as u64, next_of(batch), Place::Slab(spot))?;
        Ok(spot)
    }

    fn keep_at(&mut self, slot: usize, length: usize, base: u64, next: u64, place: Place) -> PyResult<()> {
        if self.slot(slot)?.kept.back().is_some_and(|last| last.next != base) {
            self.forget(slot)?;
        }
        self.serial += 1;
        self.slots[slot].kept.push_back(Kept { base, next, serial: self.serial, length, place });
        self.order.push_back((self.serial, slot));
        self.bytes += length + self.object_bytes;
        self.trim();
        Ok(())
    }

    /// Moves what lives in slabs of which much is dead, a few slabs for each call.
    fn move_survivors(&mut self) {
        for _ in 0..MOVED_SLABS_MAX {
            let Some(number) = self.slabs.sparse() else { return };
            for (slot, spot, length, base) in self.slabs.batches(number) {
                let Some(kept) = self.slots.get_mut(slot).map(|lent| &mut lent.kept) else { continue };
                let at = kept.partition_point(|one| one.base < base);
                let Some(one) = kept.get_mut(at).filter(|one| one.place.is_at(spot)) else { continue };
                one.place = Place::Slab(self.slabs.move_to_end(slot, spot, length));
            }
        }
    }

    /// Drop the oldest of all until they are within their bound, at most `freed_max` of them now.
    fn trim(&mut self) {
        for _ in 0..self.freed_max {
            if self.bytes <= self.bytes_max {
                return;
            }
            let Some((serial, slot)) = self.order.pop_front() else { return };
            let kept = &mut self.slots[slot].kept;
            if kept.front().is_some_and(|oldest| oldest.serial == serial) {
                let Some(oldest) = kept.pop_front() else { return };
                self.bytes -= oldest.length + self.object_bytes;
                oldest.place.leave(&mut self.slabs, oldest.length);
            }
        }
    }

    pub fn forget(&mut self, slot: usize) -> PyResult<()> {
        let kept = std::mem::take(&mut self.slot(slot)?.kept);
        self.bytes -= kept.iter().map(|one| one.length + self.object_bytes).sum::<usize>();
        self.stale += kept.len();
        kept.into_iter().for_each(|one| one.place.leave(&mut self.slabs, one.length));
        if self.stale > self.order.len() / 2 {
            self.stale = 0;
            let slots = &self.slots;
            self.order
                .retain(|(serial, slot)| slots[*slot].kept.front().is_some_and(|oldest| oldest.serial <= *serial));
        }
        Ok(())
    }

    /// Kept batches from the one that holds offset on; None if what is kept does not reach back so far, or has nothing behind it.
    pub fn read<'py>(
        &mut self,
        py: Python<'py>,
        slot: usize,
        offset: u64,
        max_bytes: i64,
        make: &Py<PyAny>,
    ) -> PyResult<Option<Bound<'py, PyList>>> {
        let kept = &mut self.slots.get_mut(slot).ok_or_else(|| refuse("no such slot"))?.kept;
        let reaches = kept.front().is_some_and(|first| first.base <= offset);
        if !reaches || kept.back().is_none_or(|last| last.next <= offset) {
            return Ok(None);
        }
        let found = PyList::empty(py);
        let mut left = max_bytes;
        let first = kept.partition_point(|one| one.base <= offset).saturating_sub(1);
        for one in kept.iter_mut().skip(first) {
            found.append(one.place.show(py, &mut self.slabs, one.length, make)?)?;
            left -= one.length as i64;
            if left <= 0 {
                break;
            }
        }
        Ok(Some(found))
    }
}

/// Merges, links and checksums what is pending of one: its bytes. None if it does not fit: then nothing was changed but times in it.
fn seal_one(py: Python<'_>, loan: &mut Loan, bytes_max: usize) -> PyResult<Option<u64>> {
    let time = loan.told_time.unwrap_or(loan.last_time);
    let base = loan.pending[0].base;
    let mut buffers = std::mem::take(&mut loan.spare);
    let mut fresh = Vec::new(); // numbers of those that were merged: the others have their place
    if let [one] = &loan.pending[..] {
        buffers.push(one.batch.clone_ref(py));
    } else {
        let parts: Vec<&Py<PyByteArray>> = loan.pending.iter().map(|one| &one.batch).collect();
        merge_all(py, &parts, time, &mut buffers, &mut fresh)?;
    }
    let size = buffers.iter().map(|batch| batch.bind(py).len() as u64 + loan.link_bytes()).sum::<u64>();
    if size > loan.room() || size > bytes_max as u64 {
        buffers.clear();
        loan.spare = buffers;
        return Ok(None);
    }
    let (mut next, mut greatest) = (base, i64::MIN);
    for (number, batch) in buffers.iter().enumerate() {
        if fresh.contains(&number) {
            place(py, batch, next, time)?;
        }
        if let Some(before) = loan.link {
            batch.bind(py).resize(batch.bind(py).len() + LINK_BYTES)?;
            // SAFETY: the lock is held and no Python code runs before the slice is gone; what is pending was handed over.
            let d = unsafe { batch.bind(py).as_bytes_mut() };
            loan.link = Some(make::link(d, loan.seed, &before, loan.key.as_ref()));
        } else {
            // SAFETY: as above.
            make::checksum(unsafe { batch.bind(py).as_bytes_mut() }, loan.seed);
        }
        let d = bytes_of(py, batch);
        next += u64::from(batch::u32_at(d, 28));
        greatest = greatest.max(batch::i64_at(d, 40));
    }
    let position = loan.position;
    loan.position += size;
    (loan.last_time, loan.told_time) = (time, None);
    let (waiting, owed, link) = (std::mem::take(&mut loan.pending), std::mem::take(&mut loan.owed), loan.link);
    loan.flight = Some(Flight { position, buffers, waiting, owed, placed: false, base, next, greatest, link });
    Ok(Some(size))
}
