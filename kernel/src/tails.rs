//! The newest part of partitions that are kept in memory: what was appended in this turn, and what is kept of it.
//!
//! A door appends to any number of topics in one call (`blip_append`, `fast_append`, `fly_append`), one call at the end of the turn gives everything its
//! offset and makes it visible (`seal`), and nothing in between is done by Python for each topic. No I/O, no clock: the turn's
//! time is handed in. A small batch is in slabs (`slabs.rs`) until somebody reads it: only then it becomes a bytearray of
//! Python's, as readers and subscribers hold it. `pure_tails.py` is the same in Python, and the specification.
//!
//!     append -> pending --(seal: merge, offsets, time)--> kept, visible --(bounds, age)--> dropped, oldest first

use crate::batch::{self, Batch};
use crate::lent::{CaughtUp, Committed, Lents, Recalled, Sealed, Terms};
use crate::order::Order;
use crate::slabs::{self, Slabs};
use crate::tail::{Body, Kept, NONE, Pending, Tail, Turn, bytes_of, following, place};
use crate::{prefetch, refuse, unzeroed_array};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyList};
use std::collections::VecDeque;

pub(crate) const AHEAD: usize = 8; // tails between the fetch of one and its use: by then memory has answered

/// A topic whose publishes need no look by Python: its partitions, and how many records came this way.
#[derive(Default)]
pub(crate) struct Topic {
    generation: u32,
    open: bool,
    lent: bool, // its partitions are in files: the slots are those of `Lents`
    slots: Vec<usize>,
    next: usize,
    published: u64,
}

#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) appends: u64,
    pub(crate) batches: u64,
    pub(crate) bytes: u64,
    pub(crate) dropped: u64,
}

#[pyclass(generic, module = "quintet.kernel._native")]
pub struct Tails {
    pub(crate) tails: Vec<Tail>,
    pub(crate) free: Vec<usize>,
    pub(crate) topics: Vec<Topic>,
    pub(crate) free_topics: Vec<usize>,
    pub(crate) dirty: Vec<usize>,
    pub(crate) turn: Turn,
    pub(crate) slabs: Slabs,
    pub(crate) order: Order, // one place for each tail that keeps something, by the serial of its oldest batch
    pub(crate) doomed: Vec<VecDeque<Kept>>,
    pub(crate) serial: u64,
    pub(crate) bytes: usize,
    pub(crate) bytes_max: usize,
    pub(crate) object_bytes: usize,
    pub(crate) freed_max: usize,
    pub(crate) view: Py<PyAny>,
    pub(crate) counts: Counts,
    pub(crate) lents: Lents,
}

impl Tails {
    fn tail(&mut self, slot: usize) -> PyResult<&mut Tail> {
        self.tails.get_mut(slot).ok_or_else(|| refuse("no such tail"))
    }

    /// Takes a whole, sound batch: `seal` does not refuse any.
    fn push(&mut self, slot: usize, body: Body, span: u64, waits: bool) -> PyResult<u64> {
        let number = self.turn.pending.len() as u32;
        let tail = self.tails.get_mut(slot).ok_or_else(|| refuse("no such tail"))?;
        let base = tail.end;
        tail.end = base + span;
        if tail.first == NONE {
            tail.first = number;
            self.dirty.push(slot);
        } else {
            self.turn.pending[tail.last as usize].next = number;
        }
        tail.last = number;
        self.turn.pending.push(Pending { body, base, waits, next: NONE });
        Ok(base)
    }

    fn push_array(&mut self, py: Python<'_>, slot: usize, batch: Py<PyByteArray>, waits: bool) -> PyResult<u64> {
        let span = u64::from(batch::u32_at(bytes_of(py, &batch), 28));
        self.push(slot, Body::Array(batch), span, waits)
    }

    /// A batch of this size, of which `fill` writes every byte.
    fn make(&mut self, py: Python<'_>, length: usize, fill: impl FnOnce(&mut [u8])) -> PyResult<Body> {
        if length > slabs::BATCH_BYTES_MAX {
            return Ok(Body::Array(unzeroed_array(py, length, fill)?.unbind()));
        }
        Ok(self.turn.make(length, fill))
    }

