//! The newest part of one partition that is kept in memory, and what is done to a batch of it. `tails.rs` has all of them, and all rules.

use crate::batch::{self, MAX_OFFSET, TIMESTAMPS};
use crate::slabs::{Slabs, Spot};
use crate::{make, prefetch, refuse, unzeroed_array};
use pyo3::prelude::*;
use pyo3::types::PyByteArray;
use std::collections::VecDeque;

const IN_ORDER_US: i64 = 60_000_000; // as in model/clocks.py: a clock that was set back by more is believed
const TURN_BYTES_MIN: usize = 64 * 1024;
const TURN_BYTES_KEPT: usize = 16 * 1024 * 1024; // after a turn that was larger its memory is given back
const TURN_PENDING_KEPT: usize = 256 * 1024;

/// No place in `Turn.pending`.
pub const NONE: u32 = u32::MAX;

/// What was appended in this turn: in the turn's own memory, or in an object of Python.
pub enum Body {
    Own { at: usize, length: usize },
    Array(Py<PyByteArray>),
}

pub struct Pending {
    pub body: Body,
    pub base: u64,
    pub waits: bool, // somebody reads offset and time in this very batch, even if it is merged with others
    pub next: u32,   // of the same tail
}

/// Everything that was appended since the last seal, in its order. Small batches are written behind each other into one buffer.
#[derive(Default)]
pub struct Turn {
    bytes: Vec<u8>, // what is behind `used` is of turns before
    used: usize,
    pub pending: Vec<Pending>,
}

impl Turn {
    /// A batch of this size, of which `fill` writes every byte.
    pub fn make(&mut self, length: usize, fill: impl FnOnce(&mut [u8])) -> Body {
        let (at, end) = (self.used, self.used + length);
        if end > self.bytes.len() {
            self.bytes.resize(end.next_power_of_two().max(TURN_BYTES_MIN), 0);
        }
        fill(&mut self.bytes[at..end]);
        self.used = end;
        Body::Own { at, length }
    }

    pub fn bytes<'a>(&'a self, py: Python<'_>, body: &'a Body) -> &'a [u8] {
        match body {
            Body::Own { at, length } => &self.bytes[*at..at + length],
            Body::Array(batch) => bytes_of(py, batch),
        }
    }

    /// All of it is sealed.
    pub fn clear(&mut self) {
        self.pending.clear();
        self.used = 0;
        if self.bytes.len() > TURN_BYTES_KEPT {
            self.bytes = Vec::new();
        }
        if self.pending.capacity() > TURN_PENDING_KEPT {
            self.pending = Vec::new();
        }
    }
}

/// What readers have of a kept batch: made when the first of them comes, and from then on the only copy.
pub struct Shown {
    pub batch: Py<PyByteArray>,
    pub view: Option<Py<PyAny>>,
}

/// Where a kept batch is.
pub enum Place {
    Slab(Spot),
    Shown(Box<Shown>),
}

impl Place {
    pub fn is_at(&self, spot: Spot) -> bool {
        matches!(self, Place::Slab(own) if *own == spot)
    }

    /// It is dropped.
    pub fn leave(self, slabs: &mut Slabs, length: usize) {
        if let Place::Slab(spot) = self {
            slabs.drop(spot, length);
        }
    }

    /// What `make` made of it.
    pub fn show<'py>(
        &mut self,
        py: Python<'py>,
        slabs: &mut Slabs,
        length: usize,
        make: &Py<PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if let Place::Slab(spot) = *self {
            let d = slabs.bytes(spot, length);
            let batch = unzeroed_array(py, length, |out| out.copy_from_slice(d))?.unbind();
            *self = Place::Shown(Box::new(Shown { batch, view: None }));
            slabs.drop(spot, length);
        }
        let Place::Shown(shown) = self else { return Err(refuse("no such batch")) };
        if let Some(view) = &shown.view {
            return Ok(view.bind(py).clone());
        }
        let view = make.bind(py).call1((&shown.batch,))?;
        shown.view = Some(view.clone().unbind());
        Ok(view)
    }
}

pub struct Kept {
    pub base: u64,
    pub serial: u64,
    pub max_timestamp: i64,
    pub length: usize,
    pub place: Place,
}

pub struct Tail {
    pub first: u32, // of what is pending, in `Turn.pending`
    pub last: u32,
    pub kept: VecDeque<Kept>,
    pub start: u64,
    pub visible: u64,
    pub end: u64,
    pub bytes: usize,
    pub bytes_max: usize,
    pub last_time: i64,
    pub watched: bool,
    pub in_order: bool,         // has its one place in `order`
    pub told_time: Option<i64>, // of this turn's records: somebody was told already
    pub topic: Option<usize>,
}

impl Tail {
    pub fn new(bytes_max: usize, in_order: bool) -> Tail {
        Tail {
            first: NONE,
            last: NONE,
            kept: VecDeque::new(),
            start: 0,
            visible: 0,
            end: 0,
            bytes: 0,
            bytes_max,
            last_time: 0,
            watched: false,
            in_order,
            told_time: None,
            topic: None,
        }
    }

    /// With ten thousand tails in turn, most of what one costs is waiting for memory: they are fetched before they are used.
    pub fn fetch(&self) {
        prefetch(self);
        prefetch(&self.bytes_max);
    }

    /// Where the next batch is kept.
    pub fn fetch_end(&self) {
        let (first, second) = self.kept.as_slices();
        let last = if second.is_empty() { first } else { second };
        prefetch(last.as_ptr_range().end);
    }

    /// The oldest batch, and where it is.
    pub fn fetch_oldest(&self) {
        prefetch(self.kept.as_slices().0.as_ptr());
    }
}

/// The bytes of a batch that only the tails hold, or that nobody writes to: no Python code runs while the slice lives.
pub fn bytes_of<'a>(py: Python<'_>, batch: &'a Py<PyByteArray>) -> &'a [u8] {
    // SAFETY: the lock is held, and the callers run no Python code before the slice is gone; the object lives as long as `batch`.
    unsafe { std::slice::from_raw_parts(batch.bind(py).data(), batch.bind(py).len()) }
}

/// A clock that was set back a little does not take the time back with it.
pub fn following(now: i64, last: i64) -> i64 {
    if now < last && last <= now + IN_ORDER_US { last } else { now }
}

/// Gives a whole, sound batch its offset and time. Most have no times of their own: then these are three fields of the header.
pub fn place(py: Python<'_>, batch: &Py<PyByteArray>, base: u64, now: i64) -> PyResult<()> {
    // SAFETY: as in `bytes_of`; a pending batch is handed over by who appended it.
    place_bytes(unsafe { batch.bind(py).as_bytes_mut() }, base, now)
}

/// The same of a batch that is no object of Python.
pub fn place_bytes(d: &mut [u8], base: u64, now: i64) -> PyResult<()> {
    let fits = base <= MAX_OFFSET - u64::from(batch::u32_at(d, 28));
    if !fits || batch::u16_at(d, 14) & TIMESTAMPS != 0 {
        return make::seal(d, Some((base as i64, now)), None).map_err(refuse);
    }
    batch::put(d, 16, base.to_le_bytes());
    batch::put(d, 32, now.to_le_bytes());
    batch::put(d, 40, now.to_le_bytes());
    Ok(())
}
