//! Takes a read of a connection without Python, if nothing in it needs a decision: appends it and knows its answers (ADR 54).
//!
//! A `DirectReader` is what a session of a door has learnt: routes, layout, origin. It is used by `sockets.rs`, on what was just
//! read. Either all of the read was appended (`Taken::Whole`), or what the door's own call gives (`blip_append`, `fly_append`,
//! `fast_append`) goes to the session as it is (`Taken::Out`), which does with it what it does with its own reads. Rights are
//! Python's to know: it says by an epoch how long a reader is good. No I/O, no clock.

use crate::blip_py::blip_append;
use crate::fast_py::fast_append;
use crate::fly_append::{FlyAppended, fly_append};
use crate::routes::Routes;
use crate::tails::Tails;
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

const BINARY: u8 = 1; // flag of FlyMQ's answers: frames.BINARY

enum Door {
    Blip { layout: i64, sets: Py<PyDict>, append_sets: bool, origin: Py<PyBytes> },
    Fly { counts: Py<PyDict>, append_sets: bool, origin: Py<PyBytes> },
    Fast { tokens: Py<PyDict>, topics: Py<PyDict>, same: Option<Py<PyBytes>>, answered: bool },
}

/// See above. Made anew by its session when something of it changes.
#[pyclass(frozen, module = "quintet.kernel._native")]
pub struct DirectReader {
    tails: Py<Tails>,
    routes: Py<Routes>,
    frame_bytes_max: i64,
    door: Door,
    seen: AtomicI64, // microseconds since 1970: when the clock is before this, or not before `until`, Python has to look
    until: i64,
}

#[pymethods]
impl DirectReader {
    #[staticmethod]
    fn blip(
        tails: Py<Tails>,
        routes: Py<Routes>,
        layout: i64,
        frame_bytes_max: i64,
        origin: Py<PyBytes>,
        sets: Py<PyDict>,
        append_sets: bool,
    ) -> DirectReader {
        let door = Door::Blip { layout, sets, append_sets, origin };
        DirectReader { tails, routes, frame_bytes_max, door, seen: AtomicI64::new(0), until: i64::MAX }
    }

    #[staticmethod]
    fn fly(
        tails: Py<Tails>,
        routes: Py<Routes>,
        frame_bytes_max: i64,
        counts: Py<PyDict>,
        origin: Py<PyBytes>,
        append_sets: bool,
    ) -> DirectReader {
        let door = Door::Fly { counts, append_sets, origin };
        DirectReader { tails, routes, frame_bytes_max, door, seen: AtomicI64::new(0), until: i64::MAX }
    }

    #[staticmethod]
    #[allow(clippy::too_many_arguments)]
    fn fast(
        tails: Py<Tails>,
        routes: Py<Routes>,
        payload_bytes_max: i64,
        tokens: Py<PyDict>,
        topics: Py<PyDict>,
        same: Option<Py<PyBytes>>,
        answered: bool,
        seen: i64,
        until: i64,
    ) -> DirectReader {
        let door = Door::Fast { tokens, topics, same, answered };
        DirectReader { tails, routes, frame_bytes_max: payload_bytes_max, door, seen: AtomicI64::new(seen), until }
    }

    /// The date of the last read.
    #[getter]
    fn seen(&self) -> i64 {
        self.seen.load(Relaxed)
    }
}

/// What the session makes a reply slot of, if it has to answer itself.
pub enum Unanswered {
    Blip(Vec<(Py<PyBytes>, Py<PyBytes>)>),
    Fly(Py<FlyAppended>, u8),
    Fast(Py<PyBytes>, Vec<(u32, u64)>),
}

impl Unanswered {
    /// As the `adopt` of its session takes it.
    pub fn into_python(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        match self {
            Unanswered::Blip(groups) => groups.into_py_any(py),
            Unanswered::Fly(made, op) => (made, op).into_py_any(py),
            Unanswered::Fast(oks, groups) => (oks, groups).into_py_any(py),
        }
    }

    /// The answers, once all of it is as durable as it promises.
    pub fn answers(&self, py: Python<'_>) -> Vec<u8> {
        match self {
            Unanswered::Blip(groups) => groups.iter().flat_map(|(_, pongs)| pongs.as_bytes(py)).copied().collect(),
            Unanswered::Fly(made, _) => made.get().made(py).to_vec(),
            Unanswered::Fast(oks, _) => oks.as_bytes(py).to_vec(),
        }
    }
}

/// What was appended to partitions in files: `unanswered` is None if nobody waits to hear of it.
pub struct Waits {
    pub ticket: u64,
    pub ways: u8,
    pub unanswered: Option<Unanswered>,
}

pub enum Taken {
    /// Answers to send now, and what waits behind them.
    Whole(Py<PyBytes>, Option<Waits>),
    /// For the session, as its door's own call would have given it.
    Out(Py<PyAny>),
}

