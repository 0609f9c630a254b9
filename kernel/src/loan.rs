//! One partition in files that Python has lent to the kernel: where its next batch goes, what is pending, being written, and late.
//!
//! `lent.rs` has all of them, and all rules. No I/O, no clock.

use crate::batch::LINK_BYTES;
use crate::slabs::{Slabs, Spot};
use crate::tail::{Place, bytes_of};
use crate::unzeroed_array;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyList};
use std::collections::VecDeque;

const LOAN_BYTES_MAX: u64 = 1024 * 1024; // pending of one partition: more comes back to Python

pub type Link = [u8; LINK_BYTES];

/// What was appended, and who waits for it: group `number` of the run with this ticket.
pub struct Pending {
    pub batch: Py<PyByteArray>,
    pub base: u64,
    pub ticket: u64,
    pub number: usize,
}

pub struct Flight {
    pub position: u64,
    pub buffers: Vec<Py<PyByteArray>>,
    pub waiting: Vec<Pending>,
    pub owed: usize,
    pub placed: bool, // it goes to its segment now, with all that is late
    pub base: u64,
    pub next: u64,
    pub greatest: i64, // time
    pub link: Option<Link>,
}

/// What was committed and Python has not caught up with: where it begins, and its greatest time.
pub struct Moved {
    pub position: u64,
    pub base: u64,
    pub newest: i64,
    pub synced: bool, // all of it, in the segment itself
}

/// A committed batch that its segment does not have: in a slab, which stays for it, or in an object of Python.
pub enum Late {
    Held(Spot, u32),
    Array(Py<PyByteArray>),
}

/// All of it in one buffer: a list of many would cost more than the copy.
pub fn joined<'py>(py: Python<'py>, slabs: &Slabs, late: &[Late]) -> PyResult<Bound<'py, PyByteArray>> {
    let length = |one: &Late| match one {
        Late::Held(_, length) => *length as usize,
        Late::Array(batch) => bytes_of(py, batch).len(),
    };
    let total = late.iter().map(length).sum();
    unzeroed_array(py, total, |out| {
        let mut at = 0;
        for one in late {
            let d = match one {
                Late::Held(spot, length) => slabs.bytes(*spot, *length as usize),
                Late::Array(batch) => bytes_of(py, batch),
            };
            out[at..at + d.len()].copy_from_slice(d);
            at += d.len();
        }
    })
}

/// It is in its segment.
pub fn release(slabs: &mut Slabs, late: Vec<Late>) {
    for one in late {
        if let Late::Held(spot, _) = one {
            slabs.release(spot);
        }
    }
}

/// Where the next batch goes. `limit`: how far the segment may be written.
pub struct Loan {
    pub inline: bool,
    pub topic_id: u32,
    pub partition: u32,
    pub segment: u64,
    pub seed: u32,
    pub handle: i64,
    pub position: u64,
    pub limit: u64,
    pub end: u64,
    pub last_time: i64,
    pub told_time: Option<i64>, // of what is pending: somebody may have been told
    pub link: Option<Link>,
    pub key: Option<Link>,
    pub pending: Vec<Pending>,
    pub owed: usize, // bytes as they were appended
    pub flight: Option<Flight>,
    pub spare: Vec<Py<PyByteArray>>, // empty: for the buffers of the next flight
    pub written: u64,                // the segment has everything before this position
    pub late: Vec<Late>,             // and these come next: they are committed
    pub since: u64,                  // when the first of them was, as `commit` was told
    pub visible: u64,                // and the link: of what is committed
    pub head: Option<Link>,
    pub moved: Option<Moved>,
    pub low_at: u64, // Python catches up at once with what ends behind this position
}

impl Loan {
    pub fn room(&self) -> u64 {
        self.limit.saturating_sub(self.position).min(LOAN_BYTES_MAX)
    }

    pub fn link_bytes(&self) -> u64 {
        if self.link.is_some() { LINK_BYTES as u64 } else { 0 }
    }

    /// How far it is committed.
    pub fn committed(&self) -> u64 {
        self.flight.as_ref().map_or(self.position, |flight| flight.position)
    }
}

pub struct Kept {
    pub base: u64,
    pub next: u64,
    pub serial: u64,
    pub length: usize,
    pub place: Place,
}

#[derive(Default)]
pub struct Slot {
    pub loan: Option<Box<Loan>>,
    pub kept: VecDeque<Kept>,
    pub topic: Option<usize>,
    pub watched: bool,
    pub recorded: bool,    // it is among `Lents.recorded`
    pub listed: [bool; 2], // and among `Lents.dirty`, by way: still, if it was recalled and lent again
}

/// handle, buffers, position.
pub type Written<'py> = (i64, Bound<'py, PyList>, u64);

/// What is late and what was just sealed go to the segment together.
pub fn place_of<'py>(py: Python<'py>, slabs: &Slabs, loan: &mut Loan) -> PyResult<Written<'py>> {
    let listed = PyList::empty(py);
    if !loan.late.is_empty() {
        listed.append(joined(py, slabs, &loan.late)?)?;
    }
    if let Some(flight) = loan.flight.as_mut() {
        flight.placed = true;
        for buffer in &flight.buffers {
            listed.append(buffer)?;
        }
    }
    Ok((loan.handle, listed, loan.written))
}