    /// Append to a topic whose handle is current and open, to the next of its partitions: a batch of `count` records and this size, of
    /// which `fill` writes every byte. False: Python decides.
    pub fn publish(
        &mut self,
        py: Python<'_>,
        handle: u64,
        count: u64,
        length: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> PyResult<bool> {
        let Some(slot) = self.next_slot(handle, count) else { return Ok(false) };
        let body = self.make(py, length, fill)?;
        self.push(slot, body, count, false)?;
        Ok(true)
    }

    /// What `publish` to this handle reads first is fetched.
    pub fn fetch_topic(&self, handle: u64) {
        if let Some(topic) = self.topics.get(handle as u32 as usize) {
            prefetch(topic);
        }
    }

    /// And what it reads then.
    pub fn fetch_tail(&self, handle: u64) {
        if let Some(topic) = self.topics.get(handle as u32 as usize)
            && !topic.lent
            && let Some(tail) = topic.slots.get(topic.next).and_then(|slot| self.tails.get(*slot))
        {
            prefetch(tail);
        }
    }

    /// Is this handle current and open, and does its topic have this partition (-1: the next in turn)?
    pub fn takes(&self, handle: u64, partition: i32) -> bool {
        self.current(handle, partition).is_some_and(|topic| !topic.lent)
    }

    /// The same of a topic in files, for a batch of this size.
    pub fn takes_lent(&self, handle: u64, partition: i32, size: usize) -> bool {
        self.current(handle, partition).is_some_and(|topic| {
            let number = if partition < 0 { topic.next } else { partition as usize };
            topic.lent && self.lents.takes(topic.slots[number], size)
        })
    }

    /// How many partitions the topic of this handle has, if it is current and open.
    pub fn partition_count(&self, handle: u64) -> Option<u32> {
        self.current(handle, -1).map(|topic| topic.slots.len() as u32)
    }

    fn current(&self, handle: u64, partition: i32) -> Option<&Topic> {
        self.topics.get(handle as u32 as usize).filter(|topic| {
            topic.open
                && topic.generation == (handle >> 32) as u32
                && (-1..topic.slots.len() as i64).contains(&i64::from(partition))
        })
    }

    /// The number of a run of which some was appended to partitions in files: who waits for it is known by it.
    pub fn ticket(&mut self) -> u64 {
        self.lents.ticket += 1;
        self.lents.ticket
    }

    /// As `publish_at`, of what `takes_lent` said yes to: group `number` of the run with this ticket. Its partition, and whether it is
    /// written inline.
    #[allow(clippy::too_many_arguments)]
    pub fn publish_lent(
        &mut self,
        py: Python<'_>,
        handle: u64,
        partition: i32,
        count: u64,
        batch: &Py<PyByteArray>,
        now: i64,
        waits: (u64, usize),
    ) -> PyResult<(i32, bool)> {
        let topic = &mut self.topics[handle as u32 as usize];
        let number = if partition < 0 { topic.next } else { partition as usize };
        if partition < 0 {
            topic.next = if number + 1 < topic.slots.len() { number + 1 } else { 0 };
        }
        topic.published += count;
        let inline = self.lents.append(py, topic.slots[number], batch, now, waits.0, waits.1)?;
        Ok((number as i32, inline))
    }

    /// Append what `takes` said yes to, and give it the offset and the time it will have; returns its partition.
    pub fn publish_at(
        &mut self,
        py: Python<'_>,
        handle: u64,
        partition: i32,
        count: u64,
        batch: &Py<PyByteArray>,
        now: i64,
    ) -> PyResult<i32> {
        let (partition, slot) = self.chosen_slot(handle, partition, count)?;
        let base = self.push_array(py, slot, batch.clone_ref(py), false)?;
        place(py, batch, base, self.tell_time(slot, now))?;
        Ok(partition)
    }

    /// The same of a batch that is made here, as `publish` makes it: partition, offset and time.
    #[allow(clippy::too_many_arguments)]
    pub fn publish_told(
        &mut self,
        py: Python<'_>,
        handle: u64,
        partition: i32,
        count: u64,
        now: i64,
        length: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> PyResult<(i32, u64, i64)> {
        let (partition, slot) = self.chosen_slot(handle, partition, count)?;
        let body = self.make(py, length, fill)?;
        let base = self.push(slot, body, count, false)?;
        Ok((partition, base, self.tell_time(slot, now)))
    }

    fn chosen_slot(&mut self, handle: u64, partition: i32, count: u64) -> PyResult<(i32, usize)> {
        let topic = &mut self.topics[handle as u32 as usize];
        if partition < 0 {
            return Ok((topic.next as i32, self.next_slot(handle, count).ok_or_else(|| refuse("no such topic"))?));
        }
        topic.published += count;
        Ok((partition, topic.slots[partition as usize]))
    }

    /// The time of what is appended in this turn, of which somebody is told now.
    fn tell_time(&mut self, slot: usize, now: i64) -> i64 {
        let tail = &mut self.tails[slot];
        *tail.told_time.get_or_insert(following(now, tail.last_time))
    }

    fn next_slot(&mut self, handle: u64, count: u64) -> Option<usize> {
        if !self.takes(handle, -1) {
            return None;
        }
        let topic = &mut self.topics[handle as u32 as usize];
        topic.published += count;
        let slot = topic.slots[topic.next];
        topic.next = if topic.next + 1 < topic.slots.len() { topic.next + 1 } else { 0 };
        Some(slot)
    }
}

#[pymethods]
impl Tails {
    /// Whoever made it holds it, and `view` holds them: the collector must see that. Batches and what `view` made of them lead nowhere.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.view)
    }

    fn __clear__(&mut self, py: Python<'_>) {
        self.view = py.None();
    }

    #[new]
    fn new(view: Py<PyAny>, bytes_max: usize, object_bytes: usize, freed_max: usize) -> Tails {
        Tails {
            tails: Vec::new(),
            free: Vec::new(),
            topics: Vec::new(),
            free_topics: Vec::new(),
            dirty: Vec::new(),
            turn: Turn::default(),
            slabs: Slabs::default(),
            order: Order::default(),
            doomed: Vec::new(),
            serial: 0,
            bytes: 0,
            bytes_max,
            object_bytes,
            freed_max,
            view,
            counts: Counts::default(),
            lents: Lents::new(object_bytes, freed_max),
        }
    }

    fn open(&mut self, bytes_max: usize) -> usize {
        match self.free.pop() {
            Some(slot) => {
                let in_order = self.tails[slot].in_order; // the place of the one before it is still there
                self.tails[slot] = Tail::new(bytes_max, in_order);
                slot
            }
            None => {
                self.tails.push(Tail::new(bytes_max, false));
                self.tails.len() - 1
            }
        }
    }

    fn close(&mut self, slot: usize) -> PyResult<()> {
        if let Some(topic) = self.tail(slot)?.topic {
            self.topics[topic].open = false;
        }
        self.bytes -= self.tails[slot].bytes;
        let tail = &mut self.tails[slot];
        let kept = std::mem::take(&mut tail.kept);
        tail.bytes = 0;
        tail.told_time = None;
        (tail.first, tail.last) = (NONE, NONE);
        tail.topic = None;
        if !kept.is_empty() {
            self.doomed.push(kept);
        }
        self.free.push(slot);
        Ok(())
    }

    #[pyo3(signature = (slots, lent=false))]
    fn add_topic(&mut self, slots: Vec<usize>, lent: bool) -> PyResult<u64> {
        let known = |slot: &usize| if lent { self.lents.has(*slot) } else { *slot < self.tails.len() };
        if slots.is_empty() || !slots.iter().all(known) {
            return Err(refuse("no such tail"));
        }
        let index = self.free_topics.pop().unwrap_or_else(|| {
            self.topics.push(Topic::default());
            self.topics.len() - 1
        });
        for slot in &slots {
            if lent {
                self.lents.set_topic(*slot, Some(index));
            } else {
                self.tails[*slot].topic = Some(index);
            }
        }
        let topic = &mut self.topics[index];
        topic.generation = topic.generation.wrapping_add(1);
        (topic.open, topic.lent, topic.next, topic.published, topic.slots) = (true, lent, 0, 0, slots);
        Ok(u64::from(topic.generation) << 32 | index as u64)
    }

    fn remove_topic(&mut self, handle: u64) {
        let index = handle as u32 as usize;
        let Some(topic) = self.topics.get_mut(index) else { return };
        if topic.generation == (handle >> 32) as u32 && !topic.slots.is_empty() {
            topic.open = false;
            let lent = topic.lent;
            for slot in std::mem::take(&mut topic.slots) {
                if lent {
                    self.lents.set_topic(slot, None);
                } else {
                    self.tails[slot].topic = None;
                }
            }
            self.free_topics.push(index);
        }
    }

    fn published(&self, handle: u64) -> u64 {
        let current = |topic: &&Topic| topic.generation == (handle >> 32) as u32 && !topic.slots.is_empty();
        self.topics.get(handle as u32 as usize).filter(current).map_or(0, |topic| topic.published)
    }

    fn append(&mut self, py: Python<'_>, slot: usize, batch: Py<PyByteArray>, waits: bool) -> PyResult<u64> {
        let d = bytes_of(py, &batch);
        if Batch::open(d, 0).map_err(refuse)?.head.length != d.len() {
            return Err(refuse("the bytearray must hold exactly one batch"));
        }
        self.push_array(py, slot, batch, waits)
    }

    #[getter]
    fn dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    fn seal(&mut self, py: Python<'_>, now: i64) -> PyResult<(Vec<usize>, bool)> {
        let mut moved = Vec::new();
        let (dirty, mut turn) = (std::mem::take(&mut self.dirty), std::mem::take(&mut self.turn));
        for (number, &slot) in dirty.iter().enumerate() {
            if let Some(later) = dirty.get(number + 2 * AHEAD) {
                self.tails[*later].fetch();
            }
            if let Some(soon) = dirty.get(number + AHEAD) {
                self.tails[*soon].fetch_end();
            }
            if self.tails[slot].first == NONE {
                continue; // it was closed meanwhile
            }
            if let Err(error) = self.seal_one(py, &mut turn, slot, now) {
                self.dirty.extend(&dirty[number + 1..]);
                self.turn = turn; // what is still to be sealed is in it
                return Err(error);
            }
            if self.tails[slot].watched {
                moved.push(slot);
            }
        }
        turn.clear();
        self.turn = turn;
        self.move_survivors();
        let more = (self.bytes > self.bytes_max || !self.doomed.is_empty()) && self.trim_order();
        Ok((moved, more))
    }

    fn trim(&mut self) -> bool {
        self.trim_order()
    }

    fn drop_older(&mut self, slot: usize, before: i64) -> PyResult<bool> {
        self.tail(slot)?;
        let more = self.drop_over_bound(slot, before);
        self.move_survivors();
        Ok(more)
    }

    fn read<'py>(&mut self, py: Python<'py>, slot: usize, offset: u64, max_bytes: i64) -> PyResult<Bound<'py, PyList>> {
        let found = PyList::empty(py);
        let make = self.view.clone_ref(py);
        let tail = self.tails.get_mut(slot).ok_or_else(|| refuse("no such tail"))?;
        let mut at = tail.kept.partition_point(|kept| kept.base <= offset).saturating_sub(1);
        let mut left = max_bytes;
        while offset < tail.visible && at < tail.kept.len() {
            let kept = &mut tail.kept[at];
            found.append(kept.place.show(py, &mut self.slabs, kept.length, &make)?)?;
            left -= kept.length as i64;
            if left <= 0 {
                break;
            }
            at += 1;
        }
        Ok(found)
    }

    fn offset_at(&mut self, slot: usize, timestamp: i64) -> PyResult<u64> {
        let tail = self.tail(slot)?;
        Ok(tail.kept.iter().find(|kept| kept.max_timestamp >= timestamp).map_or(tail.visible, |kept| kept.base))
    }

    fn set_watched(&mut self, slot: usize, watched: bool) -> PyResult<()> {
        self.tail(slot)?.watched = watched;
        Ok(())
    }

    fn state(&mut self, slot: usize) -> PyResult<(u64, u64, u64, usize)> {
        let tail = self.tail(slot)?;
        Ok((tail.start, tail.visible, tail.end, tail.bytes))
    }

    #[getter]
    fn bytes(&self) -> usize {
        self.bytes
    }

    fn take_counts(&mut self) -> (u64, u64, u64, u64) {
        let counts = std::mem::take(&mut self.counts);
        let lents = &mut self.lents;
        let [appends, batches, bytes] =
            [&mut lents.appends, &mut lents.batches, &mut lents.written].map(std::mem::take);
        (counts.appends + appends, counts.batches + batches, counts.bytes + bytes, counts.dropped)
    }

    // -- partitions in files: the work is in lent.rs --

    fn open_lent(&mut self) -> usize {
        self.lents.open_slot()
    }

    fn close_lent(&mut self, slot: usize) -> PyResult<()> {
        if let Some(topic) = self.lents.close_slot(slot)? {
            self.topics[topic].open = false;
        }
        Ok(())
    }

    fn lend(&mut self, slot: usize, inline: bool, terms: Terms, link: &[u8], key: &[u8]) -> PyResult<()> {
        self.lents.lend(slot, inline, terms, link, key)
    }

    fn append_lent(
        &mut self,
        py: Python<'_>,
        slot: usize,
        batch: Py<PyByteArray>,
        now: i64,
        ticket: u64,
    ) -> PyResult<Option<u64>> {
        let d = bytes_of(py, &batch);
        if Batch::open(d, 0).map_err(refuse)?.head.length != d.len() {
            return Err(refuse("the bytearray must hold exactly one batch"));
        }
        if !self.lents.has(slot) || !self.lents.takes(slot, d.len()) {
            return Ok(None);
        }
        let base = self.lents.end(slot)?;
        self.lents.append(py, slot, &batch, now, ticket, 0)?;
        Ok(Some(base))
    }

    fn extend_lent(&mut self, slot: usize, limit: u64) -> PyResult<()> {
        self.lents.extend(slot, limit)
    }

    fn lent_end(&mut self, slot: usize) -> PyResult<u64> {
        self.lents.end(slot)
    }

    fn dirty_lent(&self, inline: bool) -> Vec<usize> {
        self.lents.dirty(inline)
    }

    #[pyo3(signature = (inline, bytes_max, later, alone=false))]
    fn seal_lent<'py>(
        &mut self,
        py: Python<'py>,
        inline: bool,
        bytes_max: usize,
        later: u64,
        alone: bool,
    ) -> PyResult<Sealed<'py>> {
        self.lents.seal(py, inline, bytes_max, later, alone)
    }

    #[pyo3(signature = (inline, monotonic, how=0))]
    fn commit_lent(&mut self, py: Python<'_>, inline: bool, monotonic: u64, how: u8) -> PyResult<Committed> {
        self.lents.commit(py, inline, monotonic, how)
    }

    fn flying_lent(&self, inline: bool) -> Vec<usize> {
        self.lents.flying(inline)
    }

    fn set_watched_lent(&mut self, slot: usize, watched: bool) -> PyResult<()> {
        self.lents.set_watched(slot, watched)
    }

    fn set_low_lent(&mut self, slot: usize, low_at: u64) -> PyResult<()> {
        self.lents.set_low(slot, low_at)
    }

    fn lent_visible(&mut self, slot: usize) -> PyResult<u64> {
        self.lents.visible(slot)
    }

    fn catch_up_lent<'py>(&mut self, py: Python<'py>, slot: usize) -> PyResult<Option<CaughtUp<'py>>> {
        self.lents.catch_up(py, slot)
    }

    fn take_moved(&mut self) -> Vec<usize> {
        self.lents.take_moved()
    }

    fn take_recorded(&mut self) -> Vec<usize> {
        self.lents.take_recorded()
    }

    fn take_late(&mut self, py: Python<'_>, slot: usize) -> PyResult<(u64, Vec<Py<PyByteArray>>)> {
        self.lents.take_late(py, slot)
    }

    fn tardy_lent(&mut self, before: u64, most: usize) -> Vec<usize> {
        self.lents.tardy(before, most)
    }

    #[getter]
    fn late_bytes(&self) -> usize {
        self.lents.late_bytes
    }

    fn recall<'py>(&mut self, py: Python<'py>, slot: usize) -> PyResult<Recalled<'py>> {
        self.lents.recall(py, slot)
    }

    fn keep_lent(&mut self, py: Python<'_>, slot: usize, batch: Py<PyByteArray>) -> PyResult<()> {
        self.lents.keep(py, slot, batch)
    }

    fn forget_lent(&mut self, slot: usize) -> PyResult<()> {
        self.lents.forget(slot)
    }

    fn read_lent<'py>(
        &mut self,
        py: Python<'py>,
        slot: usize,
        offset: u64,
        max_bytes: i64,
    ) -> PyResult<Option<Bound<'py, PyList>>> {
        let make = self.view.clone_ref(py);
        self.lents.read(py, slot, offset, max_bytes, &make)
    }

    fn set_lending(&mut self, open: bool, bytes_max: usize) {
        (self.lents.open, self.lents.bytes_max) = (open, bytes_max);
    }

    #[getter]
    fn lent_unsynced(&self) -> usize {
        self.lents.unsynced()
    }

    #[getter]
    fn lent_bytes(&self) -> usize {
        self.lents.bytes
    }
}
