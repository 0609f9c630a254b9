//! Appends what doors read to partitions in files that are lent, and says who waits for it: one ticket for each call of a door.
//!
//! `lent.rs` keeps the loans; which groups of a read may go there, and what comes out beside them, is the doors' matter
//! (`fly_py.rs`, `blip_py.rs`, `fast_py.rs`). `pure_append.py` has the same in Python, and the specification.

use crate::tails::Tails;
use pyo3::prelude::*;
use pyo3::types::PyByteArray;

/// What one call has appended so. `ways`: 1 by the journal, 2 inline, 3 both; 0 nothing.
#[derive(Default)]
pub struct Holding {
    pub ticket: u64,
    pub ways: u8,
}

impl Holding {
    /// Append a batch, which `Tails::takes_lent` said yes to, for group `number` of the call: its partition.
    #[allow(clippy::too_many_arguments)]
    pub fn append(
        &mut self,
        py: Python<'_>,
        tails: &mut Tails,
        handle: u64,
        partition: i32,
        count: u64,
        batch: &Py<PyByteArray>,
        now: i64,
        number: usize,
    ) -> PyResult<i32> {
        if self.ways == 0 {
            self.ticket = tails.ticket();
        }
        let (chosen, inline) = tails.publish_lent(py, handle, partition, count, batch, now, (self.ticket, number))?;
        self.ways |= if inline { 2 } else { 1 };
        Ok(chosen)
    }
}
