//! Writes what a read that is alone appended to one partition in files, syncs it where that is promised, and commits it (ADR 51).
//!
//!     appended --seal--> sealed --pwritev--(fdatasync)--commit--> Written: the answer may leave
//!                |                    +---------+---------------> Failed: it is Python's to take back
//!                +----------------------------------------------> Unfit: it is Python's to recall
//!
//! So between the read of a lone message and its answer no Python runs. Whether that may be is Python's to say, before the read
//! (log/embedded/partitions/lone.py, `may_write`), and so is everything that goes wrong. A sync that failed is not tried again.
//! Called by the thread of the loop, which waits for the disk meanwhile, without the interpreter's lock. Linux only.

use crate::disk::Place;
use crate::lent::{Committed, SYNCED};
use crate::tails::Tails;
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use std::time::Instant;

// What `may` says in place of the slot that may be written and synced.
pub const NO_SYNC: i64 = -1; // only what needs no sync may be written
pub const NOTHING: i64 = -2;

// Of the ways of what was appended: items.FlyHeld.
const BY_SYNC: u8 = 1;
const INLINE: u8 = 2;

/// The slot, how long its write and sync took (None: there was no sync), slots that are low, slots that are watched, appends.
pub type Wrote = (usize, Option<f64>, Vec<usize>, Vec<usize>, usize);
/// What was sealed and not written (None: nothing was), slots without room for it, the step that failed (0: write, 1: sync), its errno.
pub type Unwritten = (Option<Py<PyAny>>, Vec<usize>, usize, i32);

pub enum Outcome {
    Untried,
    Unwritten(Unwritten),
    Written(Wrote),
}

/// Write what is pending, if one partition has something and may be written here. `ways`: of what the read appended.
pub fn write(tails: &Bound<'_, Tails>, ways: u8, may: i64, bytes_max: usize) -> PyResult<Outcome> {
    let (py, inline) = (tails.py(), ways == INLINE);
    if may == NOTHING || !(inline || ways == BY_SYNC) {
        return Ok(Outcome::Untried);
    }
    let (slot, sealed) = {
        let lents = &mut tails.try_borrow_mut()?.lents;
        let Some(slot) = lents.only_dirty(inline, bytes_max).filter(|slot| inline || *slot as i64 == may) else {
            return Ok(Outcome::Untried);
        };
        (slot, lents.seal(py, inline, usize::MAX, 0, !inline)?)
    };
    let Some((handle, buffers, position)) = sealed.1.first() else {
        return Ok(Outcome::Unwritten((None, sealed.5, 0, 0)));
    };
    let place = Place::new(*handle as i32, &buffers.iter().collect::<Vec<_>>(), *position as i64)?;
    let (done, seconds) = py.detach(|| {
        let began = Instant::now();
        let written = place.write().map_err(|code| (0, code));
        let done = if inline { written } else { written.and_then(|()| place.sync().map_err(|code| (1, code))) };
        (done, began.elapsed().as_secs_f64())
    });
    drop(place);
    if let Err((step, code)) = done {
        return Ok(Outcome::Unwritten((Some(sealed.into_py_any(py)?), Vec::new(), step, code)));
    }
    let how = if inline { 0 } else { SYNCED };
    let (low, watched): Committed = tails.try_borrow_mut()?.lents.commit(py, inline, 0, how)?;
    Ok(Outcome::Written((slot, (!inline).then_some(seconds), low, watched, sealed.6)))
}