impl DirectReader {
    pub fn tails<'py>(&self, py: Python<'py>) -> &Bound<'py, Tails> {
        self.tails.bind(py)
    }

    pub fn is_good(&self, now: i64) -> bool {
        self.seen.load(Relaxed) <= now && now < self.until
    }

    /// Append `data`. `out`: the session has to see it in any case.
    pub fn take<'py>(
        &self,
        py: Python<'py>,
        data: &Bound<'py, PyAny>,
        length: usize,
        now: i64,
        out: bool,
    ) -> PyResult<Taken> {
        self.seen.store(now, Relaxed);
        let (tails, routes, most) = (self.tails.bind(py), self.routes.bind(py), self.frame_bytes_max);
        match &self.door {
            Door::Blip { layout, sets, append_sets, origin } => {
                let (origin, sets) = (origin.as_bytes(py), Some(sets.bind(py)));
                let found = blip_append(py, tails, routes, data, 0, *layout, most, origin, now, sets, *append_sets)?;
                let (_, items, end, fatal, last, _) = &found;
                if out || !items.is_empty() || *fatal != 0 || *end != length || is_overrun(py, last)? {
                    return Ok(Taken::Out(found.into_py_any(py)?));
                }
                let (pongs, _, _, _, _, held) = found;
                let waits = held.map(|(ticket, groups, ways)| {
                    let groups: Vec<_> =
                        groups.into_iter().map(|(ids, pongs)| (ids.unbind(), pongs.unbind())).collect();
                    Waits { ticket, ways, unanswered: Some(Unanswered::Blip(groups)) }
                });
                Ok(whole(py, pongs.unbind(), waits))
            }
            Door::Fly { counts, append_sets, origin } => {
                let (counts, origin) = (counts.bind(py), origin.as_bytes(py));
                let found = fly_append(py, tails, routes, data, 0, most, counts, origin, now, BINARY, *append_sets)?;
                let (told, items, end, fatal, unknown, last) = &found;
                let whole_read =
                    items.is_empty() && *fatal == 0 && unknown.is_none() && *end == length && last.is_some();
                if out || !whole_read {
                    return Ok(Taken::Out(found.into_py_any(py)?));
                }
                if let Ok(answers) = told.cast::<PyBytes>() {
                    return Ok(Taken::Whole(answers.clone().unbind(), None));
                }
                let (ticket, made, rest, ways, op): (u64, Py<FlyAppended>, Vec<(usize, usize)>, u8, u8) =
                    told.extract()?;
                if !rest.is_empty() {
                    return Ok(Taken::Out(found.into_py_any(py)?));
                }
                let waits = Waits { ticket, ways, unanswered: Some(Unanswered::Fly(made, op)) };
                Ok(Taken::Whole(PyBytes::new(py, &[]).unbind(), Some(waits)))
            }
            Door::Fast { tokens, topics, same, answered } => {
                let (tokens, topics) = (tokens.bind(py), topics.bind(py));
                let given = same.as_ref().map(|same| same.bind(py).clone());
                let found = fast_append(py, tails, routes, data, 0, most, tokens, topics, now, given, *answered)?;
                let (_, items, end, fatal, unknown, behind, last, _) = &found;
                let is_same = match (behind, same) {
                    (Some(behind), Some(same)) => behind.is(same.bind(py)),
                    (None, None) => true,
                    _ => false,
                };
                let whole_read = items.is_empty() && *fatal == 0 && unknown.is_none() && *end == length && is_same;
                if out || !whole_read || last.is_none() || is_overrun(py, last)? {
                    return Ok(Taken::Out(found.into_py_any(py)?));
                }
                let (answers, _, _, _, _, _, _, held) = found;
                let waits = held.map(|(ticket, oks, groups, ways)| {
                    let told = *answered || groups.iter().any(|(_, count)| *count != 0);
                    Waits { ticket, ways, unanswered: told.then(|| Unanswered::Fast(oks.unbind(), groups)) }
                });
                Ok(Taken::Whole(answers.unbind(), waits))
            }
        }
    }
}

/// Of BlipMQ: publishes of QoS 0 wait for nothing, so what is behind them is answered now.
fn whole(py: Python<'_>, pongs: Py<PyBytes>, waits: Option<Waits>) -> Taken {
    let Some(mut waits) = waits else { return Taken::Whole(pongs, None) };
    if let Some(Unanswered::Blip(groups)) = &waits.unanswered
        && groups.iter().all(|(ids, _)| ids.as_bytes(py).is_empty())
    {
        let mut now = pongs.as_bytes(py).to_vec();
        groups.iter().for_each(|(_, behind)| now.extend_from_slice(behind.as_bytes(py)));
        waits.unanswered = None;
        return Taken::Whole(PyBytes::new(py, &now).unbind(), Some(waits));
    }
    Taken::Whole(pongs, Some(waits))
}

/// A publisher has to wait for a slow reader of its topic: how, is the session's to judge (protocols/base.py, `congestion`).
fn is_overrun(py: Python<'_>, topic: &Option<Py<PyAny>>) -> PyResult<bool> {
    let Some(topic) = topic else { return Ok(false) };
    let topic = topic.bind(py);
    Ok(topic.getattr("subscriptions")?.is_truthy()? && topic.call_method0("overrun")?.is_truthy()?)
}
