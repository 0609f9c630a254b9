//! The newest part of one partition that is kept in memory, and what is done to a batch of it. `tails.rs` has all of them, and all rules.

use crate::batch::{self, MAX_OFFSET, TIMESTAMPS};
use crate::{make, prefetch, refuse};
use pyo3::prelude::*;
use pyo3::types::PyByteArray;
use std::collections::VecDeque;

const IN_ORDER_US: i64 = 60_000_000; // as in model/clocks.py: a clock that was set back by more is believed

pub struct Pending {
    pub batch: Py<PyByteArray>,
    pub base: u64,
    pub waits: bool, // somebody reads offset and time in this very batch, even if it is merged with others
}

pub struct Kept {
    pub base: u64,
    pub serial: u64,
    pub max_timestamp: i64,
    pub length: usize,
    pub batch: Py<PyByteArray>,
    pub view: Option<Py<PyAny>>,
}

#[derive(Default)]
pub struct Tail {
    pub pending: Vec<Pending>,
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
    let d = unsafe { batch.bind(py).as_bytes_mut() };
    let fits = base <= MAX_OFFSET - u64::from(batch::u32_at(d, 28));
    if !fits || batch::u16_at(d, 14) & TIMESTAMPS != 0 {
        return make::seal(d, Some((base as i64, now)), None).map_err(refuse);
    }
    batch::put(d, 16, base.to_le_bytes());
    batch::put(d, 32, now.to_le_bytes());
    batch::put(d, 40, now.to_le_bytes());
    Ok(())
}
